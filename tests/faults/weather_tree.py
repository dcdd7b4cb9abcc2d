"""The tree of a weather: its settings, queries and sensors, and the readings that these give."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pytest

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.config.definitions.definitions import parse_definition, parse_sensor
from edge_agent.demo.processes import ChildProcess, free_ports
from edge_agent.ports.sensors.simulated import Simulation
from tests.faults.tree import SECOND, DefaultBroker, Plan, Tree
from tests.faults.weather_devices import (
    DEVICE_QUERY,
    DEVICE_TABLE,
    STORED,
    Device,
    Watched,
    WatchedBroker,
    WatchedProcess,
    local_settings,
)
from tests.oracle import central_computer
from tests.support.ports.small_disk import SmallDisk, small_disk
from tests.support.processes.proxy import Proxy
from tests.support.processes.wrong_clock import LIBRARY, WrongClock

LEAD_S: Final = 25.0  # all gateways are known before the first reading, so every row expects all of them
SCALE: Final = -2
GRACE_S: Final = {True: 20, False: 35}  # of the regions, and of the one above them
PLAN: Final = Plan(regions=2, gateways=2, rhythm="500ms", tall=True)
SENSOR: Final = {
    "driver": "simulated", "wave": "walk", "rate": 10, "series": 2, "resolution": 0.01, "noise": 0.5, "gaps": 0.02,
    "disorder": "200ms", "outage_every": "20s", "outage_for": "4s", "timeout": "60s",
}  # fmt: skip
MORE: Final = {
    "driver": "simulated", "wave": "walk", "rate": 5, "resolution": 0.01, "noise": 0.5, "gaps": 0.02,
    "disorder": "100ms", "timeout": "60s",
}  # fmt: skip
SMALL: Final = ("gw-1-2", "region-2")  # their spools are on a file system of their own, where one can be mounted
SMALL_BYTES: Final = 48_000_000
COUNTED: Final = "fifties"  # the bounds of its windows are positions, not times
KEYED: Final = {"source": "few", "by": ["machine"], "lateness": "300ms"}
QUERIES: Final[dict[str, dict[str, object]]] = {
    "seconds": {
        **KEYED, "by": ["machine", "series"], "window": {"type": "tumbling", "length": "1s"},
        "aggregates": ["count", "sum"],
    },
    "all": {
        "source": "few", "lateness": "300ms", "window": {"type": "tumbling", "length": "5s"},
        "aggregates": ["count", "sum", "median", "min", "max"],
    },
    "sliding": {
        **KEYED, "window": {"type": "sliding", "length": "10s", "slide": "2s"}, "aggregates": ["count", "sum", "avg"],
    },
    "visits": {**KEYED, "window": {"type": "session", "gap": "2s"}, "aggregates": ["count", "sum"]},
    COUNTED: {**KEYED, "window": {"type": "count_tumbling", "length": 50}, "aggregates": ["count", "sum"]},
}  # fmt: skip
MORE_QUERY: Final = "more-2s"  # of a sensor that is published, altered and removed, too
EXTRA: Final[dict[str, dict[str, object]]] = {
    "extra-1": {**KEYED, "window": {"type": "tumbling", "length": "2s"}, "aggregates": ["count", "max"]},
    "extra-2": {**KEYED, "by": [], "window": {"type": "tumbling", "length": "3s"}, "aggregates": ["count", "sum"]},
    MORE_QUERY: {**KEYED, "source": "more", "window": {"type": "tumbling", "length": "2s"}, "aggregates": ["count"]},
}


def query_of(name: str, table: dict[str, object]) -> Query:
    found = parse_definition("query", name, json.dumps(table)).value
    assert isinstance(found, Query)
    return found


class WeatherTree(Tree):
    """Children reach the broker of their parent by a proxy; a gateway may have the other region as its parent.

    A gateway has a local broker, with a device that publishes there.
    """

    child: ClassVar[type[ChildProcess]] = WatchedProcess

    def __init__(self, folder: Path, plan: Plan = PLAN, *, lead_s: float = LEAD_S) -> None:
        self.ways: dict[str, Proxy] = {}
        self.disks: dict[str, SmallDisk] = {}
        self._mounts = ExitStack()
        self.clocks: dict[str, WrongClock] = {}  # of gateways, if libfaketime is there
        self.locals: dict[str, WatchedBroker] = {}
        self.devices: dict[str, Device] = {}
        self.more_sensors: dict[str, Sensor] = {}
        super().__init__(folder, plan, lead_s=lead_s)
        for broker in self.brokers[1::2]:  # these keep sessions and retained messages, as of some seconds before a kill
            _stores(broker)

    def _process(self, verb: str, name: str, settings: str, env: dict[str, str] | None = None) -> ChildProcess:
        if verb == "run" and LIBRARY is not None:
            self.clocks[name] = WrongClock(self.folder / name / "faketime", "+0")
            env = self.clocks[name].env
        if name in SMALL:
            settings = self._on_disk(settings)
        return super()._process(verb, name, settings, env)

    @staticmethod
    def _on_disk(settings: str) -> str:
        return settings.replace('path = "spool.db"', 'path = "disk/spool.db"')

    def start(self) -> None:
        for name in SMALL:
            with suppress(pytest.skip.Exception):
                self.disks[name] = self._mounts.enter_context(small_disk(self.folder / name / "disk", SMALL_BYTES))
        for broker in self.locals.values():
            broker.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        for broker in self.locals.values():
            broker.kill()
        self._mounts.close()

    def _uplink(self, broker: DefaultBroker) -> str:
        if broker.name not in self.ways:
            self.ways[broker.name] = Proxy(broker.port)
        return self.ways[broker.name].url

    def _merger_toml(self, name: str) -> str:
        return super()._merger_toml(name).replace("[lower]\n", f'[lower]\ngrace = "{GRACE_S[name in self.lows]}s"\n')

    def _gateway_toml(self, name: str, parent: str) -> str:
        heartbeat, commit = self._rhythm()
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        table = {
            **SENSOR,
            "seed": int(name.replace("gw-", "").replace("-", "")),
            "begin": begin,
            "labels": {"machine": name},
        }
        self.sensors[name, "few"] = parse_sensor("few", json.dumps(table))
        local, device = self._local(name)
        more = self.more(name)
        self.more_sensors[name] = parse_sensor("more", json.dumps(more))
        ways = "".join(f'{region} = "{self._uplink(low)}"\n' for region, low in self.lows.items() if region != parent)
        return (
            f'[node]\nid = "{name}"\n[uplink]\nparent = "{parent}"\nbroker = "{self._uplink(self.lows[parent])}"\n'
            f'keepalive = "5s"\n{heartbeat}[uplink.brokers]\n{ways}{local}[spool]\npath = "spool.db"\n{commit}'
            f"[sensor.few]\n{_toml(table)}[sensor.device]\n{_toml(device)}[query.{DEVICE_QUERY}]\n{_toml(DEVICE_TABLE)}"
            + "".join(f"[query.{each}]\n{_toml(query)}" for each, query in QUERIES.items())
        )

    def _local(self, gateway: str) -> tuple[str, dict[str, object]]:
        if gateway not in self.locals:
            name = f"local-{gateway}"
            broker = self.locals[gateway] = WatchedBroker(name, self.folder / name, *free_ports(1))
            self.devices[gateway] = Device(gateway, broker, self.begin_us)
            if gateway in STORED:
                _stores(broker)
        return local_settings(gateway, self.locals[gateway])

    def more(self, gateway: str) -> dict[str, object]:
        """The table of its sensor that is published by MQTT."""
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        seed = 1_000 + int(gateway.replace("gw-", "").replace("-", ""))
        return {**MORE, "seed": seed, "begin": begin, "labels": {"machine": gateway}}

    @property
    def watched(self) -> dict[str, Watched]:
        """The gateways."""
        return {name: child for name, child in self.gateways.items() if isinstance(child, Watched)}

    def move(self, gateway: str) -> str:
        """Write the settings of a gateway, which is not running, with another parent. Returns this parent."""
        parent = next(name for name in self.lows if name != self.parents[gateway])
        self.parents[gateway] = parent
        settings = self._gateway_toml(gateway, parent)
        settings = self._on_disk(settings) if gateway in SMALL else settings
        (self.folder / gateway / "headwater.toml").write_text(settings)
        return parent

    def readings(self, until_us: int, source: str = "few") -> list[central_computer.Reading]:
        """Every reading of `few` or `more` with an event time before until_us, from the formulas."""
        out: list[central_computer.Reading] = []
        few = {gateway: sensor for (gateway, _), sensor in self.sensors.items()}
        for gateway, sensor in (few if source == "few" else self.more_sensors).items():
            made = Simulation(sensor, self.begin_us).between(self.begin_us, until_us)
            made = made.take(np.lexsort((made.index, made.arrival_us)))  # what has one time is in order of arrival
            columns = zip(made.time_us.tolist(), made.value.tolist(), made.series.tolist(), strict=True)
            for order, (time_us, value, series) in enumerate(columns):
                labels = {"machine": gateway, "series": str(series)}
                exact = central_computer.exact(round(value * 100), SCALE)
                out.append(central_computer.Reading(time_us, exact, gateway, order, labels))
        return out


def _stores(broker: DefaultBroker) -> None:
    """Have it keep sessions and retained messages in a file."""
    store = f"persistence true\npersistence_location {broker.folder}/\nautosave_interval 2\n"
    with (broker.folder / "mosquitto.conf").open("a") as config:
        config.write(store)


def _toml(table: dict[str, object]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)
