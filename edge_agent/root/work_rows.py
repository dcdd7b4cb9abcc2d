"""Computes the rows that a Work asks for from partials: the steps that numpy and Spark share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials, combine
from edge_agent.algebra.sliding.batch import in_windows_of
from edge_agent.algebra.windows import Sliding
from edge_agent.root.decision.work import CoverageCell, TooLate, WindowRange


def windows_in(
    rows: Partials, span: WindowRange, basis: tuple[str, ...], ranks: Ints | None, *, exact: bool
) -> Partials:
    """Combine rows into the windows of a range: one row per (window, key), sorted by (start, key).

    exact: only rows whose range is that of the window (docs/protocol.md 6.2). ranks: see aggregates.combine. The cost
    of a row does not depend on how many windows contain it.
    """
    window = Sliding(span.length_us, span.slide_us, span.offset_us)
    if not exact:
        return in_windows_of(rows, window, basis, (span.low_us, span.high_us), ranks)
    number, rest = np.divmod(rows.start - span.offset_us, span.slide_us)
    wanted = (rest == 0) & (number >= 0) & (rows.end - rows.start == span.length_us)
    wanted &= (rows.start >= span.low_us) & (rows.start <= span.high_us)
    return combine(rows.take(wanted), basis, span.slide_us, ranks)


def cells_of(cells: Sequence[CoverageCell], first: Ints, last: Ints) -> Ints:
    """The index of the cell that contains each (first, last): shape (n,), int64. Every pair lies in one cell.

    last: the last reading, for ordered windows; last + gap, for sessions (docs/protocol.md 4.7).
    """
    out = np.zeros(len(first), np.int64)
    for number, cell in enumerate(cells):
        here = (first >= cell.first_low) & (first < cell.first_high) & (last >= cell.end_low) & (last < cell.end_high)
        out[here] = number
    return out


def too_late_rows(rows: Partials, beyond: TooLate) -> Partials:
    """The rows of a part that are in no result, with their `count`. rows: of the part, columns named by the basis.

    Of raw rows whose time already has positions (beyond.decided), only the readings before `before_us` count.
    """
    gone = rows.take(beyond.concerns(rows.start, rows.end))
    if not beyond.decided or not len(gone):
        return Partials(gone.start, gone.end, gone.key, {"count": gone.states["count"]})
    found = series.flat(gone.states["series"])
    count = np.add.reduceat((found.time_us < beyond.before_us).astype(np.int64), found.starts)
    last = found.time_us[found.starts + count - 1]
    return Partials(gone.start, last + 1, gone.key, {"count": count})
