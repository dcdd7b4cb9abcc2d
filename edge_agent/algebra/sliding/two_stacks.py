"""Forms windows from suffixes and prefixes of blocks of rows, combining every row a fixed number of times.

Used by batch.py.
Rows that lie in the same windows are first combined to elements; then all windows of all keys are formed at once.
Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window Aggregation", section 5 (two stacks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates.base import Component
from edge_agent.algebra.partials.arrays import Array, Ints, Mask
from edge_agent.algebra.partials.partial import NOTHING, Partials
from edge_agent.algebra.partials.segments import INT64_MAX, Segments, begins_run, narrow

_SPARSE: Final = 4  # cells of a padded table of blocks per row, at most (plus _SMALL)
_SMALL: Final = 1_024  # cells that a padded table may have for any number of rows
_SHORT: Final = 2**16  # smaller integers are sorted as uint16, for which numpy uses the much faster radix sort


def order_of(number: Ints) -> Ints | None:
    """The stable sort order of integers >= 0; None if they are sorted already."""
    if bool((number[1:] >= number[:-1]).all()):
        return None
    short = int(number.max()) < _SHORT
    return np.argsort(number.astype(np.uint16) if short else number, kind="stable")


def suffixes(rows: Partials, last: Ints, basis: tuple[str, ...], ranks: Ints | None = None) -> Partials:
    """For each key and value of `last`, combine all rows of the key with this `last` or a later one.

    last: shape (n,), int64, the last window of each row; n may be 0. Returns one row per (key, last), sorted by them,
    with `last` as start and end.
    """
    if not len(rows):
        return NOTHING
    order = np.lexsort((last, rows.key))
    rows, last = rows.take(order), last[order]
    groups = Segments.equal(rows.key, last)
    states: Mapping[str, Array] = {name: rows.states[name] for name in basis}
    if len(groups) < len(rows):
        states = aggregates.combine(states, groups, basis, ranks)
    key, last = rows.key[groups.first()], last[groups.first()]
    ends = begins_run(key[::-1])
    scanned = _prefixes({name: column[::-1] for name, column in states.items()}, ends, basis, ranks)
    return Partials(last, last, key, {name: column[::-1] for name, column in scanned.items()})


@dataclass(frozen=True, slots=True)
class Places:
    """Key, first window and last window of each row, all numbered from 0."""

    key: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True, slots=True)
class Elements:
    """Rows combined to one element per (key, first window, last window), sorted by them. All are numbered from 0.

    span: number of windows. reach: most windows that one row is in. block: number of the block of each element; a block
    is `reach` windows, and an element lies only in windows of its block and of the one before.
    """

    key: Ints
    first: Ints
    last: Ints
    states: Mapping[str, Array]
    span: int
    reach: int
    block: Ints

    @classmethod
    def of(cls, places: Places, states: Mapping[str, Array], basis: tuple[str, ...], ranks: Ints | None) -> Elements:
        key, first, last = places.key, places.first, places.last
        span, reach = int(last.max()) + 1, int((last - first).max()) + 1
        place = key * span + first
        more, same = place[1:] > place[:-1], place[1:] == place[:-1]
        if not bool((more | (same & (last[1:] > last[:-1]))).all()):
            order = _sorted_by(key, first, last)
            if order is not None:
                key, first, last, place = key[order], first[order], last[order], place[order]
                states = {name: column[order] for name, column in states.items()}
            groups = Segments.equal(place, last)
            if len(groups) < len(place):
                states, starts = aggregates.combine(states, groups, basis, ranks), groups.first()
                key, first, last = key[starts], first[starts], last[starts]
        return cls(key, first, last, states, span, reach, -(-first // reach))

    def __len__(self) -> int:
        return len(self.key)


def _sorted_by(key: Ints, first: Ints, last: Ints) -> Ints | None:
    """Sort order by (key, first, last); None if they are sorted already. Fast if rows are in the order of time."""
    in_time = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (last[1:] >= last[:-1]))
    if not bool(in_time.all()):
        return np.lexsort((last, first, key))
    return order_of(key)


def formed(elements: Elements, basis: tuple[str, ...], ranks: Ints | None) -> tuple[Ints, Ints, dict[str, Array]]:
    """Form windows. Returns (number, key, states) of every window with a row, sorted by (key, number)."""
    if elements.reach == 1:
        return elements.first, elements.key, dict(elements.states)
    found = _Found.of(elements)
    ends = _Ends(elements, found)
    totals, folds, others = _ways(elements, basis, ends)
    states: dict[str, Array] = {name: ends.difference(elements.states[name]) for name in totals}
    for component in _inverted(elements, basis, ends, others):
        found_here = ends.inverted({name: elements.states[name] for name in component.columns}, component, ranks)
        if found_here is not None:
            states.update(found_here)
            others = tuple(name for name in others if name not in component.columns)
    for name, ufunc in folds.items():
        states[name] = ends.folded(elements.states[name], ufunc)
    if others:
        states.update(ends.combined({name: elements.states[name] for name in others}, others, ranks))
    return found.number, found.key, {name: states[name] for name in basis}


def _ways(
    elements: Elements, basis: tuple[str, ...], ends: _Ends
) -> tuple[list[str], dict[str, np.ufunc], tuple[str, ...]]:
    """Divide columns by the way to combine: (exact running totals; a ufunc over blocks; `combine` over blocks)."""
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
            others |= aggregates.columns_of(component)
    return (
        [name for name in totals if name not in others],
        {name: fold for name, fold in folds.items() if name not in others},
        tuple(name for name in basis if name in others),
    )


def _inverted(e: Elements, basis: tuple[str, ...], ends: _Ends, others: tuple[str, ...]) -> list[Component]:
    """The components among `others` that have an exact inverse, and neither need other components nor are needed."""
    if not ends.in_step:
        return []
    components = [c for c in aggregates.components_of(basis) if set(c.columns) <= set(others)]
    needed = {name for component in components for name in component.needs}
    return [
        component
        for component in components
        if component.invert is not None and not component.needs and component.name not in needed
        if all(e.states[name].dtype != np.float64 for name in component.columns)
    ]


def _folds(column: Array, fold: np.ufunc) -> bool:
    """Whether a ufunc can combine a column. It cannot sum integers, because the sum may exceed 64 bits."""
    return column.dtype == np.float64 or (column.dtype == np.int64 and fold is not np.add)


@dataclass(frozen=True, slots=True)
class _Found:
    """The windows with a row, sorted by (key, number). element: index of the first element in each window."""

    number: Ints
    key: Ints
    element: Ints

    @classmethod
    def of(cls, e: Elements) -> _Found:
        reached = np.maximum.accumulate(e.key * e.span + e.last)  # the last window so far of each element's key
        new = e.first.copy()
        np.maximum(new[1:], reached[:-1] - e.key[1:] * e.span + 1, out=new[1:])
        many = np.maximum(e.last - new + 1, 0)
        if bool((many == 1).all()):
            return cls(new, e.key, np.arange(len(e)))
        element = np.repeat(np.arange(len(e)), many)
        number = np.arange(len(element)) - (np.cumsum(many) - many)[element] + new[element]
        return cls(number, e.key[element], element)


class _Ends:
    """The left and right part of every window, which together are all its elements.

    Window j of block b contains the elements of block b with last >= j (left) and those of block b + 1 with first <= j
    (right). longest: most elements of one key and block. in_step: whether `last` never decreases among successive
    elements of a key; a window is then a run of elements. even: whether blocks have about the same size, so that they
    fit a table.
    """

    def __init__(self, e: Elements, found: _Found) -> None:
        self._new_key, self._new = begins_run(e.key), begins_run(e.key, e.block)
        self.in_step = bool((self._new_key[1:] | (e.last[1:] >= e.last[:-1])).all())
        starts = np.flatnonzero(self._new)
        sizes = np.diff(starts, append=len(e))
        self.longest = int(sizes.max())
        self.even = len(starts) * self.longest <= _SPARSE * len(e) + _SMALL
        self._whole = len(starts) * self.longest == len(e)
        row = np.repeat(np.arange(len(starts)), sizes)
        within = np.arange(len(e)) - starts[row]
        self._onward = row * self.longest + within  # index in the table of blocks; _back: with each block reversed
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

    def difference(self, column: Array) -> Array:
        """Exact sums of integers, if in_step. Running totals may wrap around; their differences do not."""
        if column.dtype != object and max(-int(column.min()), int(column.max())) * 2 * self.longest > INT64_MAX:
            column = column.astype(object)
        totals = np.concatenate([np.zeros(1, column.dtype), np.cumsum(column)])
        return narrow(totals[self._upto] - totals[self._left])

    def inverted(
        self, states: Mapping[str, Array], component: Component, ranks: Ints | None
    ) -> Mapping[str, Array] | None:
        """Running total of each key minus the total before each window, if in_step. None: cannot be inverted."""
        assert component.invert is not None
        first = np.maximum.accumulate(np.where(self._new_key, np.arange(len(self._new_key)), 0))
        totals = _prefixes(states, self._new_key, component.columns, ranks)
        found = {name: column[self._right] for name, column in totals.items()}
        less = np.flatnonzero(self._left > first[self._right])
        if not len(less):
            return found
        part = {name: column[self._left[less] - 1] for name, column in totals.items()}
        rest = component.invert({name: column[less] for name, column in found.items()}, part)
        if rest is None:
            return None
        for name in component.columns:
            column = found[name].astype(np.result_type(found[name], rest[name]))
            column[less] = rest[name]
            found[name] = column
        return found

    def folded(self, column: Array, ufunc: np.ufunc) -> Array:
        """Combine a column by a ufunc, if even."""
        table = np.zeros((len(column) if self._whole else len(self._new[self._new]) * self.longest), column.dtype)
        table[self._onward] = column
        rows = table.reshape(-1, self.longest)
        prefix = ufunc.accumulate(rows, axis=1).ravel()[self._onward]
        table[self._back] = column if self._by_last is None else column[self._by_last]
        suffix = ufunc.accumulate(rows, axis=1).ravel()[self._back]
        left, right = suffix[self._left], prefix[self._right]
        out = np.where(self._has_left, left, right)
        return np.asarray(ufunc(left, right, out=out, where=self._has_left & self._has_right))

    def combined(self, states: Mapping[str, Array], basis: tuple[str, ...], ranks: Ints | None) -> dict[str, Array]:
        """Combine the columns of any components by their own `combine`."""
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
    states: Mapping[str, Array], new: Mask, basis: tuple[str, ...], ranks: Ints | None
) -> Mapping[str, Array]:
    """Combine each row with all rows before it in its run. new: mask of the rows that begin a run.

    Combines pairs of rows, computes the prefixes of the pairs recursively, then those of the rows between. This takes
    two combinations per row in total.
    """
    many = len(new)
    within = np.arange(many) - np.maximum.accumulate(np.where(new, np.arange(many), 0))
    if not within.any():
        return states
    even = within % 2 == 0
    starts = np.flatnonzero(even)
    pairs = aggregates.combine(states, Segments.runs(starts, many), basis, ranks)
    pair = np.cumsum(even) - 1
    done = _prefixes(pairs, new[starts], basis, ranks)  # prefixes up to the end of each pair
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
