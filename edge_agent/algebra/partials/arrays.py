"""Types of numpy arrays for states and readings, and fast ways to make some of them."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Array = NDArray[Any]  # a column of states: float64, int64, or object (Python ints beyond 64 bits, cells)

NO_INTS: Final[Ints] = np.zeros(0, np.int64)


def repeated(value: int, rows: int) -> Ints:
    """The same integer in each row. Takes half the time of np.full, which matters for the short columns of frames."""
    out = np.empty(rows, np.int64)
    out.fill(value)
    return out


def constant(value: int, rows: int) -> Ints:
    """A read-only array with one integer for all rows (stride 0). `np.broadcast_to` takes seven times as long."""
    return np.ndarray((rows,), np.int64, value.to_bytes(8, sys.byteorder, signed=True), 0, (0,))


def distinct(values: Ints) -> Ints:
    """The distinct values, increasing. `np.unique` would load numpy.ma, which takes 1.5 MB of memory on a gateway."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
