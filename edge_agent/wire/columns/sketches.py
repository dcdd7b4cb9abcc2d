"""Converts columns of sketches to CBOR items and back: [false, sizes, bytes or [deflated bytes]].

A sketch is accepted only if algebra.sketches would write exactly the same bytes. So no later reader, including Spark,
meets invalid sketches. Source: schemas/frame.cddl, rule `sketches`.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra import sketches
from edge_agent.algebra.frame import MAX_FRAME_BYTES
from edge_agent.algebra.partials.arrays import Array
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array
from edge_agent.wire.columns import numeric
from edge_agent.wire.columns.packed import LEVEL, RAW

MOST_BYTES: Final = MAX_FRAME_BYTES  # of an inflated column: frames are split by sizes before deflating


def encode(column: Array) -> list[object]:
    """Encode a column of sketches. column: shape (n,), n >= 1."""
    cells: list[bytes] = column.tolist()
    sizes = np.fromiter(map(len, cells), np.int64, len(cells))
    joined = b"".join(cells)
    squeezer = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW)
    squeezed = squeezer.compress(joined) + squeezer.flush()
    return [False, numeric.encode_ints(sizes), [squeezed] if len(squeezed) + 1 < len(joined) else joined]


def is_sketches(item: object) -> bool:
    """Whether an item of a section is a column of sketches."""
    return type(item) is list and len(item) > 0 and item[0] is False


def decode(item: object, n: int, what: str) -> NDArray[Any]:
    """Inverse of `encode` for n rows. Raises: WireError."""
    _false, size_item, content = an_array(item, what, 3, 3)
    sizes = numeric.decode_ints(size_item, n, f"{what}, sizes")
    if int(sizes.min()) < 1 or int(sizes.max()) > sketches.MOST_BYTES or int(sizes.sum()) > MOST_BYTES:
        raise WireError(f"{what}: wanted sketches of 1 to {sketches.MOST_BYTES} bytes, at most {MOST_BYTES} together")
    joined = _content(content, int(sizes.sum()), what)
    out = np.empty(n, object)
    first = 0
    for row, end in enumerate(np.cumsum(sizes).tolist()):
        out[row] = joined[first:end]
        first = end
    try:
        sketches.check(out.tolist())
    except ValueError as err:
        raise WireError(f"{what}: not a sketch: {err}") from None
    return out


def _content(item: object, size: int, what: str) -> bytes:
    if type(item) is bytes and len(item) == size:
        return item
    if type(item) is list and len(item) == 1 and type(item[0]) is bytes:
        opener = zlib.decompressobj(RAW)
        try:
            found = opener.decompress(item[0], size + 1)
        except zlib.error as err:
            raise WireError(f"{what}: cannot be inflated: {err}") from None
        if len(found) == size and opener.eof and not opener.unused_data:
            return found
    raise WireError(f"{what}: wanted {size} bytes, plain or deflated")
