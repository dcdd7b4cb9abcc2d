"""A tree under every kind of fault: `python -m tests.faults.weather --minutes 20 --seed 1` (`make weather`).

Four gateways, two regions, a region above these, a lander and the plain root. A seed draws the faults; each is printed
with its time. Then the tree rests. Exit code 1 if a row that says it is complete differs from the readings, if a row
is missing or incomplete that no lost disk of the gateways it lacks explains, if a row lacks readings of a gateway that
it does not name as missing, if `headwater audit` does not balance, or if a process ended or raised.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from edge_agent.algebra.query.query import Query
from edge_agent.cli.audit import balanced, compared, lines
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import parse_definition, parse_sensor
from edge_agent.demo.processes import ChildProcess
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.sensors.simulated import Simulation
from tests.faults.fuzz import Attacker
from tests.faults.landed_root import LandedRoot
from tests.faults.storm import DRAIN_S, LONGEST_START_S
from tests.faults.tree import SECOND, DefaultBroker, Plan, Tree
from tests.faults.weather_tables import Tables
from tests.oracle import central_computer
from tests.support.ports.small_disk import SmallDisk, small_disk
from tests.support.processes.broker_clients import publish
from tests.support.processes.proxy import Proxy
from tests.support.processes.wrong_clock import LIBRARY, WrongClock

LEAD_S: Final = 25.0  # all gateways are known before the first reading, so every row expects all of them
# so long after a disk was lost, and after each restart of this node meanwhile, rows may say that they are not complete:
# a parent waits 2 minutes for frames that its older copy lacks (protocol 1.3), from its start on
MARKED_US: Final = 150 * SECOND
DISKS: Final = ("spool lost", "older copy")  # not in the second half: the rows of its end have to be complete
HOLD_S: Final = (1.0, 12.0)  # how long a process is stopped, a line slow, an attacker there
SCALE: Final = -2
GRACE_S: Final = {True: 20, False: 35}  # of the regions, and of the one above them
ROOT_GRACE_US: Final = 50 * SECOND
PLAN: Final = Plan(regions=2, gateways=2, rhythm="500ms", tall=True)
SENSOR: Final = {
    "driver": "simulated", "wave": "walk", "rate": 10, "series": 2, "resolution": 0.01, "noise": 0.5, "gaps": 0.02,
    "disorder": "200ms", "outage_every": "20s", "outage_for": "4s", "timeout": "60s",
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
EXTRA: Final[dict[str, dict[str, object]]] = {
    "extra-1": {**KEYED, "window": {"type": "tumbling", "length": "2s"}, "aggregates": ["count", "max"]},
    "extra-2": {**KEYED, "by": [], "window": {"type": "tumbling", "length": "3s"}, "aggregates": ["count", "sum"]},
}


def _query(name: str, table: dict[str, object]) -> Query:
    found = parse_definition("query", name, json.dumps(table)).value
    assert isinstance(found, Query)
    return found


class WeatherTree(Tree):
    """Children reach the broker of their parent by a proxy; a gateway may have the other region as its parent."""

    def __init__(self, folder: Path, plan: Plan = PLAN, *, lead_s: float = LEAD_S) -> None:
        self.ways: dict[str, Proxy] = {}
        self.disks: dict[str, SmallDisk] = {}
        self._mounts = ExitStack()
        self.clocks: dict[str, WrongClock] = {}  # of gateways, if libfaketime is there
        super().__init__(folder, plan, lead_s=lead_s)
        for broker in self.brokers[1::2]:  # these keep sessions and retained messages, as of some seconds before a kill
            store = f"persistence true\npersistence_location {broker.folder}/\nautosave_interval 2\n"
            with (broker.folder / "mosquitto.conf").open("a") as config:
                config.write(store)

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
        super().start()

    def stop(self) -> None:
        super().stop()
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
        ways = "".join(f'{region} = "{self._uplink(low)}"\n' for region, low in self.lows.items() if region != parent)
        return (
            f'[node]\nid = "{name}"\n[uplink]\nparent = "{parent}"\nbroker = "{self._uplink(self.lows[parent])}"\n'
            f'keepalive = "5s"\n{heartbeat}[uplink.brokers]\n{ways}[spool]\npath = "spool.db"\n{commit}'
            f"[sensor.few]\n{_toml(table)}"
            + "".join(f"[query.{each}]\n{_toml(query)}" for each, query in QUERIES.items())
        )

    def move(self, gateway: str) -> str:
        """Write the settings of a gateway, which is not running, with another parent. Returns this parent."""
        parent = next(name for name in self.lows if name != self.parents[gateway])
        self.parents[gateway] = parent
        settings = self._gateway_toml(gateway, parent)
        settings = self._on_disk(settings) if gateway in SMALL else settings
        (self.folder / gateway / "headwater.toml").write_text(settings)
        return parent

    def readings(self, until_us: int) -> list[central_computer.Reading]:
        """Every reading with an event time before until_us, from the formulas."""
        out: list[central_computer.Reading] = []
        for (gateway, _), sensor in self.sensors.items():
            made = Simulation(sensor, self.begin_us).between(self.begin_us, until_us)
            made = made.take(np.lexsort((made.index, made.arrival_us)))  # what has one time is in order of arrival
            columns = zip(made.time_us.tolist(), made.value.tolist(), made.series.tolist(), strict=True)
            for order, (time_us, value, series) in enumerate(columns):
                labels = {"machine": gateway, "series": str(series)}
                exact = central_computer.exact(round(value * 100), SCALE)
                out.append(central_computer.Reading(time_us, exact, gateway, order, labels))
        return out


def _toml(table: dict[str, object]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


class Weather:
    """Faults in a running tree. told: the lines of all so far."""

    def __init__(self, tree: WeatherTree, seed: int, only: Sequence[str] = ()) -> None:
        """only: names of faults; none: all."""
        self.tree, self.chance, self.told = tree, random.Random(seed), list[str]()
        self.ended: list[str] = []
        self.root = LandedRoot(tree.landing, grace_us=ROOT_GRACE_US)
        # gateway -> when it or a region above it lost its disk or got an older one, or started soon after that
        self.lost_us: dict[str, list[int]] = {}
        self._below = {region: {g for g, parent in tree.parents.items() if parent == region} for region in tree.lows}
        self._losers: dict[str, int] = {}  # node -> the latest of these times
        self._later: list[tuple[float, str, Callable[[], object]]] = []
        self._copies: dict[str, Path] = {}
        self._older_root: LandedRoot | None = None
        self._stack = ExitStack()
        every: dict[str, tuple[int, Callable[[], str]]] = {
            "kill": (6, self.kill),
            "stop": (3, self.stop),
            "freeze": (3, self.freeze),
            "broker": (4, self.broker),
            "cut": (3, self.cut),
            "half-open": (2, self.half_open),
            "slow line": (2, self.slow),
            "full disk": (2 if tree.disks else 0, self.full),
            "move": (3, self.move),
            "clock": (3 if tree.clocks else 0, self.clock),
            "query": (3, self.query),
            "attack": (1, self.attack),
            "copy": (2, self.copy),
            "spool lost": (1, self.spool_lost),
            "older copy": (2, self.older),
            "lander's journal": (1, self.landers_journal),
            "root": (1, self.root_again),
        }
        self._faults = {name: fault for name, fault in every.items() if not only or name in only}

    def strike(self, *, disks: bool) -> None:
        """One fault. disks: also of those after which rows may lack readings."""
        faults = {name: weight for name, (weight, _) in self._faults.items() if disks or name not in DISKS}
        if faults:
            name = self.chance.choices(list(faults), list(faults.values()))[0]
            self.tell(name, self._faults[name][1]())

    def tell(self, name: str, text: str) -> None:
        self.told.append(f"weather: {time.strftime('%H:%M:%S')} {name}: {text}")
        print(self.told[-1], flush=True)

    def pause(self, seconds: float) -> None:
        """Sleep, and end what is due to end."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self.end(now)
            self._restart()
            time.sleep(max(0.0, min(0.1, until - now)))

    def end(self, now: float = math.inf) -> None:
        """End what is due by then."""
        for each in [each for each in self._later if each[0] <= now]:
            self._later.remove(each)
            each[2]()
            self.tell("over", each[1])

    def _restart(self) -> None:
        """As the service manager does. Only on a full disk a process may end by itself."""
        for child in self.tree.processes:
            if not child.alive:
                self.tell("ended", f"{child.name}, code {child.code}")
                if child.name not in self.tree.disks or not self.tree.disks[child.name].filled:
                    self.ended.append(f"{child.name} ended with {child.code}: {child.tail(2)}")
                self._start(child)

    def _lost(self, child: ChildProcess) -> None:
        self._losers[child.name] = time.time_ns() // 1000
        every = set(self.tree.gateways)  # of the region above the regions
        for gateway in {child.name} if child.name in every else self._below.get(child.name, every):
            self.lost_us.setdefault(gateway, []).append(self._losers[child.name])

    def _start(self, child: ChildProcess) -> None:
        child.start()
        if time.time_ns() // 1000 < self._losers.get(child.name, -MARKED_US) + MARKED_US:
            self._lost(child)

    def _hold(self, name: str, undo: Callable[[], object]) -> str:
        seconds = self.chance.uniform(*HOLD_S)
        self._later.append((time.monotonic() + seconds, name, undo))
        return f"{name} for {seconds:.1f} s"

    def _down(self) -> None:
        time.sleep(self.chance.choice((0.0, 0.3, 2.0)))

    def _any(self) -> ChildProcess:
        role = self.chance.choice(
            (list(self.tree.gateways.values()), list(self.tree.mergers.values()), [self.tree.lander])
        )
        return self.chance.choice(role)

    # --- faults that cost nothing -----------------------------------------------------------------------------------

    def kill(self) -> str:
        child = self._any()
        child.kill()
        self._down()
        self._start(child)
        return child.name

    def stop(self) -> str:
        child = self._any()
        child.stop()
        self._down()
        self._start(child)
        return child.name

    def freeze(self) -> str:
        child = self._any()
        pid = child.pid

        def thaw() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        return self._hold(child.name, thaw)

    def broker(self) -> str:
        broker = self.chance.choice(self.tree.brokers)
        broker.kill()
        store = broker.folder / "mosquitto.db"
        kept = store.exists() and self.chance.random() < 0.6
        if not kept:
            store.unlink(missing_ok=True)
        self._down()
        broker.start()
        return f"{broker.name}, {'with' if kept else 'without'} its store"

    def cut(self) -> str:
        name, way = self.chance.choice(list(self.tree.ways.items()))
        way.cut()
        return f"children of {name}"

    def half_open(self) -> str:
        name, way = self.chance.choice(list(self.tree.ways.items()))
        way.silence()
        return f"children of {name}"

    def slow(self) -> str:
        name, way = self.chance.choice(list(self.tree.ways.items()))
        way.delay_s = self.chance.choice((0.1, 0.5, 1.5))
        return self._hold(f"{way.delay_s} s to {name}", lambda: setattr(way, "delay_s", 0.0))

    def full(self) -> str:
        """Nothing goes onto a node's disk for a while."""
        name, disk = self.chance.choice(list(self.tree.disks.items()))
        if disk.filled:
            return f"{name} is full already"
        disk.fill()
        return self._hold(f"disk of {name}", lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        disk = self.tree.disks.get(name)
        if disk is not None and disk.filled:
            disk.make_room()

    def move(self) -> str:
        gateway = self.chance.choice(list(self.tree.gateways.values()))
        gateway.stop()
        parent = self.tree.move(gateway.name)
        self._below[parent].add(gateway.name)
        self._start(gateway)
        return f"{gateway.name} to {parent}"

    def clock(self) -> str:
        """A gateway's wall clock steps, and steps back."""
        name, clock = self.chance.choice(list(self.tree.clocks.items()))
        offset = self.chance.choice(("-40", "-3", "+3", "+40"))
        clock.set(offset)
        return self._hold(f"{name} {offset} s", lambda: clock.set("+0"))

    def query(self) -> str:
        name = self.chance.choice(list(EXTRA))
        text = json.dumps(EXTRA[name]) if self.chance.random() < 0.5 else ""
        with suppress(subprocess.SubprocessError):
            publish(self.tree.top.url, topics.definition("query", name), text)
        return f"{name} {'published' if text else 'removed'}"

    def attack(self) -> str:
        attacker = self._stack.enter_context(ExitStack())
        attacker.enter_context(Attacker(self.tree, self.chance.randrange(1_000)))
        return self._hold("bad messages", attacker.close)

    def copy(self) -> str:
        """Of a node's disk, for `older`."""
        child = self._any()
        child.kill()
        target = self.tree.folder / "copies" / child.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in self._store(child):
            shutil.copy2(path, target)
        self._copies[child.name] = target
        self._start(child)
        return child.name

    def landers_journal(self) -> str:
        """Deleted: its id is also in the landing folder."""
        lander = self.tree.lander
        lander.kill()
        for path in self._store(lander):
            path.unlink()
        lander.start()
        return "deleted"

    def root_again(self) -> str:
        """The root has lost all it knew, or is as it was at the last fault of this kind; files are there."""
        older, self._older_root = self._older_root, copy.deepcopy(self.root)
        self.root = older or LandedRoot(self.tree.landing, grace_us=ROOT_GRACE_US)
        return f"knows {self.root.files} landing files"

    # --- faults that may cost readings, with a declaration ----------------------------------------------------------

    def spool_lost(self) -> str:
        child = self.chance.choice([*self.tree.gateways.values(), *self.tree.mergers.values()])
        child.kill()
        for path in self._store(child):
            path.unlink()
        self._lost(child)
        self._down()
        self._start(child)
        return child.name

    def older(self) -> str:
        child = self._any()
        if child.name not in self._copies:
            return f"{child.name} has no copy yet"
        child.kill()
        for path in self._store(child):
            path.unlink()
        self._make_room(child.name)
        place = "landing" if child is self.tree.lander else "disk" if child.name in SMALL else "."
        for path in self._copies[child.name].iterdir():
            shutil.copy2(path, child.folder / place)
        if child is not self.tree.lander:
            self._lost(child)
        self._start(child)
        return child.name

    def _store(self, child: ChildProcess) -> list[Path]:
        return [*child.folder.glob("landing/.lander.db*"), *child.folder.rglob("spool.db*")]


@dataclass(slots=True)
class Outcome:
    """What the tree was left with. wrong: a line each."""

    faults: int = 0
    readings: int = 0
    rows: int = 0
    in_tables: int = 0  # rows there, if a Spark root made some
    incomplete: int = 0
    excused: int = 0
    twice: int = 0  # incomplete rows with more readings than there were: possible repeats of a lost disk
    wrong: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"weather: {self.faults} faults, {self.readings} readings, {self.rows} rows"
            + (f" ({self.in_tables} in tables)" if self.in_tables else "")
            + f": {self.incomplete} incomplete "
            f"({self.twice} with repeats), "
            f"{self.excused} missing after a lost disk, {len(self.wrong)} wrong; audit: {(self.audit or ['none'])[-1]}"
        )


