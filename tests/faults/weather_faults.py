"""The faults of a weather, drawn from a seed."""

from __future__ import annotations

import copy
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil

from edge_agent.demo.processes import ChildProcess
from tests.faults.fuzz import Attacker
from tests.faults.landed_root import LandedRoot
from tests.faults.soak import MB
from tests.faults.tree import SECOND
from tests.faults.weather_definitions import Definitions
from tests.faults.weather_devices import STORED
from tests.faults.weather_tables import KilledRoot
from tests.faults.weather_tree import SMALL, WeatherTree

DISKS: Final = ("spool lost", "older copy")  # not in the second half: the rows of its end have to be complete
HOLD_S: Final = (1.0, 12.0)  # how long a process is stopped, a line slow, an attacker there
ROOT_GRACE_US: Final = 50 * SECOND
# so long after a disk was lost, and after each restart of this node meanwhile, rows may say that they are not complete:
# a parent waits 2 minutes for frames that its older copy lacks (protocol 1.3), from its start on
MARKED_US: Final = 150 * SECOND


SIZES_S: Final = 5.0
MOST_MEMORY: Final = 250 * MB  # of a process with some dozen keys, and the frames of some minutes
MOST_FILES: Final = 60
WRONG_CLOCK_US: Final = 90 * SECOND  # a step of the clock counts once it has stood for a minute (protocol 4.3)


class Sizes:
    """The most memory and descriptors that a process had."""

    def __init__(self) -> None:
        self._most: dict[str, tuple[int, int]] = {}
        self._due = 0.0

    def look(self, children: Iterable[ChildProcess], now: float) -> None:
        """Every few seconds."""
        if now < self._due:
            return
        self._due = now + SIZES_S
        for child in children:
            with suppress(psutil.Error):
                process, (memory, files) = psutil.Process(child.pid), self._most.get(child.name, (0, 0))
                self._most[child.name] = max(memory, process.memory_info().rss), max(files, process.num_fds())

    def largest(self) -> str:
        """For people."""
        memory, files = (max((each[n] for each in self._most.values()), default=0) for n in (0, 1))
        return f"at most {memory / MB:.0f} MB and {files} descriptors"

    def wrong(self) -> list[str]:
        """Processes that had too many."""
        return [
            f"{name} had {memory / MB:.0f} MB and {files} descriptors"
            for name, (memory, files) in self._most.items()
            if memory > MOST_MEMORY or files > MOST_FILES
        ]


class Weather:
    """Faults in a running tree."""

    def __init__(self, tree: WeatherTree, seed: int, only: Sequence[str] = (), spark: KilledRoot | None = None) -> None:
        """only: names of faults; none: all. spark: a root beside the plain one, killed and started."""
        self.tree, self.chance, self.spark = tree, random.Random(seed), spark
        self.ended: list[str] = []
        self.landing = tree.landing if spark is None else spark.kept
        self.root = LandedRoot(self.landing, grace_us=ROOT_GRACE_US)
        self.definitions = Definitions(tree, self.chance)
        # gateway -> when it or a region above it lost its disk or got an older one, or started soon after that
        self.lost_us: dict[str, list[int]] = {}
        self._below = {region: {g for g, parent in tree.parents.items() if parent == region} for region in tree.lows}
        self._losers: dict[str, int] = {}  # node -> the latest of these times
        self._later: list[tuple[float, str, Callable[[], object]]] = []
        self._copies: dict[str, Path] = {}
        self._copied_us: dict[str, int] = {}
        self._filled_us: dict[str, int] = {}
        self._older_root: LandedRoot | None = None
        self.stack = ExitStack()
        self.sizes = Sizes()
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
            "query": (3, self.definitions.query),
            "sensor": (2, self.definitions.sensor),
            "local broker": (3, self.local_broker),
            "older broker": (2, self.older_broker),
            "site": (2, self.site),
            "several": (2, self.several),
            "spark root": (5 if spark else 0, self.spark_root),
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
            self.sizes.look(self.tree.processes, now)
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
        if child not in self.tree.processes:
            return
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
        self._filled_us[name] = time.time_ns() // 1000
        return self._hold(f"disk of {name}", lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        disk = self.tree.disks.get(name)
        if disk is not None and disk.filled:
            disk.make_room()
            if name in self.tree.devices:
                self.tree.devices[name].noted.add(self._filled_us[name], time.time_ns() // 1000)

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
        begun_us = time.time_ns() // 1000
        clock.set(offset)

        def right() -> None:
            clock.set("+0")
            end_us = time.time_ns() // 1000
            off_us = abs(int(offset)) * SECOND + WRONG_CLOCK_US
            self.tree.devices[name].noted.add(begun_us - off_us, end_us + off_us)

        return self._hold(f"{name} {offset} s", right)

    def local_broker(self) -> str:
        """Of a gateway: one that stores its sessions stops and begins again, others forget all."""
        gateway, broker = self.chance.choice(list(self.tree.locals.items()))
        broker.stop() if gateway in STORED else broker.kill()
        self._down()
        broker.start()
        return f"{broker.name}, {'with' if gateway in STORED else 'without'} its store"

    def older_broker(self) -> str:
        """A broker has its store of some time ago, with sessions and definitions of then, or it takes a copy."""
        broker = self.chance.choice(self.tree.brokers[1::2])
        store, copied = broker.folder / "mosquitto.db", broker.folder / "copy.db"
        broker.kill()
        older = copied.exists()
        if older:
            copied.replace(store)
        elif store.exists():
            shutil.copy2(store, copied)
        self._down()
        broker.start()
        return f"{broker.name}, {'older' if older else 'copied'}"

    def site(self) -> str:
        """All of a region, or of the whole tree, lose their power at once."""
        name = self.chance.choice([*self.tree.lows, "all"])
        if name == "all":
            victims: list[ChildProcess] = [*self.tree.brokers, *self.tree.locals.values(), *self.tree.processes]
        else:
            there = [gateway for gateway, parent in self.tree.parents.items() if parent == name]
            victims = [self.tree.lows[name], self.tree.mergers[name], *(self.tree.gateways[each] for each in there)]
            victims += [self.tree.locals[each] for each in there if each not in STORED]
        for gateway in STORED:  # what its broker has taken since its last save is lost in silence
            if self.tree.locals[gateway] in victims:
                self.tree.locals[gateway].stop()
        self.chance.shuffle(victims)
        for victim in victims:
            victim.kill()
        self._down()
        self.chance.shuffle(victims)
        for victim in victims:
            self._start(victim)
            time.sleep(self.chance.choice((0.0, 0.0, 0.5)))
        return f"of {name}: {', '.join(each.name for each in victims)}"

    def several(self) -> str:
        """Faults of several kinds at once."""
        harmless = [name for name in self._faults if name not in (*DISKS, "several")]
        for name in self.chance.choices(harmless, k=self.chance.randint(2, 4)):
            self.log(name, self._faults[name][1]())
        return "at once"

    def spark_root(self) -> str:
        assert self.spark is not None
        return self.spark.turn(self.chance)

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
        self._copies[child.name], self._copied_us[child.name] = target, time.time_ns() // 1000
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
        self.root = older or LandedRoot(self.landing, grace_us=ROOT_GRACE_US)
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
        if child.name in self.tree.devices:  # what it had read since, and nobody above has heard of, is lost in silence
            self.tree.devices[child.name].silent.add(self._copied_us[child.name], time.time_ns() // 1000)
        self._start(child)
        return child.name

    def _store(self, child: ChildProcess) -> list[Path]:
        return [*child.folder.glob("landing/.lander.db*"), *child.folder.rglob("spool.db*")]
