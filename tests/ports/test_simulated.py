"""Simulated sensors: every reading is a function of seed and index; a restart reads the same again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Read
from edge_agent.ports.sensors.simulated import MOST, SimulatedReadings, SimulatedSensor, Simulation
from tests.support.fakes import BEGIN_US, FakeClock

WAVES = ("sine", "square", "saw", "walk", "noise", "steps", "constant")


def sensor(*, scale: int | None = None, **options: Any) -> Sensor:
    return Sensor("sim", 1, "simulated", tuple(options.items()), labels=(("site", "a"),), scale=scale)


@st.composite
def definitions(draw: st.DrawFn) -> Sensor:
    outage_every = draw(st.sampled_from([0, 700_000]))
    return sensor(
        wave=draw(st.sampled_from(WAVES)),
        seed=draw(st.integers(0, 2**53)),
        rate=draw(st.sampled_from([0.7, 3.0, 50.0, 1000.0, 12345.6])),
        series=draw(st.integers(1, 4)),
        noise=draw(st.sampled_from([0.0, 0.5])),
        gaps=draw(st.sampled_from([0.0, 0.3, 1.0])),
        disorder_us=draw(st.sampled_from([0, 1, 40_000, 3_000_000])),
        outage_every_us=outage_every,
        outage_for_us=outage_every and 200_000,
        period_us=draw(st.sampled_from([1000, 1_000_000, 60_000_000])),
    )


def rows(made: SimulatedReadings) -> list[tuple[int, int, int, float, int]]:
    columns = (made.index, made.time_us, made.arrival_us, made.value, made.series)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def of(reads: list[Read]) -> list[tuple[int, float, int]]:
    return [
        row
        for read in reads
        for row in zip(read.batch.time_us.tolist(), read.batch.value.tolist(), read.batch.series.tolist(), strict=True)
    ]


@given(definitions(), st.integers(0, 10**6), st.lists(st.integers(0, 60), max_size=6))
def test_readings_do_not_depend_on_how_they_are_asked_for(definition: Sensor, start: int, cuts: list[int]) -> None:
    simulation = Simulation(definition, BEGIN_US)
    pieces, at = [], start
    for n in cuts:
        pieces += rows(simulation.readings(at, n))
        at += n
    assert pieces == rows(simulation.readings(start, at - start))


@given(definitions(), st.integers(-(10**6), 10**8), st.integers(0, 300_000))
def test_a_span_of_time_holds_exactly_the_readings_of_that_time(
    definition: Sensor, after_us: int, span_us: int
) -> None:
    simulation = Simulation(definition, BEGIN_US)
    start, end = BEGIN_US + after_us, BEGIN_US + after_us + span_us
    found = rows(simulation.between(start, end))
    first = max(0, int((after_us - 2) * simulation.rate / 1e6) - 2) * simulation.n_series
    n = (int(span_us * simulation.rate / 1e6) + 8) * simulation.n_series
    assert found == [row for row in rows(simulation.readings(first, n)) if start <= row[1] < end]


@given(definitions(), st.lists(st.integers(0, 400_000), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_polls_at_any_time_and_restarts_at_any_poll_give_every_reading_once_in_order_of_arrival(
    definition: Sensor, steps: list[int], restarts: set[int]
) -> None:
    """protocol 3.1: a restart reads simulated sensors again from the committed position."""
    clock = FakeClock()
    driver = SimulatedSensor(definition, None, clock)
    found: list[tuple[int, float, int]] = []
    committed: object = None
    for n, step in enumerate(steps):
        clock.us += step
        if n in restarts:
            driver.poll(clock.us)  # read, never committed: lost with the process
            driver = SimulatedSensor(definition, committed, clock) if committed else driver
            if committed is None:
                driver = SimulatedSensor(definition, None, FakeClock())
        while True:
            reads = driver.poll(clock.us)
            found += of(reads)
            committed = driver.position
            if not reads:
                break
    truth = Simulation(definition, BEGIN_US).arriving(BEGIN_US - 1, clock.us)
    assert found == list(zip(truth.time_us.tolist(), truth.value.tolist(), truth.series.tolist(), strict=True))
    assert truth.arrival_us.tolist() == sorted(truth.arrival_us.tolist())
    assert np.all(truth.arrival_us >= truth.time_us)
    assert np.all(truth.arrival_us <= truth.time_us + Simulation(definition, BEGIN_US).disorder_us)


@pytest.mark.parametrize("wave", WAVES)
def test_waves_stay_within_their_amplitude_and_use_it(wave: str) -> None:
    simulation = Simulation(
        sensor(wave=wave, mean=20.0, amplitude=5.0, rate=10.0, series=3, period_us=3_000_000), BEGIN_US
    )
    value = simulation.readings(0, 9000).value
    assert value.min() >= 15.0
    assert value.max() <= 25.0
    if wave != "constant":
        assert value.max() - value.min() > 7.0


def test_seeds_and_series_differ() -> None:
    by_seed = [
        Simulation(sensor(wave="noise", seed=seed, rate=100.0), BEGIN_US).readings(0, 500).value for seed in (1, 2)
    ]
    assert abs(float(np.mean(by_seed[0] * by_seed[1]))) < 0.1
    made = Simulation(sensor(wave="walk", series=2, rate=100.0), BEGIN_US).readings(0, 1000)
    assert not np.array_equal(made.value[made.series == 0], made.value[made.series == 1])


def test_gaps_noise_and_outages_are_as_large_as_they_say() -> None:
    made = Simulation(sensor(wave="constant", noise=2.0, gaps=0.25, rate=1000.0), BEGIN_US).readings(0, 40_000)
    assert abs(len(made.index) / 40_000 - 0.75) < 0.02
    assert abs(made.value.std() - 2.0) < 0.05
    assert abs(made.value.mean()) < 0.05
    out = Simulation(sensor(rate=100.0, outage_every_us=10_000_000, outage_for_us=2_000_000), BEGIN_US).readings(
        0, 4000
    )
    assert len(out.index) == 3200
    assert np.all(out.time_us % 10_000_000 >= 2_000_000)


def test_a_resolution_quantises() -> None:
    clock = FakeClock()
    driver = SimulatedSensor(sensor(scale=-1, mean=20.0, amplitude=5.0, rate=1000.0, noise=1.0), None, clock)
    (read,) = driver.poll(clock.pass_s(1))
    assert read.batch.value.dtype == np.int64
    exact = Simulation(driver.sensor, BEGIN_US).readings(0, 1001).value
    assert list(read.batch.value) == [round(v * 10) for v in exact]
    assert driver.counters()["bad_value"] == 0


def test_each_series_carries_its_number_beside_the_sensors_own_labels() -> None:
    driver = SimulatedSensor(sensor(series=2), None, FakeClock())
    assert driver.quality.labels == [(("series", "0"), ("site", "a")), (("series", "1"), ("site", "a"))]


# --- its own clock ---------------------------------------------------------------------------------------------------


def test_the_clock_of_the_sensor_is_its_own_begin_plus_elapsed_times_speed() -> None:
    """protocol 4.1."""
    clock = FakeClock()
    begin = 1_500_000_000_000_000  # years ago: history, replayed from its first time
    driver = SimulatedSensor(sensor(begin_us=begin, speed=60.0, rate=1.0), None, clock)
    reads = driver.poll(clock.pass_s(2))
    assert reads[-1].clock_us == begin + 120_000_000
    assert len(of(reads)) == 121


def test_sensors_with_the_same_recent_begin_share_event_time_whenever_they_start() -> None:
    clock = FakeClock()
    begin = BEGIN_US - 30_000_000
    early = SimulatedSensor(sensor(begin_us=begin, rate=10.0), None, clock)
    clock.pass_s(3)
    late = SimulatedSensor(sensor(begin_us=begin, rate=10.0), None, clock)
    clock.pass_s(1)
    assert of(early.poll(clock.us)) == of(late.poll(clock.us))
    assert early.position == late.position


def test_nothing_comes_before_a_begin_in_the_future() -> None:
    clock = FakeClock()
    driver = SimulatedSensor(sensor(begin_us=BEGIN_US + 5_000_000, rate=10.0), None, clock)
    assert driver.poll(clock.pass_s(4)) == []
    assert driver.due_us(clock.us) >= BEGIN_US + 5_000_000
    assert of(driver.poll(clock.pass_s(1)))[0][0] == BEGIN_US + 5_000_000


def test_a_restart_after_a_pause_catches_up_in_full_batches_with_the_clock_behind_them() -> None:
    clock = FakeClock()
    definition = sensor(rate=100_000.0)
    driver = SimulatedSensor(definition, None, clock)
    driver.poll(clock.pass_s(1))
    again = SimulatedSensor(definition, driver.position, clock)
    clock.pass_s(3600)
    reads = again.poll(clock.us)
    assert [len(read.batch.value) for read in reads] == [MOST] * len(reads)
    for read in reads:
        assert read.clock_us is not None
        assert read.batch.time_us.max() <= read.clock_us <= read.batch.time_us.max() + 10
    assert again.due_us(clock.us) < clock.us


def test_another_begin_is_another_stream() -> None:
    clock = FakeClock()
    driver = SimulatedSensor(sensor(begin_us=BEGIN_US, rate=10.0), None, clock)
    driver.poll(clock.pass_s(5))
    moved = SimulatedSensor(sensor(begin_us=BEGIN_US + 1_000_000, rate=10.0), driver.position, clock)
    assert of(moved.poll(clock.us))[0][0] == BEGIN_US + 1_000_000


def test_a_clock_set_back_repeats_nothing() -> None:
    clock = FakeClock()
    driver = SimulatedSensor(sensor(rate=10.0), None, clock)
    first = of(driver.poll(clock.pass_s(5)))
    assert driver.poll(clock.pass_s(-3)) == []
    assert of(driver.poll(clock.pass_s(4)))[0][0] > first[-1][0]


def test_full_speed_gives_one_batch_a_poll_whatever_the_time() -> None:
    clock = FakeClock()
    driver = SimulatedSensor(sensor(rate=1000.0, speed=0.0), None, clock)
    reads = [driver.poll(clock.us) for _ in range(3)]
    assert [len(of(r)) for r in reads] == [MOST] * 3
    assert driver.due_us(clock.us) == clock.us
