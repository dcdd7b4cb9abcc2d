"""A tree of real processes: gateways, a merger each region, a lander, and Mosquitto at its defaults.

Gateways have two simulated sensors, whose readings are a function of the seed: `many` has thousands of keys, so that
what is open fills several frames; `few` has windows of a second, so that something is always under way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.processes import Broker, ChildProcess, free_ports
from edge_agent.ports.sensors.simulated import Simulation

SECOND: Final = 1_000_000
FEW_RATE: Final = 100  # readings a second of each of its two series
WINDOW_US: Final = {"many": 10 * SECOND, "few": SECOND}
DISORDER_US: Final = {"many": 6 * SECOND, "few": SECOND // 5}
QUERIES: Final = """
[query.many-10s]
source = "many"
by = ["machine", "series"]
window = {type = "tumbling", length = "10s"}
aggregates = ["count", "sum"]
lateness = "7s"

[query.few-1s]
source = "few"
by = ["machine"]
window = {type = "tumbling", length = "1s"}
aggregates = ["count", "sum"]
lateness = "300ms"
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tree is made of. rhythm: commit interval and heartbeat, '' for the product's own. tick_s: of `many`."""

    regions: int = 2
    gateways: int = 2  # of each region
    keys: int = 10_000
    tick_s: float = 20.0
    rhythm: str = ""
    tall: bool = False  # a further region, `upper`, with a broker of its own above it, between the regions and the root


