"""How close floats must be: the one place that says so.

Sums of n doubles in any order differ by at most about n * eps * sum|x| (Higham 2002, section 4.2); n stays below 1e5
in tests, so 1e-9 of the reach of the readings leaves three decimal digits of room. Integers are compared with ==.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

import numpy as np

from edge_agent.algebra.partials.arrays import Array

RELATIVE: Final = 1e-9
ABSOLUTE: Final = 1e-9


def close(got: float | None, want: float | None, scale: float = 1.0) -> bool:
    """Equal within tolerance; None only to None. scale: how large the terms were that made the number."""
    if got is None or want is None:
        return got is want
    return math.isclose(got, want, rel_tol=RELATIVE, abs_tol=ABSOLUTE * max(1.0, scale))


def assert_close(got: float | None, want: float | None, scale: float = 1.0) -> None:
    """As `close`, saying what differs."""
    assert close(got, want, scale), f"got {got!r}, wanted {want!r} (scale {scale:g})"


def assert_same_column(got: Array, want: Array, scale: float = 1.0) -> None:
    """Columns of a state: floats within tolerance, all else exactly, in type too."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype == np.float64:
        assert np.allclose(got, want, rtol=RELATIVE, atol=ABSOLUTE * max(1.0, scale), equal_nan=True), (got, want)
    else:
        assert got.tolist() == want.tolist()


Row = TypeVar("Row", bound=Hashable)


def assert_same_rows(
    got: Mapping[Row, Mapping[str, float | None]],
    want: Mapping[Row, Mapping[str, float | None]],
    scale: float = 1.0,
) -> None:
    """Rows of results: the same rows, each value within tolerance."""
    assert set(got) == set(want), f"missing {set(want) - set(got)}, too many {set(got) - set(want)}"
    for row, values in want.items():
        assert set(got[row]) == set(values), row
        for name, value in values.items():
            assert close(got[row][name], value, scale), f"{row} {name}: got {got[row][name]!r}, wanted {value!r}"
