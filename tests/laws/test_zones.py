"""From the clock on the wall to event time (edge_agent/algebra/zones.py)."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.windows import Calendar
from edge_agent.algebra.zones import instant_us, names, zone
from edge_agent.errors import ConfigError
from tests.oracle import time_windows
from tests.support import algebra_strategies

HOUR = 3_600_000_000


def at(text: str) -> int:
    """An instant written in UTC."""
    return int(np.datetime64(text, "us").astype(np.int64))


@pytest.mark.parametrize(
    ("tz", "wall", "instant"),
    [
        ("UTC", "2026-03-29T02:30", "2026-03-29T02:30"),
        ("Europe/Berlin", "2026-03-29T01:59:59.999999", "2026-03-29T00:59:59.999999"),
        ("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T01:00"),  # skipped: the moment of the change
        ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30"),  # twice: the first
        ("Europe/Berlin", "2026-10-25T03:00", "2026-10-25T02:00"),
        ("America/Sao_Paulo", "2018-11-04T00:00", "2018-11-04T03:00"),  # the day begins at 01:00
        ("America/Havana", "2026-11-01T00:00", "2026-11-01T04:00"),  # 00:00 comes twice
        ("Pacific/Apia", "2011-12-30T00:00", "2011-12-30T10:00"),  # a day that was not there
        ("Pacific/Apia", "2011-12-30T18:00", "2011-12-30T10:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30"),  # half an hour
    ],
)
def test_a_time_on_the_wall_is_the_first_instant_at_which_clocks_show_it_or_more(
    tz: str, wall: str, instant: str
) -> None:
    assert instant_us(datetime.datetime.fromisoformat(wall), zone(tz)) == at(instant)


@given(
    tz=st.sampled_from(algebra_strategies.ZONES),
    change=st.sampled_from(algebra_strategies.CHANGES_US),
    minutes=st.integers(-3_000, 3_000),
    us=st.sampled_from([0, 1, 59_999_999]),
)
def test_it_equals_looking_at_the_clock_minute_by_minute(tz: str, change: int, minutes: int, us: int) -> None:
    wall = time_windows.EPOCH + time_windows.US * max(2 * 24 * HOUR, change + minutes * 60_000_000 + us)
    assert instant_us(wall, zone(tz)) == time_windows.shown(tz, wall)


def test_there_are_names_and_no_others() -> None:
    assert {"UTC", *algebra_strategies.ZONES} <= names()
    for wrong in ("", "Berlin", "Europe/berlin", "../zone.tab", "/etc/passwd", "Europe"):
        with pytest.raises(ConfigError, match="no time zone"):
            zone(wrong)


@pytest.mark.parametrize("tz", algebra_strategies.ZONES)
def test_days_of_1970_to_2100_are_in_order_and_no_longer_than_said(tz: str) -> None:
    for every in ("day", "week", "month"):
        window = Calendar(every, tz, 6 * HOUR)
        edges = window.edges(0, at("2101-01-01"))
        lengths = np.diff(edges)
        assert lengths.min() > 0
        assert lengths.max() <= window.longest_us
        assert abs(len(edges) - 131 * {"day": 365.25, "week": 52.18, "month": 12}[every]) < 3
        hours = np.round(lengths / HOUR).astype(int)
        nominal = {"day": {24}, "week": {168}, "month": {n * 24 for n in (28, 29, 30, 31)}}[every]
        assert np.isin(hours, list(nominal)).mean() > (0.95 if every != "month" else 0.7)


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_after_400_years_dates_come_again(every: str) -> None:
    window, cycle = Calendar(every, "Europe/Berlin"), 146_097 * 24 * HOUR
    near = window.edges(at("2200-01-01"), at("2203-01-01"))
    far = window.edges(at("2200-01-01") + 7 * cycle, at("2203-01-01") + 7 * cycle)
    assert (far - near).tolist() == [7 * cycle] * len(near)
    assert window.dates.around(np.array([2**61]))[0][0] > 2**61 - window.longest_us
