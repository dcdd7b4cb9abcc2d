"""Converts columns of numbers to CBOR items and back, in the smallest lossless form.

An item is a number (all rows are equal), a typed array, [base, typed array of differences] or a plain array of
integers. Floats stay floats and integers integers, so that an item shows the type of its column. Source: RFC 8746
section 2.1 (tags), schemas/frame.cddl.
"""

from __future__ import annotations

from math import isfinite
from struct import Struct
from typing import Any, Final

import numpy as np
from cbor2 import CBORTag

from edge_agent.algebra.partials.arrays import Array, Floats, Ints, repeated
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_int

INT64_LOW, INT64_HIGH = -(2**63), 2**63 - 1
WIDE: Final = 2**127  # sums of scaled integers: up to 128 bits (docs/protocol.md 7.1)
PLAIN_ROWS: Final = 8  # longer columns are typed arrays; their heads of 3 to 5 bytes only matter for short ones

# Little endian only, so that there is one way to write a column, and gateways need not swap bytes.
Dtype = np.dtype[Any]
UINT_TAGS: Final[tuple[tuple[int, int, Dtype], ...]] = (
    (1 << 8, 64, np.dtype("u1")),
    (1 << 16, 69, np.dtype("<u2")),
    (1 << 32, 70, np.dtype("<u4")),
)
SINT_TAGS: Final[tuple[tuple[int, int, Dtype], ...]] = (
    (1 << 7, 72, np.dtype("i1")),
    (1 << 15, 77, np.dtype("<i2")),
    (1 << 31, 78, np.dtype("<i4")),
)
INT_DTYPES: Final[dict[int, Dtype]] = {tag: dtype for _, tag, dtype in (*UINT_TAGS, *SINT_TAGS)} | {79: np.dtype("<i8")}
_SINGLE: Final = Struct("<f")
FLOAT_DTYPES: Final[dict[int, Dtype]] = {84: np.dtype("<f2"), 85: np.dtype("<f4"), 86: np.dtype("<f8")}
DTYPES: Final[dict[int, Dtype]] = INT_DTYPES | FLOAT_DTYPES


def encode(column: Array) -> object:
    """Encode a column. column: shape (n,), n >= 1; float64 (finite), int64, or object with Python integers.

    Raises: ValueError for other types, NaN, infinities and integers beyond 128 bits.
    """
    kind = column.dtype.kind
    if kind == "f":
        return encode_floats(column.astype(np.float64, copy=False))
    if kind in "iu" and column.dtype.itemsize <= 8 and column.dtype != np.uint64:
        return encode_ints(column.astype(np.int64, copy=False))
    if kind in "Ou":
        return _encode_wide([int(value) for value in column.tolist()])
    raise ValueError(f"a column of {column.dtype} cannot be encoded")


def encode_ints(column: Ints) -> object:
    """Encode an int64 column. column: shape (n,), n >= 1."""
    n = len(column)
    low, high = int(column.min()), int(column.max())
    if low == high:
        return low
    tag, dtype = _int_type(low, high)
    if n <= PLAIN_ROWS:
        values: list[int] = column.tolist()
        if 1 + sum(map(_int_bytes, values)) < 3 + n * dtype.itemsize:
            return values
    if high - low <= INT64_HIGH:
        near_tag, near = _int_type(0, high - low)
        if n * near.itemsize + 1 + _int_bytes(low) < n * dtype.itemsize:
            return [low, CBORTag(near_tag, (column - low).astype(near).tobytes())]
    return CBORTag(tag, column.astype(dtype).tobytes())


def encode_floats(column: Floats) -> object:
    """Encode a float64 column. column: shape (n,), n >= 1. Raises: ValueError unless all values are finite."""
    if not np.isfinite(column).all():
        raise ValueError("a column contains NaN or an infinity")
    first = float(column[0])
    bits = column.view(np.int64)  # compared instead of floats, so that -0.0 differs from 0.0
    if len(column) == 1 or (first == column[-1] and bool((bits == bits[0]).all())):
        return first
    tag, dtype = 86, FLOAT_DTYPES[86]
    if _is_single(first):  # the first row mostly shows whether a shorter type fits
        for near_tag in (85, 84):
            near = FLOAT_DTYPES[near_tag]
            if not _same(column, bits, near):
                break
            tag, dtype = near_tag, near
    return CBORTag(tag, column.astype(dtype, copy=False).tobytes())


