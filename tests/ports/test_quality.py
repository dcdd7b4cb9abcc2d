"""Quality: what is no reading is counted by its kind and never becomes one; the rest is untouched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Sensor
from edge_agent.ports.sensors.payloads import BEYOND_US
from edge_agent.ports.sensors.quality import (
    EXACT,
    FEW_SERIES,
    FUTURE_US,
    MAX_SERIES,
    NOTES,
    TOO_MANY,
    YEAR_2000_US,
    Quality,
)
from tests.support.fakes import BEGIN_US

SENSOR = Sensor("boiler", 1, "mqtt", range=(-40.0, 125.0))
VALUES = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, -0.0]) | st.integers(-20_000, 20_000).map(
    lambda hundredths: hundredths / 100
)
TIMES = st.integers(-(10**18), 4 * 10**18) | st.integers(BEGIN_US - 10**9, BEGIN_US + 10**9)


def quality(sensor: Sensor = SENSOR) -> Quality:
    made = Quality(sensor)
    made.series(())
    return made


@given(st.lists(st.tuples(VALUES, TIMES, st.integers(-1, 2)), max_size=30), st.sampled_from([None, -1, 0, 2]))
def test_every_row_is_a_reading_or_counted_under_one_kind(
    rows: list[tuple[float, int, int]], scale: int | None
) -> None:
    made = quality(replace(SENSOR, scale=scale))
    for n in (1, 2):
        made.series((("n", str(n)),))
    batch = made.batch(
        np.array([t for _, t, _ in rows], np.int64),
        np.array([v for v, _, _ in rows], np.float64),
        np.array([s for _, _, s in rows], np.int64),
        BEGIN_US,
    )

    def good(value: float, time_us: int, series: int) -> bool:
        return -40 <= value <= 125 and series >= 0 and YEAR_2000_US <= time_us <= BEGIN_US + FUTURE_US

    wanted = [row for row in rows if good(*row)]
    assert list(batch.time_us) == [t for _, t, _ in wanted]
    assert list(batch.series) == [s for _, _, s in wanted]
    if scale is None:
        assert list(batch.value) == [v for v, _, _ in wanted]
    else:
        assert batch.value.dtype == np.int64
        exact = np.array([v for v, _, _ in wanted], np.float64)
        steps = exact * 10.0**-scale if scale <= 0 else exact / 10.0**scale
        assert list(batch.value) == np.rint(steps).tolist()
    count = made.count
    bad = count.nan + count.bad_value + count.out_of_range + count.bad_time + count.future + count.bad_label
    assert (count.readings, count.readings + bad) == (len(wanted), len(rows))


def test_kinds_are_counted_apart() -> None:
    """protocol 4.3: readings more than 5 minutes ahead of a synced clock are refused."""
    made = quality()
    time_us = np.full(7, BEGIN_US)
    time_us[4:6] = [YEAR_2000_US - 1, BEGIN_US + FUTURE_US + 1]
    value = np.array([20.5, math.nan, math.inf, 126.0, 1.0, 2.0, 3.0])
    series = np.array([0, 0, 0, 0, 0, 0, -1])
    batch = made.batch(time_us, value, series, BEGIN_US)
    assert list(batch.value) == [20.5]
    kinds = {k: n for k, n in made.count.as_dict().items() if n}
    assert kinds == {
        "readings": 1, "nan": 1, "bad_value": 1, "out_of_range": 1, "bad_time": 1, "future": 1, "bad_label": 1
    }  # fmt: skip


def test_the_future_is_not_judged_by_a_clock_that_cannot_be_right() -> None:
    made = quality()
    batch = made.batch(np.array([BEGIN_US]), np.array([1.0]), 0, None)
    assert len(batch.value) == 1


@pytest.mark.parametrize("latest_us", [None, BEGIN_US])
@pytest.mark.parametrize("oldest_us", [None, YEAR_2000_US])
def test_a_time_that_no_calendar_holds_is_refused_by_any_sensor_and_any_clock(
    latest_us: int | None, oldest_us: int | None
) -> None:
    made = Quality(SENSOR, oldest_us=oldest_us)
    made.series(())
    time_us = np.array([-(2**63), -(2**62), -BEYOND_US - 1, BEGIN_US, BEYOND_US + 1, 2**62, 2**63 - 1])
    batch = made.batch(time_us, np.ones(7), 0, latest_us)
    assert batch.time_us.tolist() == [BEGIN_US]
    assert made.count.bad_time == 6


def test_a_clean_batch_is_handed_on_without_a_copy() -> None:
    value, time_us = np.linspace(0, 100, 1000), np.arange(BEGIN_US, BEGIN_US + 1000)
    batch = quality().batch(time_us, value, 0, BEGIN_US)
    assert batch.value is value
    assert batch.time_us is time_us
    assert batch.series.strides == (0,)


@pytest.mark.parametrize(
    ("value", "steps"),
    [(23.4, 234), (float(np.float32(23.4)), 234), (-0.1, -1), (0.30000000000000004, 3), (1e6 + 0.1, 10_000_001)],
)
def test_a_multiple_of_the_resolution_is_known_through_binary_fractions(value: float, steps: int) -> None:
    """protocol 7.1: scaled integers."""
    made = quality(replace(SENSOR, scale=-1, range=None))
    batch = made.batch(np.array([BEGIN_US]), np.array([value]), 0, BEGIN_US)
    assert list(batch.value) == [steps]


@pytest.mark.parametrize(("value", "steps"), [(23.46, 235), (0.04, 0), (-7.68, -77)])
def test_what_lies_between_two_steps_is_rounded_to_the_nearest_and_counted(value: float, steps: int) -> None:
    made = quality(replace(SENSOR, scale=-1, range=None))
    batch = made.batch(np.array([BEGIN_US]), np.array([value]), 0, BEGIN_US)
    assert list(batch.value) == [steps]
    assert (made.count.readings, made.count.rounded, made.count.bad_value) == (1, 1, 0)


@pytest.mark.parametrize("value", [1e16, -1e300])
def test_what_is_beyond_2_to_the_53_steps_is_refused(value: float) -> None:
    """protocol 7.1: a value beyond 2^53 units is refused at the sensor."""
    made = quality(replace(SENSOR, scale=-1, range=None))
    batch = made.batch(np.array([BEGIN_US]), np.array([value]), 0, BEGIN_US)
    assert len(batch.value) == 0
    assert made.count.bad_value == 1


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), st.integers(-6, 3))
def test_integers_are_scaled_exactly_or_refused(values: list[int], scale: int) -> None:
    made = quality(replace(SENSOR, scale=scale, range=None))
    batch = made.batch(np.full(len(values), BEGIN_US), np.array(values, np.int64), 0, BEGIN_US)
    if scale <= 0:
        wanted = [v * 10**-scale for v in values if abs(v * 10**-scale) <= EXACT]
        assert list(batch.value) == wanted
    assert made.count.readings + made.count.bad_value == len(values)


def test_integers_without_a_resolution_become_floats() -> None:
    batch = quality().batch(np.array([BEGIN_US]), np.array([7], np.int64), 0, BEGIN_US)
    assert batch.value.dtype == np.float64


def test_a_nan_is_shown_only_if_the_policy_says_so() -> None:
    for nan, shown in (("skip", 0), ("quarantine", 1)):
        made = quality(replace(SENSOR, nan=nan))
        made.batch(np.array([BEGIN_US]), np.array([math.nan]), 0, BEGIN_US)
        assert (made.count.nan, len(made.notes())) == (1, shown)


def test_only_a_few_bad_payloads_of_a_kind_are_shown_and_all_are_counted() -> None:
    made = quality()
    for n in range(100):
        made.refuse("bad_value", b"%d" % n * 1000, "no number")
    assert made.count.bad_value == 100
    notes = made.notes()
    assert len(notes) == NOTES
    assert all(len(note.fields["got"]) <= 200 for note in notes)  # type: ignore[arg-type]
    assert made.notes() == []


def test_series_without_end_are_cut_off() -> None:
    """protocol 2.4: 2^16 keys an epoch; a sensor that makes up labels must not fill the memory."""
    made = Quality(SENSOR)
    numbers = [made.series((("n", str(n)),)) for n in range(MAX_SERIES + 2)]
    assert numbers == [*range(MAX_SERIES), TOO_MANY, TOO_MANY]
    assert made.series((("n", "5"),)) == 5


def labels(n: int) -> tuple[tuple[str, str], ...]:
    return (("n", str(n)),)


def passed(made: Quality, *numbers: int) -> Batch:
    series = np.array([made.series(labels(n)) for n in numbers], np.int64)
    return made.batch(np.full(len(series), BEGIN_US), np.ones(len(series)), series, BEGIN_US)


def test_readings_of_series_beyond_the_limit_are_counted_and_silent_ones_give_their_room_back() -> None:
    made, many = Quality(SENSOR), FEW_SERIES + 100
    made.most_series = many
    burst = passed(made, *range(many + 5))
    assert (made.count.too_many_keys, made.count.bad_label, made.count.readings) == (5, 0, many)
    assert not made.give_back(), "all were heard in this turn"
    passed(made, 7, 9)
    assert made.give_back()
    assert made.labels == [labels(7), labels(9)]
    assert len(burst.labels) == many, "batches keep the table that they came with"
    again = passed(made, 9, many + 1)
    assert [again.labels[n] for n in again.series.tolist()] == [labels(9), labels(many + 1)]
    assert made.count.too_many_keys == 5
    assert not made.give_back(), "few are kept"


@pytest.mark.parametrize("many", [1, 5, FEW_SERIES, FEW_SERIES + 1])
def test_a_sensor_that_is_full_gives_back_the_room_of_silent_series_however_few_it_may_have(many: int) -> None:
    """`[limits] keys` up to 1024 refused every new key until the next start."""
    made = Quality(SENSOR)
    made.most_series = many
    passed(made, *range(many))
    assert not made.give_back()
    assert passed(made, *range(many - 1)).labels == made.labels
    assert made.give_back()
    passed(made, many + 7)
    assert made.count.too_many_keys == 0
    assert made.labels[-1] == labels(many + 7)


def test_a_sensor_that_is_full_of_live_series_takes_no_others() -> None:
    made, many = Quality(SENSOR), FEW_SERIES + 2
    made.most_series = many
    for _ in range(3):
        passed(made, *range(many))
        passed(made, many + 1)
        assert not made.give_back()
    assert made.count.too_many_keys == 3


def test_an_empty_batch_is_no_error() -> None:
    for scale, dtype in ((None, np.float64), (-1, np.int64)):
        batch = quality(replace(SENSOR, scale=scale)).batch(np.zeros(0, np.int64), np.zeros(0), 0, BEGIN_US)
        assert len(batch.value) == 0
        assert batch.value.dtype == np.dtype(dtype)
