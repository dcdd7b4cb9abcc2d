"""The sensors of a node together: one that fails leaves its neighbours alone; changes lose no readings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.algebra.query.query import Sensor
from edge_agent.errors import PortError
from edge_agent.ports.sensors.node_sensors import RETRY_US, Sensors
from tests.support.fakes import BEGIN_US, FakeClock


def simulated(name: str, rate: float = 10.0, labels: tuple[tuple[str, str], ...] = (), **more: object) -> Sensor:
    return Sensor(name, 1, "simulated", (("rate", rate), ("begin_us", BEGIN_US), *more.items()), labels=labels)


def values(sensors: Sensors, now_us: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for read in sensors.poll(now_us, everything=True):
        found[read.sensor] = found.get(read.sensor, 0) + len(read.batch.value)
    return found


def test_a_driver_is_imported_only_when_a_sensor_needs_it() -> None:
    code = (
        "import sys; from edge_agent.ports.sensors.node_sensors import Sensors;"
        "from edge_agent.ports.clock import SystemClock;"
        "s = Sensors(SystemClock()); s.configure([], {}); s.poll(0);"
        "known = [f'edge_agent.ports.sensors.{m}' for m in "
        "('node_sensors', 'driver_calls', 'file_access', 'quality', 'payloads')];"
        "print([m for m in sys.modules if m.startswith(('edge_agent.ports.sensors.', 'paho')) and m not in known])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_readings_wait_for_company_and_come_all_at_once_before_a_commit(clock: FakeClock) -> None:
    sensors = Sensors(clock, gather_us=250_000)
    sensors.configure([simulated("a", 1000.0), simulated("b", 1000.0)], {})
    sensors.poll(clock.pass_s(0.1), everything=True)
    assert sensors.poll(clock.pass_s(0.1)) == []
    assert sensors.due_us(clock.us) == BEGIN_US + 350_000
    assert {read.sensor for read in sensors.poll(BEGIN_US + 350_000)} == {"a", "b"}
    assert values(sensors, clock.pass_s(0.2)) == {"a": 50, "b": 50}


def test_a_change_of_labels_goes_on_where_the_readings_were_and_another_source_begins_anew(clock: FakeClock) -> None:
    sensors = Sensors(clock)
    sensors.configure([simulated("a")], {})
    assert values(sensors, clock.pass_s(1)) == {"a": 11}
    clock.pass_s(1)
    held = sensors.configure([simulated("a", labels=(("site", "x"),))], {})
    assert [len(read.batch.value) for read in held] == [10]
    assert values(sensors, clock.pass_s(1)) == {"a": 10}
    sensors.configure([simulated("a", seed=5)], {})
    assert values(sensors, clock.pass_s(1)) == {"a": 41}


def test_a_sensor_that_is_gone_is_silent_and_one_that_comes_back_knows_its_position(clock: FakeClock) -> None:
    sensors = Sensors(clock)
    sensors.configure([simulated("a"), simulated("b")], {})
    sensors.poll(clock.pass_s(1), everything=True)
    sensors.configure([simulated("b")], {})
    assert values(sensors, clock.pass_s(1)) == {"b": 10}
    sensors.configure([simulated("a"), simulated("b")], {"a": [BEGIN_US, BEGIN_US, BEGIN_US + 1_000_000]})
    assert values(sensors, clock.pass_s(1)) == {"a": 20, "b": 10}
    sensors.close()


def test_a_file_that_is_not_there_yet_is_told_once_and_tried_again(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "later.csv"
    sensors = Sensors(clock)
    wanted = [Sensor("f", 1, "file", (("path", str(path)), ("speed", 0.0))), simulated("a")]
    sensors.configure(wanted, {})
    (note,) = sensors.notes()
    assert note.name == "sensor.not_started"
    assert "later.csv" in str(note.fields["why"])
    assert values(sensors, clock.pass_s(1)) == {"a": 11}
    sensors.configure(wanted, {})
    assert sensors.notes() == []
    path.write_text("time,value\n1700000000,5\n")
    assert values(sensors, clock.pass_s(1)) == {"a": 10}
    assert values(sensors, clock.pass_s(RETRY_US / 1e6)) == {"a": 100, "f": 1}
    sensors.close()


def test_a_driver_that_fails_in_the_middle_is_tried_again_and_its_neighbours_go_on(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = Sensors(clock)
    sensors.configure([simulated("a"), simulated("b")], {})
    sensors.poll(clock.pass_s(1), everything=True)

    def fail(now_us: int) -> list[object]:
        raise PortError("input/output error")

    monkeypatch.setattr(sensors._running["a"].driver, "poll", fail)
    assert values(sensors, clock.pass_s(1)) == {"b": 10}
    (note,) = sensors.notes()
    assert (note.name, note.fields["sensor"]) == ("sensor.failed", "a")
    assert values(sensors, clock.pass_s(RETRY_US / 1e6)) == {"a": 110, "b": 100}


def test_a_driver_that_cannot_be_closed_leaves_its_neighbours_alone(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that was unplugged fails to close too, each time: the whole node began again, for ever."""
    sensors = Sensors(clock)
    sensors.configure([simulated("a"), simulated("b")], {})
    sensors.poll(clock.pass_s(1), everything=True)

    def fail(*_: object) -> list[object]:
        raise OSError(5, "Input/output error")

    for what in ("poll", "close"):
        monkeypatch.setattr(sensors._running["a"].driver, what, fail)
    assert values(sensors, clock.pass_s(1)) == {"b": 10}
    assert [note.name for note in sensors.notes()] == ["sensor.failed", "sensor.not_closed"]
    assert values(sensors, clock.pass_s(RETRY_US / 1e6)) == {"a": 110, "b": 100}
    for running in sensors._running.values():
        monkeypatch.setattr(running.driver, "close", fail)
    sensors.configure([simulated("b")], {})
    sensors.close()
    assert [note.fields["sensor"] for note in sensors.notes()] == ["a", "b"]


