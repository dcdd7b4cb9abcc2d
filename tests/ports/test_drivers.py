"""The record of a driver: complete, true of what its class does, and enough to bring a driver in a package."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from edge_agent.algebra.plugin_calls import Loaded
from edge_agent.algebra.query.query import Sensor
from edge_agent.cli.simulate import cannot_run
from edge_agent.cli.support.size_estimates import rate_of
from edge_agent.config.checking.checker import REQUIRED
from edge_agent.config.definitions import drivers
from edge_agent.config.definitions.definitions import canonical_sensor, parse_definition, parse_sensor
from edge_agent.config.definitions.drivers import DRIVERS, FILES, LATER_DRIVERS, TEMPLATES, Driver
from edge_agent.config.definitions.sensors import COMMON
from edge_agent.errors import ConfigError
from edge_agent.machines.events import Read
from edge_agent.ports.sensors.node_sensors import RETRY_US, Sensors
from tests.support.fakes import BEGIN_US, FakeClock
from tests.support.published.reference import drivers as drivers_page

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Driver]]:
    """The drivers of packages, none to begin with."""
    found: dict[str, Driver] = {}
    monkeypatch.setattr(DRIVERS, "_of_packages", found)
    yield found
    drivers.REFUSED.clear()


def test_each_record_has_the_name_of_its_file() -> None:
    """That the list is complete: tests/laws/test_registries.py."""
    assert [DRIVERS[name].name for name in FILES] == list(FILES)
    assert not set(FILES) & set(LATER_DRIVERS)


@pytest.mark.parametrize("fact", [field.name for field in dataclasses.fields(Driver)])
def test_a_fact_that_is_forgotten_is_named(fact: str) -> None:
    facts = {field.name: getattr(DRIVERS["host"], field.name) for field in dataclasses.fields(Driver)}
    with pytest.raises(TypeError, match=fact):
        Driver(**{name: value for name, value in facts.items() if name != fact})


@pytest.mark.parametrize("name", FILES)
def test_the_facts_of_a_record_fit_together(name: str) -> None:
    driver = DRIVERS[name]
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert callable(driver.start)
    assert driver.extra in {"", *extras}
    assert driver.templates <= TEMPLATES
    assert not {key.name for key in driver.keys} & {"driver", *(key.name for key in COMMON)}
    assert driver.about
    assert all(key.doc for key in driver.keys)
    assert f"`{name}`: {driver.about}" in drivers_page()
    assert driver.own_clock or not driver.ends  # only a recording ends


def definition(name: str, folder: Path) -> Sensor:
    """A sensor that this machine can read, with defaults for what need not be given."""
    recording = folder / "recording.csv"
    recording.write_text("time,value\n1700000000,5\n1700000001,6\n")
    needed = {key.name for key in DRIVERS[name].keys if key.default is REQUIRED}
    given = {"path": str(recording), "speed": "max"} if "path" in needed else {}
    return parse_sensor("s", {"driver": name, **given})


@pytest.mark.parametrize("name", [name for name in FILES if not DRIVERS[name].local])
def test_the_record_is_true_of_what_its_class_does(name: str, clock: FakeClock, tmp_path: Path) -> None:
    driver, sensor = DRIVERS[name], definition(name, tmp_path)
    sensors = Sensors(clock)
    sensors.configure([sensor], {})
    reads = [read for _ in range(3) for read in sensors.poll(clock.pass_s(1), everything=True)]
    assert not sensors.notes(), f"edge_agent/ports/sensors/{name}.py: its class cannot be started or polled"
    assert reads, f"edge_agent/ports/sensors/{name}.py: no reading in 3 s"
    assert sensor.own_clock == driver.own_clock
    assert sensor.rereadable == driver.rereadable(sensor) == any(read.position is not None for read in reads)
    assert driver.own_clock == any(read.clock_us is not None for read in reads)
    assert driver.ends == any(read.ended for read in reads)
    labels = {label for read in reads for series in read.batch.labels for label, _ in series}
    assert labels <= set(driver.labels)  # a machine without a thermal zone has no label zone
    assert bool(labels) == bool(driver.labels)
    if driver.rate is not None:
        everything = sum(len(read.batch.value) for read in reads)
        assert driver.rate(sensor, set()) >= driver.rate(sensor, set(driver.labels)) > 0
        assert everything <= 4 * driver.rate(sensor, set())
    sensors.close()


def test_only_a_driver_of_the_local_broker_holds_all_sensors_in_one_object(clock: FakeClock) -> None:
    assert [name for name in FILES if DRIVERS[name].local] == ["mqtt"]
    held = DRIVERS["mqtt"].start(clock)
    held.configure([parse_sensor("a", {"driver": "mqtt", "topic": "a"})], {})
    assert held.filters == {"a": 1}
    assert parse_sensor("a", {"driver": "mqtt", "topic": "a"}).rereadable
    assert not parse_sensor("a", {"driver": "mqtt", "topic": "a", "qos": 0}).rereadable


def test_an_unknown_driver_names_the_others_and_what_was_left_out(brought: dict[str, Driver]) -> None:
    with pytest.raises(ConfigError, match="one of mqtt, host, file, simulated"):
        parse_sensor("s", {"driver": "plant_x"})
    DRIVERS.add([], {"plant": "no_such_module:X: ModuleNotFoundError: No module named 'no_such_module'"})
    with pytest.raises(ConfigError, match=r"package plant cannot be used \(no_such_module:X: ModuleNotFoundError"):
        parse_sensor("s", {"driver": "plant_x"})


# --- drivers of packages ---------------------------------------------------------------------------------------------


@pytest.fixture
def gauge(brought: dict[str, Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example of docs/extend.md, installed; the file it reads."""
    code = re.findall(r"```python\n(# plant_drivers.py\n.*?)```", (TOP / "docs/extend.md").read_text(), re.DOTALL)
    (tmp_path / "plant_drivers.py").write_text(code[0])
    monkeypatch.syspath_prepend(tmp_path)
    found = import_module("plant_drivers").GAUGE
    DRIVERS.add([Loaded("gauge", "plant_drivers:GAUGE", found, "plant 1.0")], {})
    assert drivers.REFUSED == {}
    path = tmp_path / "number"
    path.write_text("20.5\n")
    return path


