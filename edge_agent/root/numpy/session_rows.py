"""Computes rows of sessions for an Islands request, from the pieces that are kept.

Rules (docs/protocol.md): pieces within one gap form islands (5.3). An island that is computed again replaces every row
that it touches; these rows are withdrawn with the next revision (5.4). Pieces do not join across a cut of the maximum
duration (5.5).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.partials.sessions import join
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.decision.withdrawals import SessionExtent, joined
from edge_agent.root.decision.work import CoverageCell, Islands
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.result_rows import NewRow, ResultRows
from edge_agent.root.numpy.rolling_windows import Shape
from edge_agent.root.numpy.rows import Row, WindowStates
from edge_agent.root.work_rows import cells_of


@dataclass(frozen=True, slots=True)
class SessionSource:
    """The pieces from which the islands of one request are formed, and their coverages by coverage_id.

    indexes: of the plans that feed the query. numbers: the keys and nodes of their rows.
    """

    query: Query
    indexes: Sequence[PartialIndex]
    shape: Shape
    numbers: Renumbering
    coverages: Mapping[str, Coverage]


@dataclass(frozen=True, slots=True)
class TouchedRange:
    """The range of islands to compute again: from the lowest start to the highest last + gap, us; none if empty.

    longest_us: greatest time from start to end of a row in the range.
    """

    low_us: int
    high_us: int
    longest_us: int


class SessionRows:
    """The rows of all queries of sessions, found by key and time."""

    def __init__(self, results: ResultRows) -> None:
        """results: stores the rows of all queries, of any kind."""
        self._results = results
        self._starts: dict[tuple[str, str], dict[str, list[int]]] = {}  # (query, node) -> key -> starts in order

    def first(self, found: Islands, source: SessionSource) -> Iterator[Row]:
        """Yields the first rows of islands."""
        if found.low_us is not None:
            yield from self._made(found, source, (found.low_us, FAR_US), revising=False)

    def again(self, found: Islands, source: SessionSource, touched: TouchedRange) -> Iterator[Row]:
        """Yields rows of islands that are computed again, and the withdrawn rows that they replace."""
        low_us, high_us = touched.low_us, touched.high_us
        if low_us > high_us:
            return
        if found.start_from_us is not None and low_us <= found.crossing_us:
            low_us = min(low_us, found.start_from_us - found.gap_us)
        yield from self._made(found, source, (low_us, high_us + 1), revising=True)

    def touched(self, found: Islands) -> TouchedRange:
        """The range of all rows that a request touches, for any key or for single keys."""
        touches = [(k.key, *k.touch) for k in found.keys if k.touch is not None]
        low_us = min((low for _, low, _ in touches), default=FAR_US)
        high_us = max((high for _, _, high in touches), default=-FAR_US)
        longest_us, lasted_us = max((high - low for _, low, high in touches), default=0), 0
        every = self._starts.get((found.query, found.node), {}) if found.touch is not None else ()
        for key, low, high in (*touches, *((key, *(found.touch or (0, 0))) for key in every)):
            for row in self._touching(found, key, low, high):
                low_us, high_us = min(low_us, row.start), max(high_us, row.end)
                lasted_us = max(lasted_us, row.end - row.start)
        return TouchedRange(low_us, high_us, longest_us + 2 * lasted_us)  # a row may join on either side

    def _made(
        self, found: Islands, source: SessionSource, between: tuple[int, int], *, revising: bool
    ) -> Iterator[Row]:
        """Rows of the islands in [low, high) that differ from the current ones."""
        made = islands(source, found.gap_us, found.max_us, between)
        if made is None:
            return
        until = made.rows.end - 1 + found.gap_us
        wanted = _wanted(found, made.rows, until, source.numbers, between[1], revising=revising)
        if not wanted.any():
            return
        made, until = WindowStates(made.rows.take(wanted), made.late[wanted], made.shape), until[wanted]
        cells = _cells(found, made.rows, until, source.numbers, revising=revising)
        answers = made.answers(source.query)
        columns = zip(made.rows.key.tolist(), made.rows.start.tolist(), until.tolist(), cells, strict=True)
        for at, (code, start_us, end_us, cell) in enumerate(columns):
            key, coverage = source.numbers.keys.texts[code], source.coverages[cell.coverage_id]
            yield from self._put(NewRow(found.node, key, start_us, end_us, answers, at, coverage), found)

    def _put(self, new: NewRow, found: Islands) -> Iterator[Row]:
        """Write a row and withdraw the other rows that it touches."""
        block = (lambda us: us // found.max_us) if found.max_us else (lambda _us: 0)
        made = SessionExtent(new.start_us, new.end_us, block(new.start_us))
        for other in [*self._touching(found, new.key, new.start_us, new.end_us)]:
            if joined(SessionExtent(other.start, other.end, block(other.start)), made):
                yield self._results.withdraw_row(other)
        row = self._results.put(new)
        if row is not None:
            if not row.revision:
                starts = self._starts.setdefault((row.query, row.node), {})
                insort(starts.setdefault(row.key, []), row.start)
            yield row

    def _touching(self, found: Islands, key: str, low_us: int, high_us: int) -> Iterator[Row]:
        """The rows of a key and revision that touch [low, high], latest first."""
        starts = self._starts.get((found.query, found.node), {}).get(key, ())
        for start_us in latest_first(starts, high_us):
            row = self._results.stands(found.query, found.node, key, start_us)
            if row is None or row.definition_revision != found.revision:
                continue
            if row.end < low_us:
                return  # rows in force do not overlap: all earlier rows end even earlier
            yield row

    def low_us(self, place: QueryPlace) -> int:
        """The start of the first session whose row is still kept, of any revision; FAR_US if there is none."""
        keys = self._starts.get((place.query, place.node), {})
        return min((starts[0] for starts in keys.values()), default=FAR_US)

    def forget(self, rows: Iterator[Row]) -> None:
        """Forget these rows."""
        for row in rows:
            keys = self._starts.get((row.query, row.node), {})
            starts = keys.get(row.key, [])
            at = bisect_left(starts, row.start)
            if at < len(starts) and starts[at] == row.start:
                del starts[at]
                if not starts:
                    del keys[row.key]


def latest_first(starts: Sequence[int], upto_us: int) -> Iterator[int]:
    """The starts up to a time, latest first. starts: non-decreasing; not copied, as one key may have a million."""
    return (starts[at] for at in range(bisect_right(starts, upto_us) - 1, -1, -1))


def islands(source: SessionSource, gap_us: int, max_us: int, between: tuple[int, int]) -> WindowStates | None:
    """Islands of the pieces that touch [low, high), complete or not; None if there are no pieces.

    Rows are [first, last + 1 us), sorted by (key, start).
    """
    parts: list[Partials] = []
    late: list[Partials] = []
    for index in source.indexes:
        for rows, came_late in index.touching(*between):
            parts.append(index.states(rows, *source.shape))
            late += parts[-1:] if came_late else []
    if not parts:
        return None
    found = join(concat(parts), basis_of(*source.shape), gap_us, max_us, source.numbers.ranks())
    counts = np.zeros(len(found), np.int64)
    for part in late:
        np.add.at(counts, _islands_of(found, part), part.states["count"])
    return WindowStates(found, counts, source.shape)


def _islands_of(found: Partials, part: Partials) -> Ints:
    """The index of each piece's island; islands are sorted by (key, start) and contain all pieces."""
    order = np.lexsort(
        (
            np.concatenate([np.zeros(len(found)), np.ones(len(part))]),
            np.concatenate([found.start, part.start]),
            np.concatenate([found.key, part.key]),
        )
    )
    own = np.cumsum(order < len(found)) - 1
    place = np.empty(len(order), np.int64)
    place[order] = own
    of: Ints = place[len(found) :]
    return of


