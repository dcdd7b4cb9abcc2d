"""Converts the state of machines to bytes [version, value] and back, for the slots of the spool.

None, bool, int of any size, float, str, bytes, list, and dict with str keys are encoded as CBOR. Tuples, numpy arrays
and frames get tags of this module, so that `loads(dumps(x))` equals x. Bytes are validated, although they are local
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import cbor2
import numpy as np
from cbor2 import CBORTag
from numpy.typing import NDArray

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.multisets import is_bags
from edge_agent.algebra.partials.series import is_series
from edge_agent.errors import WireError
from edge_agent.wire import frames
from edge_agent.wire.columns import multisets, series

VERSION: Final = 1
# From the range of first-come-first-served tags (RFC 8949 section 9.2), used only in these files.
TUPLE_TAG, ARRAY_TAG, OBJECTS_TAG, FRAME_TAG, BAGS_TAG = 63_301, 63_302, 63_303, 63_304, 63_305
SERIES_TAG: Final = 63_306
MOST_VALUES: Final = 2**40  # values of multisets and series: practically unlimited, because the files are local
ARRAY_KINDS: Final = "biufUS"  # kinds of dtypes whose arrays are stored as their bytes
_OWN: Final = frozenset({int, float, str, bytes, bool, type(None)})  # types that CBOR encodes without help
_TEXT: Final = frozenset({str})
_HEAD: Final = cbor2.dumps([VERSION, None])[:-1]  # a list of two items and the first of them


def dumps(value: object) -> bytes:
    """Encode a value. Raises: ValueError for an unsupported type."""
    return _HEAD + cbor2.dumps(_plain(value))


def _plain(value: object) -> object:
    kind = type(value)
    if kind in _OWN:
        return value
    if kind is list or kind is tuple:
        items: list[Any] = value if kind is list else list(value)  # type: ignore[assignment, call-overload]
        if not _OWN.issuperset(map(type, items)):
            items = [item if type(item) in _OWN else _plain(item) for item in items]
        return items if kind is list else CBORTag(TUPLE_TAG, items)
    if isinstance(value, dict):
        if not _TEXT.issuperset(map(type, value)):
            strange = next(key for key in value if type(key) is not str)
            raise ValueError(f"state: keys of a dict must be str, got {type(strange).__name__}")
        if kind is dict and _OWN.issuperset(map(type, value.values())):
            return value
        return {key: item if type(item) in _OWN else _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Frame):
        return CBORTag(FRAME_TAG, frames.encode_stored(value))
    raise ValueError(f"state: a value of type {kind.__name__} cannot be encoded")


def _array(array: NDArray[Any]) -> CBORTag:
    if array.dtype.kind in ARRAY_KINDS:
        return CBORTag(ARRAY_TAG, [array.dtype.str, list(array.shape), array.tobytes()])
    if is_bags(array):
        return CBORTag(BAGS_TAG, [len(array), multisets.encode(array, deflate=False)])
    if is_series(array):
        return CBORTag(SERIES_TAG, [len(array), series.encode(array, deflate=False)])
    if array.dtype == object:
        return CBORTag(OBJECTS_TAG, [list(array.shape), [_plain(item) for item in array.ravel().tolist()]])
    raise ValueError(f"state: an array of {array.dtype} cannot be encoded")


def loads(content: bytes) -> Any:
    """Inverse of `dumps`; arrays are writable copies. Raises: WireError."""
    try:
        match cbor2.loads(content):
            case [1, value]:
                return _value(value)
            case [int(version), *_]:
                raise WireError(f"state of version {version}: this node reads version {VERSION}")
    except WireError:
        raise
    except Exception as err:  # any exception of the decoder means damaged bytes
        raise WireError(f"state cannot be read, {len(content)} bytes: {err}") from err
    raise WireError(f"state: wanted [version, value], got {len(content)} other bytes")


def _value(item: Any) -> Any:
    kind = type(item)
    if kind in _OWN:
        return item
    if kind in (list, tuple):  # cbor2 6 returns lists inside a tag as tuples; our own tuples have TUPLE_TAG
        return [_value(each) for each in item]
    if isinstance(item, Mapping):
        return {key: _value(each) for key, each in item.items()}
    if kind is CBORTag:
        return _tagged(item)
    return item


def _lists(item: Any) -> Any:
    """Convert nested tuples to lists, because cbor2 6 returns lists inside a tag as tuples."""
    return [_lists(each) for each in item] if type(item) in (list, tuple) else item


def _tagged(item: CBORTag) -> Any:
    if item.tag == TUPLE_TAG:
        return tuple(_value(each) for each in item.value)
    if item.tag == ARRAY_TAG:
        name, shape, content = item.value
        dtype = np.dtype(name)
        if dtype.kind not in ARRAY_KINDS:
            raise WireError(f"state: an array of {name} is not allowed")
        return np.frombuffer(content, dtype).reshape(shape).copy()
    if item.tag == OBJECTS_TAG:
        shape, items = item.value
        array = np.empty(len(items), object)
        array[:] = [_value(each) for each in items]
        return array.reshape(shape)
    if item.tag == BAGS_TAG:
        rows, column = item.value
        return multisets.decode(_lists(column), rows, MOST_VALUES, "state")[0]
    if item.tag == SERIES_TAG:
        rows, column = item.value
        return series.decode(_lists(column), rows, MOST_VALUES, "state")[0]
    if item.tag == FRAME_TAG:
        return frames.decode_stored(item.value)
    raise WireError(f"state: tag {item.tag} is not allowed")
