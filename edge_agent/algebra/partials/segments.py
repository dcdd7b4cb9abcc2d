"""Reduces columns by groups of rows: sums, extremes and picks per group.

Lift (readings to slices) and combine (partials to one) are both reductions over groups. Groups have one of two layouts,
with the same results: contiguous runs of rows (reduceat), or a group code per row (bincount and ufunc.at, about 1 ns
per row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Ints, Mask

INT64_MAX: Final = 2**63 - 1
_LOW: Final = 32  # bits of the lower half of a value, which is summed separately if a sum may exceed 64 bits


class Segments:
    """A partition of rows 0..k-1 into n groups, none empty. Methods return one value per group, shape (n,)."""

    __slots__ = ("_codes", "_count", "_dense", "_present", "_starts", "rows")

    def __init__(self, rows: int, starts: Ints | None, codes: Ints | None, dense: int) -> None:
        self.rows = rows
        self._starts = starts
        self._codes = codes
        self._dense = dense
        self._present: Ints | None = None
        if codes is None:
            assert starts is not None
            counts = np.empty(dense, np.int64)
            np.subtract(starts[1:], starts[:-1], out=counts[:-1])
            counts[-1:] = rows - starts[-1:]
        else:
            counts = np.bincount(codes, minlength=dense)
            if np.count_nonzero(counts) < dense:
                self._present = np.flatnonzero(counts)
                counts = counts[self._present]
        self._count: Ints = counts

    @classmethod
    def runs(cls, starts: Ints, rows: int) -> Segments:
        """Contiguous groups of rows. starts: shape (n,), int64, strictly increasing from 0: first row of each group."""
        return cls(rows, starts, None, len(starts))

    @classmethod
    def equal(cls, *columns: Array) -> Segments:
        """One group per run of successive rows that are equal in all columns. columns: shape (k,); k may be 0."""
        return cls.runs(np.flatnonzero(begins_run(*columns)), len(columns[0]))

    @classmethod
    def coded(cls, codes: Ints, dense: int) -> Segments:
        """One group per code that occurs. codes: shape (k,), int64, 0 <= code < dense; k may be 0."""
        return cls(len(codes), None, codes, dense)

    def __len__(self) -> int:
        return len(self._count)

    @property
    def label(self) -> Ints:
        """The code of each group, increasing; for runs 0, 1, ..."""
        return np.arange(self._dense) if self._present is None else self._present

    @property
    def starts(self) -> Ints | None:
        """The first row of each group if groups are contiguous runs, else None."""
        return self._starts

    def count(self) -> Ints:
        """Number of rows in each group."""
        return self._count

    def sum(self, values: Array) -> Array:
        """Sum of each group: of floats as float64, of integers exactly (int64 if every sum fits, else Python ints)."""
        if values.dtype == np.float64:
            return self._add(values)
        if values.dtype == object:
            return narrow(self._add(values))
        if not self.rows:
            return np.zeros(0, np.int64)
        peak = max(-int(values.min()), int(values.max()))
        if peak * int(self._count.max()) <= INT64_MAX:
            return self._add(values)
        ints = cast("Ints", values)
        high, low = self._add(ints >> _LOW), self._add(ints & ((1 << _LOW) - 1))
        return narrow((high.astype(object) << _LOW) + low.astype(object))

    def sum_of_squares(self, values: Ints) -> Array:
        """Exact sum of squares of each group, of integers: int64 if every sum fits, else object (Python ints)."""
        if not self.rows:
            return np.zeros(0, np.int64)
        peak = max(-int(values.min()), int(values.max()))
        if peak * peak * int(self._count.max()) <= INT64_MAX:
            return self._add(values * values)
        # Squares are up to 2**122. They are summed in limbs of 32 bits, so that sums of 2**31 rows fit 64 bits.
        size = np.abs(values)
        mask = (1 << _LOW) - 1
        high, low = size >> _LOW, size & mask
        middle = high * low
        square = low.astype(np.uint64) ** 2
        above = high * high
        parts = (square & mask, square >> _LOW, middle & mask, middle >> _LOW, above & mask, above >> _LOW)
        s0, s1, m0, m1, h0, h1 = (self._add(part.astype(np.int64)).astype(object) for part in parts)
        return narrow(s0 + ((s1 + 2 * m0) << _LOW) + ((2 * m1 + h0) << (2 * _LOW)) + (h1 << (3 * _LOW)))

    def min(self, values: Array) -> Array:
        """The smallest value of each group, in the dtype of `values`."""
        return self._extreme(np.minimum, values)

    def max(self, values: Array) -> Array:
        """The greatest value of each group, in the dtype of `values`."""
        return self._extreme(np.maximum, values)

    def spread(self, per_group: Array) -> Array:
        """Repeat the value of each group for all its rows: shape (k,)."""
        if self._codes is None:
            return np.repeat(per_group, self._count)
        if self._present is not None:
            dense = np.zeros(self._dense, per_group.dtype)
            dense[self._present] = per_group
            per_group = dense
        return per_group[self._codes]

    def first(self) -> Ints:
        """Index of the first row of each group."""
        if self._starts is not None:
            return self._starts
        assert self._codes is not None
        return self._last_write(np.arange(self.rows - 1, -1, -1), self._codes[::-1])

    def last(self) -> Ints:
        """Index of the last row of each group."""
        if self._starts is not None:
            return self._starts + self._count - 1
        assert self._codes is not None
        return self._last_write(np.arange(self.rows), self._codes)

    def first_where(self, mask: Mask) -> Ints:
        """Index of the first row of each group whose mask is True. Every group must have such a row."""
        rows = np.flatnonzero(mask)[::-1]
        if self._codes is not None:
            return self._last_write(rows, self._codes[rows])
        out = np.empty(len(self), np.int64)
        assert self._starts is not None
        out[np.searchsorted(self._starts, rows, side="right") - 1] = rows
        return out

    def least(self, keys: Sequence[Array]) -> Ints:
        """Index of the smallest row of each group by the first key; ties go by the second key, and so on."""
        if len(self) == self.rows and self._codes is None:
            return np.arange(self.rows)
        group = self.spread(np.arange(len(self)))
        order = np.lexsort((*reversed(keys), group))
        return cast("Ints", order[np.cumsum(self._count) - self._count])

    def _add(self, values: Array) -> Array:
        if self._starts is not None:
            # reduceat needs at least one group
            return np.add.reduceat(values, self._starts) if len(self) else values[:0]
        assert self._codes is not None
        if values.dtype == np.float64:
            return self._compress(
                np.bincount(self._codes, values.astype(np.float64, copy=False), minlength=self._dense)
            )
        out = np.zeros(self._dense, values.dtype)
        np.add.at(out, self._codes, values)
        return self._compress(out)

    def _extreme(self, ufunc: np.ufunc, values: Array) -> Array:
        if self._starts is not None:
            return ufunc.reduceat(values, self._starts) if len(self) else values[:0]
        assert self._codes is not None
        out = np.empty(self._dense, values.dtype)
        out[self._codes] = values  # starts from any value of the group, so that no identity is needed
        ufunc.at(out, self._codes, values)
        return self._compress(out)

    def _last_write(self, rows: Ints, codes: Ints) -> Ints:
        """The last of `rows` in each group. codes: group of each row. Numpy keeps the last assignment to an index."""
        out = np.empty(self._dense, np.int64)
        out[codes] = rows
        return self._compress(out)

    def _compress(self, dense: NDArray[Any]) -> Array:
        return dense if self._present is None else dense[self._present]


def begins_run(*columns: Array) -> Mask:
    """Mask of the rows that begin a run: the first row, and each that differs from its predecessor in any column."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def inner(starts: Ints, rows: int) -> Mask:
    """Mask of the rows that do not begin a run. starts: first row of each run. rows: number of all rows."""
    out = np.ones(rows, np.bool_)
    out[starts] = False
    return out


def narrow(values: Array) -> Array:
    """Exact integers as int64 if all fit, else unchanged. values: shape (n,), int64 or object (Python ints)."""
    if values.dtype != object:
        return values
    if any(not -INT64_MAX <= value <= INT64_MAX for value in values.tolist()):
        return values
    return values.astype(np.int64)
