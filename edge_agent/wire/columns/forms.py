"""Converts columns of every form to CBOR items and back. An item shows its form, so decoding needs no plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra import sketches as cells_of_sketches
from edge_agent.algebra.columns.kind import Form
from edge_agent.algebra.partials import multisets as cells_of_multisets
from edge_agent.algebra.partials import series as cells_of_series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.units import within_reach
from edge_agent.wire.columns import multisets, numeric, series, sketches


@dataclass(frozen=True, slots=True)
class Codec:
    """The codec of one form of columns.

    holds(column): whether a column, not empty, has this form. matches(item): whether an item has it. encode(column,
    starts of the rows): the item. Raises: ValueError for unsupported values. decode(item, number of rows, allowed
    values, name in messages, starts of the rows): (column, number of rows or values). Raises: WireError.
    """

    holds: Callable[[Array], bool]
    matches: Callable[[object], bool]
    encode: Callable[[Array, Ints], object]
    decode: Callable[[object, int, int, str, Ints], tuple[Array, int]]


def _saturated(column: Array) -> Array:
    """Replace sums beyond 128 bits, or beyond floats, by the largest encodable value.

    Their result is null, and so is that of sums that include them (docs/protocol.md 7.1).
    """
    if column.dtype == object:
        return np.array([max(-numeric.WIDE, min(value, numeric.WIDE - 1)) for value in column.tolist()], object)
    return column if column.dtype.kind != "f" or np.isfinite(column).all() else within_reach(column)


_NUMBERS: Final = Codec(
    lambda column: True,
    lambda item: True,
    lambda column, start: numeric.encode(_saturated(column)),
    lambda item, n, room, what, start: (numeric.decode(item, n, what), n),
)
CODECS: Final = {  # numbers must be last, because their codec matches everything
    Form.SERIES: Codec(cells_of_series.is_series, series.is_series, series.encode, series.decode),
    Form.BYTES: Codec(
        cells_of_sketches.is_sketches,
        sketches.is_sketches,
        lambda column, start: sketches.encode(column),
        lambda item, n, room, what, start: (sketches.decode(item, n, what), n),
    ),
    Form.MULTISET: Codec(
        cells_of_multisets.is_bags,
        multisets.is_bags,
        lambda column, start: multisets.encode(column),
        lambda item, n, room, what, start: multisets.decode(item, n, room, what),
    ),
    **dict.fromkeys((Form.INT, Form.FLOAT, Form.WIDE, Form.NODE), _NUMBERS),
}
_IN_TURN: Final = tuple(dict.fromkeys(CODECS.values()))


def encode(column: Array, start: Ints) -> object:
    """Encode a column. column: shape (n,), n >= 1. start: shape (n,), start of each row. Raises: ValueError."""
    if column.dtype != object:  # fast path: most columns are numbers
        return numeric.encode(_saturated(column))
    return next(codec for codec in _IN_TURN if codec.holds(column)).encode(column, start)


def decode(item: object, n: int, room: int, what: str, start: Ints) -> tuple[Array, int]:
    """Decode a column of n rows. Returns it and its number of rows or values. room: most values. Raises: WireError."""
    if type(item) is not list:  # fast path: most columns are numbers
        return numeric.decode(item, n, what), n
    return next(codec for codec in _IN_TURN if codec.matches(item)).decode(item, n, room, what, start)
