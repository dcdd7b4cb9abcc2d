"""Windows of unequal length on the executors: made from runs of even ones, without a calendar there."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.windows import Calendar, FixedBand, Window
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.work_rows import windows_in
from tests.oracle import time_windows
from tests.support import algebra_strategies

S = 1_000_000
DAY = 86_400 * S


def made(
    window: Window, after_us: int, upto_us: int, rows: Partials, *, exact: bool = False
) -> dict[int, tuple[int, int]]:
    """Start -> (end, readings) of the windows that end there, as the job makes them from spans."""
    out = {}
    for comb in window.runs(after_us, upto_us):
        low, high = max(comb.after_us + 1 - comb.length_us, 0), comb.upto_us - comb.length_us
        sizes = (comb.length_us, comb.slide_us, comb.offset_us, low, high)
        span = WindowRange("q", 1, 0, comb.after_us, comb.upto_us, *sizes, (), "", 0, 0, False)
        found = windows_in(rows, span, ("count",), None, exact=exact)
        columns = (found.start.tolist(), found.end.tolist(), found.states["count"].tolist())
        for start, end, count in zip(*columns, strict=True):
            assert start not in out
            out[start] = (end, count)
    return out


@pytest.mark.parametrize("tz", algebra_strategies.ZONES)
def test_runs_of_even_windows_make_days_weeks_months_and_bands_where_clocks_change(tz: str) -> None:
    """protocol 6.2: a slice counts in every window that contains it."""
    for change in algebra_strategies.CHANGES_US:
        times = np.array([max(0, change + minutes * 60 * S) for minutes in range(-4 * 1440, 4 * 1440, 411)], np.int64)
        ones = np.ones(len(times), np.int64)
        rows = Partials(times, times + 1, 0 * ones, {"count": ones})
        after, upto = max(0, change - 40 * DAY), change + 40 * DAY
        for window in (
            Calendar("day", tz, DAY // 4),
            Calendar("week", tz),
            Calendar("month", tz),
            FixedBand(change, DAY),
        ):
            want: dict[int, tuple[int, int]] = {}
            for time in times.tolist():
                for start, end in time_windows.holding(window, time):
                    if after < end <= upto:
                        want[start] = (end, want.get(start, (end, 0))[1] + 1)
            assert made(window, after, upto, rows) == want
            whole = Partials(
                np.array(list(want), np.int64),
                np.array([end for end, _ in want.values()], np.int64),
                np.zeros(len(want), np.int64),
                {"count": np.array([count for _, count in want.values()], np.int64)},
            )
            assert made(window, after, upto, whole, exact=True) == want, "also where they came whole"
