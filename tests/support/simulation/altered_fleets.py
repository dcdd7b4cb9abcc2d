"""Fleets whose first query gets a new revision while they run (docs/protocol.md 6.3), compared with the oracle.

The other query, where there is one, may be removed with the same change, and come back later as a revision of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.machines.events import Configured
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.root.numpy.rows import Row
from tests.oracle import central_computer
from tests.support.simulation.fleets import LABELS, START, Fleet, GatewayHost, quickly
from tests.support.simulation.world import MS, SECOND, Chaos, Host, RootHost
from tests.support.tolerance import close

ALTERED_US = START + 12 * SECOND  # published
FROM_US = START + 25 * SECOND  # effective_from where it is said: all have learnt it, and no reading has come so far
LATE_US = 15 * SECOND  # one gateway hears of it so much later
AGAIN_US = START + 26 * SECOND  # what was removed is there again
FILTER = "value > 0"
Place = tuple[str, str, int]


class AlteringFleet(Fleet):
    """ahead: the new revision has an effective_from that every gateway learns in time. late: one learns of it late."""

    def __init__(
        self, seed: int, chaos: Chaos, *, ahead: bool, late: bool = False, sessions: bool = False, prefix: str = ""
    ) -> None:
        super().__init__(seed, chaos, sessions=sessions, prefix=prefix)
        random = Random(f"altered {seed}")
        self.ahead = ahead
        first = self.queries[0]
        from_us = FROM_US if ahead else random.choice([None, ALTERED_US - 5 * SECOND])
        aggregates = first.aggregates[: random.randint(1, len(first.aggregates))]
        altered = replace(first, revision=2, aggregates=aggregates, effective_from_us=from_us)
        if sessions:
            altered = replace(altered, window=Session(random.choice([400 * MS, 3 * SECOND])))
        else:
            window: Any = random.choice([Tumbling(3 * SECOND), Sliding(3 * SECOND, 2 * SECOND), first.window])
            other: dict[str, Any] = random.choice([{}, {}, {"by": () if first.by else ("machine",)}, {"where": FILTER}])
            altered = replace(altered, window=window, **other)
        self.altered = altered
        self.removed = len(self.queries) > 1 and random.random() < 0.5  # the other one goes with the same change
        self.again = tuple(replace(query, revision=3) for query in self.queries[1:] if self.removed)
        if late:
            host = self.world.hosts[self.gateways[0]]
            assert isinstance(host, GatewayHost)
            host.hears_after_us = LATE_US

    def version_at(self, now_us: int) -> int:
        return (now_us >= ALTERED_US) + (now_us >= AGAIN_US)

    def configuration(self, version: int) -> Configured:
        queries = self.queries
        if version:
            kept = () if self.removed else self.queries[1:]
            queries = (self.altered, *kept, *(self.again if version > 1 else ()))
        return self.configured(queries)

    def wrong(self) -> list[str]:
        """Rows that are not their own revision's, rows that two revisions share, rows that are not there."""
        out = [
            f"{name} still holds {len(host.disk.stored.frames)} frames"
            for name, host in self.world.hosts.items()
            if isinstance(host, Host) and len(host.disk.stored.frames) > 2
        ]
        root = self.world.hosts["root"]
        assert isinstance(root, RootHost)
        final: dict[Place, Row] = {}
        for row in root.rows:
            place = (row.query, row.key, row.start)
            final[place] = row
        final = {place: row for place, row in final.items() if not row.withdrawn and row.query == self.altered.id}
        old, new = ([r.start for r in final.values() if r.definition_revision == revision] for revision in (1, 2))
        if old and new and max(old) >= min(new):
            out.append(f"revision 1 has {max(old)}, revision 2 {min(new)}")
        shown = set(final)
        if not self.ahead:  # who serves another revision in them by then is missing from those that went out before
            final = {place: row for place, row in final.items() if row.complete and self.alone(row)}
        for place, row in final.items():
            values = self.rows_of(row.definition_revision, row.coverage.expected).get(place)
            if values is None:
                out.append(f"extra {place} of revision {row.definition_revision}")
            elif not all(close(row.values[name], value) for name, value in values.items()):
                out.append(f"{place}: want {values}, got {dict(row.values)}")
            elif not row.complete:
                out.append(f"incomplete {row}")
        return out + [f"missing {place}" for place in self.needed() if place not in shown]

    def needed(self) -> list[Place]:
        """Rows that must be there: all where the switch is known; else those well before and after it."""
        leaves = tuple(name for name in self.gateways if self.starts(name, 1))  # one may have come up with the second
        if self.ahead:
            return [*self.rows_of(1, leaves), *self.rows_of(2, leaves)]
        before = [place for place in self.rows_of(1, leaves) if place[2] < ALTERED_US - 10 * SECOND]
        return before + [place for place in self.rows_of(2, leaves) if place[2] >= ALTERED_US + LATE_US + 5 * SECOND]

    def starts(self, name: str, revision: int) -> list[int | None]:
        """From when that gateway serves a revision."""
        host = self.world.hosts[name]
        assert isinstance(host, GatewayHost)
        assert isinstance(host.machine, Gateway)
        served = [serving for state in host.machine.groups.values() for serving in state.serving]
        return [s.start_from_us for s in served if (s.query, s.revision) == (self.altered.id, revision)]

    def alone(self, row: Row) -> bool:
        """Whether no gateway is in a row that is not said to be: one below a merger that told of it late (4.5)."""
        others = [name for name in self.gateways if name not in row.coverage.expected]
        starts = [us for name in others for us in self.starts(name, row.definition_revision)]
        return all(us is not None and us >= row.end for us in starts)

    def rows_of(self, revision: int, leaves: tuple[str, ...]) -> dict[Place, dict[str, float | None]]:
        """The oracle's rows of a revision over the readings of these leaves."""
        query = self.altered if revision == 2 else self.queries[0]
        readings = [
            central_computer.Reading(
                r.time_us, central_computer.exact(r.value, -1), node, order, dict(LABELS[r.series])
            )
            for node in leaves
            for order, r in enumerate(self.truth[node])
        ]
        if isinstance(query.window, Session):  # cut where the revision changes
            readings = [r for r in readings if (r.time_us >= FROM_US) == (revision == 2)]
        rows = central_computer.results(
            [query], readings, lambda of, reading: not of.where.endswith(FILTER) or reading.value > 0
        )
        found = {(name, key, start): values for (name, key, start, _), values in rows.items()}
        if not self.ahead:
            return found
        return {place: values for place, values in found.items() if (place[2] >= FROM_US) == (revision == 2)}


def altering(
    seeds: Iterable[int], chaos: Callable[[Random], Chaos], *, ahead: bool, late: bool = False, sessions: bool = False
) -> list[str]:
    """Run many; one line a seed that went wrong."""
    out = []
    for seed in seeds:
        wrong = quickly(AlteringFleet(seed, chaos(Random(seed)), ahead=ahead, late=late, sessions=sessions))
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out
