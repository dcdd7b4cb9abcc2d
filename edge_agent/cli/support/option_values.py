"""Values of options that several commands have."""

from __future__ import annotations

import argparse
from typing import Final

MOST_S: Final = 1e9  # of --seconds
MOST_PORT: Final = 65_535
MOST_NAME_BYTES: Final = 65_535  # of a text in MQTT


def seconds(text: str) -> float:
    """Parse --seconds. Raises: ArgumentTypeError unless it is above 0 and at most MOST_S."""
    value = _number(text)
    if not 0 < value <= MOST_S:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds above 0, at most 1e9")
    return value


def wait_s(text: str) -> float:
    """Parse --wait. Raises: ArgumentTypeError unless it is at least 0 and at most MOST_S."""
    value = _number(text)
    if not 0 <= value <= MOST_S:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds, 0 to 1e9")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def count(text: str) -> int:
    """Parse --count. Raises: ArgumentTypeError unless it is a whole number above 0."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number above 0")
    return int(text)


def user_name(text: str) -> str:
    """Parse --user. Raises: ArgumentTypeError if MQTT cannot have it, as bytes that are no UTF-8."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("the name is not text in UTF-8") from None
    if size_bytes > MOST_NAME_BYTES:
        raise argparse.ArgumentTypeError(f"the name is longer than {MOST_NAME_BYTES} bytes")
    return text
