"""Waiting for a condition. No test proves by sleeping that something does not happen: it waits for a later marker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.05


def eventually(condition: Callable[[], T], timeout_s: float = 20.0) -> T:
    """The first true answer. Raises: AssertionError when there is none within timeout_s."""
    until = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < until, f"not within {timeout_s} s: {condition}"
        time.sleep(PAUSE_S)
    return answer
