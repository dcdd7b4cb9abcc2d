"""Computes the rows that a Work asks for from partials: the steps that numpy and Spark share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials, combine
from edge_agent.algebra.sliding.batch import in_windows_of, numbers
from edge_agent.algebra.windows import Sliding
from edge_agent.root.decision.work import CoverageCell, TooLate, WindowRange

# Rows of windows formed at once, and values in their cells: some 30 MB. A reading may be in 86 400 windows of each key.
MOST_FORMED: Final = 262_144


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


def windows_in_pieces(
    rows: Partials, span: WindowRange, basis: tuple[str, ...], ranks: Ints | None, *, exact: bool
) -> Iterator[Partials]:
    """The rows of `windows_in`, each in one of several pieces of at most 2 * MOST_FORMED rows.

    A piece has about as many values in its cells at most. Pieces have different keys; only a key with more windows than
    that is in several.
    """
    window = Sliding(span.length_us, span.slide_us, span.offset_us)
    first, last = numbers(window, rows.start, rows.end)
    lowest, highest = ((us - span.offset_us) // span.slide_us for us in (span.low_us + span.slide_us - 1, span.high_us))
    many = np.maximum(np.minimum(last, highest) - np.maximum(first, lowest) + 1, 0)
    load = many * (1 + _values(rows))
    if exact or load.sum() <= MOST_FORMED:
        yield windows_in(rows, span, basis, ranks, exact=exact)
        return
    first, last = np.maximum(first, lowest)[many > 0], np.minimum(last, highest)[many > 0]
    rows, many, load = rows.take(many > 0), many[many > 0], load[many > 0]
    keys, place = np.unique(rows.key, return_inverse=True)
    windows, values = (np.bincount(place, each, len(keys)).astype(np.int64) for each in (many, load - many))
    windows = np.minimum(windows, highest - lowest + 1)
    if values.any():  # the same few values may be in all rows of a key
        here = windows + np.bincount(place, minlength=len(keys))
        values = np.minimum(values, here * _distinct(rows, place, len(keys)))
    of_key = windows + values
    piece = (np.cumsum(of_key) // MOST_FORMED)[place]

    def form(some: Partials, low: int, high: int) -> Partials:
        low_us, high_us = (span.offset_us + number * span.slide_us for number in (low, high))
        return windows_in(some, replace(span, low_us=low_us, high_us=high_us), basis, ranks, exact=False)

    for number in np.unique(piece):
        mine = piece == number
        here = np.unique(place[mine])
        most = int(highest - lowest) + 1
        if of_key[here].max() > MOST_FORMED:
            most = max(int((MOST_FORMED * windows[here] // of_key[here]).min()), 1)
        yield from _in_steps(rows.take(mine), first[mine], last[mine], form, most)


def _values(rows: Partials) -> Ints:
    """How many values the cells of each row hold: multisets and series; 0 without cells."""
    held = np.zeros(len(rows), np.int64)
    for column in rows.states.values():
        if multisets.is_bags(column):
            held += np.fromiter((len(cell.values) for cell in column.tolist()), np.int64, len(rows))
        elif series.is_series(column):
            held += np.fromiter((len(cell.time_us) for cell in column.tolist()), np.int64, len(rows))
    return held


def _distinct(rows: Partials, key: Ints, keys: int) -> Ints:
    """How many values a window of each key holds at most: equal values are one in a multiset. key: of each row."""
    most = np.zeros(keys, np.int64)
    for column in rows.states.values():
        if multisets.is_bags(column):
            values = [cell.values for cell in column.tolist()]
            of = np.repeat(key, [len(each) for each in values])
            number = np.unique(np.concatenate(values), return_inverse=True)[1]
            found, many = np.unique(of * len(number) + number), max(len(number), 1)
            most += np.bincount(found // many, minlength=keys)
        elif series.is_series(column):  # each has a time of its own
            most += np.bincount(key, [len(cell.time_us) for cell in column.tolist()], keys).astype(np.int64)
    return most


def _in_steps(
    rows: Partials, first: Ints, last: Ints, form: Callable[[Partials, int, int], Partials], most: int
) -> Iterator[Partials]:
    """Form the windows of rows, `most` successive ones at once. first, last: numbers of the windows of each row.

    Windows without rows cost nothing: readings may be years apart.
    """
    at, end = int(first.min()), int(last.max())
    while at <= end:
        upto = min(at + most - 1, end)
        near = (first <= upto) & (last >= at)
        yield form(rows.take(near), at, upto)
        ahead = last > upto
        at = max(upto + 1, int(first[ahead].min())) if ahead.any() else end + 1


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
