"""Columns of multisets: the distinct values of the readings of a row, sorted, and how often each occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edge_agent.algebra.columns.kind import ColumnKind, Form, RowSize, different
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.units import rescaling

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array

_COUNTED: Final = 9.0  # bytes of a float or the widest step, and its count


def multiset_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """Of the values of so many readings."""
    expected = 6 * readings if scale is None else 5 + 0.85 * different(scale, readings)
    return RowSize(6 + expected, _COUNTED * readings)


def _rescale(column: Array, _degree: int, scale: int, to: int | None) -> Array:
    return multisets.mapped(column, rescaling(scale, to))


KINDS: Final = (
    ColumnKind(
        name="bag",
        forms=(Form.MULTISET, Form.MULTISET),
        bytes=24,  # first value, size and count
        size=multiset_size,
        grows=True,
        of_reading=False,
        arrivals=False,
        rescale=_rescale,
        renumber=None,
    ),
)
