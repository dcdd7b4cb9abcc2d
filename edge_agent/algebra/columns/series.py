"""Columns of series: the readings of a row in their order, with times, nodes and arrival numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edge_agent.algebra.columns.kind import ColumnKind, Form, RowSize
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.units import rescaling

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array

_TIMED: Final = 24.0  # bytes of a reading: value, step of time, arrival


def _size(_degree: int, scale: int | None, readings: float) -> RowSize:
    return RowSize(8 + (6.5 if scale is None else 1.6) * readings, _TIMED * readings)


def _rescale(column: Array, _degree: int, scale: int, to: int | None) -> Array:
    return series.mapped(column, rescaling(scale, to))


KINDS: Final = (
    ColumnKind(
        name="series",
        forms=(Form.SERIES, Form.SERIES),
        bytes=40,  # first value, time, arrival, node and size
        size=_size,
        grows=True,
        of_reading=True,
        arrivals=True,
        rescale=_rescale,
        renumber=series.renumbered,
    ),
)
