"""Kinds of columns with one number per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from edge_agent.algebra.columns.kind import NUMBER_BYTES, ColumnKind, Form, RowSize, Size
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.units import as_floats, times

SHARED_BYTES: Final = 0.5  # expected size per row of a number that most rows of a frame share: it is encoded once
WIDE_BYTES: Final = 20  # encoded size of an integer of 128 bits, with its tag and head
_VALUE_BITS: Final = 10  # expected size of an integer reading


def _width(bits: int) -> float:
    return next((float(size) for size in (1, 2, 4, 8) if bits <= 8 * size), 16.0)


def _bytes(expected: float) -> Size:
    """A size function whose result does not depend on the readings."""
    return lambda _degree, _scale, _readings: RowSize(expected, 0.0)


def _count_size(_degree: int, _scale: int | None, readings: float) -> RowSize:
    return RowSize(SHARED_BYTES * _width(int(readings).bit_length()), 0.0)


def _value_size(_degree: int, scale: int | None, _readings: float) -> RowSize:
    return RowSize(8.0 if scale is None else 1.5, 0.0)


def _wide_size(degree: int, scale: int | None, readings: float) -> RowSize:
    bits = degree * _VALUE_BITS + int(readings).bit_length()
    return RowSize(8.0 if scale is None else _width(bits), 0.0)


def _rescale(column: Array, degree: int, scale: int, to: int | None) -> Array:
    return as_floats(column, scale) if to is None else times(column, 10 ** (degree * (scale - to)))


def _rescale_real(column: Array, degree: int, scale: int, to: int | None) -> Array:
    floats: Array = column * 10.0 ** (degree * (scale - (to or 0)))
    return floats


def _renumber(column: Array, change: Callable[[Ints], Ints]) -> Array:
    return change(column.astype(np.int64, copy=False))


_COUNT: Final = ColumnKind(
    name="count",
    forms=(Form.INT, Form.INT),
    bytes=NUMBER_BYTES,
    size=_count_size,
    grows=False,
    of_reading=False,
    arrivals=False,
    rescale=_rescale,
    renumber=None,
)
_SHARED: Final = replace(_COUNT, size=_bytes(2 * SHARED_BYTES), of_reading=True)
KINDS: Final = (
    _COUNT,
    replace(_COUNT, name="time", size=_bytes(4.0), of_reading=True),  # event times in us
    replace(_COUNT, name="value", forms=(Form.FLOAT, Form.INT), size=_value_size),
    replace(_COUNT, name="wide", forms=(Form.FLOAT, Form.WIDE), size=_wide_size, bytes=WIDE_BYTES),  # exact sums
    replace(_COUNT, name="real", forms=(Form.FLOAT, Form.FLOAT), size=_bytes(8.0), rescale=_rescale_real),
    replace(_SHARED, name="node", forms=(Form.NODE, Form.NODE), renumber=_renumber),
    replace(_SHARED, name="order", arrivals=True),  # arrival numbers
)
