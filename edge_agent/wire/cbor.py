"""Strict CBOR decoding of untrusted bytes, with the same result under cbor2 5.9 and 6.x.

Frames and receipts consist of arrays, integers, floats, byte and text strings, null, booleans and a few tags.
Everything else is refused: by options of cbor2 6, and by `scan` before cbor2 5.9 decodes. Source: RFC 8949 section 3
(heads), section 5.3 (validity); schemas/frame.cddl.
"""

from __future__ import annotations

import io
import reprlib
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

import cbor2

from edge_agent.errors import WireError

CBOR2_MAJOR: Final = 6 if hasattr(cbor2, "SemanticDecoderCallback") else 5  # importlib.metadata would take 1 MB
MAX_DEPTH: Final = 8  # levels of nesting; a frame needs 6: body, extras, part, list, group, by
POSITIVE_BIGNUM, NEGATIVE_BIGNUM = 2, 3
ARRAY_TAGS: Final = frozenset(range(64, 88)) - {76}  # RFC 8746 section 2.1; 76 is reserved
TAGS: Final = frozenset({POSITIVE_BIGNUM, NEGATIVE_BIGNUM}) | ARRAY_TAGS
# Tags that cbor2 would decode to dates, decimals, regular expressions, sets, shared references and the like.
BUILT_IN_TAGS: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799)

UINT, NINT, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)  # major types
_FOLLOWING: Final = {24: struct.Struct(">B"), 25: struct.Struct(">H"), 26: struct.Struct(">L"), 27: struct.Struct(">Q")}


def head(data: bytes, at: int) -> tuple[int, int, int]:
    """Read the head of an item: (major type, argument, offset after it).

    Raises: WireError for a truncated head and an indefinite length.
    """
    try:
        first = data[at]
        info = first & 31
        if info < 24:
            return first >> 5, info, at + 1
        following = _FOLLOWING[info]
        return first >> 5, following.unpack_from(data, at + 1)[0], at + 1 + following.size
    except IndexError:
        raise WireError(f"cut short at byte {at}: wanted another item") from None
    except struct.error:
        raise WireError(f"cut short at byte {at}: wanted the rest of an item head") from None
    except KeyError:
        raise WireError(f"indefinite or reserved length 0x{data[at]:02x} at byte {at}") from None


def string(data: bytes, at: int, major: int) -> tuple[bytes, int]:
    """Read a byte or text string: (content as bytes, offset after it). major: BYTES or TEXT. Raises: WireError."""
    got, size, at = head(data, at)
    if got != major:
        raise WireError(f"wanted major type {major} at byte {at}, got {got}")
    if size > len(data) - at:
        raise WireError(f"cut short at byte {at}: wanted {size} bytes, got {len(data) - at}")
    return data[at : at + size], at + size


def scan(data: bytes) -> None:
    """Check the heads of all items.

    Raises: WireError for maps, indefinite lengths, tags and simple values that are not allowed, and too deep nesting.
    """
    at = 0
    left = [1]  # number of items left at each level
    while left:
        if not left[-1]:
            left.pop()
            continue
        left[-1] -= 1
        major, argument, after = head(data, at)
        if major in (BYTES, TEXT):
            if argument > len(data) - after:
                raise WireError(f"cut short at byte {at}: wanted {argument} bytes")
            after += argument
        elif major == ARRAY:
            left.append(argument)
        elif major == TAG:
            if argument not in TAGS:
                raise WireError(f"tag {argument} at byte {at} is not allowed")
            left.append(1)
        elif major == MAP:
            raise WireError(f"map at byte {at} is not allowed")
        elif major == SIMPLE and not (after - at in (3, 5, 9) or 20 <= argument <= 22):
            raise WireError(f"simple value {argument} at byte {at} is not allowed")
        if len(left) > MAX_DEPTH + 1:
            raise WireError(f"nested deeper than {MAX_DEPTH} at byte {at}")
        at = after


def _refuse(*_: object) -> NoReturn:
    raise WireError("a map, or a tag that is not allowed")


_STRICT: Final[dict[str, Any]] = (
    {"max_depth": MAX_DEPTH}
    if CBOR2_MAJOR < 6
    else {
        "max_depth": MAX_DEPTH,
        "allow_indefinite": False,
        "object_hook": _refuse,
        "semantic_decoders": dict.fromkeys(BUILT_IN_TAGS, _refuse),
    }
)
_BEFORE: Final[Callable[[bytes], None] | None] = scan if CBOR2_MAJOR < 6 else None


def loads(data: bytes, what: str) -> object:
    """Decode exactly one item. what: its name in messages. Raises: no other exception than WireError."""
    stream = io.BytesIO(data)
    try:
        if _BEFORE is not None:
            _BEFORE(data)
        value: object = cbor2.CBORDecoder(stream, **_STRICT).decode()
    except WireError as err:
        raise WireError(f"{what}: {err}") from None
    except Exception as err:  # untrusted bytes: any exception of the decoder is the peer's fault
        raise WireError(f"{what}: not valid CBOR, {len(data)} bytes: {err}") from err
    if stream.tell() != len(data):
        raise WireError(f"{what}: {len(data) - stream.tell()} bytes after the end")
    return value


def dumps(value: object) -> bytes:
    """Encode a value, with floats in their shortest exact form."""
    return cbor2.dumps(value, canonical=True)


class _Short(reprlib.Repr):
    """A reprlib.Repr that also accepts huge integers: Python refuses to format more than 4300 digits."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= 128 else f"<an integer of {x.bit_length()} bits>"


shown: Final = _Short().repr  # an untrusted value as short text for a message


def an_int(value: object, low: int, high: int, what: str) -> int:
    """Check that a value is an integer in low..high, not a boolean. what: its name in messages. Raises: WireError."""
    if type(value) is int and low <= value <= high:
        return value
    raise WireError(f"{what}: wanted an integer of {low}..{high}, got {shown(value)}")


def a_text(value: object, what: str, longest: int) -> str:
    """Check that a value is text of at most `longest` characters. Raises: WireError."""
    if type(value) is str and len(value) <= longest:
        return value
    raise WireError(f"{what}: wanted a text of at most {longest} characters, got {shown(value)}")


def an_array(value: object, what: str, least: int, most: int | None = None) -> list[Any]:
    """Check that a value is an array of least..most items (most None: unlimited). Raises: WireError."""
    if type(value) is list and least <= len(value) and (most is None or len(value) <= most):
        return value
    size = f"{least}" if most == least else f"{least} or more" if most is None else f"{least}..{most}"
    raise WireError(f"{what}: wanted an array of {size} items, got {shown(value)}")
