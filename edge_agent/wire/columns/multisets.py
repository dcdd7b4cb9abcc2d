"""Converts columns of multisets to CBOR items and back: [null, sizes, values, counts].

Values are encoded as differences, and long arrays deflated if that is shorter. Source: schemas/frame.cddl, rule `bags`.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.multisets import FlatMultisets
from edge_agent.algebra.partials.segments import inner
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array, an_int
from edge_agent.wire.columns import numeric
from edge_agent.wire.columns.packed import LEAST, pack, unpack, unpack_ints

MOST_COUNT: Final = 2**60  # bound of the count of one value; Section.check allows a child less (protocol 7.1)
VALUE_LIMIT: Final = 2**61  # bound of integer values, for decoding, too, so that a decoded column can be encoded


def encode(column: Array, *, deflate: bool = True) -> list[object]:
    """Encode a column of multisets. column: shape (n,), n >= 1. Raises: ValueError for unsupported values.

    deflate: False if time matters more than size.
    """
    found = multisets.flat(column)
    least = LEAST if deflate else sys.maxsize
    counts = pack(np.ascontiguousarray(found.counts), least)
    return [None, numeric.encode_ints(found.sizes), _encode_values(found, least), counts]


def is_bags(item: object) -> bool:
    """Whether an item of a section is a column of multisets."""
    return type(item) is list and len(item) > 0 and item[0] is None


def _encode_values(found: FlatMultisets, least: int) -> object:
    values = found.values
    if values.dtype == np.int64:
        return [None, *_encode_steps(cast("Ints", values), found, least)]
    if values.dtype != np.float64:
        raise ValueError(f"multisets of {values.dtype} cannot be encoded; wanted float64 or int64")
    places = multisets.decimal_places(values)
    if places is not None:
        units = np.rint(values * 10.0**places).astype(np.int64)
        return [places, *_encode_steps(units, found, least)]
    return pack(values, least)


def _encode_steps(units: Ints, found: FlatMultisets, least: int) -> tuple[object, object]:
    """(first value of each row, differences of successive values in a row minus 1), encoded."""
    if len(units) and max(-int(units.min()), int(units.max())) > VALUE_LIMIT:
        raise ValueError("a multiset contains an integer beyond 61 bits")
    steps = np.diff(units, prepend=units[:1])[found.inner()] - 1
    return numeric.encode_ints(units[found.starts]), pack(steps, least)


def decode(item: object, n: int, room: int, what: str) -> tuple[NDArray[Any], int]:
    """Inverse of `encode` for n rows: (column, number of its values). room: most values. Raises: WireError."""
    none, size_item, value_item, count_item = an_array(item, what, 4, 4)
    if none is not None:
        raise WireError(f"{what}: wanted a column of multisets, which begins with null")
    sizes = numeric.decode_ints(size_item, n, f"{what}, sizes")
    if int(sizes.min()) < 1 or int(sizes.max()) > room or int(sizes.sum()) > room:
        raise WireError(f"{what}: wanted multisets of at least 1 value, with at most {room} values together")
    k = int(sizes.sum())
    counts = (
        multisets.ones(k)
        if type(count_item) is int and count_item == 1
        else unpack_ints(count_item, k, f"{what}, counts")
    )
    if int(counts.min()) < 1 or int(counts.max()) > MOST_COUNT:
        raise WireError(f"{what}: a count is outside 1..{MOST_COUNT}")
    found = FlatMultisets(_decode_values(value_item, sizes, what), counts, sizes)
    values = found.values
    if not bool((values[1:] > values[:-1])[found.inner()[1:]].all()):
        raise WireError(f"{what}: the values of a multiset do not increase")
    return found.column(), k


def _decode_values(item: object, sizes: Ints, what: str) -> Array:
    k = int(sizes.sum())
    if type(item) is list and len(item) == 3:
        units = _steps(item, sizes, what)
        if item[0] is None:
            return units
        places = an_int(item[0], 0, multisets.MOST_PLACES, f"{what}, decimals")
        if int(np.abs(units).max()) > 2**53:
            raise WireError(f"{what}: a decimal beyond 53 bits")
        return units / 10.0**places
    values = unpack(item, k, f"{what}, values")
    if values.dtype != np.float64:
        raise WireError(f"{what}: wanted floats or [decimals, first, steps]")
    return values + 0.0


def _steps(item: list[Any], sizes: Ints, what: str) -> Ints:
    first = numeric.decode_ints(item[1], len(sizes), f"{what}, first values")
    k = int(sizes.sum())
    steps = np.zeros(k, np.int64)
    starts = np.cumsum(sizes) - sizes
    after = inner(starts, k)
    rest = k - len(sizes)
    if rest:
        steps[after] = unpack_ints(item[2], rest, f"{what}, steps")
    elif type(item[2]) is not int or item[2] != 0:
        raise WireError(f"{what}: wanted 0 as steps, because no row has two values")
    if int(steps.min()) < 0:
        raise WireError(f"{what}: a step below 0")
    reach = np.add.reduceat(steps.astype(np.float64) + 1.0, starts)
    if max(-int(first.min()), int(first.max())) > VALUE_LIMIT or float((first + reach).max()) > 2.0 * VALUE_LIMIT:
        raise WireError(f"{what}: a value beyond 62 bits")
    steps[after] += 1
    along = np.cumsum(steps, dtype=np.uint64)  # may wrap around; differences within a row are right nevertheless
    offset = (along - np.repeat(along[starts], sizes)).astype(np.int64)
    units: Ints = np.repeat(first, sizes) + offset
    if max(-int(units.min()), int(units.max())) > VALUE_LIMIT:
        raise WireError(f"{what}: a value beyond 61 bits")
    return units
