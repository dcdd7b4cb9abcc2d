"""Flat arrays <-> CBOR items, deflated where that pays; integers in runs as first values and steps.

A typed array that deflates well travels as [tag, bytes]: its bytes place by place (all first bytes, then all second
ones, ...), deflated (RFC 1951). Source: schemas/frame.cddl, rules `packed` and `deflated`.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
from cbor2 import CBORTag

from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.errors import WireError
from edge_agent.wire.columns import numeric
from edge_agent.wire.columns.numeric import DTYPES

LEVEL: Final = 6  # of zlib; a column is small, and every byte goes to flash and over the air
RAW: Final = -15  # deflate without header and checksum: frames have their own
LEAST: Final = 64  # bytes from which deflating is tried


def pack(values: Array, least: int) -> object:
    """A flat array, float64 or int64: a column, or deflated from so many bytes; 0 for no values."""
    if not len(values):
        return 0
    item = numeric.encode(values)
    if type(item) is not CBORTag or len(item.value) < least:
        return item
    size = DTYPES[item.tag].itemsize
    planes = np.frombuffer(item.value, np.uint8).reshape(-1, size).T.tobytes()
    squeezer = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW)
    squeezed = squeezer.compress(planes) + squeezer.flush()
    return [item.tag, squeezed] if len(squeezed) + 3 < len(item.value) else item


def unpack(item: object, n: int, what: str) -> Array:
    """Inverse of `pack` for n >= 1 values: float64, int64 or object. Raises: WireError."""
    if not (type(item) is list and len(item) == 2 and type(item[1]) is bytes):
        return numeric.decode(item, n, what)
    tag = item[0]
    if type(tag) is not int or tag not in DTYPES:
        raise WireError(f"{what}: deflated items of an unknown type")
    size = n * DTYPES[tag].itemsize
    opener = zlib.decompressobj(RAW)
    try:
        planes = opener.decompress(item[1], size + 1)
    except zlib.error as err:
        raise WireError(f"{what}: cannot be inflated: {err}") from None
    if len(planes) != size or not opener.eof or opener.unused_data:
        raise WireError(f"{what}: wanted exactly {size} bytes when inflated")
    raw = np.frombuffer(planes, np.uint8).reshape(DTYPES[tag].itemsize, n).T.tobytes()
    return numeric.decode(CBORTag(tag, raw), n, what)


def unpack_ints(item: object, n: int, what: str) -> Ints:
    """`unpack` of what must be int64. Raises: WireError."""
    found = unpack(item, n, what)
    if found.dtype != np.int64:
        raise WireError(f"{what}: wanted integers of 64 bits")
    return found
