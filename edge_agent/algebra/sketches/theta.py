"""Theta sketches: distinct counts and set operations, in the compact, ordered form of DataSketches, 4096 hashes.

A sketch contains the 4096 least hashes of the values, and a bound: it has all hashes below the bound, which is the next
hash. It depends only on the set of values, so combining is exactly associative, commutative and idempotent. The
estimate is exact up to 4096 distinct values; beyond, its standard error is 1 / sqrt(4095) = 1.6 %. Source: Dasgupta,
Lang, Rhodes & Thaler (2016); the format of the DataSketches library (theta, serial version 3).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.sketches.hashing import SEED_HASH, Hashes, hashed

FAMILY: Final = 3  # byte 2 of every theta sketch
MOST: Final = 4096  # hashes kept (lgK 12)
ALL: Final = 2**63 - 1  # bound of a sketch that contains all hashes of its values
MOST_BYTES: Final = 24 + 8 * MOST
_FLAGS: Final = 2 | 8 | 16  # flags: read only, compact, ordered
_COMPRESSED: Final = 4  # serial version that Spark writes; this module writes version 3
_LONG: Final = 64  # from this many hashes per group on, groups are sorted one by one


def lift(values: Floats, groups: Segments) -> Array:
    """One sketch per group. values: shape (k,), float64, finite."""
    return _packed(hashed(values)[0] >> np.uint64(1), groups, np.full(len(groups), ALL, np.uint64))


def combine(column: Array, groups: Segments) -> Array:
    """Combine sketches to one per group. column: shape (k,), of bytes."""
    owner = groups.spread(np.arange(len(groups)))
    read = [_read(cell) for cell in column.tolist()]
    bounds = np.full(len(groups), ALL, np.uint64)
    np.minimum.at(bounds, owner, np.array([bound for bound, _ in read], np.uint64))
    hashes = np.concatenate([kept for _, kept in read]) if read else np.zeros(0, np.uint64)
    owner = np.repeat(owner, [len(kept) for _, kept in read])
    below = hashes < bounds[owner]
    return _packed(hashes[below], Segments.coded(owner[below], len(groups)), bounds)


def _packed(hashes: Hashes, groups: Segments, bounds: Hashes) -> NDArray[Any]:
    """One sketch per group of hashes, all below the group's bound. hashes: shape (k,); this call may overwrite it."""
    count = groups.count()
    if groups.starts is None:
        hashes = hashes[np.argsort(groups.spread(np.arange(len(groups))), kind="stable")]
    if len(hashes) >= _LONG * len(groups):
        least = [_least(part) for part in _parts(hashes, count)]
    else:
        owner = np.repeat(np.arange(len(groups)), count)
        hashes = hashes[np.lexsort((hashes, owner))]
        new = begins_run(hashes, owner)
        least = _parts(hashes[new], np.bincount(owner[new], minlength=len(groups)))
    out = np.empty(len(groups), object)
    for row, mine in enumerate(least):
        bound = mine[MOST] if len(mine) > MOST else bounds[row]
        out[row] = _cell(int(bound), mine[:MOST])
    return out


def _parts(hashes: Hashes, count: Ints) -> list[Hashes]:
    """The hashes of each group, as views. count: hashes per group."""
    ends = np.cumsum(count).tolist()
    return [hashes[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def _least(hashes: Hashes) -> Hashes:
    """Distinct hashes, increasing: more than MOST of the least ones, or all. Sorts `hashes` in place."""
    hashes.sort()
    few = hashes[: 2 * MOST]
    few = few[begins_run(few)]
    return few if len(few) > MOST or len(hashes) <= 2 * MOST else hashes[begins_run(hashes)]


def _cell(bound: int, kept: Hashes) -> bytes:
    """The bytes of a sketch. kept: its hashes, increasing, all below bound."""
    count = len(kept)
    longs = 3 if bound != ALL else 1 if count == 1 else 2
    head = bytes((longs, 3, FAMILY, 0, 0, _FLAGS)) + SEED_HASH.to_bytes(2, "big")
    if longs > 1:
        head += count.to_bytes(4, "little") + bytes(4)
    if longs > 2:
        head += bound.to_bytes(8, "little")
    return head + kept.astype("<u8").tobytes()


def _read(cell: bytes) -> tuple[int, Hashes]:
    """(bound, hashes) of a sketch that `check` accepts or Spark wrote."""
    if cell[1] == _COMPRESSED:
        return _unpacked(cell)
    bound = int.from_bytes(cell[16:24], "little") if cell[0] == 3 else ALL
    return bound, np.frombuffer(cell, "<u8", offset=8 * cell[0])


def _unpacked(cell: bytes) -> tuple[int, Hashes]:
    """(bound, hashes) of the compressed form: differences of successive hashes, in a fixed number of bits each."""
    width, at = cell[3], 8 * cell[0]
    bound = int.from_bytes(cell[8:16], "little") if cell[0] > 1 else ALL
    count = int.from_bytes(cell[at : at + cell[4]], "little")
    bits = np.unpackbits(np.frombuffer(cell, np.uint8, offset=at + cell[4]), count=count * width)
    padded = np.zeros((count, 64), np.uint8)
    padded[:, 64 - width :] = bits.reshape(count, width)
    steps = np.packbits(padded, axis=1).view(">u8").ravel()
    return bound, np.cumsum(steps, dtype=np.uint64)


def check(cell: bytes) -> None:
    """Check that untrusted bytes are exactly as `lift` or `combine` would write them. Raises: ValueError."""
    if not 16 <= len(cell) <= MOST_BYTES or len(cell) % 8 or cell[0] not in (1, 2, 3) or cell[1] != 3:
        raise ValueError(f"{len(cell)} bytes of version {cell[1:2].hex()}, wanted 16 to {MOST_BYTES} of version 03")
    if len(cell) <= 8 * cell[0]:
        raise ValueError(f"{len(cell)} bytes, wanted at least one hash after the head")
    bound, kept = _read(cell)
    if not 0 < bound <= ALL or (cell[0] == 3) != (bound != ALL) or len(kept) > MOST:
        raise ValueError(f"a bound of {bound} with {len(kept)} hashes is not valid")
    if not int(kept[0]) or not bool((kept[1:] > kept[:-1]).all()) or int(kept[-1]) >= bound:
        raise ValueError("wanted increasing hashes below the bound")
    if _cell(bound, kept) != cell:
        raise ValueError("the head of the sketch does not fit its hashes")


def estimates(column: Array) -> Floats:
    """The estimated number of distinct values in each sketch, rounded. column: as `check` accepts or Spark wrote."""
    read = [_read(cell) for cell in column.tolist()]
    found = (len(kept) * (float(ALL) / bound) for bound, kept in read)
    return np.floor(np.fromiter(found, np.float64, len(read)) + 0.5)


def texts(column: Array) -> list[str]:
    """Each sketch in base64, rewritten by this module so that a sketch from Spark gives the same text."""
    return [b64encode(_cell(*_read(cell))).decode() for cell in column.tolist()]
