"""Converts durations and sizes between texts such as `10s` or `64kB` and integer microseconds or bytes."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

UNITS_US: Final = {  # unit -> microseconds; for canonical text see format_duration
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_SPELLINGS: Final = {
    "us": ("usec", "microsecond"),
    "ms": ("msec", "milli", "millisecond"),
    "s": ("sec", "second"),
    "m": ("min", "minute"),
    "h": ("hr", "hour"),
    "d": ("day",),
    "w": ("week",),
}
DURATION: Final = r"(?:0|[1-9][0-9]{0,16})(?:\.[0-9]{1,6})?(?:us|ms|s|m|h|d|w)"  # in JSON Schemas too
SIZES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE: Final = r"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,6})?(?:B|kB|MB|GB|KiB|MiB|GiB)"

_ROUNDED: Final = 4e-16  # relative error of a decimal number that became a float and was multiplied
_DURATION: Final = re.compile(f"({DURATION[: DURATION.rindex('(?:')]})({'|'.join(UNITS_US)})")
_SIZE: Final = re.compile(f"({SIZE[: SIZE.rindex('(?:')]})({'|'.join(SIZES)})")


def parse_duration(text: str) -> int:
    """Parse a duration like `250ms`, `5s`, `1.5h` or `7d`: one number, one unit, no space. Returns microseconds.

    Raises: ValueError for other texts, and if the duration is not a whole number of microseconds.
    """
    return _whole(text, _DURATION.fullmatch(text), UNITS_US, "250ms, 5s, 10m, 1h or 1d", "microseconds")


def unit_us(text: str) -> int | None:
    """The microseconds of a unit as people write it in a recording: `s`, `sec`, `Seconds`; None if it is no unit."""
    for unit, others in _SPELLINGS.items():
        if text == unit or text.lower() in {unit, *others, *(f"{other}s" for other in others)}:
            return UNITS_US[unit]
    return None


def whole_us(us: float) -> float:
    """A time or duration that is a whole number of microseconds but for its rounding as a float; others unchanged.

    16.1 s times a million is 16 100 000.000000002, because no float is 16.1.
    """
    if isinstance(us, int):  # perhaps beyond the range of a float
        return us
    return round(us) if math.isfinite(us) and abs(us - round(us)) <= _ROUNDED * abs(us) else us


def format_duration(us: int) -> str:
    """Canonical text of a duration of 0 us or more: in the longest unit up to days that divides it (`90m`)."""
    if us == 0:
        return "0s"
    unit = next(u for u in ("d", "h", "m", "s", "ms", "us") if us % UNITS_US[u] == 0)
    return f"{us // UNITS_US[unit]}{unit}"


def parse_size(text: str) -> int:
    """Parse a size like `256MB` (powers of 1000) or `64KiB` (powers of 1024). Returns bytes. Raises: ValueError."""
    return _whole(text, _SIZE.fullmatch(text), SIZES, "64kB, 256MB or 1GB", "bytes")


def format_size(size: int) -> str:
    """Canonical text of a size of 0 bytes or more."""
    unit = next((u for u in ("GiB", "GB", "MiB", "MB", "KiB", "kB") if size and size % SIZES[u] == 0), "B")
    return f"{size // SIZES[unit]}{unit}"


def _whole(text: str, found: re.Match[str] | None, units: dict[str, int], like: str, base: str) -> int:
    if found is None:
        raise ValueError(f"not a number with a unit, like {like}")
    value = Decimal(found[1]) * units[found[2]]
    if value != int(value):
        raise ValueError(f"{text} is not a whole number of {base}")
    return int(value)
