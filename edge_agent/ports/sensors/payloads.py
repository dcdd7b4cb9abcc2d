"""Parses payloads of foreign devices, bare numbers or JSON with pointers, into columns.

Many payloads are parsed in one call, but a bad payload does not affect the others. So JSON payloads are not joined to
one array, although that is faster by a third: a payload like `1,2` or `],[` would shift the values of the others.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Floats, Ints
from edge_agent.config.checking.foreign_json import depth
from edge_agent.config.checking.quantities import EPOCH

MICROSECOND: Final = datetime.timedelta(microseconds=1)
BEYOND_US: Final = 2**55  # limit of times, years 828 to 3111: calendars and frames hold them and their differences
ABSENT: Final = object()  # result of a pointer to a value that does not exist
NUMBER: Final = re.compile(
    rb"\s*+[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|nan|inf(?:inity)?)\s*+\Z", re.I
)
LONGEST_NUMBER: Final = 400  # bytes; the longest double in decimals has 309 digits
MOST_DEPTH: Final = 64  # nested brackets of a JSON payload
MOST_DOCUMENT: Final = 4 << 20  # bytes of a JSON payload
UNITS: Final = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (math.inf, 1e-3))  # (times below this, microseconds per unit)

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class BadPayloadError(ValueError):
    """The payload does not contain a number, time or label where the sensor expects it. The message says why."""


def number(payload: bytes) -> float:
    """Parse a bare decimal number; nan and inf too. Raises: BadPayloadError for others, like `1_000` or `0x1F`."""
    if len(payload) > LONGEST_NUMBER or not NUMBER.match(payload):
        raise BadPayloadError("not a number")
    return float(payload)


def numbers(payloads: Sequence[bytes]) -> list[float] | None:
    """Parse all payloads as bare numbers, fast. None if one of them is not a number; then parse each alone."""
    if b"_" in b"".join(payloads) or max(map(len, payloads), default=0) > LONGEST_NUMBER:  # float() would accept 1_000
        return None
    try:
        return list(map(float, payloads))
    except ValueError:
        return None


def whole(payload: bytes) -> int | None:
    """The integer in a bare number; None if it has a fraction or an exponent."""
    text = payload.strip()
    return int(text) if text.lstrip(b"+-").isdigit() else None


def document(payload: bytes) -> Any:
    """Parse a JSON document. Raises: BadPayloadError if the payload is not exactly one complete document."""
    if len(payload) > LONGEST_NUMBER and payload.count(b"[") + payload.count(b"{") > MOST_DEPTH:
        _shallow(payload)
    try:
        text = payload.decode()
        found, end = _scan(text, 0)
        if end == len(text):
            return found
    except (ValueError, StopIteration, RecursionError):
        pass  # not JSON, or JSON with leading white space, a byte order mark or UTF-16: json.loads decides
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as err:
        raise BadPayloadError(f"not JSON: {err}") from err


def _shallow(payload: bytes) -> None:
    """Raises: BadPayloadError for a payload that is too large or nested too deep to be parsed."""
    if len(payload) > MOST_DOCUMENT:
        raise BadPayloadError(f"too large for a reading: {len(payload)} bytes of JSON, at most {MOST_DOCUMENT}")
    if depth(payload.decode("utf-8", "replace")) > MOST_DEPTH:
        raise BadPayloadError(f"JSON nested deeper than {MOST_DEPTH} levels")


def follow(found: Any, steps: Sequence[str]) -> Any:
    """The value at the JSON pointer `steps` in a parsed document, or ABSENT."""
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step, ABSENT)
        elif isinstance(found, list) and step.isdecimal() and len(step) < 10 and int(step) < len(found):
            found = found[int(step)]
        else:
            return ABSENT
    return found


def column(documents: Sequence[Any], steps: Sequence[str]) -> list[Any]:
    """The value at the JSON pointer `steps` in each document; ABSENT where there is none."""
    if len(steps) == 1:
        step = steps[0]
        try:
            return [found[step] for found in documents]
        except (KeyError, TypeError, IndexError):
            pass  # a document differs: follow the pointer in each
    return [follow(found, steps) for found in documents]


def plain(values: Sequence[Any]) -> Floats | None:
    """Convert all to floats, shape (k,). None unless all are numbers: no booleans, no texts, none ABSENT."""
    if not set(map(type, values)) <= {float, int}:
        return None
    try:
        return np.array(values, np.float64)
    except OverflowError:  # an integer beyond 1e308
        return None


def value(found: Any) -> float:
    """Convert one value to a float; null is NaN. Raises: BadPayloadError for booleans, texts, lists and objects."""
    if found is None:
        return math.nan
    if type(found) in (int, float):
        try:
            return float(found)
        except OverflowError:
            return math.inf
    raise BadPayloadError(f"wanted a number, got {'text' if isinstance(found, str) else type(found).__name__}")


def moments(found: Sequence[Any]) -> Ints | None:
    """Convert all to event times in microseconds, fast. None unless all are int, all float or all RFC 3339 texts."""
    kinds = set(map(type, found))
    if kinds in ({int}, {float}):
        try:
            raw = np.array(found, np.int64 if kinds == {int} else np.float64)
        except OverflowError:
            return None
        low, high = raw.min(), raw.max()
        for least, limit, factor in ((0.0, 1e11, 1e6), (1e11, 1e14, 1e3), (1e14, 1e17, 1.0)):
            limit = min(limit, BEYOND_US / factor)
            if least <= low and high < limit:  # false if one is NaN
                return raw.astype(np.int64) * int(factor) if kinds == {int} else np.rint(raw * factor).astype(np.int64)
        return None
    if kinds == {str}:
        try:
            return np.array([moment(text) for text in found], np.int64)
        except BadPayloadError:
            return None
    return None


def moment(found: Any) -> int:
    """Convert an RFC 3339 text (UTC if it has no zone) or a Unix time in s, ms, us or ns to microseconds.

    The unit of a number follows from its size, correctly for times from 1973. Raises: BadPayloadError.
    """
    if isinstance(found, str):
        us = _of_text(found)
    elif type(found) not in (int, float) or not -BEYOND_US * 1000 < found < BEYOND_US * 1000:
        raise BadPayloadError("wanted a time as text or number")
    elif isinstance(found, int):
        size = abs(found)
        us = next(found * int(factor) if factor >= 1 else found // 1000 for limit, factor in UNITS if size < limit)
    else:
        us = next(round(found * factor) for limit, factor in UNITS if abs(found) < limit)
    if abs(us) > BEYOND_US:
        raise BadPayloadError("the time is not in the years 828 to 3111")
    return us


def _of_text(text: str) -> int:
    try:
        when = datetime.datetime.fromisoformat(text)
        return ((when if when.tzinfo else when.replace(tzinfo=datetime.UTC)) - EPOCH) // MICROSECOND
    except (ValueError, OverflowError) as err:
        raise BadPayloadError("not a time in RFC 3339") from err
