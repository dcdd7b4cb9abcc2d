"""Rows of time windows at the plain-Python root: those of windows that close, and of closed ones that are revised.

Rules (docs/protocol.md): a window that has closed is made again when rows for it come or its coverage changes (4.2,
4.7), at most once in `revise_every` (8.3); a revision is a change of the set of frames or of coverage (7.2). How
windows are made: closing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edge_agent.algebra.coverage import Coverage, window_coverage
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import TimeCut
from edge_agent.algebra.query.query import Group, Query
from edge_agent.machines.downlink.renumbering import Renumbering
from edge_agent.root.completeness import Decision
from edge_agent.root.numpy.partial_index import Held, PartialIndex
from edge_agent.root.numpy.rolling_windows import RollingWindows
from edge_agent.root.numpy.rows import DecisionView, Row, WindowStates
from edge_agent.root.numpy.time_windows import WantedWindows, windows

Key = tuple[str, int]  # query and its revision
Place = tuple[str, int, str]  # the same in the group of one node, '' where it is not local


class TimeWindowRows:
    """All queries of time windows at the plain root. shown: (query, node) -> start -> key -> its row now."""

    def __init__(self, numbers: Renumbering) -> None:
        """numbers: the root's own, of keys and nodes."""
        self.shown: dict[tuple[str, str], dict[int, dict[str, Row]]] = {}
        self._numbers = numbers
        self._revised: dict[Place, int] = {}
        self._pending: dict[Place, Ints] = {}  # starts of windows to be revised once revise_every allows
        self._rolled: dict[Place, RollingWindows] = {}

    # --- which windows --------------------------------------------------------------------------------------------

    @staticmethod
    def touched(query: Query, holding: PartialIndex, rows: Partials, closed_us: int) -> Ints:
        """Starts of the windows that end by closed_us and in which rows of the holding count."""
        behind = rows.end <= closed_us
        if not behind.any():
            return NO_INTS
        _, start = holding.windows(rows.take(behind), query.time_window)
        return start[query.time_window.ends(start) <= closed_us]

    def recovered(self, decision: Decision, queries: Mapping[Key, Query]) -> Iterator[tuple[Place, Ints]]:
        """Starts of windows whose coverage changed: a leaf caught up, or a gap record came (docs/protocol.md 4.7)."""
        for (group, _leaf), (old_us, new_us) in decision.caught_up.items():
            for place in _served(decision, group, queries):
                yield place, self._ends_in(place, queries[place[:2]], old_us, new_us)
        for _node, gap in decision.gaps:
            for group in gap.groups:
                for place in _served(decision, group, queries):
                    query = queries[place[:2]]
                    last_us = gap.end_us - 1 + query.time_window.longest_us
                    yield place, self._ends_in(place, query, gap.start_us, last_us)

    def _ends_in(self, place: Place, query: Query, after_us: int, upto_us: int) -> Ints:
        """Starts of the windows that have rows and end in (after, upto]."""
        starts = np.fromiter(self.shown.get((query.id, place[2]), ()), np.int64)
        ends = query.time_window.ends(starts)
        return starts[(ends > after_us) & (ends <= upto_us)]

    def _due(self, place: Place, query: Query, now: DecisionView, frontier_us: int, touched: Sequence[Ints]) -> Ints:
        """Starts of the windows to be revised now; the others wait in `_pending` (docs/protocol.md 8.3)."""
        starts = np.unique(np.concatenate([NO_INTS, *touched, self._pending.pop(place, NO_INTS)]))
        starts = starts[query.time_window.ends(starts) > frontier_us - now.horizon_us]
        if not len(starts):
            return starts
        last_us = self._revised.get(place)
        if last_us is not None and last_us > now.due_us:
            self._pending[place] = starts
            return NO_INTS
        self._revised[place] = now.decision.now_us
        return starts

    # --- rows -----------------------------------------------------------------------------------------------------

    def step(
        self, now: DecisionView, query: Query, group: Group, held: Held, *, closed_us: int, touched: Sequence[Ints]
    ) -> Iterator[Row]:
        """Rows of a query that are new or revised. closed_us: windows that end by then have had theirs.

        touched: starts of those that may have others now.
        """
        key, view = (query.id, query.revision), now.decision.groups[group]
        place = (*key, group.node)
        starts = self._due(place, query, now, view.frontier_us, touched)
        wanted = WantedWindows(query, view.serving[key], closed_us, view.frontier_us, starts)
        rolled = self._rolled.setdefault(place, RollingWindows())
        made = windows(wanted, held(group, key), self._numbers.ranks(), rolled)
        if made is not None:
            yield from self._changed(now, query, group, made)

    def _changed(self, now: DecisionView, query: Query, group: Group, made: WindowStates) -> Iterator[Row]:
        """The rows that differ from what is shown: in their readings, or in their coverage."""
        view, cells = now.decision.groups[group], made.cells(query)
        shown = self.shown.setdefault((query.id, group.node), {})
        begins = view.begins.get((query.id, query.revision), {})
        covers = {
            start: window_coverage(view.leaves, now.gaps, group, start, end, begins=begins)
            for start, end in zip(*(column.tolist() for column in _windows_of(made.rows)), strict=True)
        }
        columns = (made.rows.start, made.rows.end, made.rows.key)
        for i, (start, end, code) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            text = self._numbers.keys.texts[code]
            before = shown.get(start, {}).get(text)
            if before is not None and not _differs(before, query, cells.readings[i], covers[start]):
                continue
            revision = 0 if before is None else before.revision + 1
            row = cells.row(i, query, (group.node, text, start, end), covers[start], revision=revision)
            shown.setdefault(start, {})[text] = row
            yield row

    # --- what nothing can revise any more -------------------------------------------------------------------------

    def free(self, query: str, node: str, floor_us: int) -> None:
        """Forget rows of windows that end by then."""
        shown = self.shown.get((query, node), {})
        for start in _before(shown, floor_us):
            del shown[start]

    def end(self, place: Place) -> None:
        """Its group is served no more."""
        for known in (self._revised, self._pending, self._rolled):
            known.pop(place, None)


def _served(decision: Decision, group: Group, queries: Mapping[Key, Query]) -> list[Place]:
    view = decision.groups.get(group)
    if view is None or not isinstance(group.cut, TimeCut):
        return []
    return [(*key, group.node) for key in view.serving if key in queries]


def _differs(before: Row, query: Query, readings: int, coverage: Coverage) -> bool:
    """Whether a row of a query stands for another one than is shown; a newer revision's stays."""
    if before.definition_revision != query.revision:
        return before.definition_revision < query.revision
    return before.withdrawn or (before.readings, before.coverage) != (readings, coverage)


def _before(shown: Mapping[int, Mapping[str, Row]], floor_us: int) -> list[int]:
    """Starts of the windows that end by then, up to the first that does not: they mostly came in the order of time."""
    out = []
    for start, rows in shown.items():
        if next(iter(rows.values())).end > floor_us:
            break
        out.append(start)
    return out


def _windows_of(rows: Partials) -> tuple[Ints, Ints]:
    """Start and end of every window that has a row."""
    start, first = np.unique(rows.start, return_index=True)
    return start, rows.end[first]
