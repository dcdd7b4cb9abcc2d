"""JSON from a network to plain values, in linear time. Length, depth and digits are checked before parsing.

The C parser recurses once per bracket and converts integers of thousands of digits in quadratic time; the sender of a
message must not be able to exploit either.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

MAX_BYTES: Final = 1_000_000  # of one text: a `state` of thousands of definitions
MAX_DEPTH: Final = 16  # of nested objects and arrays: what people write needs five
MAX_DIGITS: Final = 40  # of one number: 128 bits have 39
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)  # a text without an end is one piece


def parse(payload: bytes | str, *, most_bytes: int = MAX_BYTES, most_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text. Raises: ValueError with the reason, json.JSONDecodeError with the place; nothing else.

    A key that stands twice in one object, NaN, infinities and numbers beyond a double are refused too.
    """
    if len(payload) > most_bytes:
        raise ValueError(f"{len(payload)} bytes, at most {most_bytes} are read")
    text = payload if isinstance(payload, str) else payload.decode("utf-8-sig")
    if text.count("[") + text.count("{") > most_depth and depth(text) > most_depth:
        raise ValueError(f"nested deeper than {most_depth}")
    try:
        found = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=whole, parse_float=_finite
        )
    except RecursionError as err:  # where most_depth is beyond what the interpreter allows
        raise ValueError("nested too deep") from err
    if "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again: a ValueError
    return found


def table(payload: bytes | str, *, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object of a payload; {} for anything else."""
    try:
        found = parse(payload, most_bytes=most_bytes)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def depth(text: str) -> int:
    """How deep the brackets of a text nest, outside quotes; too much for a text that is no JSON."""
    most = level = 0
    for piece in _PIECE.findall(text):
        if piece in "[{":
            level += 1
            most = max(most, level)
        elif piece in "]}":
            level -= 1
    return most


def whole(text: str) -> int:
    """An integer of JSON. Raises: ValueError for more digits than any value here has."""
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
                raise ValueError(f'key "{name[:64]}" stands twice in one table')
            seen.add(name)
    return found


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no number that JSON knows")
