"""Kinds of columns whose cells grow with the readings: multisets, series and sketches."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_agent.algebra.columns.kind import NUMBER_BYTES, ColumnKind, Form, RowSize
from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.units import rescaling
from edge_agent.algebra.sketches import hll, kll, theta

_VALUES: Final = 128.0  # distinct integers expected in a row with many readings
_COUNTED: Final = 9.0  # upper bound of the bytes of a value (a float or the widest step) and its count
_TIMED: Final = 24.0  # upper bound of the bytes of a reading of a series: value, step of time, arrival number


def _different(scale: int | None, readings: float) -> float:
    """The expected number of distinct values among this many readings."""
    return readings if scale is None else readings * _VALUES / (readings + _VALUES)


def multiset_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    expected = 6 * readings if scale is None else 5 + 0.85 * _different(scale, readings)
    return RowSize(6 + expected, _COUNTED * readings)


def _series_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    return RowSize(8 + (6.5 if scale is None else 1.6) * readings, _TIMED * readings)


def hll_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """4 bytes per distinct value; from MOST_COUPONS on registers, which deflate better if there are fewer values."""
    many = _different(scale, readings)
    expected = 4.2 * many if many <= hll.MOST_COUPONS else 500 + 1_450 * many / (many + 1_800)
    return RowSize(expected, 40 + 4 * readings if readings <= hll.MOST_COUPONS else hll.MOST_BYTES)


def theta_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """8 bytes per distinct value: a hash, which does not deflate."""
    kept = min(_different(scale, readings), theta.MOST)
    return RowSize(16 + 8 * kept, 24 + 8 * min(readings, theta.MOST))


def kll_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """Up to K readings all values, then a bounded number of values per level."""
    most = 40 + 8 * readings if readings <= kll.K else kll.MOST_BYTES
    few, levels = min(readings, kll.K), max(0, int(readings).bit_length() - kll.K.bit_length())
    return RowSize(30 + (7.8 * few + 150 * levels if scale is None else 1.6 * few + 10 * levels), most)


_BAG: Final = ColumnKind(
    name="bag",
    forms=(Form.MULTISET, Form.MULTISET),
    bytes=24,  # upper bound of first value, size and count
    size=multiset_size,
    grows=True,
    of_reading=False,
    arrivals=False,
    rescale=lambda column, _degree, scale, to: multisets.mapped(column, rescaling(scale, to)),
    renumber=None,
)
KINDS: Final = (
    _BAG,
    replace(
        _BAG,
        name="series",
        forms=(Form.SERIES, Form.SERIES),
        bytes=40,  # upper bound of first value, time, arrival, node and size
        size=_series_size,
        of_reading=True,
        arrivals=True,
        rescale=lambda column, _degree, scale, to: series.mapped(column, rescaling(scale, to)),
        renumber=series.renumbered,
    ),
    replace(
        _BAG,
        name="sketch",
        forms=(Form.BYTES, Form.BYTES),
        bytes=NUMBER_BYTES,
        size=theta_size,  # the default: columns of other sketches declare their own size
        rescale=lambda column, _degree, _scale, _to: column,  # sketches contain values, not units of a scale
    ),
)
