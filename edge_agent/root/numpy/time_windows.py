"""Computes the states of the windows of a WindowRange, from the rows of all plans that feed its query.

Rules (docs/protocol.md): partials add up. A partial of kind `window` counts only in the window equal to its range (6.1,
6.2). Plans of unequal scales are converted to the finest one (7.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.rolling_windows import RollingWindows, Shape
from edge_agent.root.numpy.rows import WindowStates
from edge_agent.root.work_rows import windows_in


def rolled(
    span: WindowRange, indexes: Sequence[PartialIndex], shape: Shape, ranks: Ints | None, rolling: RollingWindows
) -> WindowStates:
    """Like `formed`, for windows that close; visits new rows only. rolling: state of the query."""
    made, late = rolling.close(span, indexes, shape, ranks)
    made, late = (rows.take((rows.start >= span.low_us) & (rows.start <= span.high_us)) for rows in (made, late))
    return _states(made, [late], shape)


def formed(span: WindowRange, indexes: Sequence[PartialIndex], shape: Shape, ranks: Ints | None) -> WindowStates:
    """The windows of a range that contain a reading, sorted by (start, key)."""
    basis = basis_of(*shape)
    made: list[Partials] = []
    late: list[Partials] = []
    for exact in (False, True):
        mine = [index for index in indexes if (index.plan.kind == "window") == exact]
        found = [(index.states(rows, *shape), came) for index in mine for rows, came in index.within(*_extent(span))]
        if found:
            made.append(windows_in(concat([rows for rows, _ in found]), span, basis, ranks, exact=exact))
        behind = [_counts(rows) for rows, came_late in found if came_late]
        if behind:
            late.append(windows_in(concat(behind), span, ("count",), None, exact=exact))
    whole = made[0] if len(made) == 1 else combine(concat(made), basis, None, ranks) if made else NOTHING
    return _states(whole, late, shape)


def picked(
    span: WindowRange, indexes: Sequence[tuple[int, PartialIndex]], shape: Shape, ranks: Ints | None
) -> WindowStates:
    """The window between markers of a range, from the rows in its picks. indexes: by number of the read request."""
    parts: list[Partials] = []
    late: list[Partials] = []
    for number, index in indexes:
        for _, low_us, high_us in (pick for pick in span.picks if pick[0] == number):
            for kept, came_late in index.within(low_us, high_us):
                chosen = kept if span.within else kept.take((kept.start == low_us) & (kept.end == high_us))
                if len(chosen):
                    rows = index.states(chosen, *shape)
                    start, end = (np.full(len(rows), us) for us in (span.low_us, span.low_us + span.length_us))
                    parts.append(Partials(start, end, rows.key, rows.states))
                    late += parts[-1:] if came_late else []
    whole = combine(concat(parts), basis_of(*shape), None, ranks) if parts else NOTHING
    return _states(whole, late, shape)


def _states(made: Partials, late: Sequence[Partials], shape: Shape) -> WindowStates:
    """Windows with their counts of late readings. late: rows with counts, to be added up."""
    counts = np.zeros(len(made), np.int64)
    for part in late:
        if len(part):
            np.add.at(counts, _places(made, part), part.states["count"])
    return WindowStates(made, counts, shape)


def _extent(span: WindowRange) -> tuple[int, int]:
    """The range of event time of the rows of the windows."""
    return span.low_us, span.high_us + span.length_us


def _counts(rows: Partials) -> Partials:
    return Partials(rows.start, rows.end, rows.key, {"count": rows.states["count"]})


def _places(rows: Partials, part: Partials) -> Ints:
    """For each row of `part`, the index of its (start, key) in `rows`, which are sorted by it and contain all."""
    many = int(rows.key.max()) + 1
    starts = np.unique(rows.start)
    known = np.searchsorted(starts, rows.start) * many + rows.key
    return np.searchsorted(known, np.searchsorted(starts, part.start) * many + part.key)
