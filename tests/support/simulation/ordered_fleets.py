"""Random fleets with count and state windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import CountSliding, CountTumbling, OrderedWindow, State
from edge_agent.machines.events import Configured
from edge_agent.root.numpy.executor import NumpyRoot
from tests.oracle import central_computer
from tests.support.simulation.fleets import ADDED_US, LABELS, START, Fleet, GatewayHost, quickly
from tests.support.simulation.world import SECOND, Chaos, RootHost
from tests.support.tolerance import close

Rows = dict[central_computer.Row, dict[str, float | None]]


class CountedFleet(Fleet):
    """Every parent names its children: whom nobody expects nobody waits for, and positions are final."""

    def _queries(self, random: Random) -> tuple[Query, ...]:
        length = random.randint(1, 9)
        windows: list[OrderedWindow] = [
            CountTumbling(1),
            CountSliding(length, random.randint(1, length)),
            State("value > 10", "value < 0"),
        ]
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "max", "avg", "var", "last", "changes"))
        by, lateness = random.choice([(), ("machine",)]), random.choice([0, 1, 2]) * SECOND
        queries = tuple(
            Query(f"q{i}", 1, "s", window, aggregates, by=by, lateness_us=lateness, late="per_window")
            for i, window in enumerate(windows)
        )
        window, other = CountTumbling(random.randint(1, 5)), random.choice(["", "value >= -50"])  # that is all
        self.altered = replace(queries[1], revision=2, window=window, where=other)
        return queries

    def __init__(self, seed: int, chaos: Chaos, *, changes: bool = False) -> None:
        """changes: the second query gets another length, and often another filter and so another group."""
        super().__init__(seed, chaos, changes=changes)
        self.root.decider.parent.children.named |= set(self._below("root"))

    def version_at(self, now_us: int) -> int:
        """0, then 1 with the altered query."""
        return int(self.changes and now_us >= START + ADDED_US)

    def configuration(self, version: int) -> Configured:
        """The definitions after that many changes."""
        queries = (self.queries[0], self.altered, *self.queries[2:]) if version else self.queries
        return self.configured(queries)

    def _named(self, parent: str) -> list[str]:
        return self._below(parent)

    @property
    def later(self) -> tuple[Query, ...]:
        """Revisions to come."""
        return (self.altered,) if self.changes else ()

    @property
    def root(self) -> NumpyRoot:
        """The machine at the top."""
        host = self.world.hosts["root"]
        assert isinstance(host, RootHost)
        machine = host.root
        assert isinstance(machine, NumpyRoot)
        return machine

    def wrong(self) -> list[str]:
        """Differences from the oracle over the readings that were on time at their gateway.

        Where a gateway was first heard of after others had gone on, its readings then are past their places: counted,
        each of them, but in no window.
        """
        host = self.world.hosts["root"]
        assert isinstance(host, RootHost)
        readings = [
            central_computer.Reading(
                r.time_us, central_computer.exact(r.value, -1), name, order, dict(LABELS[r.series])
            )
            for name, stream in self.truth.items()
            for order, r in enumerate(stream)
            if r in self._on_time(name)
        ]
        final = {(row.query, row.key, row.start, row.end): row for row in host.rows}
        out = [f"two rows {row}" for row in host.rows if row.revision or row.withdrawn]
        ones = sum(row.query == "q0" for row in host.rows)
        past = sum(beyond.readings for beyond in self.root.beyond)
        twice = self.changes and past > 0  # of two groups, each counts what is past in it
        if ones + past != len(readings) and not (twice and ones + past > len(readings)):
            out.append(f"{len(readings)} readings on time, {ones} have a position and {past} are past theirs")
        if past:
            return out
        want = self._wanted(readings)
        out += [f"missing {place}" for place in want if place not in final]
        out += [f"extra {place}" for place in final if place not in want]
        for place in want.keys() & final.keys():
            if not all(close(final[place].values[name], value) for name, value in want[place].items()):
                out.append(f"{place}: want {want[place]}, got {dict(final[place].values)}")
        return out

    def _wanted(self, readings: list[central_computer.Reading]) -> Rows:
        """The oracle's rows. Of a query that changed each revision has the readings of the times that the root has."""
        if not self.changes:
            return central_computer.results(self.queries, readings)
        out = central_computer.results((self.queries[0], self.queries[2]), readings)
        taken: Counter[str] = Counter()
        for query in (self.queries[1], self.altered):
            serving = self.root.decider.servings.of.get(query.group, {}).get(query.key)
            low, high = (-math.inf, math.inf) if serving is None else _within(serving)
            own = [r for r in readings if serving is not None and low <= r.time_us < high]
            families = self.root.decider.parent.children.memberships
            later = families[query.group].begins().get(QueryKey(query.id, query.revision), {}) if own else {}
            own = [r for r in own if r.time_us >= later.get(r.node, low)]  # a gateway may begin later than all (4.5)
            for (name, key, start, end), values in central_computer.results([query], own).items():
                out[name, key, start + taken[key], end + taken[key]] = values
            taken.update(central_computer.key_of(query, r) for r in own)
        return out

    def _on_time(self, name: str) -> set[object]:
        host = self.world.hosts[name]
        assert isinstance(host, GatewayHost)
        return set(host.on_time)


def _within(serving: Serving) -> tuple[float, float]:
    """The times of a revision."""
    ends = [us for us in (serving.start_until_us, serving.end_until_us) if us is not None]
    return -math.inf if serving.start_from_us is None else serving.start_from_us, min(ends, default=math.inf)


def counted(seeds: Iterable[int], chaos: Callable[[Random], Chaos], *, changes: bool = False) -> tuple[list[str], int]:
    """(one line a seed that went wrong, how many had every reading in its place)."""
    out, whole = [], 0
    for seed in seeds:
        fleet = CountedFleet(seed, chaos(Random(seed)), changes=changes)
        wrong = quickly(fleet)
        whole += not fleet.root.beyond
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out, whole