def test_the_example_of_the_docs_is_checked_explained_and_read_as_ours_are(gauge: Path, clock: FakeClock) -> None:
    table = {"driver": "plant_gauge", "path": str(gauge), "every": "500ms", "labels": {"site": "a"}, "resolution": 0.1}
    sensor = parse_sensor("g", table)
    assert json.loads(canonical_sensor(sensor))["every"] == "500ms"
    assert parse_definition("sensor", "g", canonical_sensor(sensor)).value == sensor
    assert rate_of(sensor, ()).per_s == 2.0
    assert (cannot_run(sensor, live=False), cannot_run(sensor, live=True)) == ("runs only with --live", "")
    with pytest.raises(ConfigError, match="have no topic"):
        parse_sensor("g", {**table, "labels": {"site": "{topic[1]}"}})
    sensors = Sensors(clock)
    sensors.configure([sensor], {})
    (read,) = sensors.poll(clock.us, everything=True)
    assert (read.batch.value.tolist(), read.batch.labels) == ([205], [(("site", "a"),)])
    assert sensors.counters()["g"]["readings"] == 1
    (again,) = sensors.poll(clock.pass_s(-3600), everything=True)  # the clock was set back
    assert again.batch.time_us.tolist() == [clock.us]


def test_what_a_drivers_package_raises_costs_its_own_sensors_only(
    gauge: Path, clock: FakeClock, brought: dict[str, Driver]
) -> None:
    simulated = Sensor("a", 1, "simulated", (("rate", 10.0), ("begin_us", BEGIN_US)))
    broken = parse_sensor("g", {"driver": "plant_gauge", "path": str(gauge)})

    class Raises(brought["plant_gauge"].start):  # type: ignore[misc]
        def poll(self, now_us: int) -> list[Read]:
            raise ZeroDivisionError("in poll")

    def never(*args: Any) -> Any:
        raise KeyError("in start")

    for start, name, why in ((never, "sensor.not_started", "KeyError"), (Raises, "sensor.failed", "ZeroDivisionError")):
        brought["plant_gauge"] = dataclasses.replace(brought["plant_gauge"], start=start)
        sensors = Sensors(clock)
        sensors.configure([broken, simulated], {})
        assert {read.sensor for read in sensors.poll(clock.pass_s(1), everything=True)} == {"a"}
        (note,) = sensors.notes()
        assert (note.name, note.fields["sensor"]) == (name, "g")
        assert why in str(note.fields["why"])
        assert "in " in str(note.fields["why"])
        assert {read.sensor for read in sensors.poll(clock.pass_s(RETRY_US / 1e6), everything=True)} == {"a"}
        sensors.close()


@pytest.mark.parametrize("fact", ["check", "rereadable"])
def test_a_fact_of_a_package_that_raises_is_a_mistake_of_the_definition(
    gauge: Path, brought: dict[str, Driver], fact: str
) -> None:
    def raises(*_: object) -> bool:
        raise KeyError("speed")

    facts: dict[str, Any] = {fact: raises}
    brought["plant_gauge"] = dataclasses.replace(brought["plant_gauge"], **facts)
    with pytest.raises(ConfigError, match=f"{fact} of the driver failed: KeyError: 'speed'"):
        parse_sensor("g", {"driver": "plant_gauge", "path": str(gauge)})


def test_a_library_that_is_not_installed_is_named_with_what_installs_it(
    gauge: Path, clock: FakeClock, brought: dict[str, Driver]
) -> None:
    def start(*args: Any) -> Any:
        import no_such_bus  # type: ignore[import-not-found]

        return no_such_bus

    brought["plant_gauge"] = dataclasses.replace(brought["plant_gauge"], start=start, extra="drivers")
    sensors = Sensors(clock)
    sensors.configure([parse_sensor("g", {"driver": "plant_gauge", "path": str(gauge)})], {})
    (note,) = sensors.notes()
    assert "pip install '.[drivers]'" in str(note.fields["why"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "host"}, "driver 'host' exists already"),
        ({"name": "modbus"}, "driver 'modbus' exists already"),
        ({"name": "Plant X"}, "is not a name"),
        ({"local": True}, "cannot read the broker"),
        ({"templates": frozenset({"weather"})}, "templates may only contain payload, topic"),
    ],
)
def test_a_record_that_cannot_be_used_is_left_out(brought: dict[str, Driver], change: dict[str, Any], why: str) -> None:
    given = dataclasses.replace(DRIVERS["host"], **{"name": "plant_host", **change})

    DRIVERS.add([Loaded("plant", "plant:DRIVER", given, "plant 1.0")], {})
    assert why in drivers.REFUSED["plant"]
    assert not brought
