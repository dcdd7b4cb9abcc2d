"""The machine as a sensor: shares are shares, and what the kernel does not tell is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.algebra.query.query import Sensor
from edge_agent.errors import PortError
from edge_agent.ports.sensors.host import HostSensor
from tests.support.fakes import BEGIN_US, FakeClock


def sensor(scale: int | None = None, **options: Any) -> Sensor:
    given = {"every_us": 1_000_000, **options}
    return Sensor("host", 1, "host", tuple(given.items()), labels=(("site", "a"),), scale=scale)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A /proc and a /sys/class/thermal as Linux shows them."""
    tell(tmp_path, busy=0, idle=0)
    for number, (kind, text) in enumerate([("cpu-thermal", "48312"), ("gpu", "-5000"), ("gpu", "61000"), ("off", "")]):
        zone = tmp_path / f"thermal_zone{number}"
        zone.mkdir()
        (zone / "type").write_text(kind + "\n")
        (zone / "temp").write_text(text + "\n")
    return tmp_path


def tell(proc: Path, *, busy: int, idle: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 99 99\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:    400 kB\n")
    (proc / "loadavg").write_text("1.25 0.80 0.50 1/234 5678\n")


def test_every_metric_is_a_series_of_its_own(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(), None, clock, proc=kernel, thermal=kernel)
    tell(kernel, busy=30, idle=70)
    (read,) = driver.poll(clock.pass_s(1))
    rows = {
        tuple(v for k, v in read.batch.labels[s] if k != "site"): value
        for s, value in zip(read.batch.series, read.batch.value, strict=True)
    }
    assert rows == {
        ("cpu",): 0.3,
        ("memory",): 0.6,
        ("load",): 1.25,
        ("thermal", "cpu-thermal"): 48.312,
        ("thermal", "gpu"): -5.0,
        ("thermal", "gpu-2"): 61.0,
    }
    assert set(read.batch.time_us.tolist()) == {clock.us}
    assert driver.position is None


def test_samples_fall_on_multiples_of_the_interval(kernel: Path, clock: FakeClock) -> None:
    clock.us = BEGIN_US + 300_000
    driver = HostSensor(sensor(), None, clock, proc=kernel, thermal=kernel)
    assert driver.due_us(clock.us) == BEGIN_US + 1_000_000
    assert driver.poll(clock.us) == []
    assert len(driver.poll(BEGIN_US + 1_000_100)) == 1
    assert driver.due_us(BEGIN_US + 1_000_100) == BEGIN_US + 2_000_000
    assert len(driver.poll(BEGIN_US + 7_500_000)) == 1  # late once, not seven times
    assert driver.due_us(BEGIN_US + 7_500_000) == BEGIN_US + 8_000_000


def test_a_clock_set_back_does_not_silence_it(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(), None, clock, proc=kernel, thermal=kernel)
    clock.pass_s(-86_400)
    assert driver.poll(clock.us) == []
    assert len(driver.poll(clock.pass_s(1))) == 1


def test_a_measured_share_is_rounded_to_the_resolution(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(scale=-2, metrics=("cpu",)), None, clock, proc=kernel, thermal=kernel)
    tell(kernel, busy=1, idle=2)
    (read,) = driver.poll(clock.pass_s(1))
    assert read.batch.value.tolist() == [33]


def test_a_file_that_vanishes_is_counted_and_the_other_metrics_go_on(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(metrics=("memory", "load")), None, clock, proc=kernel, thermal=kernel)
    (kernel / "meminfo").write_text("nothing here")
    (read,) = driver.poll(clock.pass_s(1))
    assert read.batch.value.tolist() == [1.25]
    assert driver.counters()["bad_value"] == 1
    assert driver.notes()[0].name == "sensor.bad_value"
    with pytest.raises(PortError, match="stat"):
        HostSensor(sensor(), None, clock, proc=kernel / "none", thermal=kernel)


def test_a_container_without_memory_of_its_own_loses_that_metric_only(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(metrics=("memory", "load")), None, clock, proc=kernel, thermal=kernel)
    (kernel / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 0 kB\n")
    (read,) = driver.poll(clock.pass_s(1))
    assert read.batch.value.tolist() == [1.25]


def test_a_thermal_zone_that_cannot_be_read_leaves_the_others_alone(kernel: Path, clock: FakeClock) -> None:
    driver = HostSensor(sensor(metrics=("thermal", "memory")), None, clock, proc=kernel, thermal=kernel)
    (kernel / "thermal_zone1" / "temp").write_text("")
    (kernel / "meminfo").write_text("MemTotal:  1000 kB\n")  # of an old kernel
    (read,) = driver.poll(clock.pass_s(1))
    assert read.batch.value.tolist() == [48.312, 61.0]
    assert driver.counters()["bad_value"] == 2
    assert "thermal zone gpu" in str(driver.notes()[0].fields["why"])


def test_this_machine_can_be_sampled(clock: FakeClock) -> None:
    driver = HostSensor(sensor(), None, clock)
    (read,) = driver.poll(clock.pass_s(1))
    labels = [dict(read.batch.labels[s])["metric"] for s in read.batch.series]
    assert labels[:3] == ["cpu", "memory", "load"]
    assert 0 <= read.batch.value[0] <= 1
    assert 0 < read.batch.value[1] < 1


def test_samples_of_an_unknown_clock_carry_the_time_since_boot(kernel: Path, clock: FakeClock) -> None:
    """protocol 4.3."""
    host = HostSensor(sensor(metrics=["load"]), None, clock, proc=kernel, thermal=kernel)
    clock.synced = False
    clock.pass_s(1)
    (read,) = host.poll(clock.us)
    assert (read.since_boot, read.batch.time_us.tolist()) == (True, [clock.boot_us()])
