"""Fleets with count and state windows: one order of all readings, whatever happens on their way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.windows import CountSliding, CountTumbling, State
from edge_agent.machines.events import Restored
from edge_agent.machines.merger import Merger
from edge_agent.machines.node import NodeSettings
from edge_agent.machines.root import Root
from tests import oracle
from tests.simulation.fleet import GRACE, LABELS, Fleet, GatewayHost, _text
from tests.simulation.world import MS, SECOND, Chaos, Host, RootHost
from tests.tolerance import close


class CountedFleet(Fleet):
    """Every parent names its children: whom nobody expects nobody waits for, and positions are final."""

    def _queries(self, random: Random) -> tuple[Query, ...]:
        length = random.randint(1, 9)
        windows = [CountTumbling(1), CountSliding(length, random.randint(1, length)), State("value > 10", "value < 0")]
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "max", "avg", "var", "last", "changes"))
        by, lateness = random.choice([(), ("machine",)]), random.choice([0, 1, 2]) * SECOND
        return tuple(
            Query(f"q{i}", 1, "s", window, aggregates, by=by, lateness_us=lateness, late="per_window")
            for i, window in enumerate(windows)
        )

    def __init__(self, seed: int, chaos: Chaos) -> None:
        super().__init__(seed, chaos)
        self.root.decider.parent.household.named |= set(self._below("root"))

    def _root(self, journal: int) -> Root:
        by_text = {_text(query): query for query in self.queries}
        return Root(journal, grace_us=GRACE, parse=by_text.__getitem__)

    def _merger(self, host: Host, restored: Restored) -> Merger:
        settings, named = NodeSettings(host.name, "sim", 500 * MS, 1 * SECOND), self._below(host.name)
        return Merger(settings, host.rng, restored, host.load, grace_us=GRACE // 2, named=named)

    def _below(self, name: str) -> list[str]:
        return [each.name for each in self.world.hosts.values() if isinstance(each, Host) and each.parent == name]

    @property
    def root(self) -> Root:
        """The machine at the top."""
        host = self.world.hosts["root"]
        assert isinstance(host, RootHost)
        machine = host.root
        assert isinstance(machine, Root)
        return machine

    def wrong(self) -> list[str]:
        """Differences from the oracle over the readings that were on time at their gateway.

        Where a gateway was first heard of after others had gone on, its readings then are past their places: counted,
        each of them, but in no window.
        """
        host = self.world.hosts["root"]
        assert isinstance(host, RootHost)
        readings = [
            oracle.Reading(r.time_us, oracle.exact(r.value, -1), name, order, dict(LABELS[r.series]))
            for name, stream in self.truth.items()
            for order, r in enumerate(stream)
            if r in self._on_time(name)
        ]
        final = {(row.query, row.key, row.start, row.end): row for row in host.rows}
        out = [f"two rows {row}" for row in host.rows if row.revision or row.withdrawn]
        ones = sum(row.query == "q0" for row in host.rows)
        past = sum(beyond.readings for beyond in self.root.beyond)
        if ones + past != len(readings):
            out.append(f"{len(readings)} readings on time, {ones} have a position and {past} are past theirs")
        if past:
            return out
        want = oracle.results(self.queries, readings)
        out += [f"missing {place}" for place in want if place not in final]
        out += [f"extra {place}" for place in final if place not in want]
        for place in want.keys() & final.keys():
            if not all(close(final[place].values[name], value) for name, value in want[place].items()):
                out.append(f"{place}: want {want[place]}, got {dict(final[place].values)}")
        return out

    def _on_time(self, name: str) -> set[object]:
        host = self.world.hosts[name]
        assert isinstance(host, GatewayHost)
        return set(host.on_time)


def counted(first: int, count: int, chaos: Callable[[Random], Chaos]) -> tuple[list[str], int]:
    """(one line a seed that went wrong, how many had every reading in its place)."""
    out, whole = [], 0
    for seed in range(first, first + count):
        fleet = CountedFleet(seed, chaos(Random(seed)))
        wrong = fleet.run()
        whole += not fleet.root.beyond
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out, whole
