"""What the root makes of releases: windows formed in plain loops, states combined and lowered by the algebra.

It stands between the slicer (or the merger) and the oracle in tests, so that what leaves is judged by its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Query
from edge_agent.machines.uplink.step import StepRows
from tests.oracle import central_computer, time_windows


class NaiveRoot:
    """Collects releases of any nodes; `results` is what they amount to."""

    def __init__(self) -> None:
        """Empty."""
        self._rows: dict[tuple[str, int, str, int, int], list[tuple[Plan, Partials]]] = {}
        self._queries: dict[tuple[str, int], Query] = {}
        self.nodes: list[str] = []

    def know(self, queries: Iterable[Query]) -> None:
        """Definitions, as frames bring them."""
        self._queries.update({(q.id, q.revision): q for q in queries})

    def take(self, releases: Iterable[StepRows]) -> None:
        """Rows that left; each counts in every window of the plan's queries that it belongs to."""
        for release in releases:
            recode = np.array([self._node(node) for node in release.nodes])
            for i in range(len(release.partials)):
                row = release.partials.take(slice(i, i + 1))
                states = aggregates.renumbered(row.states, tuple(row.states), recode.__getitem__)
                low, high, key = int(row.start[0]), int(row.end[0]), release.keys[int(row.key[0])]
                assert low < high
                row = Partials(row.start, row.end, row.key * 0, states)
                for query_id, revision in release.plan.queries:
                    query = self._queries[query_id, revision]
                    for start, end in _windows(query, release.plan.kind, low, high):
                        cell = self._rows.setdefault((query_id, revision, key, start, end), [])
                        cell.append((release.plan, row))

    def results(self, servings: Iterable[Serving]) -> dict[central_computer.Row, dict[str, float | None]]:
        """Every row of every query whose window a serving covers."""
        served = {(s.query, s.revision): s for s in servings}
        out: dict[central_computer.Row, dict[str, float | None]] = {}
        for (query_id, revision, key, start, end), cell in self._rows.items():
            serving = served.get((query_id, revision))
            if serving is not None and serving.covers(start, end):
                assert (query_id, key, start, end) not in out, "two revisions give one row"
                out[query_id, key, start, end] = self._lowered(self._queries[query_id, revision], cell)
        return out

    def _lowered(self, query: Query, cell: list[tuple[Plan, Partials]]) -> dict[str, float | None]:
        scale = cell[0][0].scale
        basis = aggregates.basis_of(query.aggregates, scale)
        rows = concat([_columns(row, basis) for _plan, row in cell])
        ranks = np.argsort(np.argsort(np.array(self.nodes)))
        states = aggregates.combine(rows.states, Segments.runs(np.zeros(1, np.int64), len(rows)), basis, ranks)
        values: dict[str, float | None] = {}
        for aggregate in query.aggregates:
            lowered = aggregates.lower(aggregate, states, scale)
            values[aggregate.name] = None if lowered.null[0] else float(lowered.value[0])
        return values

    def _node(self, node: str) -> int:
        if node not in self.nodes:
            self.nodes.append(node)
        return self.nodes.index(node)


def expected(
    queries: Mapping[tuple[str, int], Query], servings: Iterable[Serving], readings: Iterable[central_computer.Reading]
) -> dict[central_computer.Row, dict[str, float | None]]:
    """The oracle's rows of every (query, revision) in the windows that a serving covers."""
    readings = list(readings)
    out: dict[central_computer.Row, dict[str, float | None]] = {}
    for serving in servings:
        rows = central_computer.results([queries[serving.query, serving.revision]], readings)
        out.update({row: values for row, values in rows.items() if serving.covers(row[2], row[3])})
    return out


def _windows(query: Query, kind: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """protocol 6.2: a slice counts in every window that contains it, a window in the one equal to it."""
    for start, end in time_windows.holding(query.time_window, low):
        if (low, high) == (start, end) if kind == "window" else high <= end:
            yield start, end


def _columns(row: Partials, basis: tuple[str, ...]) -> Partials:
    return Partials(row.start, row.end, row.key, {name: row.states[name] for name in basis})