def test_a_driver_that_fails_goes_on_behind_the_readings_that_it_delivered(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not behind those that were lost with the error: it can read them again."""
    sensors = Sensors(clock)
    sensors.configure([simulated("a")], {})
    assert values(sensors, clock.pass_s(1)) == {"a": 11}
    polled = type(sensors._running["a"].driver).poll

    def fail(now_us: int) -> list[object]:
        polled(running, now_us)
        raise PortError("input/output error")

    running = sensors._running["a"].driver
    monkeypatch.setattr(running, "poll", fail)
    assert values(sensors, clock.pass_s(1)) == {}
    assert values(sensors, clock.pass_s(RETRY_US / 1e6)) == {"a": 110}


def test_a_driver_that_fails_behind_its_readings_delivers_none_twice(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = Sensors(clock)
    sensors.configure([simulated("a")], {})

    def fail(now_us: int) -> int:
        raise PortError("input/output error")

    monkeypatch.setattr(sensors._running["a"].driver, "due_us", fail)
    assert values(sensors, clock.pass_s(1)) == {"a": 11}
    assert values(sensors, clock.pass_s(RETRY_US / 1e6)) == {"a": 100}


def test_a_failed_sensor_whose_labels_change_goes_on_where_its_readings_were(clock: FakeClock, tmp_path: Path) -> None:
    path, lines = tmp_path / "r.csv", "time,value\n1700000000,5\n"
    path.write_text(lines)
    wanted = Sensor("f", 1, "file", (("path", str(path)), ("speed", 0.0)))
    sensors = Sensors(clock)
    sensors.configure([wanted], {"f": [len(lines), 0, 1_700_000_000_000_000, 1_700_000_000_000_000]})
    assert values(sensors, clock.us) == {"f": 0}
    path.unlink()
    sensors.configure([], {})
    sensors.configure([wanted], {"f": [len(lines), 0, 1_700_000_000_000_000, 1_700_000_000_000_000]})
    assert sensors.notes()[0].name == "sensor.not_started"
    path.write_text(lines + "1700000001,6\n")
    labelled = replace(wanted, labels=(("site", "x"),))
    sensors.configure([labelled], {})
    assert values(sensors, clock.us) == {"f": 1}
    sensors.close()


def test_mqtt_sensors_share_their_filters(clock: FakeClock) -> None:
    sensors = Sensors(clock)
    assert sensors.filters == {}
    sensors.feed([("t", b"1", 0, 0)], clock.us)
    sensors.configure(
        [
            Sensor("x", 1, "mqtt", (("topic", "plant/+/temp"), ("qos", 0))),
            Sensor("y", 1, "mqtt", (("topic", "plant/a/+"), ("qos", 1))),
            Sensor("z", 1, "mqtt", (("topic", "other"), ("qos", 0))),
        ],
        {},
    )
    assert sensors.filters == {"plant/+/+": 1, "other": 0}
    sensors.feed([("plant/a/temp", b"1", 0, 0), ("plant/a/press", b"2", 0, 0)], clock.us)
    assert values(sensors, clock.us) == {"x": 1, "y": 2}
    assert set(sensors.counters()) == {"x", "y", "z"}
