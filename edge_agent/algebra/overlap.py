"""Overlapping windows from slices at a constant cost a slice, whatever the number of windows that hold it.

A row counts in a run of neighbouring windows, first..last by number. Sorted by (key, first) the rows of a window are a
run too, so that a window is a range of rows:

- integers that add up: the difference of two exact running totals;
- all else: rows are cut into blocks of as many windows as a row can be in. A window is then an end of its block and a
  beginning of the next, and these are scanned once for all windows ("two stacks", laid out flat). Nothing is taken
  away again, so that floats do not drift and extremes need no inverse.

Numpy over rows of all keys at once. Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window
Aggregation", sections 3 and 5; the Apache Kafka wiki, "Optimize Windowed Aggregation".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra import aggregates
from edge_agent.algebra.partial import NOTHING, Column, Ints, Partials, combine, concat
from edge_agent.algebra.segments import INT64_MAX, Segments, narrow
from edge_agent.algebra.windows import Sliding

if TYPE_CHECKING:
    from edge_agent.algebra.windows import Window

Mask = NDArray[np.bool_]

_SPARSE: Final = 4  # a padded grid of blocks may be this many times larger than the rows in it
_SMALL: Final = 1_024  # and always this large
_WIDE: Final = 2**62  # codes of (key, window) below it are one integer
_SHORT: Final = 2**16  # integers below it are sorted by their digits, several times faster


def in_windows_of(
    rows: Partials,
    window: Window,
    basis: tuple[str, ...],
    between: tuple[int, int] | None = None,
    ranks: Ints | None = None,
) -> Partials:
    """Partials of slices to partials of the windows that contain them: a row a (window, key), sorted by (start, key).

    between: lowest and highest start of the windows that are wanted, in us; None: all. ranks: as in
    aggregates.combine. Equal to partial.assign_windows.
    """
    if not isinstance(window, Sliding) or window.length_us == window.slide_us:  # others do not overlap
        index, start = window.assign(rows.start, rows.end)
        if between is not None:
            wanted = (start >= between[0]) & (start <= between[1])
            index, start = index[wanted], start[wanted]
        states = {name: column[index] for name, column in rows.states.items()}
        moved = Partials(start, window.ends(start), rows.key[index], states)
        return combine(moved, basis, None, ranks)
    length_us, slide_us, offset_us = window.length_us, window.slide_us, window.offset_us
    first, last = numbers(window, rows.start, rows.end)
    if between is not None:
        np.maximum(first, -((offset_us - between[0]) // slide_us), out=first)
        np.minimum(last, (between[1] - offset_us) // slide_us, out=last)
    number, made = over(rows, first, last, basis, ranks)
    if not len(made):
        return NOTHING
    start = offset_us + number * slide_us
    return Partials(start, start + length_us, made.key, made.states)


def numbers(window: Sliding, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """First and last window, by number from 0, that contain each range [start, end); last < first: none."""
    first = np.maximum(-((window.length_us + window.offset_us - end) // window.slide_us), 0)
    return first, (start - window.offset_us) // window.slide_us


def suffixes(rows: Partials, last: Ints, basis: tuple[str, ...], ranks: Ints | None = None) -> Partials:
    """Each row combined with all of its key that are in later windows: a row a (key, last), sorted; ranges are `last`.

    last: shape (n,), int64, the last window of each row; n may be 0.
    """
    if not len(rows):
        return NOTHING
    order = np.lexsort((last, rows.key))
    rows, last = rows.take(order), last[order]
    new = np.concatenate([[True], (rows.key[1:] != rows.key[:-1]) | (last[1:] != last[:-1])])
    starts = np.flatnonzero(new)
    states: Mapping[str, Column] = {name: rows.states[name] for name in basis}
    if not new.all():
        states = aggregates.combine(states, Segments.runs(starts, len(rows)), basis, ranks)
    key, last = rows.key[starts], last[starts]
    ends = np.append(key[1:] != key[:-1], True)[::-1]
    scanned = _prefixes({name: column[::-1] for name, column in states.items()}, ends, basis, ranks)
    return Partials(last, last, key, {name: column[::-1] for name, column in scanned.items()})


def over(
    rows: Partials, first: Ints, last: Ints, basis: tuple[str, ...], ranks: Ints | None = None
) -> tuple[Ints, Partials]:
    """Rows to the windows first..last in which each counts: (number of the window, states), sorted by (number, key).

    first, last: shape (n,), int64; last < first: in none. The ranges of the answer mean nothing. Windows without a row
    are not there. Amortised O(1) a row and a window: two combinations a row, one a window.
    """
    there = first <= last
    if not there.all():
        rows, first, last = rows.take(there), first[there], last[there]
    if not len(rows):
        return first, NOTHING
    base, lowest_key = int(first.min()), int(rows.key.min())
    key, near, far = rows.key - lowest_key, first - base, last - base
    islands: _Islands | None = None
    if (int(key.max()) + 1) * (int(far.max()) + 1) >= _WIDE:  # readings years apart
        islands = _Islands.of(near, far)
        near, far = islands.near(near), islands.near(far)
    short = _short(near, far)
    if short.any():  # those by themselves, one by one: few, and in few windows
        _number, most = over(rows.take(~short), first[~short], last[~short], basis, ranks)
        rest = _one_by_one(rows.take(short), first[short], last[short], basis, ranks)
        whole = combine(concat([most, rest]), basis, 1, ranks)
        return whole.start, whole
    states = {name: rows.states[name] for name in basis}
    number, key, states = _formed(_Elements.of(_Places(key, near, far), states, basis, ranks), basis, ranks)
    order = _order(number)
    if order is not None:
        number, key = number[order], key[order]
        states = {name: column[order] for name, column in states.items()}
    number = (number if islands is None else islands.far(number)) + base
    return number, Partials(number, number, key + lowest_key, states)


def _short(first: Ints, last: Ints) -> Mask:
    """Rows in so few windows that both ends lie inside a block: those of a coarser cut than most."""
    reach = int((last - first).max()) + 1
    block = -(-first // reach)
    short: Mask = (block > 0) & (last < np.minimum(block * reach - 1, int(last.max())))
    return short


def _one_by_one(rows: Partials, first: Ints, last: Ints, basis: tuple[str, ...], ranks: Ints | None) -> Partials:
    """Rows assigned to each of their windows; ranges are (number, number)."""
    many = last - first + 1
    row = np.repeat(np.arange(len(rows)), many)
    number = np.arange(len(row)) - (np.cumsum(many) - many)[row] + first[row]
    states = {name: rows.states[name][row] for name in basis}
    return combine(Partials(number, number, rows.key[row], states), basis, 1, ranks)


@dataclass(frozen=True, slots=True)
class _Islands:
    """Runs of windows that share rows, moved next to each other. begins: as they were; near_begins: as they are."""

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


@dataclass(frozen=True, slots=True)
class _Places:
    """In which windows of which key rows count; all numbers from 0."""

    key: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True, slots=True)
class _Elements:
    """Rows combined by what they count in: one a (key, first, last), sorted by them; all numbers from 0.

    span: how many windows there are; reach: in how many at most one row is. block: reach windows each; a row is in
    windows of its block, or of the one before, in no other.
    """

    key: Ints
    first: Ints
    last: Ints
    states: Mapping[str, Column]
    span: int
    reach: int
    block: Ints

    @classmethod
    def of(cls, places: _Places, states: Mapping[str, Column], basis: tuple[str, ...], ranks: Ints | None) -> _Elements:
        key, first, last = places.key, places.first, places.last
        span, reach = int(last.max()) + 1, int((last - first).max()) + 1
        place = key * span + first
        more, same = place[1:] > place[:-1], place[1:] == place[:-1]
        if not bool((more | (same & (last[1:] > last[:-1]))).all()):
            order = _sorted_by(key, first, last)
            if order is not None:
                key, first, last, place = key[order], first[order], last[order], place[order]
                states = {name: column[order] for name, column in states.items()}
            new = np.ones(len(place), np.bool_)
            np.not_equal(place[1:], place[:-1], out=new[1:])
            new[1:] |= last[1:] != last[:-1]
            if not new.all():
                starts = np.flatnonzero(new)
                states = aggregates.combine(states, Segments.runs(starts, len(place)), basis, ranks)
                key, first, last = key[starts], first[starts], last[starts]
        return cls(key, first, last, states, span, reach, -(-first // reach))

    def __len__(self) -> int:
        return len(self.key)


def _sorted_by(key: Ints, first: Ints, last: Ints) -> Ints | None:
    """Order by (key, first, last); None if they are in it. Rows mostly come in the order of time."""
    in_time = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (last[1:] >= last[:-1]))
    if not bool(in_time.all()):
        return np.lexsort((last, first, key))
    return _order(key)


def _order(number: Ints) -> Ints | None:
    """The stable order of integers from 0 on; None if they are in it."""
    if bool((number[1:] >= number[:-1]).all()):
        return None
    short = int(number.max()) < _SHORT
    return np.argsort(number.astype(np.uint16) if short else number, kind="stable")


def _formed(elements: _Elements, basis: tuple[str, ...], ranks: Ints | None) -> tuple[Ints, Ints, dict[str, Column]]:
    """(number, key, states) of every window with a row, sorted by (key, number)."""
    if elements.reach == 1:
        return elements.first, elements.key, dict(elements.states)
    found = _Found.of(elements)
    ends = _Ends(elements, found)
    totals, folds, others = _ways(elements, basis, ends)
    states: dict[str, Column] = {name: ends.difference(elements.states[name]) for name in totals}
    for name, ufunc in folds.items():
        states[name] = ends.folded(elements.states[name], ufunc)
    if others:
        states.update(ends.combined({name: elements.states[name] for name in others}, others, ranks))
    return found.number, found.key, {name: states[name] for name in basis}


def _ways(
    elements: _Elements, basis: tuple[str, ...], ends: _Ends
) -> tuple[list[str], dict[str, np.ufunc], tuple[str, ...]]:
    """Columns by how they combine: exact running totals; a ufunc over blocks; the algebra's own combine over blocks."""
    totals: list[str] = []
    folds: dict[str, np.ufunc] = {}
    others: set[str] = set()
    for component in aggregates.components_of(basis):
        columns = [elements.states[name] for name in component.columns]
        fold = component.fold
        if fold is np.add and ends.in_step and all(column.dtype != np.float64 for column in columns):
            totals += component.columns
        elif fold is not None and ends.even and all(_folds(column, fold) for column in columns):
            folds.update(dict.fromkeys(component.columns, fold))
        else:
            others |= _needed(component.name)
    return (
        [name for name in totals if name not in others],
        {name: fold for name, fold in folds.items() if name not in others},
        tuple(name for name in basis if name in others),
    )


