"""The demo's tree: nodes, their sensors, and the queries."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra.query.query import Sensor
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.keys import LOOPBACK, settings_lines

REGIONS: Final = ("north", "south")
HOST: Final = "gw-host"  # the gateway with the only real sensor: the metrics of this machine
SECOND_US: Final = 1_000_000
HEARTBEAT: Final = "500ms"
AT_ONCE: Final = 'spread = "0s"\n'  # a few nodes may reconnect to a broker at the same time

BOILER: Final[Mapping[str, Any]] = {  # scaled integers: sums are exact in any order of merging
    "driver": "simulated",
    "wave": "walk",
    "rate": 400,
    "series": 2,
    "mean": 70,
    "amplitude": 15,
    "period": "40s",
    "noise": 0.4,
    "gaps": 0.01,
    "disorder": "800ms",
    "resolution": 0.1,
    "unit": "°C",
    "timeout": "60s",
}
POWER: Final[Mapping[str, Any]] = {  # floats; some readings exceed the allowed lateness and revise rows
    "driver": "simulated",
    "wave": "sine",
    "rate": 100,
    "mean": 3.2,
    "amplitude": 1.4,
    "period": "25s",
    "noise": 0.2,
    "disorder": "1300ms",
    "unit": "kW",
    "timeout": "60s",
}
QUERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "boiler-1s": {
        "source": "boiler",
        "by": ["site"],
        "window": {"type": "tumbling", "length": "1s"},
        "aggregates": ["count", "sum", "avg", "min", "max"],
        "lateness": "1s",
    },
    "boiler-10s": {
        "source": "boiler",
        "by": ["site"],
        "window": {"type": "sliding", "length": "10s", "slide": "2s"},
        "aggregates": ["avg", {"fn": "stddev", "ddof": 0, "as": "sd"}, "first", "last"],
        "lateness": "1s",
    },
    "hot-5s": {
        "source": "boiler",
        "where": "value > 80",
        "window": {"type": "tumbling", "length": "5s"},
        "aggregates": ["count", "max", "time_of_max"],
        "lateness": "1s",
    },
    "power-5s": {
        "source": "power",
        "by": ["machine"],
        "window": {"type": "tumbling", "length": "5s"},
        "aggregates": ["avg", "range", "var"],
        "lateness": "1s",
    },
    "host-5s": {
        "source": "host",
        "by": ["metric"],
        "window": {"type": "tumbling", "length": "5s"},
        "aggregates": ["avg", "max"],
        "lateness": "1s",
    },
}
YOURS: Final = {  # the query that the printed command adds to the running demo
    "source": "boiler",
    "by": ["machine"],
    "window": {"type": "tumbling", "length": "2s"},
    "aggregates": ["avg", "count"],
    "lateness": "1s",
}


@dataclass(frozen=True, slots=True)
class Seat:
    """A gateway of the demo. sensors: id -> definition as a table."""

    name: str
    region: str
    sensors: Mapping[str, Mapping[str, Any]]

    @property
    def simulated(self) -> dict[str, Sensor]:
        """The sensors whose readings can be recomputed."""
        return {
            name: parse_sensor(name, json.dumps(table))
            for name, table in self.sensors.items()
            if table["driver"] == "simulated"
        }


def seats(gateways: int, begin_us: int) -> list[Seat]:
    """The gateways. The last one reads this machine; the others are simulated, all from event time begin_us on."""
    begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin_us // SECOND_US))
    made = []
    for n in range(1, gateways):
        region = REGIONS[n % 2]
        name = f"gw-{n}"
        shared = {"begin": begin, "labels": {"site": region, "machine": name}}
        sensors = {"boiler": {**BOILER, **shared, "seed": n}, "power": {**POWER, **shared, "seed": 100 + n}}
        made.append(Seat(name, region, sensors))
    host = {"driver": "host", "every": "500ms", "labels": {"site": REGIONS[0], "machine": HOST}}
    return [*made, Seat(HOST, REGIONS[0], {"host": host})]


def sensor_messages(seat: Seat) -> Iterator[tuple[str, bytes]]:
    """(topic, payload) of each sensor of a gateway, to be published on its region's broker."""
    for name, table in seat.sensors.items():
        yield topics.definition("sensor", name, seat.name), json.dumps(table, ensure_ascii=False).encode()


def query_messages() -> Iterator[tuple[str, bytes]]:
    """(topic, payload) of each query, to be published once, on the root's broker."""
    for name, table in QUERIES.items():
        yield topics.definition("query", name), json.dumps(table).encode()


def gateway_config(seat: Seat, broker: str, keys: Path) -> str:
    """The settings file of a gateway: identity and connection, no sensors. keys: folder of its certificate."""
    return (
        f'[node]\nid = "{seat.name}"\n\n[uplink]\nbroker = "{broker}"\n{settings_lines(keys)}'
        f'parent = "{seat.region}"\nheartbeat = "{HEARTBEAT}"\n{AT_ONCE}\n[spool]\npath = "spool.db"\n'
    )


def region_config(region: str, broker: str, lower: str, keys: Path) -> str:
    return (
        f'[node]\nid = "{region}"\nrole = "region"\n\n[uplink]\nbroker = "{broker}"\n{settings_lines(keys)}'
        f'parent = "root"\nheartbeat = "{HEARTBEAT}"\n{AT_ONCE}\n'
        f'[lower]\nbroker = "{lower}"\n{settings_lines(keys)}\n[spool]\npath = "journal.db"\n'
    )


def root_config(broker: str, keys: Path) -> str:
    """The settings file of the lander and the root. keys: folder of their certificate."""
    return (
        f'[node]\nid = "root"\nrole = "root"\n\n[lower]\nbroker = "{broker}"\n{settings_lines(keys)}\n'
        '[lander]\nfolder = "landing"\n\n[root]\ntables = "./tables"\n'
    )


def your_line(port: int, keys: Path) -> str:
    """The command that adds a query to the running demo. keys: folder of an operator's certificate."""
    topic = topics.definition("query", "mine")
    files = f"--cafile {keys}/ca.pem --cert {keys}/cert.pem --key {keys}/key.pem"
    return (
        f"mosquitto_pub -V 5 -i {keys.name} -r -q 1 -h {LOOPBACK} -p {port} {files} -t {topic} -m '{json.dumps(YOURS)}'"
    )