class DefaultBroker(Broker):
    """Mosquitto with nothing but a port: 1 000 queued messages, 20 in flight, no persistence."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        super().__init__(name, folder, port)
        (folder / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n")


class Tree:
    """The processes of a plan, in a folder each. `start` and `stop` all; `few` and `many` are its sensors."""

    child: ClassVar[type[ChildProcess]] = ChildProcess

    def __init__(self, folder: Path, plan: Plan, *, lead_s: float = 2.0) -> None:
        """lead_s: from now to the first reading."""
        self.folder, self.plan = folder, plan
        self.begin_us = (int(time.time() + lead_s) // 10 + 1) * 10 * SECOND
        names = [f"region-{n}" for n in range(1, plan.regions + 1)]
        self.high, *lows = (
            DefaultBroker(f"broker-{name}", folder / f"broker-{name}", port)
            for name, port in zip(["high", *names], free_ports(len(names) + 1), strict=True)
        )
        self.lows = dict(zip(names, lows, strict=True))
        self.top = self.high
        if plan.tall:
            self.top = DefaultBroker("broker-top", folder / "broker-top", *free_ports(1))
        self.sensors: dict[tuple[str, str], Sensor] = {}  # (gateway, sensor)
        self.gateways: dict[str, ChildProcess] = {}
        self.mergers: dict[str, ChildProcess] = {}
        self.parents: dict[str, str] = {}
        if plan.tall:
            self.mergers["upper"] = self._process("merge", "upper", self._merger_toml("upper"))
        for name in names:
            self.mergers[name] = self._process("merge", name, self._merger_toml(name))
            for n in range(1, plan.gateways + 1):
                gateway = f"gw-{name[-1]}-{n}"
                self.parents[gateway] = name
                self.gateways[gateway] = self._process("run", gateway, self._gateway_toml(gateway, name))
        self.lander = self._process("land", "root", self._lander_toml())
        self.landing = folder / "root" / "landing"

    # --- files -----------------------------------------------------------------------------------------------------

    def _process(self, verb: str, name: str, settings: str, env: dict[str, str] | None = None) -> ChildProcess:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "headwater.toml").write_text(settings)
        command = [sys.executable, "-m", "edge_agent", verb, str(folder / "headwater.toml")]
        return self.child(name, command, folder, env)

    def _rhythm(self) -> tuple[str, str]:
        """(line of [uplink], line of [spool])."""
        each = self.plan.rhythm
        return (f'heartbeat = "{each}"\n', f'commit_interval = "{each}"\n') if each else ("", "")

    def _uplink(self, broker: DefaultBroker) -> str:
        """The address by which children of a tier reach the broker of their parent."""
        return broker.url

    def _merger_toml(self, name: str) -> str:
        heartbeat, commit = self._rhythm()
        above, parent, below = self.high, "upper" if self.plan.tall else "root", self.lows.get(name, self.high)
        if name not in self.lows:
            above, parent = self.top, "root"
        return (
            f'[node]\nid = "{name}"\nrole = "region"\n'
            f'[uplink]\nbroker = "{self._uplink(above)}"\nparent = "{parent}"\n{heartbeat}'
            f'[lower]\nbroker = "{below.url}"\n[spool]\npath = "spool.db"\n{commit}'
        )

    def _gateway_toml(self, name: str, parent: str) -> str:
        heartbeat, commit = self._rhythm()
        series = self.plan.keys // (self.plan.regions * self.plan.gateways)
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        text = ""
        for seed, (sensor, rate, count) in enumerate((("many", 1 / self.plan.tick_s, series), ("few", FEW_RATE, 2))):
            table = (
                f'driver = "simulated"\nwave = "walk"\nseed = {seed + 10 * len(self.sensors)}\nrate = {rate:g}\n'
                f'series = {count}\nresolution = 0.01\nnoise = 0.5\ngaps = 0.02\ndisorder = "{DISORDER_US[sensor]}us"\n'
                f'begin = "{begin}"\ntimeout = "60s"\nlabels = {{machine = "{name}"}}\n'
            )
            self.sensors[name, sensor] = parse_sensor(sensor, table)
            text += f"[sensor.{sensor}]\n{table}"
        return (
            f'[node]\nid = "{name}"\n[uplink]\nbroker = "{self._uplink(self.lows[parent])}"\nparent = "{parent}"\n'
            f'{heartbeat}[spool]\npath = "spool.db"\n{commit}{text}{QUERIES}'
        )

    def _lander_toml(self) -> str:
        return f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "{self.top.url}"\n[lander]\nfolder = "landing"\n'

    # --- life ------------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[DefaultBroker]:
        return [*([self.top] if self.plan.tall else []), self.high, *self.lows.values()]

    @property
    def processes(self) -> list[ChildProcess]:
        """All but the brokers, in the order in which they start."""
        return [self.lander, *self.mergers.values(), *self.gateways.values()]

    def start(self) -> None:
        for child in (*self.brokers, *self.processes):
            child.start()

    def stop(self) -> None:
        for child in (*reversed(self.processes), *self.brokers):
            child.kill()

    def __enter__(self) -> Tree:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- the truth -------------------------------------------------------------------------------------------------

    def truth(self, sensor: str, until_us: int) -> Iterator[tuple[str, int, int, int]]:
        """(key, window start, readings, sum in hundredths) of every window that ends by then, from the formulas."""
        length_us = WINDOW_US[sensor]
        for (gateway, name), definition in self.sensors.items():
            if name != sensor:
                continue
            made = Simulation(definition, self.begin_us).between(self.begin_us, until_us)
            units = np.rint(made.value * 100).astype(np.int64)
            series = made.series if sensor == "many" else np.zeros(len(units), np.int64)
            starts = made.time_us // length_us * length_us
            cells, inverse = np.unique(np.stack([starts, series]), axis=1, return_inverse=True)
            counts = np.bincount(inverse.reshape(-1), minlength=cells.shape[1])
            sums = np.zeros(cells.shape[1], np.int64)
            np.add.at(sums, inverse.reshape(-1), units)
            for (start, number), count, total in zip(cells.T.tolist(), counts.tolist(), sums.tolist(), strict=True):
                if start + length_us <= until_us:
                    key = f"machine={gateway}" + (f",series={number}" if sensor == "many" else "")
                    yield key, start, count, total
