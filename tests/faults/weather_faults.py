"""The faults of a weather, drawn from a seed."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from edge_agent.config import topics
from edge_agent.demo.processes import ChildProcess
from tests.faults.fuzz import Attacker
from tests.faults.landed_root import LandedRoot
from tests.faults.tree import SECOND
from tests.faults.weather_tree import EXTRA, SMALL, WeatherTree
from tests.support.processes.broker_clients import publish

DISKS: Final = ("spool lost", "older copy")  # not in the second half: the rows of its end have to be complete
HOLD_S: Final = (1.0, 12.0)  # how long a process is stopped, a line slow, an attacker there
ROOT_GRACE_US: Final = 50 * SECOND
# so long after a disk was lost, and after each restart of this node meanwhile, rows may say that they are not complete:
# a parent waits 2 minutes for frames that its older copy lacks (protocol 1.3), from its start on
MARKED_US: Final = 150 * SECOND


class Weather:
    """Faults in a running tree."""

    def __init__(self, tree: WeatherTree, seed: int, only: Sequence[str] = ()) -> None:
        """only: names of faults; none: all."""
        self.tree, self.chance = tree, random.Random(seed)
        self.ended: list[str] = []
        self.root = LandedRoot(tree.landing, grace_us=ROOT_GRACE_US)
        # gateway -> when it or a region above it lost its disk or got an older one, or started soon after that
        self.lost_us: dict[str, list[int]] = {}
        self._below = {region: {g for g, parent in tree.parents.items() if parent == region} for region in tree.lows}
        self._losers: dict[str, int] = {}  # node -> the latest of these times
        self._later: list[tuple[float, str, Callable[[], object]]] = []
        self._copies: dict[str, Path] = {}
        self._older_root: LandedRoot | None = None
        self.stack = ExitStack()
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
            self.log(name, self._faults[name][1]())

    def log(self, name: str, text: str) -> None:
        print(f"weather: {time.strftime('%H:%M:%S')} {name}: {text}", flush=True)

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
            self.log("over", each[1])

    def _restart(self) -> None:
        """As the service manager does. Only on a full disk a process may end by itself."""
        for child in self.tree.processes:
            if not child.alive:
                self.log("ended", f"{child.name}, code {child.code}")
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
        attacker = self.stack.enter_context(ExitStack())
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
