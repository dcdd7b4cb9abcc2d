"""HyperLogLog: distinct counts in at most 4136 bytes, in the format of DataSketches' HLL_8, lgK 12.

A sketch is a set of up to 384 coupons, one per distinct value: 26 bits of its hash as the place, and the number of
leading zeros of other hash bits. With more values it has 4096 registers, each with the greatest number of zeros at its
place. All bytes depend only on the set of values, so combining is exactly associative, commutative and idempotent. The
estimate is exact up to 384 values; beyond, its standard error is 1.04 / sqrt(4096) = 1.6 %. Source: Flajolet, Fusy,
Gandouet & Meunier (2007); the format of the DataSketches library (HLL, serial version 1); the estimator of Ertl (2017),
New cardinality estimation algorithms for HyperLogLog sketches, algorithm 6.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.sketches.hashing import hashed

Coupons = NDArray[np.uint32]
ZeroCounts = NDArray[np.uint8]

FAMILY: Final = 7  # byte 2 of every HLL sketch
LG_K: Final = 12
PLACES: Final = 1 << LG_K
MOST_LISTED: Final = 7  # coupons in the format of a list; more are a set
MOST_COUPONS: Final = 384  # in the format of a set: three quarters of PLACES / 8; more become registers
MOST_BYTES: Final = 40 + PLACES
_TYPE: Final = 2 << 2  # HLL_8; the lowest two bits are the mode: 0 list, 1 set, 2 registers
_COMPACT, _OUT_OF_ORDER = 8, 16  # flags; _OUT_OF_ORDER: readers must estimate from the registers alone
_ADDRESS: Final = (1 << 26) - 1
_MOST_ZEROS: Final = 62
_LONG: Final = 512  # from this many values per group on, `lift` fills registers instead of sorting coupons
_HEAD: Final = struct.Struct("<8BdddII")
_WEIGHTS: Final = 2.0 ** -np.arange(64)


def coupons_of(values: Floats) -> Coupons:
    """One coupon per value: number of leading zeros + 1, above 26 bits of place. values: shape (k,), finite."""
    low, high = hashed(values)
    exponent = (high >> np.uint64(11)).astype(np.float64).view(np.int64) >> 52  # exact: only 53 bits are left
    zeros = 1022 + 53 - exponent
    rare = exponent == 0  # hashes with 53 leading zeros or more
    if rare.any():
        rest = [int(h).bit_length() for h in high[rare]]
        zeros[rare] = 64 - np.array(rest)
    value = np.minimum(zeros, _MOST_ZEROS) + 1
    coupons: Coupons = ((value.astype(np.uint64) << np.uint64(26)) | (low & np.uint64(_ADDRESS))).astype(np.uint32)
    return coupons


def lift(values: Floats, groups: Segments) -> Array:
    """One sketch per group. values: shape (k,), float64, finite."""
    coupons, owner = coupons_of(values), groups.spread(np.arange(len(groups)))
    if len(values) < _LONG * len(groups):
        return _packed(coupons, owner, len(groups))
    table = np.zeros(len(groups) * PLACES, np.uint8)  # faster than sorting if groups are large
    places = owner * PLACES + (coupons & np.uint32(PLACES - 1))
    np.maximum.at(table, places, (coupons >> np.uint32(26)).astype(np.uint8))
    found = table.reshape(-1, PLACES)
    full = np.flatnonzero(np.count_nonzero(found, axis=1) > MOST_COUPONS)
    few = ~np.isin(owner, full)
    return _packed(coupons[few], owner[few], len(groups), {row: found[row] for row in full.tolist()})


def combine(column: Array, groups: Segments) -> Array:
    """Combine sketches to one per group. column: shape (k,), of bytes."""
    owner = groups.spread(np.arange(len(groups)))
    cells: list[bytes] = column.tolist()
    kept = [_coupons(cell) for cell in cells]
    full = [row for row, coupons in enumerate(kept) if coupons is None]
    few = [coupons for coupons in kept if coupons is not None]
    sizes = [0 if coupons is None else len(coupons) for coupons in kept]
    flat = np.concatenate(few) if few else np.zeros(0, np.uint32)
    flat_owner = np.repeat(owner, sizes)
    registers: dict[int, ZeroCounts] = {}
    for row in full:
        place = int(owner[row])
        found = np.frombuffer(cells[row], np.uint8, PLACES, 40)
        registers[place] = np.maximum(registers[place], found) if place in registers else found
    return _packed(flat, flat_owner, len(groups), registers)


def _packed(coupons: Coupons, owner: Ints, groups: int, registers: dict[int, ZeroCounts] | None = None) -> NDArray[Any]:
    """One sketch per group from its coupons. owner: group of each coupon. registers: known registers of some groups."""
    codes = (owner.astype(np.uint64) << np.uint64(32)) | coupons
    codes.sort()
    codes = codes[begins_run(codes)]
    coupons = codes.astype("<u4")  # keeps the lower 32 bits
    ends = np.searchsorted(codes, np.arange(1, groups + 1, dtype=np.uint64) << np.uint64(32)).tolist()
    out = np.empty(groups, object)
    first = 0
    for row, end in enumerate(ends):
        mine = coupons[first:end]
        first = end
        known = None if registers is None else registers.get(row)
        if known is not None or len(mine) > MOST_COUPONS:
            out[row] = _full(mine, known)
        elif len(mine) <= MOST_LISTED:
            out[row] = bytes((2, 1, FAMILY, LG_K, 3, _COMPACT, len(mine), _TYPE)) + mine.tobytes()
        else:
            table = max(5, ((4 * len(mine) + 2) // 3 - 1).bit_length())  # log2 of a table at most 3/4 full
            head = bytes((3, 1, FAMILY, LG_K, table, _COMPACT, 0, _TYPE | 1))
            out[row] = head + len(mine).to_bytes(4, "little") + mine.tobytes()
    return out


def _full(coupons: Coupons, known: ZeroCounts | None) -> bytes:
    """A sketch with registers. coupons: sorted, so that the last one of each place has the most zeros."""
    registers = np.zeros(PLACES, np.uint8)
    registers[coupons & np.uint32(PLACES - 1)] = coupons >> np.uint32(26)
    if known is not None:
        registers = np.maximum(registers, known)
    return _registers_packed(registers)


def _registers_packed(registers: ZeroCounts) -> bytes:
    counts = np.bincount(registers, minlength=64)
    sums = counts * _WEIGHTS
    head = (10, 1, FAMILY, LG_K, 0, _COMPACT | _OUT_OF_ORDER, 0, _TYPE | 2)
    first, second = float(sums[:32].sum()), float(sums[32:].sum())
    return _HEAD.pack(*head, 0.0, first, second, int(counts[0]), 0) + registers.tobytes()


def _coupons(cell: bytes) -> Coupons | None:
    """The coupons of a sketch, in ascending order; None if it has registers."""
    if cell[0] == 2:
        return np.frombuffer(cell, "<u4", offset=8)
    return np.frombuffer(cell, "<u4", offset=12) if cell[0] == 3 else None


def check(cell: bytes) -> None:
    """Check that untrusted bytes are exactly as `lift` or `combine` would write them. Raises: ValueError."""
    if not 8 < len(cell) <= MOST_BYTES or cell[0] not in (2, 3, 10):
        raise ValueError(f"{len(cell)} bytes are no list, set or registers of HLL")
    if cell[0] == 10:
        if len(cell) != MOST_BYTES:
            raise ValueError(f"{len(cell)} bytes, wanted {MOST_BYTES} for registers")
        registers = np.frombuffer(cell, np.uint8, PLACES, 40)
        most = int(registers.max())
        if not 0 < most <= _MOST_ZEROS + 1 or _registers_packed(registers) != cell:
            raise ValueError("the head of the sketch does not fit its registers")
        return
    start = 8 if cell[0] == 2 else 12
    if len(cell) <= start or (len(cell) - start) % 4 or len(cell) > start + 4 * MOST_COUPONS:
        raise ValueError(f"{len(cell)} bytes, wanted a head and 1 to {MOST_COUPONS} coupons of 4 bytes")
    coupons = np.frombuffer(cell, "<u4", offset=start)
    value = coupons >> np.uint32(26)
    if not bool((coupons[1:] > coupons[:-1]).all()) or int(value.min()) < 1 or int(value.max()) > _MOST_ZEROS + 1:
        raise ValueError("wanted increasing coupons with valid counts of zeros")
    if _packed(coupons.astype(np.uint32), np.zeros(len(coupons), np.int64), 1)[0] != cell:
        raise ValueError("the head of the sketch does not fit its coupons")


def estimates(column: Array) -> Floats:
    """The estimated number of distinct values in each sketch, rounded. column: shape (n,), of bytes.

    Also reads sketches that Spark merged (hll_union_agg), whose tables of coupons have empty places.
    """
    cells: list[bytes] = column.tolist()
    out = np.empty(len(cells))
    histograms: list[Ints] = []
    for row, cell in enumerate(cells):
        mode = cell[7] & 3
        if mode == 2:
            histograms.append(np.bincount(np.frombuffer(cell, np.uint8, PLACES, 40), minlength=_MOST_ZEROS + 2))
            out[row] = np.nan
        else:
            out[row] = np.count_nonzero(np.frombuffer(cell, "<u4", offset=12 if mode else 8))
    if histograms:
        out[np.isnan(out)] = np.floor(_cardinality(np.array(histograms)) + 0.5)
    return out


def _cardinality(histogram: Ints) -> Floats:
    """Ertl's estimate. histogram: shape (n, 64), the number of places with each count of zeros."""
    share = histogram / PLACES
    z = PLACES * _tau(1 - share[:, -1])
    for zeros in range(_MOST_ZEROS, 0, -1):
        z = 0.5 * (z + histogram[:, zeros])
    z = np.maximum(z + PLACES * _sigma(share[:, 0]), PLACES * _WEIGHTS[-1])  # keeps the divisor above 0
    found: Floats = PLACES**2 / (2 * np.log(2) * z)
    return found


def _sigma(x: Floats) -> Floats:
    """Ertl's sigma: x + sum over k of 2**(k - 1) x**(2**k). x: share of empty places, in [0, 1)."""
    total, weight = x.copy(), 1.0
    while True:
        x = x * x
        more = total + x * weight
        if bool((more == total).all()):
            return total
        total, weight = more, 2 * weight


def _tau(x: Floats) -> Floats:
    """Ertl's tau. x: share of places that do not have the greatest possible count of zeros, within [0, 1]."""
    edge = (x == 0) | (x == 1)
    x = np.where(edge, 0.25, x)
    total, weight = 1 - x, 1.0
    while True:
        x = np.sqrt(x)
        weight *= 0.5
        less = total - (1 - x) ** 2 * weight
        if bool((less == total).all()):
            return np.where(edge, 0.0, total / 3)
        total = less
