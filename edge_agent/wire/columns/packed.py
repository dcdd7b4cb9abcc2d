"""Converts flat arrays to CBOR items and back, deflated if that is shorter.

A deflated array is [tag, bytes]. Before it is deflated (RFC 1951), its bytes are grouped by their place in a number:
all first bytes, then all second bytes, and so on. Source: schemas/frame.cddl, rules `packed` and `deflated`.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
from cbor2 import CBORTag

from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.errors import WireError
from edge_agent.wire.cbor import shown
from edge_agent.wire.columns import numeric
from edge_agent.wire.columns.numeric import DTYPES

LEVEL: Final = 6  # of zlib: columns are small, and every byte is written to flash and sent over a mobile network
RAW: Final = -15  # wbits of zlib: without header and checksum, which frames have
LEAST: Final = 64  # bytes of an array from which deflating is tried


def pack(values: Array, least: int) -> object:
    """Encode a flat array, float64 or int64. Returns 0 for an empty array.

    least: smallest encoded size, in bytes, at which deflating is tried.
    """
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
        raise WireError(f"{what}: unknown tag {shown(tag)} of a deflated array")
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
    """Inverse of `pack` for n >= 1 values that must be int64. Raises: WireError."""
    found = unpack(item, n, what)
    if found.dtype != np.int64:
        got = "floats" if found.dtype == np.float64 else "larger integers"
        raise WireError(f"{what}: wanted integers of 64 bits, got {got}")
    return found
