"""Columns of sketches: bytes in the formats of DataSketches (algebra/sketches), of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edge_agent.algebra.columns.kind import NUMBER_BYTES, ColumnKind, Form, RowSize, different
from edge_agent.algebra.sketches import hll, kll, theta

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array


def hll_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """4 bytes a value, then registers, which deflate the better the fewer values there are."""
    many = different(scale, readings)
    expected = 4.2 * many if many <= hll.MOST_COUPONS else 500 + 1_450 * many / (many + 1_800)
    return RowSize(expected, 40 + 4 * readings if readings <= hll.MOST_COUPONS else hll.MOST_BYTES)


def theta_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """8 bytes a value, which do not deflate."""
    kept = min(different(scale, readings), theta.MOST)
    return RowSize(16 + 8 * kept, 24 + 8 * min(readings, theta.MOST))


def kll_size(_degree: int, scale: int | None, readings: float) -> RowSize:
    """All values while there are few, then ever fewer of ever more levels."""
    most = 40 + 8 * readings if readings <= kll.K else kll.MOST_BYTES
    few, levels = min(readings, kll.K), max(0, int(readings).bit_length() - kll.K.bit_length())
    return RowSize(30 + (7.8 * few + 150 * levels if scale is None else 1.6 * few + 10 * levels), most)


def _as_it_is(column: Array, _degree: int, _scale: int, _to: int | None) -> Array:
    """A sketch holds numbers, not units of a scale."""
    return column


KINDS: Final = (
    ColumnKind(
        name="sketch",
        forms=(Form.BYTES, Form.BYTES),
        bytes=NUMBER_BYTES,
        size=theta_size,  # a column of another sketch says its own
        grows=True,
        of_reading=False,
        arrivals=False,
        rescale=_as_it_is,
        renumber=None,
    ),
)