def _needed(name: str) -> set[str]:
    """The columns of a component and of those it needs."""
    component = aggregates.COMPONENTS[name]
    return set(component.columns).union(*(_needed(other) for other in component.needs))


def _folds(column: Column, fold: np.ufunc) -> bool:
    """Whether a ufunc combines a column as its component does: sums of integers may leave 64 bits."""
    return column.dtype == np.float64 or (column.dtype == np.int64 and fold is not np.add)


@dataclass(frozen=True, slots=True)
class _Found:
    """Windows with a row, sorted by (key, number). element: the first of them that brings it."""

    number: Ints
    key: Ints
    element: Ints

    @classmethod
    def of(cls, e: _Elements) -> _Found:
        reached = np.maximum.accumulate(e.key * e.span + e.last)  # of all elements up to each, of its key
        new = e.first.copy()
        np.maximum(new[1:], reached[:-1] - e.key[1:] * e.span + 1, out=new[1:])
        many = np.maximum(e.last - new + 1, 0)
        if bool((many == 1).all()):
            return cls(new, e.key, np.arange(len(e)))
        element = np.repeat(np.arange(len(e)), many)
        number = np.arange(len(element)) - (np.cumsum(many) - many)[element] + new[element]
        return cls(number, e.key[element], element)


class _Ends:
    """The two ends of every window: j of block b holds the elements of block b with last >= j and those of block b + 1
    with first <= j, no others.

    longest: elements of one key and block. in_step: later elements of a key never have earlier lasts; a window is then
    a run of elements. even: blocks are about equally full, so that they fit a table.
    """

    def __init__(self, e: _Elements, found: _Found) -> None:
        new = np.ones(len(e), np.bool_)
        np.not_equal(e.key[1:], e.key[:-1], out=new[1:])
        self.in_step = bool((new[1:] | (e.last[1:] >= e.last[:-1])).all())
        new[1:] |= e.block[1:] != e.block[:-1]
        self._new = new
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(e))
        self.longest = int(sizes.max())
        self.even = len(starts) * self.longest <= _SPARSE * len(e) + _SMALL
        self._whole = len(starts) * self.longest == len(e)
        row = np.repeat(np.arange(len(starts)), sizes)
        within = np.arange(len(e)) - starts[row]
        self._onward = row * self.longest + within  # places in the table of blocks, from either end
        self._back = row * self.longest + sizes[row] - 1 - within
        block = found.number // e.reach
        self._upto = np.searchsorted(e.key * e.span + e.first, found.key * e.span + found.number, side="right")
        self._right = self._upto - 1
        self._has_right = e.block[self._right] > block
        self._left = found.element
        self._by_last: Ints | None = None
        if self.in_step:
            self._has_left = e.block[self._left] == block
        else:
            self._by_last = np.lexsort((e.last, row))
            known = e.key[starts] * (e.span + 1) + e.block[starts]
            wanted = found.key * (e.span + 1) + block
            place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            last = e.last[self._by_last]
            at = np.searchsorted(row * e.span + last, place * e.span + found.number)
            self._left = np.minimum(at, len(e) - 1)
            self._has_left = (known[place] == wanted) & (row[self._left] == place) & (last[self._left] >= found.number)

    def difference(self, column: Column) -> Column:
        """Exact sums of integers; only in step. Running totals may wrap around, their differences do not."""
        if column.dtype != object and max(-int(column.min()), int(column.max())) * 2 * self.longest > INT64_MAX:
            column = column.astype(object)
        totals = np.concatenate([np.zeros(1, column.dtype), np.cumsum(column)])
        return narrow(totals[self._upto] - totals[self._left])

    def folded(self, column: Column, ufunc: np.ufunc) -> Column:
        """A column whose rows combine by a ufunc; only where blocks are even."""
        table = np.zeros((len(column) if self._whole else len(self._new[self._new]) * self.longest), column.dtype)
        table[self._onward] = column
        rows = table.reshape(-1, self.longest)
        prefix = ufunc.accumulate(rows, axis=1).ravel()[self._onward]
        table[self._back] = column if self._by_last is None else column[self._by_last]
        suffix = ufunc.accumulate(rows, axis=1).ravel()[self._back]
        left, right = suffix[self._left], prefix[self._right]
        out = np.where(self._has_left, left, right)
        return np.asarray(ufunc(left, right, out=out, where=self._has_left & self._has_right))

    def combined(self, states: Mapping[str, Column], basis: tuple[str, ...], ranks: Ints | None) -> dict[str, Column]:
        """Columns of any components, by their own combine."""
        prefix = _prefixes(states, self._new, basis, ranks)
        ends = np.append(self._new[1:], True)[::-1]
        if self._by_last is not None:
            states = {name: column[self._by_last] for name, column in states.items()}
        suffix = _prefixes({name: column[::-1] for name, column in states.items()}, ends, basis, ranks)
        many = len(self._new)
        both = self._has_left & self._has_right
        starts = np.cumsum(both + 1) - (both + 1)
        index = np.empty(int(starts[-1]) + 1 + int(both[-1]), np.int64)
        index[starts] = np.where(self._has_left, 2 * many - 1 - self._left, self._right)
        index[starts[both] + 1] = self._right[both]
        sides = {name: np.concatenate([prefix[name], suffix[name]])[index] for name in basis}
        return aggregates.combine(sides, Segments.runs(starts, len(index)), basis, ranks)


