"""Reduces groups of rows column by column: the only place where numpy sums, compares and picks per group.

Both lift (readings into slices) and combine (partials into one) are reductions over groups. There are two layouts with
the same results: contiguous runs (reduceat), and one group code per row (bincount and the indexed loops of ufunc.at,
about 1 ns per row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Ints, Mask

INT64_MAX: Final = 2**63 - 1
_LOW: Final = 32  # bits of the lower limb when a sum may leave 64 bits


class Segments:
    """n groups over rows 0..k-1; none is empty. Results of its methods have shape (n,), in the order of the groups."""

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
        """Contiguous groups. starts: shape (n,), int64, strictly increasing from 0; a run ends at the next."""
        return cls(rows, starts, None, len(starts))

    @classmethod
    def equal(cls, *columns: Array) -> Segments:
        """A group for each run of rows that are equal in all these columns. columns: shape (k,); k may be 0."""
        return cls.runs(np.flatnonzero(begins_run(*columns)), len(columns[0]))

    @classmethod
    def coded(cls, codes: Ints, dense: int) -> Segments:
        """A group per code that occurs. codes: shape (k,), int64, 0 <= code < dense; k may be 0."""
        return cls(len(codes), None, codes, dense)

    def __len__(self) -> int:
        return len(self._count)

    @property
    def label(self) -> Ints:
        """The code of each group: increasing; for runs its position."""
        return np.arange(self._dense) if self._present is None else self._present

    @property
    def starts(self) -> Ints | None:
        """The first row of each group, where groups are contiguous runs; else None."""
        return self._starts

    def count(self) -> Ints:
        """Rows in each group."""
        return self._count

    def sum(self, values: Array) -> Array:
        """Sums. float64 in float64; integers exactly: int64 if every sum fits, else object (Python ints)."""
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
        """Exact sums of squares of integers: int64 if every sum fits, else object (Python ints)."""
        if not self.rows:
            return np.zeros(0, np.int64)
        peak = max(-int(values.min()), int(values.max()))
        if peak * peak * int(self._count.max()) <= INT64_MAX:
            return self._add(values * values)
        # Squares of up to 2**122: limbs of 32 bits, whose products are cut again, so that 2**31 rows fit 64 bits.
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
        """The smallest value of each group; dtype kept."""
        return self._extreme(np.minimum, values)

    def max(self, values: Array) -> Array:
        """The greatest value of each group; dtype kept."""
        return self._extreme(np.maximum, values)

    def spread(self, per_group: Array) -> Array:
        """Repeats a value of each group for its rows: shape (k,)."""
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
        """Index of the first row of each group at which mask holds; it holds at least once in each."""
        rows = np.flatnonzero(mask)[::-1]
        if self._codes is not None:
            return self._last_write(rows, self._codes[rows])
        out = np.empty(len(self), np.int64)
        assert self._starts is not None
        out[np.searchsorted(self._starts, rows, side="right") - 1] = rows
        return out

    def least(self, keys: Sequence[Array]) -> Ints:
        """Index of the row of each group that is lexicographically smallest in keys (the first key counts most)."""
        if len(self) == self.rows and self._codes is None:
            return np.arange(self.rows)
        group = self.spread(np.arange(len(self)))
        order = np.lexsort((*reversed(keys), group))
        return cast("Ints", order[np.cumsum(self._count) - self._count])

    def _add(self, values: Array) -> Array:
        if self._starts is not None:
            # reduceat wants at least one group
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
        out[self._codes] = values  # any member of the group to start from, so that no identity is needed
        ufunc.at(out, self._codes, values)
        return self._compress(out)

    def _last_write(self, rows: Ints, codes: Ints) -> Ints:
        """Assign in order; of assignments to one place numpy keeps the last."""
        out = np.empty(self._dense, np.int64)
        out[codes] = rows
        return self._compress(out)

    def _compress(self, dense: NDArray[Any]) -> Array:
        return dense if self._present is None else dense[self._present]


def begins_run(*columns: Array) -> Mask:
    """Which rows begin a run: the first, and each that differs from the row before in a column. columns: shape (k,)."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def inner(starts: Ints, rows: int) -> Mask:
    """Which rows are not the first of their run. starts: of the runs."""
    out = np.ones(rows, np.bool_)
    out[starts] = False
    return out


def narrow(values: Array) -> Array:
    """Integers in their one form: int64 if all fit, else object (Python ints). values: shape (n,), object or int64."""
    if values.dtype != object:
        return values
    if any(not -INT64_MAX <= value <= INT64_MAX for value in values.tolist()):
        return values
    return values.astype(np.int64)
