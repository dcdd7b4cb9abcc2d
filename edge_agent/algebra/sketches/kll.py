"""KLL: quantiles with a rank error of 1.33 %, in a few kilobytes, in the format of DataSketches' KLL of doubles, k 200.

A sketch has levels of values; a value at level h represents 2**h readings. If a sketch is full, a full level is sorted,
and every other value moves up a level, beginning at random with the first or the second. Up to 200 readings are all
kept, and results are exact. Combining is exactly commutative, because it reads all sketches at once, and associative
within the stated error. Random bits are computed from the readings, so that equal readings give equal bytes. Source:
Karnin, Lang & Liberty (2016); the format and the error of the DataSketches library (k 200, one rank, 99 %).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments

FAMILY: Final = 15  # byte 2 of every KLL sketch
K: Final = 200
LEAST: Final = 8  # m of the format: least capacity of a level
ERROR: Final = 0.0133  # error of a rank that 99 % of results do not exceed
MOST_LEVELS: Final = 48
MOST_READINGS: Final = 2**45  # in one sketch
_SORTED, _SINGLE = 2, 4  # flags
_HEAD: Final = struct.Struct("<4BHBBQHBB")
_LONG: Final = 64  # from this many values per group on, groups are sorted one by one
_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK: Final = 2**64 - 1


@lru_cache(maxsize=64)
def _rooms(levels: int) -> tuple[int, ...]:
    """Capacity of each level, lowest first: K at the top, and two thirds of the next level's below."""
    return tuple(max(LEAST, (2 * K * 2**depth // 3**depth + 1) // 2) for depth in range(levels - 1, -1, -1))


MOST_BYTES: Final = 20 + 4 * MOST_LEVELS + 16 + 8 * sum(_rooms(MOST_LEVELS))


def lift(values: Floats, groups: Segments) -> Array:
    """One sketch per group. values: shape (k,), float64, finite."""
    return _packed(values + 0.0, groups)


def of_bags(values: Floats, counts: Ints, starts: Ints) -> Array:
    """One sketch per multiset. Splits counts into powers of two: a value that occurs often is only in a few levels.

    values, counts: shape (k,), values increase within a multiset. starts: index of the first value of each multiset,
    none empty.
    """
    out = np.empty(len(starts), object)
    ends = [*starts[1:].tolist(), len(values)]
    for row, (first, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        mine, left = values[first:end] + 0.0, counts[first:end]
        total = int(left.sum())
        if total <= K:
            levels = [np.repeat(mine, left)]
        else:
            levels = [mine[left >> height & 1 == 1] for height in range(int(left.max()).bit_length())]
        out[row] = _cell(total, float(mine[0]), float(mine[-1]), _compacted(levels, total))
    return out


def combine(column: Array, groups: Segments) -> Array:
    """Combine sketches to one per group. column: shape (k,), of bytes."""
    if len(groups) == groups.rows and groups.starts is not None:
        return column
    owner = groups.spread(np.arange(len(groups)))
    cells: list[bytes] = column.tolist()
    low = np.array([len(cell) <= 40 + 8 * K and (cell[0] == 2 or cell[18] == 1) for cell in cells])
    plain = np.bincount(owner[~low], minlength=len(groups)) == 0  # groups whose sketches still have all readings
    out = np.empty(len(groups), object)
    rows = np.flatnonzero(plain[owner])
    if len(rows):
        parts = [_levels(cells[row])[0] for row in rows.tolist()]
        of_part = np.repeat(owner[rows], [len(part) for part in parts])
        labels = np.cumsum(plain) - 1
        out[plain] = _packed(np.concatenate(parts), Segments.coded(labels[of_part], int(plain.sum())))
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=len(groups))).tolist()
    for group in np.flatnonzero(~plain).tolist():
        mine = order[ends[group - 1] if group else 0 : ends[group]].tolist()
        out[group] = cells[mine[0]] if len(mine) == 1 else _merged([cells[row] for row in mine])
    return out


def _packed(values: Floats, groups: Segments) -> NDArray[Any]:
    """One sketch per group of readings. values: shape (k,); this call may overwrite it."""
    count = groups.count()
    if groups.starts is None:
        values = values[np.argsort(groups.spread(np.arange(len(groups))), kind="stable")]
    ends = np.cumsum(count).tolist()
    if len(values) >= _LONG * len(groups):
        for first, last in zip([0, *ends], ends, strict=False):
            values[first:last].sort()
    else:
        values = values[np.lexsort((values, np.repeat(np.arange(len(groups)), count)))]
    out = np.empty(len(groups), object)
    first = 0
    for row, end in enumerate(ends):
        mine = values[first:end]
        first = end
        out[row] = _cell(len(mine), float(mine[0]), float(mine[-1]), _compacted([mine], len(mine)))
    return out


def _merged(cells: Iterable[bytes]) -> bytes:
    levels: list[list[Floats]] = []
    count, lowest, highest = 0, np.inf, -np.inf
    for cell in cells:
        n, low, high = _ends(cell)
        count, lowest, highest = count + n, min(lowest, low), max(highest, high)
        for height, part in enumerate(_levels(cell)):
            if height == len(levels):
                levels.append([])
            levels[height].append(part)
    joined = [np.sort(np.concatenate(parts)) for parts in levels]
    return _cell(count, lowest, highest, _compacted(joined, count))


def _compacted(levels: list[Floats], count: int) -> list[Floats]:
    """Thin levels from the lowest up until their total size is within the total capacity. levels: each sorted."""
    kept = sum(map(len, levels))
    if kept <= sum(_rooms(len(levels))):
        return levels
    chance = _chance(levels, count)
    height = 0
    while kept > sum(_rooms(len(levels))):
        mine = levels[height]
        if len(mine) >= _rooms(len(levels))[height] and len(mine) > 1:
            bit, spare = (chance >> (2 * height)) & 1, (chance >> (2 * height + 1)) & 1
            left = mine[:0]
            if len(mine) % 2:  # of an odd number, the first or the last value stays in the level
                left, mine = (mine[:1], mine[1:]) if spare else (mine[-1:], mine[:-1])
            half = mine[bit::2]
            levels[height] = left
            if height + 1 == len(levels):
                levels.append(half)
            else:
                levels[height + 1] = np.sort(np.concatenate([levels[height + 1], half]), kind="stable")
            kept -= len(half)
        height = height + 1 if height + 1 < len(levels) else 0
        if not height:
            chance = _stirred(chance)
    return levels


def _chance(levels: Sequence[Floats], count: int) -> int:
    """64 pseudo-random bits from the values of the levels."""
    state = count
    for values in levels:
        if len(values):
            bits = values.view(np.uint64)
            state = _stirred(state ^ int(np.bitwise_xor.reduce(bits)) ^ (int(bits[len(bits) // 2]) * 3 & _MASK))
    return _stirred(state)


def _stirred(state: int) -> int:
    """The next state of a pseudo-random generator, 64 bits. Source: Steele, Lea & Flood (2014), SplitMix64."""
    state = (state + _MIX[0]) & _MASK
    state = ((state ^ (state >> 30)) * _MIX[1]) & _MASK
    state = ((state ^ (state >> 27)) * _MIX[2]) & _MASK
    return state ^ (state >> 31)


def _cell(count: int, low: float, high: float, levels: Sequence[Floats]) -> bytes:
    """The bytes of a sketch. count: readings. low, high: least and greatest reading."""
    if count == 1:
        return bytes((2, 2, FAMILY, _SORTED | _SINGLE)) + struct.pack("<HBBd", K, LEAST, 0, low)
    sizes = [len(values) for values in levels]
    first = sum(_rooms(len(levels))) - sum(sizes)
    places = [first + sum(sizes[:height]) for height in range(len(sizes))]
    head = _HEAD.pack(5, 1, FAMILY, _SORTED, K, LEAST, 0, count, K, len(levels), 0)
    middle = struct.pack(f"<{len(places)}I2d", *places, low, high)
    return head + middle + b"".join(values.astype("<f8", copy=False).tobytes() for values in levels)


def _ends(cell: bytes) -> tuple[int, float, float]:
    """(number of readings, least reading, greatest reading) of a sketch."""
    if cell[0] == 2:
        (value,) = struct.unpack_from("<d", cell, 8)
        return 1, value, value
    (count,) = struct.unpack_from("<Q", cell, 8)
    low, high = struct.unpack_from("<2d", cell, 20 + 4 * cell[18])
    return count, low, high


def _levels(cell: bytes) -> list[Floats]:
    """The sorted values of each level of a sketch, lowest level first."""
    if cell[0] == 2:
        return [np.frombuffer(cell, "<f8", offset=8)]
    many = cell[18]
    places = [*struct.unpack_from(f"<{many}I", cell, 20), sum(_rooms(many))]
    values = np.frombuffer(cell, "<f8", offset=36 + 4 * many)
    return [values[low - places[0] : high - places[0]] for low, high in pairwise(places)]


def check(cell: bytes) -> None:
    """Check that untrusted bytes are exactly as `lift` or `combine` would write them. Raises: ValueError."""
    if not 16 <= len(cell) <= MOST_BYTES or cell[0] not in (2, 5) or (cell[0] == 2 and len(cell) != 16):
        raise ValueError(f"{len(cell)} bytes, wanted 16 to {MOST_BYTES} in a form of KLL")
    if cell[0] == 5:
        many = cell[18] if len(cell) > 18 else 0
        if not 1 <= many <= MOST_LEVELS or len(cell) < 36 + 4 * many or (len(cell) - 36 - 4 * many) % 8:
            raise ValueError(f"{many} levels in {len(cell)} bytes")
        places = [*struct.unpack_from(f"<{many}I", cell, 20), sum(_rooms(many))]
        if places != sorted(places) or 8 * (places[-1] - places[0]) != len(cell) - 36 - 4 * many:
            raise ValueError("the levels do not fit the bytes of the sketch")
    count, low, high = _ends(cell)
    levels = _levels(cell)
    values = np.concatenate(levels)
    if not (np.isfinite(values).all() and np.isfinite((low, high)).all()):
        raise ValueError("wanted finite values, got NaN or an infinity")
    if not len(values) or not low <= float(values.min()) <= float(values.max()) <= high:
        raise ValueError("a value is outside the least and greatest in the head")
    if any(bool((part[1:] < part[:-1]).any()) for part in levels):
        raise ValueError("the values of a level are not sorted")
    if not 1 <= count <= MOST_READINGS or sum(len(part) << height for height, part in enumerate(levels)) != count:
        raise ValueError("the weights of the values do not sum to the number of readings")
    if _cell(count, low, high, levels) != cell:
        raise ValueError("the head of the sketch does not fit its values")


def readings(column: Array) -> Ints:
    """Number of readings in each sketch."""
    return np.fromiter((_ends(cell)[0] for cell in column.tolist()), np.int64, len(column))


def quantiles(column: Array, q: float) -> Floats:
    """The value at rank ceil(q n) of each sketch of n readings. Exact for q = 0 (the least) and q = 1 (the greatest).

    column: shape (rows,), of bytes that `check` accepts. q n is first rounded to 6 decimals, as in the library, so that
    0.07 of 100 readings is the 7th.
    """
    cells: list[bytes] = column.tolist()
    if q in (0.0, 1.0):
        return np.fromiter((_ends(cell)[1 if q == 0.0 else 2] for cell in cells), np.float64, len(cells))
    parts = [_levels(cell) for cell in cells]
    if not parts:
        return np.zeros(0)
    owner = np.repeat(np.arange(len(parts)), [sum(map(len, levels)) for levels in parts])
    values = np.concatenate([part for levels in parts for part in levels])
    weights = np.repeat(
        [1 << height for levels in parts for height in range(len(levels))],
        [len(part) for levels in parts for part in levels],
    )
    total = readings(column)
    rank = np.ceil(np.round(q * total, 6)).astype(np.int64) - 1
    found: Floats = multisets.tally(values, owner, weights, len(parts)).at(np.clip(rank, 0, total - 1))
    return found
