"""protocol 8.4: ages are measured in time that has passed; an error of the lander's clock makes nothing old."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise, repeat

from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.root.elapsed_time import MOST_STEP_US, ElapsedTime

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_700_000_000 * SECOND


def passed(*steps_us: int) -> list[int]:
    """The time that has passed after each step of a clock that begins at START."""
    time, out = ElapsedTime(), []
    for now_us in accumulate(steps_us, initial=START):
        time.look(now_us)
        out.append(time.us - START)
        time = ElapsedTime.restore(time.snapshot())
    return out[1:]


def test_time_passes_with_the_ticks() -> None:
    assert passed(SECOND, 0, 2 * SECOND, 10 * SECOND) == [SECOND, SECOND, 3 * SECOND, 13 * SECOND]
    assert passed(-3_600 * SECOND, 10 * SECOND) == [0, 10 * SECOND]  # also while the clock is behind


def test_a_stop_counts_a_day_at_most() -> None:
    assert passed(3_600 * SECOND, 7 * DAY, SECOND) == [3_600 * SECOND, 3_600 * SECOND + DAY, 3_601 * SECOND + DAY]


def test_a_clock_that_goes_a_year_ahead_counts_a_day_and_what_ticks_there() -> None:
    assert passed(365 * DAY, SECOND, SECOND, SECOND - 365 * DAY) == [DAY, DAY + SECOND, *[DAY + 2 * SECOND] * 2]
    assert passed(365 * DAY, -365 * DAY, DAY // 2, DAY) == [DAY, DAY, DAY, DAY + DAY // 2], "it was counted before"


def test_a_clock_that_begins_in_1970_at_each_start_counts_the_time_between() -> None:
    steps = (5 - START, SECOND, START - 5 - SECOND + 300 * SECOND)
    assert passed(*steps, *steps) == [0, SECOND, 300 * SECOND, 300 * SECOND, 301 * SECOND, 600 * SECOND]


def test_a_clock_that_was_behind_from_the_beginning_counts_a_day_once() -> None:
    steps = chain((20_000 * DAY,), repeat(30 * SECOND, 100))
    assert passed(*steps)[-1] == DAY + 3_000 * SECOND


@given(st.lists(st.integers(-400 * DAY, 400 * DAY), max_size=20))
@example([-START, 300 * SECOND])
def test_it_never_falls_and_a_step_counts_a_day_at_most(steps_us: list[int]) -> None:
    found = [0, *passed(*steps_us)]
    assert all(0 <= after - before <= MOST_STEP_US for before, after in pairwise(found))
