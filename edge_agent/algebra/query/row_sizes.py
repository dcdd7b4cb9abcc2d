"""Size of a row in a frame: the expected size and an upper bound.

Expected are readings as sensors give them: floats that hardly repeat, or integers that take some 128 values; a row in
a frame with a few others, its key and plan named before. What holds readings or values grows with the readings in the
row, a sketch until it is full. Only sums, products and quotients: equal on every machine, as the plans are.
Source: schemas/frame.cddl, "section"; the figures are of frames, and tests/laws/test_sizes.py holds them against some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.aggregates.approximate import MOST_FREQUENT
from edge_agent.algebra.sketches import hll, kll, theta

ROW_BYTES: Final = 8 + 8 + 4 + 4  # range, key and run lengths of one row at their longest
# a bignum of 128 bits with its tag and head; first values and size of a bag or series; every other kind is 9 at most
COLUMN_BYTES: Final = {"wide": 20, "bag": 24, "series": 40}
OTHER_BYTES: Final = 9
_OWN_RANGE: Final = 10.0  # start and end that no other row has; of sessions the register of the key, too
_SHARED: Final = 0.5  # what most rows of a frame have in common, like their range and counts, stands there once
_VALUE_BITS: Final = 10  # of an integer as sensors give them
_VALUES: Final = 128.0  # different ones in a row with many readings
_COUNTED: Final = 9.0  # a float of a bag, or the widest step, and its count
_TIMED: Final = 24.0  # a reading of a series: value, step of time, arrival


@dataclass(frozen=True, slots=True)
class RowSize:
    """Bytes, or bytes per second. most: the upper bound for that many readings."""

    expected: float
    most: float

    def times(self, factor: float) -> RowSize:
        """So many of them."""
        return RowSize(self.expected * factor, self.most * factor)


def of_row(basis: Iterable[str], scale: int | None, readings: float, *, own_range: bool = False) -> RowSize:
    """Size of a row of that many readings, at least 1. scale: of the values, None for floats. own_range: as of
    sessions.
    """
    expected, most = _OWN_RANGE if own_range else _SHARED, float(ROW_BYTES)
    for name in basis:
        kind = COLUMNS[name].kind
        most += COLUMN_BYTES.get(kind, OTHER_BYTES)
        grows = _GROWS.get(name) or _GROWS.get(kind)
        if grows is None:
            expected += _plain(kind, COLUMNS[name].degree, scale, readings)
        else:
            held = grows(scale, readings)
            expected, most = expected + held.expected, most + held.most
    return RowSize(expected, most)


def _plain(kind: str, degree: int, scale: int | None, readings: float) -> float:
    """A number."""
    many = int(readings).bit_length()
    if kind in {"node", "order"}:
        return 2 * _SHARED
    if kind == "time":
        return 4.0
    if kind == "count":
        return _SHARED * _width(many)
    if kind == "real" or scale is None:
        return 8.0
    return 1.5 if kind == "value" else _width(degree * _VALUE_BITS + many)


def _width(bits: int) -> float:
    return next((float(size) for size in (1, 2, 4, 8) if bits <= 8 * size), 16.0)


def _different(scale: int | None, readings: float) -> float:
    """Values of so many readings."""
    return readings if scale is None else readings * _VALUES / (readings + _VALUES)


def _bag(scale: int | None, readings: float) -> RowSize:
    expected = 6 * readings if scale is None else 5 + 0.85 * _different(scale, readings)
    return RowSize(6 + expected, _COUNTED * readings)


def _frequent(scale: int | None, readings: float) -> RowSize:
    """Floats that hardly repeat cancel each other where there are too many."""
    expected = 250.0 if scale is None and readings > MOST_FREQUENT else _bag(scale, readings).expected
    return RowSize(expected, 16.0 * min(readings, MOST_FREQUENT))  # counts may be 8 bytes


def _series(scale: int | None, readings: float) -> RowSize:
    return RowSize(8 + (6.5 if scale is None else 1.6) * readings, _TIMED * readings)


def _hll(scale: int | None, readings: float) -> RowSize:
    """4 bytes a value, then registers, which deflate the better the fewer values there are."""
    many = _different(scale, readings)
    expected = 4.2 * many if many <= hll.MOST_COUPONS else 500 + 1_450 * many / (many + 1_800)
    return RowSize(expected, 40 + 4 * readings if readings <= hll.MOST_COUPONS else hll.MOST_BYTES)


def _theta(scale: int | None, readings: float) -> RowSize:
    """8 bytes a value that say nothing to deflate."""
    kept = min(_different(scale, readings), theta.MOST)
    return RowSize(16 + 8 * kept, 24 + 8 * min(readings, theta.MOST))


def _kll(scale: int | None, readings: float) -> RowSize:
    """All values while there are few, then ever fewer of ever more levels."""
    most = 40 + 8 * readings if readings <= kll.K else kll.MOST_BYTES
    few, levels = min(readings, kll.K), max(0, int(readings).bit_length() - kll.K.bit_length())
    return RowSize(30 + (7.8 * few + 150 * levels if scale is None else 1.6 * few + 10 * levels), most)


_GROWS: Final[Mapping[str, Callable[[int | None, float], RowSize]]] = {  # by the column's name, or its kind
    "bag": _bag,
    "frequent": _frequent,
    "series": _series,
    "hll": _hll,
    "theta": _theta,
    "kll": _kll,
    "sketch": _theta,
}
