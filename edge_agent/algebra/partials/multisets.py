"""Multisets of values, one per row of a state column: for exact quantiles, modes and distinct counts.

A column of multisets is an object array, so that it can be indexed, concatenated and stored like every other column.
Operations work on the flat arrays of all rows at once (`FlatMultisets`); only packing and unpacking cost time per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Floats, Ints, Mask, constant
from edge_agent.algebra.partials.segments import Segments, begins_run, inner

ONE: Final = np.ones(1, np.int64)
MOST_PLACES: Final = 3  # float values with at most so many decimals are counted as integers, which is faster
_TRIED: Final = 32  # leading values that are tested before all values are
_SPARSE: Final = 4  # cells of a table of counts per value, at most (plus _SMALL)
_SMALL: Final = 1_024  # cells that a table of counts may have for any number of values
_WIDE: Final = 2**62  # limit of the integers that encode (group, value)
_LONG: Final = 512  # from this many readings per group on, groups are counted one by one
_BLOCK: Final = 2**21  # values merged at once: sorting them takes some 100 MB


@dataclass(frozen=True, slots=True, eq=False)
class Multiset:
    """A multiset. values: shape (k,), strictly increasing, float64 (never -0.0) or int64 units, k > 0.

    counts: shape (k,), int64, each at least 1. Values beyond 64 bits, which occur only at the root, are Python
    integers.
    """

    values: Array
    counts: Ints

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Multiset)
            and self.values.dtype == other.values.dtype
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Multiset({self.values.tolist()}, {self.counts.tolist()})"


class FlatCells:
    """The cells of a column, concatenated to flat arrays. sizes: shape (rows,), int64, number of entries per cell."""

    __slots__ = ()
    sizes: Ints

    @property
    def starts(self) -> Ints:
        """Index of the first entry of each row: shape (rows,)."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def rows(self) -> Ints:
        """Row index of each entry."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def inner(self) -> Mask:
        """For each entry, whether it is not the first of its row."""
        return inner(self.starts, int(self.sizes.sum()))


@dataclass(frozen=True, slots=True)
class FlatMultisets(FlatCells):
    """The multisets of a column. An entry is a distinct value and its count."""

    values: Array
    counts: Ints
    sizes: Ints

    def totals(self) -> Ints:
        """Number of readings in each row: the sum of its counts."""
        return np.add.reduceat(self.counts, self.starts) if len(self.sizes) else self.sizes

    def at(self, rank: Ints) -> Array:
        """The value at a rank of each row. rank: shape (rows,), from 0; a value that occurs n times takes n ranks."""
        upto = np.cumsum(self.counts)
        before = upto[self.starts] - self.counts[self.starts]
        return self.values[np.searchsorted(upto, before + rank, side="right")]

    def column(self) -> NDArray[Any]:
        """The column: an object array of one `Multiset` per row."""
        out = np.empty(len(self.sizes), object)
        ends = np.cumsum(self.sizes).tolist()
        first = 0
        for row, end in enumerate(ends):
            out[row] = Multiset(self.values[first:end], self.counts[first:end])
            first = end
        return out


def flat(column: Array) -> FlatMultisets:
    """The multisets of a column of shape (n,), n may be 0. Counts that are all 1 take no memory."""
    cells: list[Multiset] = column.tolist()
    if not cells:
        return FlatMultisets(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
    sizes = np.fromiter((len(multiset.values) for multiset in cells), np.int64, len(cells))
    if len(cells) == 1:
        return FlatMultisets(cells[0].values, cells[0].counts, sizes)
    values = np.concatenate([multiset.values for multiset in cells])
    if all(multiset.counts.strides == (0,) for multiset in cells):
        return FlatMultisets(values, ones(len(values)), sizes)
    return FlatMultisets(values, np.concatenate([multiset.counts for multiset in cells]), sizes)


def totals(column: Array) -> Ints:
    """Readings in each multiset of a column: as `flat(column).totals()`, without copying the values."""
    cells: list[Multiset] = column.tolist()
    sizes = np.fromiter((len(multiset.counts) for multiset in cells), np.int64, len(cells))
    if all(multiset.counts.strides == (0,) for multiset in cells):  # made by `ones`: every count is 1
        return sizes
    return np.add.reduceat(np.concatenate([multiset.counts for multiset in cells]), np.cumsum(sizes) - sizes)


def ones(k: int) -> Ints:
    """Counts for k values that occur once each."""
    return constant(1, k)


def is_bags(column: Array) -> bool:
    """Whether a column is not empty and contains multisets."""
    return column.dtype == object and len(column) > 0 and isinstance(column[0], Multiset)


def kind_of(column: Array) -> str:
    """The kind of a column as a letter: 'B' for multisets of floats, 'b' of integers, else numpy's letter."""
    if is_bags(column):
        return "B" if column[0].values.dtype.kind == "f" else "b"
    return column.dtype.kind


