"""Converts a sensor's batch of readings to CBOR [1, times, values] and back. Source: schemas/readings.cddl.

times: tag 79 (int64 little endian, microseconds) or [start_us, step_us]. values: any array of numbers of RFC 8746.
Arrays are decoded as a whole, without work per reading.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from cbor2 import CBORTag
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Floats, Ints
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array, an_int, dumps, loads
from edge_agent.wire.fields import TIME_LIMIT_US

VERSION: Final = 1
TIME_TAG: Final = 79
MAX_READINGS: Final = 2**20  # in one message
_TYPES: Final = (  # RFC 8746 section 2.1, table 1
    *("u1", ">u2", ">u4", ">u8", "u1", "<u2", "<u4", "<u8"),  # tags 64 to 71
    *("i1", ">i2", ">i4", ">i8", None, "<i2", "<i4", "<i8"),  # tags 72 to 79; 76 is reserved
    *(">f2", ">f4", ">f8", None, "<f2", "<f4", "<f8"),  # tags 80 to 86; numpy has no 128-bit floats (83 and 87)
)
DTYPES: Final = {tag: np.dtype(name) for tag, name in enumerate(_TYPES, 64) if name is not None}


def encode(time_us: Ints | tuple[int, int], value: Floats | Ints) -> bytes:
    """Encode a batch. time_us: shape (k,), int64, or (start, step). value: shape (k,), float64 or int64."""
    times: object
    if isinstance(time_us, tuple):
        times = list(time_us)
    else:
        times = CBORTag(TIME_TAG, np.ascontiguousarray(time_us, "<i8").tobytes())
    tag, dtype = (86, "<f8") if value.dtype.kind == "f" else (79, "<i8")
    return dumps([VERSION, times, CBORTag(tag, np.ascontiguousarray(value, dtype).tobytes())])


def decode(payload: bytes) -> tuple[Ints, Floats | Ints]:
    """Decode a batch. Returns (times, values), both of shape (k,); k may be 0, and arrays may be read-only.

    times: int64, us. values: int64, or float64 with NaN and infinities unchanged. Raises: WireError unless the payload
    follows schemas/readings.cddl version 1.
    """
    fields = an_array(loads(payload, "readings"), "readings", 3, 3)
    if an_int(fields[0], 0, 2**32 - 1, "version") != VERSION:
        raise WireError(f"readings of version {fields[0]}: this node reads version {VERSION}")
    value = _values(fields[2])
    time_us = _times(fields[1], len(value))
    if len(time_us) != len(value):
        raise WireError(f"readings: {len(time_us)} times for {len(value)} values")
    return time_us, value


def _values(item: object) -> Floats | Ints:
    if type(item) is not CBORTag or item.tag not in DTYPES:
        raise WireError("readings: wanted values as a typed array of RFC 8746 (no 128-bit floats)")
    raw = _raw(item, DTYPES[item.tag])
    if raw.dtype.kind == "f":
        return raw.astype(np.float64, copy=False)
    if raw.dtype.kind == "u" and raw.dtype.itemsize == 8 and len(raw) and int(raw.max()) >= 2**63:
        raise WireError("readings: a value of 2^63 or more, signed 64 bits are wanted")
    return raw.astype(np.int64, copy=False)


def _times(item: object, n: int) -> Ints:
    if type(item) is CBORTag:
        if item.tag != TIME_TAG:
            raise WireError(f"readings: wanted times as tag {TIME_TAG} or [start, step], got tag {item.tag}")
        return _raw(item, DTYPES[TIME_TAG]).astype(np.int64, copy=False)
    start, step = an_array(item, "times", 2, 2)
    start = an_int(start, -TIME_LIMIT_US, TIME_LIMIT_US, "start")
    step = an_int(step, 0, TIME_LIMIT_US // MAX_READINGS, "step")
    return start + step * np.arange(n, dtype=np.int64)


def _raw(item: CBORTag, dtype: np.dtype[Any]) -> NDArray[Any]:
    if type(item.value) is not bytes or len(item.value) % dtype.itemsize:
        raise WireError(f"readings: wanted whole items of {dtype.itemsize} bytes")
    if len(item.value) > MAX_READINGS * dtype.itemsize:
        raise WireError(f"readings: more than {MAX_READINGS} in one message")
    return np.frombuffer(item.value, dtype)
