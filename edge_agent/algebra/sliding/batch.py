"""Forms overlapping windows from slices. The cost per slice does not depend on how many windows contain it.

A row lies in successive windows, numbered first..last. With rows sorted by (key, first), the rows of a window are
successive, too. Their states are computed in one of two ways:

- Sums of integers: the difference of two exact running totals.
- Other states: rows are divided into blocks of as many windows as a row can be in. A window is then the end of one
  block and the beginning of the next. Both ends of every block are scanned once for all windows (two_stacks.py).
  Nothing is subtracted, so floats do not drift and extremes need no inverse.

All keys are processed at once. Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window Aggregation",
sections 3 and 5; the Apache Kafka wiki, "Optimize Windowed Aggregation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints, Mask
from edge_agent.algebra.partials.partial import NOTHING, Partials, assign_windows, combine, concat
from edge_agent.algebra.sliding.two_stacks import Elements, Places, formed, order_of
from edge_agent.algebra.windows import Sliding, Window, evenly

_WIDE: Final = 2**62  # limit of the integers that encode (key, window)


def in_windows_of(
    rows: Partials,
    window: Window,
    basis: tuple[str, ...],
    between: tuple[int, int] | None = None,
    ranks: Ints | None = None,
) -> Partials:
    """Combine rows of slices to one row per (window, key), sorted by (start, key).

    between: lowest and highest start of the requested windows, in us; None: all. ranks: as in aggregates.combine. The
    result equals that of partial.assign_windows.
    """
    even = evenly(window)
    if even is None or even.length_us <= even.slide_us:  # no overlap, or uneven overlap, which only packages have
        return assign_windows(rows, window, basis, ranks, between)
    length_us, slide_us, offset_us = even.length_us, even.slide_us, even.offset_us
    first, last = numbers(even, rows.start, rows.end)
    if between is not None:
        np.maximum(first, -((offset_us - between[0]) // slide_us), out=first)
        np.minimum(last, (between[1] - offset_us) // slide_us, out=last)
    number, made = over(rows, first, last, basis, ranks)
    if not len(made):
        return NOTHING
    start = offset_us + number * slide_us
    return Partials(start, start + length_us, made.key, made.states)


def numbers(window: Sliding, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(first, last) number, from 0, of the windows that contain each range [start, end). last < first: none does."""
    first = np.maximum(-((window.length_us + window.offset_us - end) // window.slide_us), 0)
    return first, (start - window.offset_us) // window.slide_us


def over(
    rows: Partials, first: Ints, last: Ints, basis: tuple[str, ...], ranks: Ints | None = None
) -> tuple[Ints, Partials]:
    """Combine rows to one row per (window, key). Returns (number of each window, rows), sorted by (number, key).

    first, last: shape (n,), int64, numbers of the first and last window that contain each row; last < first: none.
    Windows without a row are absent. The start and end of returned rows are meaningless. Cost: two combinations per
    row, one per window.
    """
    there = first <= last
    if not there.all():
        rows, first, last = rows.take(there), first[there], last[there]
    if not len(rows):
        return first, NOTHING
    base, lowest_key = int(first.min()), int(rows.key.min())
    key, near, far = rows.key - lowest_key, first - base, last - base
    islands: _Islands | None = None
    if (int(key.max()) + 1) * (int(far.max()) + 1) >= _WIDE:  # too large, because readings are years apart
        islands = _Islands.of(near, far)
        near, far = islands.near(near), islands.near(far)
    short = _short(near, far)
    if short.any():  # these are few, and in few windows: each is copied into all its windows
        _number, most = over(rows.take(~short), first[~short], last[~short], basis, ranks)
        rest = _one_by_one(rows.take(short), first[short], last[short], basis, ranks)
        whole = combine(concat([most, rest]), basis, 1, ranks)
        return whole.start, whole
    states = {name: rows.states[name] for name in basis}
    number, key, states = formed(Elements.of(Places(key, near, far), states, basis, ranks), basis, ranks)
    order = order_of(number)
    if order is not None:
        number, key = number[order], key[order]
        states = {name: column[order] for name, column in states.items()}
    number = (number if islands is None else islands.far(number)) + base
    return number, Partials(number, number, key + lowest_key, states)


def _short(first: Ints, last: Ints) -> Mask:
    """Mask of rows in so few windows that these begin and end inside one block. Longer slices make such rows."""
    reach = int((last - first).max()) + 1
    block = -(-first // reach)
    short: Mask = (block > 0) & (last < np.minimum(block * reach - 1, int(last.max())))
    return short


def _one_by_one(rows: Partials, first: Ints, last: Ints, basis: tuple[str, ...], ranks: Ints | None) -> Partials:
    """Copy rows into each of their windows and combine. start and end of the result are the window's number."""
    many = last - first + 1
    row = np.repeat(np.arange(len(rows)), many)
    number = np.arange(len(row)) - (np.cumsum(many) - many)[row] + first[row]
    states = {name: rows.states[name][row] for name in basis}
    return combine(Partials(number, number, rows.key[row], states), basis, 1, ranks)


@dataclass(frozen=True, slots=True)
class _Islands:
    """Renumbers windows without the long gaps between them. An island is a run of windows that share rows.

    begins: original number of each island's first window. near_begins: its new number.
    """

    begins: Ints
    near_begins: Ints

    @classmethod
    def of(cls, first: Ints, last: Ints) -> _Islands:
        order = np.argsort(first)
        reached = np.maximum.accumulate(last[order])
        new = np.flatnonzero(np.concatenate([[True], first[order][1:] > reached[:-1]]))
        begins = first[order][new]
        spans = reached[np.concatenate([new[1:], [len(order)]]) - 1] - begins + 1
        return cls(begins, np.cumsum(spans) - spans)

    def near(self, number: Ints) -> Ints:
        island = np.searchsorted(self.begins, number, side="right") - 1
        return number - (self.begins - self.near_begins)[island]

    def far(self, number: Ints) -> Ints:
        island = np.searchsorted(self.near_begins, number, side="right") - 1
        return number + (self.begins - self.near_begins)[island]
