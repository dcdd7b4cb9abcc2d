"""A fleet in one thread, drawn from a seed: real machines; simulated clock, disks, network and crashes.

The network loses, repeats, delays and reorders messages; a broker restart loses all in flight. A crash happens between
any two actions of a machine; what was committed stays. Disks are atomic: tests/ports tests the spool's own crash safety
on real files. `fleets.py` compares the rows with the oracle.
"""

from __future__ import annotations

import copy
import heapq
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from edge_agent.algebra.frame import HORIZON_US, Frame, Receipt
from edge_agent.machines.events import (
    Ack,
    Action,
    Arrived,
    Beat,
    Commit,
    Committed,
    Event,
    LinkDown,
    LinkUp,
    LowerLink,
    Publish,
    Receipted,
    Restored,
    SendReceipt,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.lander import Land, Landed, Lander, LanderMessage, LanderSettings, MessagesArrived
from edge_agent.machines.region.merger import Merger
from edge_agent.root.completeness import Decider
from tests.support.machines.simulated_host import Disk

MS = 1_000
SECOND = 1_000_000


class CrashError(Exception):
    """The process died at a failpoint; what it had committed is on its disk."""


@dataclass(slots=True)
class Chaos:
    """Chances a message or a tick; zeroed for the calm end of a run."""

    drop: float = 0.0
    repeat: float = 0.0
    delay_us: int = 20 * MS
    crash: float = 0.0
    broker: float = 0.0
    partition: float = 0.0


class Network:
    """Messages under way. Delivery order is by a random delay, so that everything overtakes everything."""

    def __init__(self, random: Random, chaos: Chaos) -> None:
        self.random, self.chaos = random, chaos
        self.queue: list[tuple[int, int, str, Any]] = []
        self.count = 0
        self.cut_until: dict[str, int] = {}
        self.stats: Counter[str] = Counter()

    def send(self, now_us: int, to: str, message: Any) -> None:
        self.stats["messages"] += 1
        if self.random.random() < self.chaos.drop:
            self.stats["dropped"] += 1
            return
        for _ in range(2 if self.random.random() < self.chaos.repeat else 1):
            delay_us = self.random.randint(1, max(self.chaos.delay_us, 2))
            if self.random.random() < 0.02 and self.chaos.drop:
                delay_us += 30 * SECOND
            self.count += 1
            heapq.heappush(self.queue, (now_us + delay_us, self.count, to, message))

    def due(self, now_us: int) -> list[tuple[str, Any]]:
        out = []
        while self.queue and self.queue[0][0] <= now_us:
            _, _, to, message = heapq.heappop(self.queue)
            if self.cut_until.get(to, 0) <= now_us:
                out.append((to, message))
        return out

    def restart_broker(self) -> None:
        self.stats["broker restarts"] += 1
        self.queue.clear()


class Process(Protocol):
    """One simulated process."""

    name: str
    down_until_us: int

    def start(self, now_us: int) -> None: ...
    def deliver(self, message: Any, now_us: int) -> None: ...
    def tick(self, now_us: int) -> None: ...


class Host:
    """Runs a Gateway or a Merger on a disk; performs its actions, with a chance to die before any of them."""

    mute: tuple[int, int] = (0, 0)  # nothing that it sends in between arrives

    def __init__(self, world: World, name: str, parent: str) -> None:
        self.world, self.name, self.parent = world, name, parent
        self.disk = Disk()
        self.down_until_us = 0
        self.machine: Gateway | Merger | None = None
        self.rng = Random(world.random.getrandbits(32))

    def build(self, restored: Restored) -> Gateway | Merger:
        raise NotImplementedError

    def started(self, now_us: int) -> None:
        """What the rim tells a new process first."""

    def start(self, now_us: int) -> None:
        self.machine = self.build(self.disk.restored())
        self.started(now_us)
        self.do(LinkUp(), now_us)

    def do(self, event: Event, now_us: int) -> None:
        """One event; a crash leaves the machine gone and the disk as it was at that moment."""
        if self.machine is None:
            return
        try:
            actions = self.machine.handle(event, now_us)
            self.machine.outbox.check()
            for action in actions:
                self.world.failpoint(self, type(action).__name__)
                self.perform(action, now_us)
        except CrashError:
            self.machine = None
            self.down_until_us = now_us + self.world.random.choice([SECOND, 3 * SECOND, 20 * SECOND])

    def perform(self, action: Action, now_us: int) -> None:
        network = self.world.network
        match action:
            case Commit():
                self.disk.commit(action)
                self.world.failpoint(self, "AfterCommit")
                self.do(Committed(), now_us)
            case Publish(epoch, seq):
                if not self.mute[0] <= now_us < self.mute[1]:
                    network.send(now_us, self.parent, ("frame", self.name, self.disk.frames[epoch, seq][0]))
                self.do(Sent(epoch, seq), now_us)
            case Beat(heartbeat) if not self.mute[0] <= now_us < self.mute[1]:
                network.send(now_us, self.parent, ("beat", self.name, heartbeat))
            case SendReceipt(node, receipt):
                network.send(now_us, node, ("receipt", self.name, receipt))
            case Ack() | Beat():
                pass
            case _:
                self.world.notes.append((now_us, self.name, action))

    def deliver(self, message: Any, now_us: int) -> None:
        kind, sender, content = message
        if kind == "receipt":
            assert isinstance(content, Receipt)
            self.do(Receipted(content), now_us)
        else:
            self.do(Arrived(((sender, content, None),)), now_us)

    def tick(self, now_us: int) -> None:
        if self.world.random.random() < self.world.chaos.partition:
            self.do(LinkDown(), now_us)
            self.world.network.cut_until[self.name] = now_us + 5 * SECOND
        elif self.machine is not None and not self.machine.outbox.link_up:
            self.do(LinkUp(), now_us)
        self.do(Tick(), now_us)


class MergerHost(Host):
    """A region."""

    def __init__(self, world: World, name: str, parent: str, build: Callable[[Host, Restored], Merger]) -> None:
        super().__init__(world, name, parent)
        self._build = build

    def build(self, restored: Restored) -> Merger:
        return self._build(self, restored)

    def started(self, now_us: int) -> None:
        self.do(LowerLink(up=True), now_us)


class RootHost:
    """Lander and plain-Python root: landing files survive a crash, the root's state is rebuilt from them."""

    def __init__(self, world: World, build: Callable[[int], Any], *, horizon_us: int = HORIZON_US) -> None:
        self.world, self.name, self.down_until_us = world, "root", 0
        self.horizon_us = horizon_us
        self.journal = world.random.getrandbits(60) | 1
        self.files: list[tuple[int, tuple[Any, ...]]] = []
        self.received: dict[str, Any] = {}
        self.lander: Lander | None = None
        self._build = build
        self.root: Any = build(self.journal)
        self.read_files = 0
        self.rows: list[Any] = []
        self.revised: dict[str, list[int]] = {}  # query -> times of the batches in which rows of it were revised

    def start(self, now_us: int) -> None:
        del now_us
        settings = LanderSettings(flush_us=300 * MS, horizon_us=self.horizon_us)
        self.lander = Lander(self.journal, settings, copy.deepcopy(self.received))

    def do(self, event: Any, now_us: int) -> None:
        if self.lander is None:
            return
        try:
            for action in self.lander.handle(event, now_us):
                self.world.failpoint(self, type(action).__name__)
                match action:
                    case Land(objects, received, at_us):
                        self.files.append((at_us, objects))
                        self.world.failpoint(self, "AfterLand")
                        self.received.update(copy.deepcopy(dict(received)))
                        self.do(Landed(), now_us)
                    case SendReceipt(node, receipt):
                        self.world.network.send(now_us, node, ("receipt", "root", receipt))
                    case _:
                        pass
        except CrashError:
            self.lander = None
            self.down_until_us = now_us + 2 * SECOND

    def deliver(self, message: Any, now_us: int) -> None:
        _, sender, content = message
        seq = content.seq if isinstance(content, Frame) else None
        came = LanderMessage(sender, content.epoch, seq, (sender, content, now_us), 100)
        self.do(MessagesArrived((came,)), now_us)

    def tick(self, now_us: int) -> None:
        self.do(Tick(), now_us)
        if self.world.random.random() < 0.5:
            self.batch()

    def flush(self) -> None:
        """The rows that were put off."""
        self.rows += self.root.step(self.files[-1][0] if self.files else 0, flush=True)

    def batch(self) -> None:
        """One micro-batch of the root over the files that came since."""
        files = self.files[self.read_files :]
        if not files:
            return
        self.read_files = len(self.files)
        for _, objects in files:
            for sender, content, received_us in objects:
                self.root.take(sender, content, received_us)
        at_us = files[-1][0]
        rows = self.root.step(at_us)
        for query in {row.query for row in rows if row.revision}:
            self.revised.setdefault(query, []).append(at_us)
        self.rows += rows
        household = self.root.decider.parent.children
        fresh = Decider(self.journal, household.grace_us, household.named)
        fresh.restore(pickle.loads(pickle.dumps(self.root.decider.snapshot(lambda f: f))), lambda f: f)
        self.root.decider = fresh  # every batch of the Spark job begins from the state in its decision row


class World:
    """Hosts, network, time."""

    def __init__(self, seed: int, chaos: Chaos) -> None:
        self.random, self.chaos = Random(seed), chaos
        self.network = Network(self.random, chaos)
        self.now_us = 0
        self.hosts: dict[str, Host | RootHost] = {}
        self.notes: list[tuple[int, str, Any]] = []
        self.crashes: Counter[str] = Counter()
        self.step_us = 250 * MS

    def failpoint(self, host: Host | RootHost, name: str) -> None:
        """Die here, sometimes."""
        if self.random.random() < self.chaos.crash:
            self.crashes[f"{type(host).__name__}:{name}"] += 1
            raise CrashError(name)

    def calm(self) -> None:
        """No more faults: what is left must come to its end."""
        self.chaos.drop = self.chaos.repeat = self.chaos.crash = self.chaos.broker = self.chaos.partition = 0.0
        self.network.cut_until.clear()

    def run(self, until_us: int, each: Callable[[int], None]) -> None:
        """Advance to a time; `each` is called every step before the hosts' ticks."""
        while self.now_us < until_us:
            self.now_us += self.step_us
            if self.random.random() < self.chaos.broker:
                self.network.restart_broker()
            for to, message in self.network.due(self.now_us):
                host = self.hosts.get(to)
                if host is not None:
                    host.deliver(message, self.now_us)
            each(self.now_us)
            for host in self.hosts.values():
                self._tick(host)

    def _tick(self, host: Host | RootHost) -> None:
        dead = host.machine is None if isinstance(host, Host) else host.lander is None
        if dead:
            if self.now_us >= host.down_until_us:
                host.start(self.now_us)
        else:
            host.tick(self.now_us)


def pick(random: Random, items: Sequence[Any]) -> Any:
    """One of the items."""
    return items[random.randrange(len(items))]