def _wanted(
    found: Islands, rows: Partials, until: Ints, numbers: Renumbering, high_us: int, *, revising: bool
) -> NDArray[np.bool_]:
    """Mask of the islands that get a row now. until: last + gap of each. high_us: no piece from there on was read."""
    size = len(numbers.keys.texts)
    bound, shut = np.full(size, found.bound_us), np.full(size, found.shut_us)
    low, high = np.full(size, FAR_US), np.full(size, NEVER_US)
    for each in found.keys:
        number = numbers.keys.numbers.get(each.key)
        if number is not None:
            bound[number], shut[number] = each.bound_us, each.shut_us
            low[number], high[number] = each.touch or (FAR_US, NEVER_US)
    code = rows.key
    own = (rows.start <= high[code]) & (until >= low[code])
    done = (until < bound[code]) & found.serving.covered(rows.start, until)
    if not revising:
        return done & (until >= shut[code]) & ~own
    every_low, every_high = found.touch or (FAR_US, NEVER_US)
    every = (rows.start <= every_high) & (until >= every_low) & (until < shut[code])
    return done & (own | every) & ((rows.start >= high_us) | (until < high_us))


def _cells(found: Islands, rows: Partials, until: Ints, numbers: Renumbering, *, revising: bool) -> list[CoverageCell]:
    """The coverage cell of each island."""
    by_key: dict[str, list[CoverageCell]] = {}
    for cell in found.cells:
        if cell.revising == revising:
            by_key.setdefault(cell.key, []).append(cell)
    common = by_key.pop("", [])
    out = [common[i] for i in cells_of(common, rows.start, until).tolist()]
    for key, cells in by_key.items():
        mine = np.flatnonzero(rows.key == numbers.keys.numbers.get(key[1:], -1))
        for at, i in zip(mine.tolist(), cells_of(cells, rows.start[mine], until[mine]).tolist(), strict=True):
            out[at] = cells[i]
    return out
