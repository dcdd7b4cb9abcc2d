"""Parses JSON from a network in linear time. Length, depth and digits are limited.

The C parser recurses once per bracket, and takes quadratic time for integers of thousands of digits. Without limits the
sender of a message could exploit both.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

MAX_BYTES: Final = 1_000_000  # per text; enough for a `state` of thousands of definitions
MAX_DEPTH: Final = 16  # nested objects and arrays; definitions need five
MAX_DIGITS: Final = 40  # per number; 128 bits have 39
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)  # an unterminated string is one piece


def printable(text: str) -> str:
    """A text from a network with blanks in place of characters that could control a terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def parse(payload: bytes | str, *, most_bytes: int = MAX_BYTES, most_depth: int = MAX_DEPTH) -> Any:
    """Parse a JSON text. Raises only ValueError, with the reason, or its subclass json.JSONDecodeError with the place.

    Also refused are a key twice in one object, NaN, infinities and numbers beyond the range of a double.
    """
    if len(payload) > most_bytes:
        raise ValueError(f"{len(payload)} bytes, at most {most_bytes} are read")
    text = payload if isinstance(payload, str) else payload.decode("utf-8-sig")
    if text.count("[") + text.count("{") > most_depth and depth(text) > most_depth:
        raise ValueError(f"nested deeper than {most_depth} levels")
    try:
        found = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=whole, parse_float=_finite
        )
    except RecursionError as err:  # most_depth is more than the interpreter allows
        raise ValueError("nested too deep") from err
    if "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()  # raises a ValueError for half a surrogate pair
    return found


def table(payload: bytes | str, *, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a payload; {} if it is not a JSON object."""
    try:
        found = parse(payload, most_bytes=most_bytes)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def depth(text: str) -> int:
    """Nesting depth of the brackets of a JSON text, outside quotes. For other texts it may be too high."""
    most = level = 0
    for piece in _PIECE.findall(text):
        if piece in "[{":
            level += 1
            most = max(most, level)
        elif piece in "]}":
            level -= 1
    return most


def reason(err: ValueError) -> str:
    """The text of an error of `json` or `tomllib`, without advice for programmers."""
    return "an integer of thousands of digits" if "set_int_max_str_digits" in str(err) else str(err)


def whole(text: str) -> int:
    """Parse an integer of at most MAX_DIGITS characters. Raises: ValueError."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, at most {MAX_DIGITS} are read")
    return int(text)


def _finite(text: str) -> float:
    number = float(text) if len(text) <= 10 * MAX_DIGITS else math.inf
    if not math.isfinite(number):
        raise ValueError("a number beyond the range of a double")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f'key "{name[:64]}" is given twice in one table')
            seen.add(name)
    return found


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a number in JSON")
