"""Trees with count and state windows too, and with functions of the order: under every fault that a seed draws.

Every value is there once, so that windows of one reading tell which reading has which position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import CountSliding, CountTumbling, OrderedWindow, State
from edge_agent.machines.events import Configured
from edge_agent.root.numpy.rows import Row
from tests.oracle import central_computer
from tests.support.simulation import verdict
from tests.support.simulation.fleets import LABELS, GatewayHost, Reading
from tests.support.simulation.trees import Tree
from tests.support.tolerance import close

ONES: Final = "ones"
OF_A_NODE: Final = 100_000  # more than it has readings
FUNCTIONS: Final = ("sum", "count", "first", "last", "median", "mode", "changes", "distinct", "rate", "min")
Placed = dict[str, dict[int, tuple[str, Reading]]]  # key -> position -> (node, reading)


class OrderedTree(Tree):
    """queries: those of time and sessions, as in any tree. ordered: the others."""

    ordered: tuple[Query, ...] = ()

    def _queries(self, random: Random) -> tuple[Query, ...]:
        queries = super()._queries(random)
        own = Random(f"ordered {self.seed}")
        length = own.randint(2, 5)
        windows: dict[str, OrderedWindow] = {
            ONES: CountTumbling(1),
            "count": CountTumbling(length),
            "slides": CountSliding(length, own.randint(1, length)),
            "state": State("value > 10", "value < 0"),
        }
        names = (ONES, *own.sample(sorted(windows.keys() - {ONES}), 2))
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "first", "last", "changes"))
        self.ordered = tuple(
            replace(queries[0], id=name, window=windows[name], aggregates=aggregates) for name in names
        )
        fns = own.sample(FUNCTIONS, own.randint(1, 4))
        return tuple(replace(query, aggregates=tuple(Aggregate(fn, fn) for fn in fns)) for query in queries)

    def _readings(self, random: Random) -> list[Reading]:
        made, first = super()._readings(random), OF_A_NODE * (len(self.truth) + 1)
        return [replace(r, value=(first + i) * (1 if r.value > 0 else -1)) for i, r in enumerate(made)]

    def configured(self, queries: Iterable[Query]) -> Configured:
        return super().configured((*queries, *self.ordered))

    # --- what is wrong ----------------------------------------------------------------------------------------------

    def timed(self, rows: Sequence[Row]) -> list[Row]:
        ordered = {query.id for query in self.ordered}
        return [row for row in rows if row.query not in ordered]

    def further(self) -> list[str]:
        rows = [row for row in self.root_host.rows if row.query in {query.id for query in self.ordered}]
        out = [f"revised: {row}" for row in rows if row.revision or row.withdrawn]
        placed = self._placed(rows, out)
        if not out:
            out += self._not_as_placed(rows, placed) + self._complete_with_holes(rows, placed) + self._absent(placed)
        return out

    def _placed(self, rows: Iterable[Row], out: list[str]) -> Placed:
        """Which reading has which position."""
        of = {r.value: (node, r) for node, readings in self.every.items() for r in readings}
        placed: Placed = {}
        for row in rows:
            if row.query == ONES:
                found = of.get(round((row.values["sum"] or 0) * 10))
                if found is None or row.end != row.start + 1 or row.start in placed.setdefault(row.key, {}):
                    out.append(f"no position: {row}")
                    continue
                placed[row.key][row.start] = found
        for key, places in placed.items():
            line = [places[at] for at in sorted(places)]
            if sorted(places) != list(range(len(places))):
                out.append(f"positions of {key}: {sorted(places)}")
            seen = {r.value for _, r in line}
            if len(seen) < len(line):
                out.append(f"counted twice: {len(line) - len(seen)} of {len(line)} positions of '{key}'")
            ranks = [(r.time_us, node) for node, r in line]
            if ranks != sorted(ranks):
                out.append(f"out of order: {key}")
        return placed

    def _not_as_placed(self, rows: Iterable[Row], placed: Placed) -> list[str]:
        """All rows follow from the positions, complete or not."""
        want: dict[central_computer.Row, dict[str, float | None]] = {}
        for places in placed.values():
            readings = [
                central_computer.Reading(
                    r.time_us, central_computer.exact(r.value, -1), node, at, dict(LABELS[r.series])
                )
                for at, (node, r) in sorted(places.items())
            ]
            for query in self.ordered:
                want.update(central_computer.results([query], readings))
        got = {(row.query, row.key, row.start, row.end): row for row in rows}
        out = [f"missing by its positions: {place}" for place in want.keys() - got.keys()]
        out += [f"extra by its positions: {place}" for place in got.keys() - want.keys()]
        return out + [
            f"{place}: want {want[place]}, got {dict(got[place].values)}"
            for place in want.keys() & got.keys()
            if not all(close(got[place].values[name], value) for name, value in want[place].items())
        ]

    def _complete_with_holes(self, rows: Iterable[Row], placed: Placed) -> list[str]:
        """A complete row of positions has all readings that were on time between its first one and its last one."""
        out = []
        on_time = self.on_time()
        for row in rows:
            if not row.complete or row.query == "state":
                continue
            inside = [placed[row.key][at] for at in range(row.start, row.end)]
            low, high, values = inside[0][1].time_us, inside[-1][1].time_us, {r.value for _, r in inside}
            lacks = [
                (node, r)
                for node in row.coverage.expected
                for r in on_time[node]
                if low < r.time_us < high and self.key_of(r) == row.key and r.value not in values
            ]
            if lacks:
                out.append(f"complete, and lacks {lacks[:2]}: {row}")
        return out

    def _absent(self, placed: Placed) -> list[str]:
        """A reading that was on time has a position, or is late at the root, or declared lost."""
        there = {r.value for places in placed.values() for _, r in places.values()}
        gaps, out = verdict.gaps(self), []
        for node, readings in self.on_time().items():
            for r in readings:
                if r.value in there:
                    continue
                late = any(b.key == self.key_of(r) and b.start <= r.time_us < b.end for b in self.root_host.root.beyond)
                lost = any((node in names or not names) and low <= r.time_us < high for names, low, high in gaps)
                if not late and not lost:
                    out.append(f"gone without a word: {node} {r}")
        return out

    @property
    def every(self) -> dict[str, list[Reading]]:
        """All readings of the sensors, also those that nobody can know of."""
        return {name: self._host(name).readings for name in self.gateways}

    def on_time(self) -> dict[str, list[Reading]]:
        """Those of the truth that came before their gateway had promised that none would."""
        return {name: [r for r in self.truth[name] if r in self._host(name).on_time] for name in self.gateways}

    def key_of(self, reading: Reading) -> str:
        return f"machine={LABELS[reading.series][0][1]}" if self.ordered[0].by else ""

    def _host(self, name: str) -> GatewayHost:
        host = self.world.hosts[name]
        assert isinstance(host, GatewayHost)
        return host