def _prefixes(
    states: Mapping[str, Column], new: Mask, basis: tuple[str, ...], ranks: Ints | None
) -> Mapping[str, Column]:
    """Each row combined with all before it in its run. new: where runs begin.

    Pairs first, the prefixes of those by the same rule, then the rows between: two combinations a row in all.
    """
    many = len(new)
    within = np.arange(many) - np.maximum.accumulate(np.where(new, np.arange(many), 0))
    if not within.any():
        return states
    even = within % 2 == 0
    starts = np.flatnonzero(even)
    pairs = aggregates.combine(states, Segments.runs(starts, many), basis, ranks)
    pair = np.cumsum(even) - 1
    done = _prefixes(pairs, new[starts], basis, ranks)  # up to the end of each pair
    between = np.flatnonzero(even & (within > 0))
    index = np.empty(2 * len(between), np.int64)
    index[::2], index[1::2] = pair[between] - 1, len(starts) + between
    sides = {name: np.concatenate([done[name], states[name]]) for name in basis}
    found = aggregates.combine(
        {name: side[index] for name, side in sides.items()},
        Segments.runs(np.arange(0, len(index), 2), len(index)),
        basis,
        ranks,
    )
    place = np.where(within == 0, len(starts) + np.arange(many), pair)
    place[between] = len(starts) + many + np.arange(len(between))
    return {name: np.concatenate([sides[name], found[name]])[place] for name in basis}
