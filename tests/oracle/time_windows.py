"""Which windows hold an instant, one function a type. Plain Python; shares only the specs with the product, and
the rules of time zones (which instants are whose is found by looking at clocks, minute by minute)."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from edge_agent.algebra.windows import Calendar, FixedBand, Sliding, Tumbling, Window
from edge_agent.algebra.zones import zone
from tests.oracle import member_itself

Bounds = tuple[int, int]

EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001
US: Final = datetime.timedelta(microseconds=1)
MINUTE_US: Final = 60_000_000
DAY: Final = datetime.timedelta(days=1)


def holding(window: Window, time_us: int) -> list[Bounds]:
    """(start, end) of the windows that hold the instant, in order. None starts before 0."""
    return sorted(bounds for bounds in TYPES.get(window.type, member_itself.holding)(window, time_us) if bounds[0] >= 0)


def _tumbling(window: Tumbling, time_us: int) -> list[Bounds]:
    start = time_us - (time_us - window.offset_us) % window.length_us
    return [(start, start + window.length_us)]


def _sliding(window: Sliding, time_us: int) -> list[Bounds]:
    latest = time_us - (time_us - window.offset_us) % window.slide_us
    starts = range(latest, time_us - window.length_us, -window.slide_us)
    return [(start, start + window.length_us) for start in starts if start >= window.offset_us]


def _fixed_band(window: FixedBand, time_us: int) -> list[Bounds]:
    end = window.start_us + window.length_us
    return [(window.start_us, end)] if window.start_us <= time_us < end else []


def _calendar(window: Calendar, time_us: int) -> list[Bounds]:
    """The dates near an instant, each with the moment when clocks first show it or more."""
    date = (EPOCH + time_us * US).replace(hour=0, minute=0, second=0, microsecond=0)
    reach = {"day": 3, "week": 15, "month": 64}[window.every]
    dates = [date + n * DAY for n in range(-reach, reach + 1)]
    if window.every == "week":
        dates = [each for each in dates if each.isoweekday() == 1]
    if window.every == "month":
        dates = [each for each in dates if each.day == 1]
    edges = sorted({shown(window.tz, each + window.offset_us * US) for each in dates})
    return [(low, high) for low, high in pairwise(edges) if low <= time_us < high]


@functools.cache
def shown(tz: str, wall: datetime.datetime) -> int:
    """The first instant at which clocks of the zone show that time or more: all minutes of two days around it.

    Within a minute clocks do not change (true of all zones since 1972).
    """
    rules, wanted = zone(tz), (wall - EPOCH) // US
    first = wanted - wanted % MINUTE_US - 27 * 60 * MINUTE_US
    for minute in range(first, first + 54 * 60 * MINUTE_US, MINUTE_US):
        utc = (EPOCH + minute * US).replace(tzinfo=datetime.UTC)
        offset = utc.astimezone(rules).utcoffset()
        assert offset is not None
        reaches = max(minute, wanted - offset // US)
        if reaches < minute + MINUTE_US:
            return reaches
    raise AssertionError((tz, wall))


TYPES: Final[dict[str, Callable[[Any, int], list[Bounds]]]] = {
    "tumbling": _tumbling,
    "sliding": _sliding,
    "fixed_band": _fixed_band,
    "calendar": _calendar,
}