def _is_single(value: float) -> bool:
    try:
        return bool(_SINGLE.unpack(_SINGLE.pack(value))[0] == value)
    except OverflowError:
        return False


def _same(column: Floats, bits: Ints, near: Dtype) -> bool:
    with np.errstate(over="ignore"):
        return bool((column.astype(near).astype(np.float64).view(np.int64) == bits).all())


def _encode_wide(values: list[int]) -> object:
    low, high = min(values), max(values)
    if low < -WIDE or high >= WIDE:
        raise ValueError("a column contains an integer beyond 128 bits")
    if low >= INT64_LOW and high <= INT64_HIGH:
        return encode_ints(np.array(values, np.int64))
    return low if low == high else values


def decode(item: object, n: int, what: str) -> Array:
    """Inverse of `encode` for n rows: float64, int64, or object if a value is beyond 64 bits. Raises: WireError."""
    kind = type(item)
    if kind is CBORTag:
        return _typed(item, n, what)
    if kind is float:
        return _repeated_float(item, n, what)
    if kind is int:
        value = an_int(item, -WIDE, WIDE - 1, what)
        return repeated(value, n) if INT64_LOW <= value <= INT64_HIGH else np.full(n, value, object)
    if kind is list:
        return _listed(item, n, what)
    raise WireError(f"{what}: wanted a column, got {kind.__name__}")


def decode_ints(item: object, n: int, what: str) -> Ints:
    """Decode a column that must be int64. Raises: WireError."""
    column = decode(item, n, what)
    if column.dtype != np.int64:
        raise WireError(f"{what}: wanted integers of 64 bits, got {column.dtype}")
    return column


def _repeated_float(item: object, n: int, what: str) -> Floats:
    if type(item) is not float or not isfinite(item):
        raise WireError(f"{what}: wanted a finite number, got {item!r}")
    return np.full(n, item)


def _typed(item: object, n: int, what: str) -> Array:
    if type(item) is not CBORTag or type(item.value) is not bytes or item.tag not in DTYPES:
        raise WireError(f"{what}: wanted a typed array (tags {sorted(DTYPES)}), got {type(item).__name__}")
    dtype = DTYPES[item.tag]
    if len(item.value) != n * dtype.itemsize:
        raise WireError(f"{what}: wanted {n} rows of {dtype.itemsize} bytes, got {len(item.value)} bytes")
    raw = np.frombuffer(item.value, dtype)
    if dtype.kind == "f":
        if not np.isfinite(raw).all():
            raise WireError(f"{what}: NaN or an infinity, wanted finite numbers")
        return raw.astype(np.float64, copy=False)
    return raw.astype(np.int64, copy=False)


def _listed(item: object, n: int, what: str) -> Array:
    assert isinstance(item, list)
    if len(item) == 2 and type(item[1]) is CBORTag:
        base = an_int(item[0], INT64_LOW, INT64_HIGH, f"{what}, base")
        near = _typed(item[1], n, what)
        if near.dtype != np.int64:
            raise WireError(f"{what}: wanted integer differences, got floats")
        if n and (int(near.min()) + base < INT64_LOW or int(near.max()) + base > INT64_HIGH):
            raise WireError(f"{what}: base plus difference is beyond 64 bits")
        return near + base
    if len(item) != n or not all(type(v) is int and -WIDE <= v < WIDE for v in item):
        raise WireError(f"{what}: wanted {n} integers of at most 128 bits")
    wide = any(not INT64_LOW <= v <= INT64_HIGH for v in item)
    return np.array(item, object if wide else np.int64)


def _int_type(low: int, high: int) -> tuple[int, Dtype]:
    if low >= 0:
        for limit, tag, dtype in UINT_TAGS:
            if high < limit:
                return tag, dtype
    else:
        for limit, tag, dtype in SINT_TAGS:
            if -limit <= low and high < limit:
                return tag, dtype
    return 79, INT_DTYPES[79]


def _int_bytes(value: int) -> int:
    size = value if value >= 0 else -1 - value
    return 1 if size < 24 else 2 if size < 1 << 8 else 3 if size < 1 << 16 else 5 if size < 1 << 32 else 9