def lift(values: Array, groups: Segments) -> NDArray[Any]:
    """One multiset per group of readings. values: shape (k,), float64, finite, or int64."""
    if not len(groups):
        return np.empty(0, object)
    starts = groups.starts
    if starts is not None and len(values) >= _LONG * len(starts):
        out = np.empty(len(groups), object)
        bounds = [*starts.tolist(), len(values)]
        for row in range(len(groups)):
            found = tally(values[bounds[row] : bounds[row + 1]], ONE[:0], ONE[:0], 1)
            out[row] = Multiset(found.values, found.counts)
        return out
    owner = groups.spread(np.arange(len(groups)))
    return tally(values, owner, ONE[:0], len(groups)).column()


def combine(column: Array, groups: Segments) -> Array:
    """One multiset per group of multisets: counts of equal values add up. column: shape (k,)."""
    if not len(groups) or (len(groups) == groups.rows and groups.starts is not None):
        return column
    owner = groups.spread(np.arange(len(groups)))
    sizes = np.fromiter((len(multiset.values) for multiset in column.tolist()), np.int64, len(column))
    if int(sizes.sum()) <= _BLOCK or len(groups) == 1:
        return _merged(column, owner, len(groups)).column()
    out = np.empty(len(groups), object)
    order = np.argsort(owner, kind="stable")
    for first, last in blocks(owner[order], sizes[order]):
        rows = order[first:last]
        low, high = int(owner[rows[0]]), int(owner[rows[-1]]) + 1
        out[low:high] = _merged(column[rows], owner[rows] - low, high - low).column()
    return out


