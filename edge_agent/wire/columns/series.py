"""Converts columns of series to CBOR items and back: [true, sizes, nodes, times, arrivals, values].

Times and arrival numbers are encoded as differences, decimal values as integers, and long arrays deflated. Arrival
numbers are always included, because they alone give the order of readings with equal times in different frames. Source:
schemas/frame.cddl, rule `series`.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import inner
from edge_agent.algebra.partials.series import FlatSeries
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array, an_int
from edge_agent.wire.columns import numeric
from edge_agent.wire.columns.packed import LEAST, pack, unpack, unpack_ints

LIMIT: Final = 2**61  # bound of integers, for decoding, too
TICKS_US: Final = (3_600_000_000, 60_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1)


def encode(column: Array, start: Ints | None = None, *, deflate: bool = True) -> list[object]:
    """Encode a column of series. column: shape (n,), n >= 1. Raises: ValueError for unsupported values.

    start: shape (n,), start of each row, if the decoder gets it, too: often the time of the first raw reading, which is
    then left out. deflate: False if time matters more than size.
    """
    found = series.flat(column)
    least = LEAST if deflate else sys.maxsize
    tick = next(tick for tick in TICKS_US if tick == 1 or not (found.time_us % tick).any())
    return [
        True,
        numeric.encode_ints(found.sizes),
        pack(found.node, least),
        [tick, *_times(found, tick, start, least)],
        [*_steps(found.order, found, least)],
        _encode_values(found, least),
    ]


def is_series(item: object) -> bool:
    """Whether an item of a section is a column of series."""
    return type(item) is list and len(item) > 0 and item[0] is True


def _times(found: FlatSeries, tick: int, start: Ints | None, least: int) -> tuple[object, object]:
    """The times as in `_steps`, in ticks; None for the first times if they equal the starts of the rows."""
    first, steps = _steps(found.time_us // tick, found, least)
    if start is not None and np.array_equal(start, found.time_us[found.starts]):
        return None, steps
    return first, steps


def _steps(numbers: Ints, found: FlatSeries, least: int) -> tuple[object, object]:
    """(first number of each row, differences of successive numbers in a row), encoded."""
    if max(-int(numbers.min()), int(numbers.max())) >= LIMIT:
        raise ValueError("a series contains an integer beyond 61 bits")
    steps = np.diff(numbers, prepend=numbers[:1])[found.inner()]
    return pack(numbers[found.starts], least), pack(steps, least)


def _encode_values(found: FlatSeries, least: int) -> object:
    """[decimals or null, units], [decimals or null, first units, differences], or floats; null: integers."""
    if found.value.dtype == np.int64:
        places, units = None, found.value
    elif found.value.dtype == np.float64:
        places = multisets.decimal_places(found.value)
        if places is None:
            return pack(found.value, least)
        units = np.rint(found.value * 10.0**places).astype(np.int64)
    else:
        raise ValueError(f"series of {found.value.dtype} cannot be encoded; wanted float64 or int64")
    if max(-int(units.min()), int(units.max())) >= LIMIT:
        raise ValueError("a series contains an integer beyond 61 bits")
    steps = np.diff(units)[found.inner()[1:]]  # smaller than the values if the signal changes slowly
    if len(steps) and 2 * int(steps.max() - steps.min()) < int(units.max() - units.min()):
        return [places, *_steps(units, found, least)]
    return [places, pack(units, least)]


def decode(item: object, n: int, room: int, what: str, start: Ints | None = None) -> tuple[NDArray[Any], int]:
    """Inverse of `encode` for n rows: (column, number of its readings). room: most readings. Raises: WireError."""
    true, size_item, node_item, time_item, order_item, value_item = an_array(item, what, 6, 6)
    if true is not True:
        raise WireError(f"{what}: wanted a column of series, which begins with true")
    sizes = numeric.decode_ints(size_item, n, f"{what}, sizes")
    if int(sizes.min()) < 1 or int(sizes.max()) > room or int(sizes.sum()) > room:
        raise WireError(f"{what}: wanted series of at least 1 reading, with at most {room} readings together")
    k = int(sizes.sum())
    node = unpack_ints(node_item, k, f"{what}, nodes")
    if int(node.min()) < 0:
        raise WireError(f"{what}: a node number below 0")
    tick_item, *steps = an_array(time_item, f"{what}, times", 3, 3)
    tick = an_int(tick_item, 1, TICKS_US[0], f"{what}, tick")
    if steps[0] is None:
        if start is None or (start % tick).any():
            raise WireError(f"{what}: no first times, and starts of rows that are unknown or no whole ticks")
        steps = [start // tick, steps[1]]
    time = _along(steps, sizes, (LIMIT - 1) // tick + 1, f"{what}, times") * tick
    order = _along(an_array(order_item, f"{what}, arrivals", 2, 2), sizes, LIMIT, f"{what}, arrivals")
    found = FlatSeries(time, _decode_values(value_item, sizes, what), node, order, sizes)
    same = time[1:] == time[:-1]
    falls = (time[1:] < time[:-1]) | (same & (node[1:] == node[:-1]) & (order[1:] < order[:-1]))
    if bool((falls & found.inner()[1:]).any()):
        raise WireError(f"{what}: readings are not in the order of time and arrival")
    return found.column(), k


def _decode_values(item: object, sizes: Ints, what: str) -> Array:
    k = int(sizes.sum())
    if not (type(item) is list and len(item) in (2, 3) and (item[0] is None or type(item[0]) is int)):
        values = unpack(item, k, f"{what}, values")
        if values.dtype != np.float64:
            raise WireError(f"{what}: wanted floats or [decimals, units]")
        return values + 0.0
    if len(item) == 2 and type(item[1]) is bytes:  # deflated floats
        values = unpack(item, k, f"{what}, values")
        if values.dtype != np.float64:
            raise WireError(f"{what}: wanted floats or [decimals, units]")
        return values + 0.0
    if len(item) == 3:
        units = _along(item[1:], sizes, LIMIT, f"{what}, values")
    else:
        units = unpack_ints(item[1], k, f"{what}, values")
        if not -LIMIT < int(units.min()) <= int(units.max()) < LIMIT:
            raise WireError(f"{what}, values: beyond 61 bits")
    if item[0] is None:
        return units
    places = an_int(item[0], 0, multisets.MOST_PLACES, f"{what}, decimals")
    if max(-int(units.min()), int(units.max())) > 2**53:
        raise WireError(f"{what}: a decimal beyond 53 bits")
    return units / 10.0**places


def _along(item: list[Any], sizes: Ints, limit: int, what: str) -> Ints:
    """Numbers from the first number of each row and the differences in a row (item). All must be within +-limit.

    A sum that wraps around is found: from a number within +-limit, a difference of at most twice that leads to at most
    3 * limit, which fits 64 bits, and is beyond +-limit itself. So all numbers within it come back, in any order.
    """
    first = item[0] if isinstance(item[0], np.ndarray) else unpack_ints(item[0], len(sizes), what)
    k = int(sizes.sum())
    starts = np.cumsum(sizes) - sizes
    steps = np.zeros(k, np.int64)
    if k > len(sizes):
        steps[inner(starts, k)] = unpack_ints(item[1], k - len(sizes), what)
    elif type(item[1]) is not int or item[1] != 0:
        raise WireError(f"{what}: wanted 0 as steps, because no row has two readings")
    if max(-int(first.min()), int(first.max())) > limit or max(-int(steps.min()), int(steps.max())) > 2 * limit:
        raise WireError(f"{what}: a number is beyond 61 bits")
    along = np.cumsum(steps, dtype=np.uint64)  # may wrap around; differences within a row are right nevertheless
    numbers: Ints = np.repeat(first, sizes) + (along - np.repeat(along[starts], sizes)).astype(np.int64)
    if not -limit < int(numbers.min()) <= int(numbers.max()) < limit:
        raise WireError(f"{what}: a number is beyond 61 bits")
    return numbers
