"""Windows whose edges are not evenly spaced, through the tree: equal to the oracle, also where clocks change."""

from __future__ import annotations

import pytest

from tests.support.effort import seeds
from tests.support.recording.seeded import answered, expected, reach, told_rows
from tests.support.recording.seeded_calendars import made_calendars
from tests.support.tolerance import close


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(0, 40))
def test_days_weeks_months_and_bands_give_the_rows_of_the_oracle(seed: int) -> None:
    """protocol 6.2, 6.1 and 4.2 where windows are of unequal length, or only one."""
    given = made_calendars(seed)
    got, want = told_rows(answered(given), given), expected(given, "made")
    assert got.keys() == want.keys()
    for place, numbers in want.items():
        pairs = zip(got[place].values(), numbers.values(), strict=True)
        assert all(close(a, b, reach(given, place[0])) for a, b in pairs), (place, got[place], numbers)


def days(tz: str, offset: str, *hours: int) -> list[tuple[float, float, int]]:
    """(start, end, count) in hours since 25 October 2026 00:00 UTC, when Berlin sets its clocks back at 01:00 UTC."""
    begin = 1_792_886_400
    window = {"type": "calendar", "every": "day", "tz": tz, "offset": offset}
    given = {
        "unit": "s",
        "queries": [{"id": "q", "window": window, "aggregate": "count"}],
        "streams": {"a": [[begin + hour * 3_600, None, 1] for hour in hours]},
    }
    return [((r["start"] - begin) / 3_600, (r["end"] - begin) / 3_600, r["value"]) for r in answered(given)]


def test_the_day_on_which_summer_time_ends_has_25_hours() -> None:
    assert days("Europe/Berlin", "0s", -3, -2, 0, 22, 23) == [(-26, -2, 1), (-2, 23, 3), (23, 47, 1)]


def test_a_production_day_begins_at_six_on_the_wall_whatever_the_clocks_did_in_the_night() -> None:
    assert days("Europe/Berlin", "6h", 3, 4, 5, 28, 29) == [(-20, 5, 2), (5, 29, 2), (29, 53, 1)]


def test_days_of_utc_are_even() -> None:
    assert days("UTC", "0s", -1, 0, 23, 24) == [(-24, 0, 1), (0, 24, 2), (24, 48, 1)]
