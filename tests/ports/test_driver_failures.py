"""Whatever a driver raises or returns, of a package too, costs its own sensor only, and no reading counts twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.drivers import DRIVERS, Driver
from edge_agent.machines.events import Note, Read
from edge_agent.ports.sensors import driver_calls
from edge_agent.ports.sensors.driver_calls import HEALED_US
from edge_agent.ports.sensors.node_sensors import RETRY_US, TURN_US, Sensors
from edge_agent.ports.sensors.payloads import BEYOND_US
from edge_agent.ports.sensors.quality import EXACT, CheckedSensor
from tests.support.fakes import BEGIN_US, FakeClock


class Counts(CheckedSensor):
    """Reads 0, 1, 2, ..., one more with each poll, from its position on. fails: members that raise, and what."""

    fails: dict[str, BaseException] = {}  # noqa: RUF012 - a fixture clears it
    made: list[Read] | None = None  # returned instead of readings

    def __init__(self, sensor: Sensor, position: object, clock: FakeClock) -> None:
        super().__init__(sensor)
        self.next = position if isinstance(position, int) else 0
        self._clock = clock

    def _may_fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]

    @property
    def position(self) -> object:
        self._may_fail("position")
        return self.next

    def poll(self, now_us: int) -> list[Read]:
        if self.made is not None:
            return self.made
        self.next += 1
        value = np.array([self.next - 1.0])
        batch = self.quality.batch(np.array([now_us]), value, self.quality.series(()), now_us)
        reads = [Read(self.sensor.id, batch, self.next)]
        self._may_fail("poll")
        return reads

    def due_us(self, now_us: int) -> int:
        return now_us

    def notes(self) -> list[Note]:
        self._may_fail("notes")
        return super().notes()

    def counters(self) -> dict[str, int]:
        self._may_fail("counters")
        return super().counters()

    def give_back(self) -> bool:
        self._may_fail("give_back")
        return super().give_back()


OURS = Sensor("a", 1, "simulated", (("rate", 10.0), ("begin_us", BEGIN_US)))
THEIRS = Sensor("c", 1, "plant_counts")


@pytest.fixture
def sensors(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sensors]:
    facts = dataclasses.replace(DRIVERS["host"], name="plant_counts", start=Counts, rereadable=lambda sensor: True)
    brought: dict[str, Driver] = {"plant_counts": facts}
    monkeypatch.setattr(DRIVERS, "_of_packages", brought)
    monkeypatch.setattr(Counts, "fails", {})
    monkeypatch.setattr(Counts, "made", None)
    made = Sensors(clock, gather_us=0)
    made.configure([OURS, THEIRS], {})
    yield made
    made.close()


def everything(sensors: Sensors, now_us: int) -> list[float]:
    """A second's work of a gateway. Returns the values of the driver; the other sensor must go on."""
    reads = sensors.poll(now_us, everything=True)
    assert sum(len(read.batch.value) for read in reads if read.sensor == "a") >= 10
    assert sensors.due_us(now_us) <= now_us + 1_000_000
    sensors.give_back(now_us)
    sensors.counters()
    return [value for read in reads if read.sensor == "c" for value in read.batch.value.tolist()]


@pytest.mark.parametrize("what", ["position", "notes", "counters", "give_back", "poll"])
def test_each_call_that_raises_costs_its_own_sensor_and_nothing_is_lost_or_double(
    sensors: Sensors, clock: FakeClock, what: str
) -> None:
    found = everything(sensors, clock.pass_s(1))
    assert found == [0.0]
    Counts.fails[what] = ZeroDivisionError(f"in {what}")
    notes: list[Note] = []
    for _ in range(40):
        found += everything(sensors, clock.pass_s(1))
        notes += sensors.notes()
    (note,) = notes
    assert (note.name, note.fields["sensor"]) == ("sensor.failed", "c")
    assert sensors.failing == {"c": f"ZeroDivisionError: in {what}"}
    assert sensors.counters()["c"]["failed"] > 1
    Counts.fails.clear()
    for _ in range(int((RETRY_US + HEALED_US) / 1e6) + 1):
        found += everything(sensors, clock.pass_s(1))
    assert found == [float(n) for n in range(len(found))]
    assert len(found) > 60
    assert sensors.failing == {}
    assert sensors.notes() == []


def test_a_library_that_ends_the_program_ends_its_own_sensor_only(sensors: Sensors, clock: FakeClock) -> None:
    Counts.fails["poll"] = SystemExit(1)
    assert everything(sensors, clock.pass_s(1)) == []
    assert sensors.failing == {"c": "SystemExit: 1"}


