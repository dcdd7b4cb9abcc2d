"""Measures the machine itself: cpu, memory, load, thermal zones. Each is a series with the label `metric`.

cpu and memory are shares in [0, 1]. load is the one-minute average. Thermal zones are in degrees Celsius and also have
the label `zone`. Old values cannot be read again, so there is no position.
Source: Linux, proc(5) and Documentation/driver-api/thermal/sysfs-api.rst.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import Key
from edge_agent.config.checking.composite_types import ListOf
from edge_agent.config.checking.quantities import DAY_US, Duration
from edge_agent.config.checking.value_types import Choice
from edge_agent.config.definitions.drivers import Driver
from edge_agent.errors import PortError
from edge_agent.machines.events import Read
from edge_agent.ports import Clock
from edge_agent.ports.sensors.quality import CheckedSensor

PROC: Final = Path("/proc")
THERMAL: Final = Path("/sys/class/thermal")
METRICS: Final = ("cpu", "memory", "load", "thermal")
IDLE_FIELDS: Final = (3, 4)  # fields idle and iowait of the first line of /proc/stat
ALL_FIELDS: Final = 8  # fields user to steal; guest times are contained in user and nice


class HostSensor(CheckedSensor):
    """Takes samples at multiples of `every`, so that all nodes of a fleet sample at the same times."""

    def __init__(
        self, sensor: Sensor, position: object, clock: Clock, *, proc: Path = PROC, thermal: Path = THERMAL
    ) -> None:
        del position  # old values cannot be read again
        super().__init__(sensor)
        self._clock = clock
        self._proc, self._thermal = proc, thermal
        self._every_us = int(sensor.number("every_us", 1e6))
        self._metrics = _metrics(sensor)
        self._zones = self._find_zones() if "thermal" in self._metrics else []
        self._busy, self._total = self._jiffies()
        self._next_us = (clock.now_us() // self._every_us + 1) * self._every_us

    def poll(self, now_us: int) -> list[Read]:
        """Returns one sample of every metric, if a sample is due."""
        if now_us < self._next_us - self._every_us:  # the clock was set back
            self._next_us = (now_us // self._every_us + 1) * self._every_us
        if now_us < self._next_us:
            return []
        self._next_us = (now_us // self._every_us + 1) * self._every_us
        found: list[tuple[int, float]] = []
        for metric in self._metrics:
            try:
                found += self._sample(metric)
            except (OSError, ValueError, LookupError, ArithmeticError, StopIteration) as err:
                self.quality.refuse("bad_value", b"", f"{metric}: {err}")
        if not found:
            return []
        series = np.array([number for number, _ in found], np.int64)
        value = np.array([one for _, one in found], np.float64)
        synced = self._clock.synced
        batch = self.quality.batch(np.full(len(found), now_us, np.int64), value, series, now_us if synced else None)
        if not synced:
            batch = replace(batch, time_us=batch.time_us - now_us + self._clock.boot_us())
        return [Read(self.sensor.id, batch, since_boot=not synced)]

    def _sample(self, metric: object) -> list[tuple[int, float]]:
        match metric:
            case "cpu":
                busy, total = self._jiffies()
                spent = total - self._total
                share = (busy - self._busy) / spent if spent > 0 else 0.0
                self._busy, self._total = busy, total
                return [(self._number("cpu"), min(max(share, 0.0), 1.0))]
            case "memory":
                sizes = dict(line.split(":", 1) for line in (self._proc / "meminfo").read_text("ascii").splitlines())
                free, all_ = (float(sizes[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
                return [(self._number("memory"), 1.0 - free / all_)]
            case "load":
                return [(self._number("load"), float((self._proc / "loadavg").read_text("ascii").split()[0]))]
            case "thermal":
                return self._temperatures()
        raise ValueError("unknown metric")

    def _temperatures(self) -> list[tuple[int, float]]:
        """The thermal zones that can be read now; the others, such as a radio that is switched off, are refused."""
        found: list[tuple[int, float]] = []
        for zone, path in self._zones:
            try:
                found.append((self._number("thermal", zone), int((path / "temp").read_text("ascii")) / 1000.0))
            except (OSError, ValueError) as err:
                self.quality.refuse("bad_value", b"", f"thermal zone {zone}: {err}")
        return found

    def _number(self, metric: str, zone: str | None = None) -> int:
        own = {"metric": metric} if zone is None else {"metric": metric, "zone": zone}
        return self.quality.series(tuple(sorted({**dict(self.sensor.labels), **own}.items())))

    def _jiffies(self) -> tuple[int, int]:
        """Returns (busy, total) CPU time of all cores since boot, in jiffies. Raises: PortError."""
        try:
            with (self._proc / "stat").open(encoding="ascii") as file:
                fields = [int(field) for field in file.readline().split()[1 : 1 + ALL_FIELDS]]
        except (OSError, ValueError) as err:
            raise PortError(f"cannot read {self._proc}/stat: {err}") from err
        return sum(fields) - sum(fields[i] for i in IDLE_FIELDS if i < len(fields)), sum(fields)

    def _find_zones(self) -> list[tuple[str, Path]]:
        """Returns (name, folder) of each readable thermal zone. The name is its type, and its number if not unique."""
        zones: list[tuple[str, Path]] = []
        for path in sorted(self._thermal.glob("thermal_zone*"), key=lambda p: (len(p.name), p.name)):
            try:
                kind = (path / "type").read_text("utf-8").strip() or path.name
                int((path / "temp").read_text("ascii"))
            except (OSError, ValueError):
                continue  # a zone that is switched off cannot be read
            taken = {name for name, _ in zones}
            zones.append((f"{kind}-{path.name.removeprefix('thermal_zone')}" if kind in taken else kind, path))
        return zones

    def due_us(self, now_us: int) -> int:
        """The next multiple of `every`; at most `every` from now."""
        return min(self._next_us, now_us + self._every_us)


def _metrics(sensor: Sensor) -> tuple[object, ...]:
    metrics = sensor.option("metrics", METRICS)
    return tuple(metrics) if isinstance(metrics, list | tuple) else ()


def _rate(sensor: Sensor, by: Collection[str]) -> float:
    """Readings a second of one key. A key is one metric if `by` has the label metric, else all metrics."""
    return (1 if "metric" in by else len(_metrics(sensor))) * 1e6 / sensor.number("every_us", 1e6)


DRIVER: Final = Driver(
    name="host",
    about="the node's own machine: used share of cpu and memory (0 to 1), load of one minute, temperatures in °C",
    keys=(
        Key("metrics", ListOf(Choice(METRICS, what="metric"), 1), METRICS, "each is a series with the label metric"),
        Key("every", Duration(10_000, DAY_US), 1_000_000, "sampling interval"),
    ),
    start=HostSensor,
    check=None,
    labels=("metric", "zone"),
    templates=frozenset(),
    rate=_rate,
    rereadable=lambda sensor: False,
    own_clock=False,
    ends=False,
    local=False,
    extra="",
)