def blocks(owner: Ints, sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, last) of rows, each of whole groups with about _BLOCK values.

    owner: the group of each row, sorted. sizes: values in each row.
    """
    begins = np.flatnonzero(begins_run(owner))
    firsts = begins[begins_run((np.cumsum(sizes) - sizes)[begins] // _BLOCK)].tolist()
    yield from zip(firsts, [*firsts[1:], len(owner)], strict=True)


def _merged(column: Array, owner: Ints, groups: int) -> FlatMultisets:
    if groups > 1 and bool((owner[1:] < owner[:-1]).any()):
        order = np.argsort(owner, kind="stable")
        column, owner = column[order], owner[order]
    multisets = flat(column)
    counts = ONE[:0] if multisets.counts.strides == (0,) else multisets.counts
    return tally(multisets.values, np.repeat(owner, multisets.sizes) if groups > 1 else ONE[:0], counts, groups)


def mapped(column: Array, change: Callable[[Array], Array]) -> Array:
    """Multisets of changed values. change: maps a flat array and keeps its order; counts of equal results add up."""
    multisets = flat(column)
    if not len(column):
        return column
    return tally(change(multisets.values), multisets.rows, multisets.counts, len(column)).column()


def decimal_places(values: Floats) -> int | None:
    """The fewest decimals, at most MOST_PLACES, that represent every value exactly; None if these are too few."""
    few = values[:_TRIED]
    for places in range(MOST_PLACES + 1):
        if is_decimal(few, places):
            for more in range(places, MOST_PLACES + 1):
                if is_decimal(values, more):
                    return more
            return None
    return None


def is_decimal(values: Floats, places: int) -> bool:
    """Whether every value equals a whole number divided by 10**places exactly."""
    with np.errstate(over="ignore"):
        whole = np.rint(values * 10.0**places)
    return bool((np.abs(whole) < 2**53).all() and (whole / 10.0**places == values).all())


def tally(values: Array, owner: Ints, counts: Ints, groups: int) -> FlatMultisets:
    """Sorted distinct values with their counts, one row per group. Builds multisets from readings or from multisets.

    values: shape (k,), k > 0. owner: shape (k,), group of each value; ignored if there is one group. counts: shape
    (k,), how often each value occurs; empty: once. No group is empty.
    """
    if values.dtype == np.float64:
        places = decimal_places(values)
        if places is not None:
            units = np.rint(values * 10.0**places).astype(np.int64)
            found = _counted(units, owner, counts, groups)
            if found is not None:
                return FlatMultisets(found.values / 10.0**places, found.counts, found.sizes)
    elif values.dtype == np.int64:
        found = _counted(values, owner, counts, groups)
        if found is not None:
            return found
    return _sorted(values, owner, counts, groups)


def _counted(values: Ints, owner: Ints, counts: Ints, groups: int) -> FlatMultisets | None:
    """Tally in a table of (group, value), or by sorting (group, value) as one integer; None if neither fits."""
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width * groups > _WIDE:
        return None
    code = values - low
    if groups > 1:
        code += owner * width
    if width * groups > _SPARSE * len(values) + _SMALL:
        if groups == 1:
            return None
        found = _sorted(code, ONE[:0], counts, 1)
        code, count = found.values, found.counts
    else:
        table = np.bincount(code) if not len(counts) else np.bincount(code, counts)
        code = np.flatnonzero(table)
        count = table[code].astype(np.int64, copy=False)  # bincount returns floats, exact below 2^53 readings
    if groups == 1:
        return FlatMultisets(code + low, count, np.array([len(code)]))
    row, value = np.divmod(code, width)
    return FlatMultisets(value + low, count, np.bincount(row, minlength=groups))


def _sorted(values: Array, owner: Ints, counts: Ints, groups: int) -> FlatMultisets:
    """Tally by sorting. The stable sort is used where values come in sorted runs, which it merges fast."""
    if groups == 1 and not len(counts):
        values = np.sort(values, kind="stable" if _has_runs(values) else None)
    elif not len(counts) and len(values) >= _LONG // 8 * groups and bool((owner[1:] >= owner[:-1]).all()):
        values = values.copy()  # short sorts, one per group, are several times faster than a sort by two keys
        ends = np.cumsum(np.bincount(owner, minlength=groups)).tolist()
        for first, last in zip([0, *ends], ends, strict=False):
            values[first:last].sort()
    else:
        order = np.argsort(values, kind="stable") if groups == 1 else np.lexsort((values, owner))
        values = values[order]
        owner = owner[order] if groups > 1 else owner
        counts = counts[order] if len(counts) else counts
    new = begins_run(values, owner) if groups > 1 else begins_run(values)
    if values.dtype == np.float64:
        values += 0.0  # turns -0.0 into 0.0; `values` is a copy here
    if new.all():
        sizes = np.bincount(owner, minlength=groups) if groups > 1 else np.array([len(values)])
        return FlatMultisets(values, counts if len(counts) else ones(len(values)), sizes)
    begins = np.flatnonzero(new)
    sizes = np.bincount(owner[begins], minlength=groups) if groups > 1 else np.array([len(begins)])
    if len(counts):
        return FlatMultisets(values[begins], np.add.reduceat(counts, begins), sizes)
    return FlatMultisets(values[begins], np.diff(begins, append=len(values)), sizes)


def _has_runs(values: Array) -> bool:
    """Whether the first values are increasing, so that all probably come in sorted runs."""
    few = values[:_TRIED]
    return bool((few[1:] > few[:-1]).all())