def test_readings_are_delivered_if_the_position_behind_them_cannot_be_told(sensors: Sensors, clock: FakeClock) -> None:
    found = everything(sensors, clock.pass_s(1))
    driver: Any = sensors._running["c"].driver
    polled = driver.poll

    def then_fails(now_us: int) -> list[Read]:
        Counts.fails["position"] = OSError("gone")
        reads: list[Read] = polled(now_us)
        return reads

    driver.poll = then_fails
    found += everything(sensors, clock.pass_s(1))
    Counts.fails.clear()
    found += everything(sensors, clock.pass_s(RETRY_US / 1e6))
    assert found == [0.0, 1.0, 2.0]


def test_a_sensor_whose_labels_change_goes_on_where_it_was_if_its_position_cannot_be_told(
    sensors: Sensors, clock: FakeClock
) -> None:
    found = everything(sensors, clock.pass_s(1))
    Counts.fails["position"] = OSError("gone")
    sensors.configure([OURS, dataclasses.replace(THEIRS, labels=(("site", "x"),))], {})
    Counts.fails.clear()
    found += everything(sensors, clock.pass_s(RETRY_US / 1e6))
    assert found == [0.0, 1.0]


def wrong(**change: Any) -> Read:
    """A batch of one reading with a mistake. change: of the batch, or of the Read."""
    good = Batch(np.array([BEGIN_US]), np.array([1.0]), np.array([0]), [()])
    of_batch = {field.name for field in dataclasses.fields(Batch)}
    batch = dataclasses.replace(good, **{name: each for name, each in change.items() if name in of_batch})
    return dataclasses.replace(
        Read("c", batch), **{name: each for name, each in change.items() if name not in of_batch}
    )


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (None, "must return Reads"),
        (wrong(sensor="a"), "readings of another sensor: 'a'"),
        (wrong(batch=None), "must return Reads with a Batch"),
        (wrong(time_us=np.array([1.5])), "time_us of a Batch must be an array of int64"),
        (wrong(time_us=np.array([2**60])), "828 to 3111"),
        (wrong(value=np.array([1.0, 2.0])), "as long as time_us"),
        (wrong(value=np.array([np.nan])), "not finite"),
        (wrong(value=np.array([1])), "array of float64"),
        (wrong(series=np.array([1])), "a series is not in the table of 1 labels"),
        (wrong(labels=[{"site": "x"}]), "labels must be pairs of texts"),
        (wrong(labels=[(("site", "\ud800"),)]), "surrogates not allowed"),
        (wrong(position=object()), "object"),
        (wrong(clock_us=1.5), "clock_us must be an integer"),
        (wrong(markers=("x",)), "markers must be Markers"),
    ],
)
def test_readings_that_the_machine_cannot_use_are_the_failure_of_their_sensor(
    sensors: Sensors, clock: FakeClock, read: Read, why: str
) -> None:
    """They ended the loop of the gateway, again at each start."""
    Counts.made = [read]
    assert everything(sensors, clock.pass_s(1)) == []
    assert why in sensors.failing["c"]


def test_a_text_that_differs_each_time_is_published_and_logged_once(sensors: Sensors, clock: FakeClock) -> None:
    """Notes are collected twice a second, and `state` is a retained message over a mobile network."""
    said, texts = set[str](), list[Note]()
    for n in range(20):
        Counts.fails["notes"] = ValueError(f"at 0x{n:x}")
        texts += sensors.notes()
        said.update(sensors.failing.values())
        clock.pass_s(0.5)
    assert said == {"ValueError: at 0x0"}
    assert len(texts) == 1


def test_a_sensor_that_fails_is_forgotten_with_its_definition(sensors: Sensors, clock: FakeClock) -> None:
    Counts.fails["poll"] = OSError("gone")
    everything(sensors, clock.pass_s(TURN_US / 1e6))
    sensors.configure([OURS], {})
    assert sensors.failing == {}
    assert set(sensors.counters()) == {"a"}


@pytest.mark.parametrize("value", [EXACT + 1, -EXACT - 1, EXACT, -EXACT])
def test_integers_of_a_driver_are_those_that_a_float_can_tell_apart(value: int) -> None:
    """protocol 7.1: up to 2^53 steps of the resolution, and no step more."""
    batch = Batch(np.array([BEGIN_US]), np.array([value]), np.array([0]), [()])
    with pytest.raises(ValueError, match=r"beyond 2\^53 steps") if abs(value) > EXACT else nullcontext():
        driver_calls._check_columns(batch, np.int64)


@pytest.mark.parametrize("time_us", [BEYOND_US + 1, -BEYOND_US - 1, BEYOND_US, -BEYOND_US])
def test_times_of_a_driver_are_those_that_the_wire_has(time_us: int) -> None:
    batch = Batch(np.array([time_us]), np.array([1.0]), np.array([0]), [()])
    with pytest.raises(ValueError, match="828 to 3111") if abs(time_us) > BEYOND_US else nullcontext():
        driver_calls._check_columns(batch, np.float64)
