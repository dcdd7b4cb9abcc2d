"""Kinds of columns with one number a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra.columns.kind import NUMBER_BYTES, ColumnKind, Form, RowSize, Size
from edge_agent.algebra.partials.units import as_floats, times

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array, Ints

SHARED_BYTES: Final = 0.5  # expected of what most rows of a frame have in common: it is written once for all of them
WIDE_BYTES: Final = 20  # of an integer of 128 bits with its tag and head
_VALUE_BITS: Final = 10  # of an integer as sensors give them


def _width(bits: int) -> float:
    return next((float(size) for size in (1, 2, 4, 8) if bits <= 8 * size), 16.0)


def _bytes(expected: float) -> Size:
    """A size that does not depend on the readings."""
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


def _kind(
    name: str,
    forms: tuple[Form, Form],
    size: Size,
    *,
    bytes: int = NUMBER_BYTES,  # noqa: A002 - the name of the fact
    of_reading: bool = False,
    rescale: Callable[[Array, int, int, int | None], Array] = _rescale,
    renumber: Callable[[Array, Callable[[Ints], Ints]], Array] | None = None,
) -> ColumnKind:
    """What most numbers have in common is filled in."""
    return ColumnKind(
        name=name,
        forms=forms,
        bytes=bytes,
        size=size,
        grows=False,
        of_reading=of_reading,
        arrivals=name == "order",
        rescale=rescale,
        renumber=renumber,
    )


_INTS: Final = (Form.INT, Form.INT)
_SHARED_SIZE: Final = _bytes(2 * SHARED_BYTES)
KINDS: Final = (
    _kind("count", _INTS, _count_size),
    _kind("time", _INTS, _bytes(4.0), of_reading=True),  # us
    _kind("value", (Form.FLOAT, Form.INT), _value_size),
    _kind("wide", (Form.FLOAT, Form.WIDE), _wide_size, bytes=WIDE_BYTES),  # exact sums, beyond 64 bits too
    _kind("real", (Form.FLOAT, Form.FLOAT), _bytes(8.0), rescale=_rescale_real),
    _kind("node", (Form.NODE, Form.NODE), _SHARED_SIZE, of_reading=True, renumber=_renumber),
    _kind("order", _INTS, _SHARED_SIZE, of_reading=True),  # arrival numbers
)
