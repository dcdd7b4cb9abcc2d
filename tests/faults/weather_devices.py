"""Devices of a weather: each publishes to the local broker of its gateway what nobody can read again."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Final

from edge_agent.demo.processes import ChildProcess
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Link, Taken
from edge_agent.ports.waiter import Waiter
from tests.faults.tree import SECOND, DefaultBroker
from tests.support.processes.background import Background

EACH_US: Final = 100_000
QOS: Final = {"gw-1-1": 1, "gw-1-2": 0, "gw-2-1": 1, "gw-2-2": 0}  # of the subscriptions
STORED: Final = ("gw-1-1",)  # the local broker of these keeps sessions: it is stopped, never killed
DEVICE_QUERY: Final = "device-2s"
DEVICE_TABLE: Final[dict[str, object]] = {
    "source": "device", "by": ["machine"], "lateness": "1s", "window": {"type": "tumbling", "length": "2s"},
    "aggregates": ["count", "sum"],
}  # fmt: skip
# A row may lack readings if the gateway, or its local broker, was down so near to it: a commit and a window before, a
# connection (its back-off) and a window after.
BEFORE_US: Final = 8 * SECOND
AFTER_US: Final = 15 * SECOND
Span = tuple[int, int]


class Noted:
    """When a process did not run, or what it reads or knows may have been wrong otherwise."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, start_us: int, end_us: int) -> None:
        self.spans.append((start_us, end_us))

    def near(self, start_us: int, end_us: int) -> bool:
        """Whether a window is near to one of these."""
        return any(low - BEFORE_US < end_us and start_us < high + AFTER_US for low, high in self.spans)


class Watched(ChildProcess):
    """Notes when a process did not run."""

    _ended_us = 0

    @cached_property
    def noted(self) -> Noted:
        """The times."""
        return Noted()

    def kill(self) -> None:
        self._ends()
        super().kill()

    def ask_to_stop(self) -> None:
        self._ends()
        super().ask_to_stop()

    def _ends(self) -> None:
        self._ended_us = self._ended_us or time.time_ns() // 1000

    def start(self) -> None:
        """A process that ended by itself did so since the last look, which was seconds ago."""
        if self.alive:
            return
        started_us = time.time_ns() // 1000
        super().start()
        if self.starts > 1:
            self.noted.add(self._ended_us or started_us - 3 * SECOND, time.time_ns() // 1000)
        self._ended_us = 0


class WatchedProcess(Watched):
    """A node."""


class WatchedBroker(Watched, DefaultBroker):
    """A broker."""


def local_settings(gateway: str, broker: DefaultBroker) -> tuple[str, dict[str, object]]:
    """([local] of the settings, the table of the sensor)."""
    table: dict[str, object] = {
        "driver": "mqtt", "topic": "device/+", "value": "/value", "time": "/time", "qos": QOS[gateway],
        "resolution": 0.01, "timeout": "10s", "labels": {"machine": gateway},
    }  # fmt: skip
    return f'[local]\nbroker = "{broker.url}"\nkeepalive = "5s"\n', table


class Device(Background):
    """A thread that publishes a reading each 100 ms, with its time, while there is a broker."""

    def __init__(self, gateway: str, broker: DefaultBroker, begin_us: int) -> None:
        super().__init__()
        self.gateway, self.begin_us = gateway, begin_us
        self.noted = Noted()  # times when the local broker forgot, or the gateway's own time was wrong
        self.silent = Noted()  # times of which readings may be lost without a record
        self._sure: list[tuple[int, int]] = []  # (time, value in hundredths): the broker has taken it
        self._doubtful: list[tuple[int, int]] = []  # the connection was lost before it had said so
        self._open: dict[int, tuple[int, int]] = {}
        self._connection = Connection(Link(broker.url, f"device-{gateway}", backoff_s=(0.2, 1.0)))

    def _run(self) -> None:
        waiter, connection = Waiter(), self._connection
        connection.open()
        next_us = self.begin_us
        while not self._over.is_set():
            waiter.wait([connection], 0.02)
            for report in connection.take():
                if isinstance(report, Taken) and report.token in self._open:
                    self._sure.append(self._open.pop(report.token))
                elif isinstance(report, Down):
                    self._lose()
            now_us = time.time_ns() // 1000
            if now_us >= next_us:
                next_us = max(next_us + EACH_US, now_us - EACH_US)
                self._publish(now_us)
        self._lose()
        connection.close()
        waiter.close()

    def _publish(self, now_us: int) -> None:
        if now_us // SECOND % 40 < 5:
            return  # it is silent for a while
        value = now_us // 7 % 10_007
        text = json.dumps({"time": now_us, "value": value / 100})
        token = self._connection.publish("device/one", text.encode(), qos=1)
        if token is not None:
            self._open[token] = (now_us, value)

    def _lose(self) -> None:
        self._doubtful += self._open.values()
        self._open.clear()

    def readings(self) -> list[tuple[int, int]]:
        """(time, value in hundredths) of what its broker has taken, in order of time."""
        return sorted(self._sure)

    def doubtful(self) -> list[tuple[int, int]]:
        """What its broker may have taken, in order of time."""
        return sorted([*self._doubtful, *self._open.values()])


class DeviceRows:
    """What rows of the devices may say."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._of = {f"machine={each.gateway}": (each, each.readings(), each.doubtful()) for each in devices}

    def wrong(self, key: str, start_us: int, end_us: int, values: Mapping[str, float | None]) -> str:
        """What is wrong with a row that says it is complete."""
        _, sure, doubtful = self._of[key]
        there, perhaps = _within(sure, start_us, end_us), _within(doubtful, start_us, end_us)
        count, total = int(values.get("count") or 0), Fraction(str(round((values.get("sum") or 0.0) * 100)))
        if not len(there) <= count <= len(there) + len(perhaps):
            return f"{count} readings, not {len(there)}" + (f" to {len(there) + len(perhaps)}" if perhaps else "")
        if not perhaps and total != sum(value for _, value in there):
            return f"the sum is {total}, not {sum(value for _, value in there)}"
        return ""

    def silent(self, key: str, start_us: int, end_us: int) -> bool:
        """Whether readings of a window may be lost without a record."""
        return self._of[key][0].silent.near(start_us, end_us)

    def excused(self, gateway: str, start_us: int, end_us: int, process: Watched, local: Watched) -> bool:
        """Whether readings of a window may be lost."""
        device = self._of[f"machine={gateway}"][0]
        noted = [device.noted] + ([] if gateway in STORED else [local.noted])
        noted += [process.noted] if QOS[gateway] == 0 else []
        return any(each.near(start_us, end_us) for each in noted)

    def windows(self, length_us: int, until_us: int) -> set[tuple[str, int]]:
        """(key, start) of all windows that end by then and have readings."""
        return {
            (key, time_us // length_us * length_us)
            for key, (_, sure, _) in self._of.items()
            for time_us, _ in sure
            if time_us // length_us * length_us + length_us <= until_us
        }


def _within(readings: Sequence[tuple[int, int]], start_us: int, end_us: int) -> Sequence[tuple[int, int]]:
    return readings[bisect_left(readings, (start_us, -1)) : bisect_left(readings, (end_us, -1))]