def weather(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    pause_s: float = 4.0,
    only: Sequence[str] = (),
    lead_s: float = LEAD_S,
    spark: bool = False,
) -> Outcome:
    """Run a tree under faults for so long, let it rest, and compare. spark: the tables of a Spark root, too."""
    outcome = Outcome()
    with ExitStack() as stack:
        tree = WeatherTree(folder, lead_s=lead_s)
        for way in tree.ways.values():
            stack.enter_context(way)
        stack.enter_context(tree)
        sky = Weather(tree, seed, only)
        stack.enter_context(sky._stack)
        until = tree.begin_us / SECOND + LONGEST_START_S
        while not sky.root.rows and time.time() < until and all(child.alive for child in tree.processes):
            time.sleep(0.3)
            sky.root.turn()
        until = time.monotonic() + seconds
        while (rest_s := until - time.monotonic()) > 0:
            sky.pause(sky.chance.uniform(0.1, 2 * pause_s - 0.1))
            sky.strike(disks=rest_s > seconds / 2)
            outcome.faults += 1
            sky.root.turn()
        sky.end()
        sky.tell("rest", "begins")
        goal_us = (int(time.time()) // 10 + 2) * 10 * SECOND
        until = time.monotonic() + DRAIN_S
        while not _settled(sky, goal_us) and time.monotonic() < until:
            sky.pause(0.5)
            sky.root.turn()
        if not _settled(sky, goal_us):
            ends = {query: sky.root.frontier_us(query) / 1e6 - goal_us / 1e6 for query in QUERIES}
            outcome.wrong.append(f"not settled within {DRAIN_S:g} s: goal {goal_us}, ends from it [s] {ends}")
        _audit(outcome, tree, sky.root)
        tables = Tables(tree.lander.folder, ROOT_GRACE_US) if spark else None
        if tables is not None:
            _audit_tables(outcome, tree, tables)
        outcome.wrong += sky.ended
        for child in tree.processes:
            if "Traceback" in child.tail(1_000_000):
                outcome.wrong.append(f"{child.name}: a traceback in {child.log}")
    compare(outcome, tree, sky.root, goal_us, sky.lost_us)
    if tables is not None:
        _compare_tables(outcome, tree, tables, sky, goal_us)
    return outcome


def _excused(place: central_computer.Row, lost_us: Mapping[str, Sequence[int]], leaves: Iterable[str] = ()) -> bool:
    """Whether lost disks may be the reason that a window is not complete: one of each of these leaves; () of any.

    Positions never recover from a loss.
    """
    found = [lost_us.get(leaf, ()) for leaf in leaves] or [[time_us for of in lost_us.values() for time_us in of]]
    return all(of and (place[0] == COUNTED or place[2] < max(of) + MARKED_US) for of in found)


def _settled(sky: Weather, goal_us: int) -> bool:
    """Whether every query has rows beyond the goal, and all rows before it are complete or may be otherwise."""
    rows = {
        (row.query, row.key, row.start, row.end): row
        for row in sky.root.rows.values()
        if row.query in QUERIES and not row.withdrawn and (row.query == COUNTED or row.end <= goal_us)
    }
    reached = all(sky.root.frontier_us(query) >= goal_us for query in ("seconds", "all", "sliding"))
    return reached and all(row.complete or _excused(place, sky.lost_us) for place, row in rows.items())


def _audit(outcome: Outcome, tree: WeatherTree, root: LandedRoot) -> None:
    links = [Link(broker.url, "audit", connect_timeout_s=5.0) for broker in tree.brokers]
    found = compared(root.book(), links, 10.0)
    outcome.audit = lines(found)
    if not balanced(found):
        outcome.wrong += [f"audit: {line}" for line in outcome.audit]


def _audit_tables(outcome: Outcome, tree: WeatherTree, tables: Tables) -> None:
    """While the tree runs: nodes answer for their books."""
    if (why := tables.made()) != "":
        outcome.wrong.append(why)
        return
    code, outcome.audit = tables.audit([broker.url for broker in tree.brokers])
    if code:
        outcome.wrong += [f"audit of the tables: {line}" for line in outcome.audit]


def _compare_tables(outcome: Outcome, tree: WeatherTree, tables: Tables, sky: Weather, goal_us: int) -> None:
    """Complete rows of the tables are the oracle's; those of the other root that are complete are so there."""
    truth = central_computer.results(
        [_query(name, table) for name, table in QUERIES.items()], tree.readings(time.time_ns() // 1000)
    )
    found = {place: row for place, row in tables.rows().items() if place[0] in QUERIES and place[3] <= goal_us}
    outcome.in_tables = len(found)
    for place, (values, whole) in found.items():
        if whole and not (place[0] == COUNTED and sky.lost_us) and (why := _differs(values, truth.get(place))):
            outcome.wrong.append(f"complete in the tables, but {place}: {why}")
    for row in sky.root.rows.values():
        place = (row.query, row.key, row.start, row.end)
        other = row.query in QUERIES and row.complete and not row.withdrawn and row.end <= goal_us
        if other and not found.get(place, ({}, False))[1]:
            outcome.wrong.append(f"not complete in the tables: {place}, {found.get(place)}")


def compare(
    outcome: Outcome, tree: WeatherTree, root: LandedRoot, goal_us: int, lost_us: Mapping[str, Sequence[int]]
) -> None:
    """Compare every row that ends by goal_us with the readings. lost_us: gateway -> when its readings were lost.

    A loss moves all later positions of a count window, which are right without it; so these rows are not compared then.
    """
    queries = {name: _query(name, table) for name, table in {**QUERIES, **EXTRA}.items()}
    readings = tree.readings(max(goal_us, time.time_ns() // 1000))
    before = [reading for reading in readings if reading.time_us < goal_us]
    truth = central_computer.results(queries.values(), readings)
    due = {row for row in truth if row[0] in QUERIES and row[0] != COUNTED and row[3] <= goal_us}
    due |= central_computer.results([queries[COUNTED]], before).keys()
    got = {
        (row.query, row.key, row.start, row.end): row
        for row in root.rows.values()
        if not row.withdrawn and (row.query == COUNTED or row.end <= goal_us)
    }
    outcome.readings, outcome.rows = len(before), len(got)
    counts = Counts(queries.values(), readings)
    for place, row in got.items():
        if lost_us and place[0] == COUNTED:
            continue
        outcome.incomplete += not row.complete
        outcome.twice += not row.complete and row.readings > (truth.get(place, {}).get("count") or 0)
        if row.complete and (found := _differs(row.values, truth.get(place))):
            outcome.wrong.append(f"complete, but {place}: {found}")
        missing = {leaf for leaf, _ in row.coverage.missing}
        if missing and place[0] in QUERIES and not _excused(place, lost_us, missing):
            outcome.wrong.append(f"incomplete without a reason: {place}: {row.coverage.missing}")
        if place[0] in QUERIES and place[0] != COUNTED and row.readings < (least := counts.least(place, missing)):
            outcome.wrong.append(f"{row.readings} readings of {least} of gateways that are not missing: {place}")
    for place in due - got.keys():
        if _excused(place, lost_us, counts.nodes(place)):
            outcome.excused += 1
        else:
            outcome.wrong.append(f"no row: {place}")


class Counts:
    """How many readings of which gateway lie in a window."""

    def __init__(self, queries: Iterable[Query], readings: Sequence[central_computer.Reading]) -> None:
        self._times: dict[tuple[tuple[str, ...], str], dict[str, list[int]]] = {}
        self._by = {query.id: query.by for query in queries}
        for query in {query.by: query for query in queries}.values():
            for reading in readings:
                of = self._times.setdefault((query.by, central_computer.key_of(query, reading)), {})
                of.setdefault(reading.node, []).append(reading.time_us)
        for of in self._times.values():
            for times in of.values():
                times.sort()

    def _in(self, place: central_computer.Row) -> dict[str, int]:
        query, key, start_us, end_us = place
        of = self._times.get((self._by[query], key), {})
        return {node: bisect_left(times, end_us) - bisect_left(times, start_us) for node, times in of.items()}

    def least(self, place: central_computer.Row, missing: Container[str]) -> int:
        """The readings in a window of gateways other than these."""
        return sum(count for node, count in self._in(place).items() if node not in missing)

    def nodes(self, place: central_computer.Row) -> set[str]:
        """The gateways with readings in a window; of a count window those of its key."""
        return {node for node, count in self._in(place).items() if count or place[0] == COUNTED}


def _differs(values: Mapping[str, float | None], expected: dict[str, float | None] | None) -> str:
    if expected is None:
        return f"no window of the readings: {dict(values)}"
    same = all(
        (value is None) == (found is None) and math.isclose(value or 0.0, found or 0.0, rel_tol=1e-9, abs_tol=1e-9)
        for name, value in expected.items()
        for found in (values.get(name),)
    )
    return "" if same else f"{dict(values)}, not {expected}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is wrong; the folders stay then."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.weather", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two faults, on average")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="draw this fault; again for more")
    parser.add_argument("--spark", action="store_true", help="at the end also a Spark root and the audit of its tables")
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-weather-"))
    outcome = weather(folder, args.minutes * 60, args.seed, pause_s=args.pause, only=args.only, spark=args.spark)
    (folder / "wrong.txt").write_text("\n".join([*outcome.wrong, *outcome.audit]))
    for line in outcome.wrong[:40]:
        print(f"weather: {line}")
    print("\n".join(outcome.audit))
    print(outcome.summary())
    if outcome.wrong:
        print(f"weather: folders and logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
