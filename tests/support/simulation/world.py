"""A fleet in one thread, drawn from a seed: real machines and real bytes; simulated clock, disks, network and crashes.

All that crosses between nodes goes through the wire's own encoders and decoders. A crash happens between any two
actions of a machine; what was committed stays. `fleets.py` compares the rows with the oracle.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, cast

from edge_agent.machines.events import (
    Action,
    Arrived,
    ClockChanged,
    Command,
    Commit,
    Event,
    LinkDown,
    LinkUp,
    LowerLink,
    Note,
    Quarantine,
    Receipted,
    Restored,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.mqtt.link import Taken
from edge_agent.runtime.action_executor import ActionExecutor, RuntimeParts
from edge_agent.runtime.region import heard, pack, unpack
from edge_agent.runtime.status_and_commands import NodeStatus
from edge_agent.wire import receipts
from tests.support.simulation.failpoints import MS, SECOND, CrashError, Faults
from tests.support.simulation.lives import Lives
from tests.support.simulation.network import Message, Network
from tests.support.simulation.root_host import RootHost
from tests.support.simulation.spools import SimulatedSpool

ACCEPTED: Final = 0  # the code of a PUBACK
HOUR_US: Final = 3_600 * SECOND
STARTS: Final = 70  # more than a parent that counts epochs would keep
STARTS_A_STEP: Final = 10
UNDER_WAY_US: Final = 45 * SECOND  # after the last fault: a late message takes 30 s, a process is away for 20 s
MOST_EVENTS: Final = 1_000  # that follow from one at once; a world has four

__all__ = ["MS", "SECOND", "Chaos", "Host", "MergerHost", "RootHost", "World", "pack", "unpack"]


@dataclass(slots=True)
class Chaos:
    """How likely faults are, each time they could happen. more: by the names of other failpoints.

    frame_bytes: the size limit of a frame where a failpoint of frames is on; 0: as much as ever.
    """

    drop: float = 0.0
    repeat: float = 0.0
    delay_us: int = 20 * MS
    crash: float = 0.0
    broker: float = 0.0
    partition: float = 0.0
    more: Mapping[str, float] = field(default_factory=dict)
    frame_bytes: int = 0

    @classmethod
    def of(cls, chances: Mapping[str, float], delay_us: int, frame_bytes: int) -> Chaos:
        """By failpoint."""
        return cls(
            delay_us=delay_us, more={"network.late": 0.0, "root.killed": 0.0, **chances}, frame_bytes=frame_bytes
        )

    def chances(self) -> dict[str, float]:
        """By failpoint."""
        return {
            "network.drop": self.drop,
            "network.repeat": self.repeat,
            "network.late": 0.02 if self.drop else 0.0,
            "process.crash": self.crash,
            "broker.restart": self.broker,
            "link.down": self.partition,
            "root.killed": 0.2,
            **self.more,
        }


class Host:
    """Runs a Gateway or a Merger on a disk; its actions are performed by the real executor."""

    mute: tuple[int, int] = (0, 0)  # nothing that it sends in between arrives

    def __init__(self, world: World, name: str, parent: str) -> None:
        self.world, self.name, self.parent = world, name, parent
        self.disk = SimulatedSpool(world.faults, lambda: world.now_us, self.committed)
        self.down_until_us = 0
        self.machine: Gateway | Merger | None = None
        self.rng = Random(f"{world.seed} {name}")
        self.executor: ActionExecutor | None = None
        self._taken: deque[Taken] = deque()
        self._token = 0
        self.offset_us = 0  # of its clock
        self._right_us: int | None = None  # when a clock that is wrong is set
        self._turned = False  # the clock has just been set
        self._unset = False  # the clock has not been set since a start in 1970
        self._starts_left = 0  # of a node that dies again and again
        self.unacknowledged: list[Message] = []  # that a broker gives again to the next process
        self.turns: tuple[int, int] | None = None  # its clock with all others: by how much, until when
        if world.faults.happens("clock.skew"):
            self.offset_us = self.rng.randint(-2 * SECOND, 2 * SECOND)

    # --- what the executor asks of connections and files ------------------------------------------------------------

    def publish(self, topic: str, payload: bytes) -> int:
        """Hand a message to the broker, which answers at once."""
        if not self.mute[0] <= self.world.now_us < self.mute[1]:
            self.world.network.publish(topic, payload, self.world.now_us, self.name)
        self._token += 1
        self._taken.append(Taken(self._token, ACCEPTED, ""))
        return self._token

    def put(self, now_us: int, node: str, reason: str, payload: bytes) -> None:
        """Quarantined bytes."""
        self.world.notes.append((now_us, self.name, Quarantine(node, reason, payload)))

    def acknowledge(self, tokens: tuple[object, ...]) -> None:
        """Messages with these tokens are durable."""

    def performing(self, commit: Commit) -> None:
        """A commit is about to be made."""

    def committed(self) -> None:
        """The last one is on the disk."""

    # --- life -------------------------------------------------------------------------------------------------------

    def build(self, restored: Restored) -> Gateway | Merger:
        raise NotImplementedError

    def started(self, now_us: int) -> None:
        """What the rim tells a new process first."""

    def start(self, now_us: int) -> None:
        if self.world.faults.happens("clock.unset"):
            self.offset_us, self._right_us, self._unset = 10 * SECOND - now_us, now_us + 5 * SECOND, True
        found = self.disk.open()
        if self.disk.suffered:
            self.world.lives.disk_lost(self.name, self.disk.readable())
        self.machine = machine = self.build(found)
        if self.disk.found_empty:
            self.world.network.in_order(self.name, now_us)
        self._taken.clear()
        this = cast("Any", self)  # connection, waiter and quarantine file
        status = NodeStatus(self.name, "node", self.parent, "sim")
        parts = RuntimeParts(machine, cast("Any", self.disk), this, this, this, status, this)
        self.executor = ActionExecutor(parts, dict, self.acknowledge)
        if self._unset:  # true time stands for the time since boot
            self.do(ClockChanged(False, "", self.offset_us), now_us)
        self.started(now_us)
        self.do(LinkUp(), now_us)

    def do(self, event: Event, now_us: int) -> None:
        """One event and all that follows; a crash leaves the machine gone and the disk as it was at that moment."""
        try:
            self._feed(event, now_us)
            while self._taken and self.executor is not None:
                for sent in self.executor.taken(self._taken.popleft()):
                    self._feed(sent, now_us)
        except CrashError:
            self.down(now_us + self.world.random.choice([SECOND, 3 * SECOND, 20 * SECOND]))

    def _feed(self, event: Event, now_us: int) -> None:
        events, at_us, many = deque([event]), now_us + self.offset_us, 0
        while events and self.machine is not None:
            many += 1
            assert many <= MOST_EVENTS, f"{self.name} goes on without end at {now_us}: {events[0]}"
            actions = self.machine.handle(events.popleft(), at_us)
            for action in actions:
                events.extend(self.perform(action, at_us))

    def perform(self, action: Action, now_us: int) -> list[Event]:
        assert self.executor is not None
        self.world.may_crash(self, type(action).__name__)
        if isinstance(action, Note):
            self.world.notes.append((now_us, self.name, action))
            return []
        if isinstance(action, Commit):
            if self.machine is not None:
                self.machine.outbox.check()
            self.performing(action)
        events = self.executor.perform(action, now_us)
        if isinstance(action, Commit):
            self.world.may_crash(self, "AfterCommit")
        return events

    def deliver(self, message: Message, now_us: int) -> None:
        if message.address.kind == "receipt":
            self.do(Receipted(receipts.decode(message.payload)), now_us)
            return
        if self.machine is not None:
            self.world.lives.heard(self.name, message.payload)
        if self.world.faults.on("broker.held"):
            self.unacknowledged.append(message)
        self.do(Arrived(((message.address.sender, heard(message.payload), None),)), now_us)

    def tick(self, now_us: int) -> None:
        faults, may = self.world.faults, self.world.faults.chances
        if _dead(self):
            return
        self._turn_clock(now_us)
        if self.machine is None or self.executor is None:  # it died when its clock was set
            return
        if self._starts_left or (
            "epochs.many" in may and "epochs.many" not in faults.hits and faults.happens("epochs.many")
        ):
            self._start_again(now_us)
        elif self.executor.stuck:
            for event in self.executor.retry(now_us + self.offset_us):
                self.do(event, now_us)
        elif "command.sent" in may and faults.happens("command.sent"):
            self.do(Command(self.rng.choice(["rebirth", "resend"])), now_us)
        elif "link.down" in may and faults.happens("link.down"):
            self.executor.void()
            self.do(LinkDown(), now_us)
            self.world.network.cut_until[self.name] = now_us + 5 * SECOND
        elif not self.machine.outbox.link_up:
            self.do(LinkUp(), now_us)
        elif now_us + self.offset_us >= self.machine.wake_us or self._turned:
            self.do(Tick(), now_us)

    def _turn_clock(self, now_us: int) -> None:
        before_us = self.offset_us
        if self.turns is not None:
            (self.offset_us, self._right_us), self.turns = self.turns, None
        elif self.world.faults.happens("clock.step"):
            steps = (-30 * SECOND, -3 * SECOND, 3 * SECOND, 30 * SECOND, HOUR_US, 30 * 24 * HOUR_US)
            self.offset_us = self.rng.choice(steps)
            self._right_us = now_us + self.rng.choice([SECOND, 5 * SECOND, 20 * SECOND])
        elif self._right_us is not None and now_us >= self._right_us:
            self.offset_us, self._right_us = 0, None
        self._turned = self.offset_us != before_us
        if self._unset and self._turned:  # a clock that gets its time did not step: it was known to be wrong (4.3)
            self._unset = False
            self.do(ClockChanged(True, "", self.offset_us, self.offset_us - before_us), now_us)

    def _start_again(self, now_us: int) -> None:
        """It dies after each start, a few times a step, while its parent is away."""
        if not self._starts_left:
            self._starts_left = STARTS
            self.world.hosts[self.parent].down(now_us + 15 * SECOND)
        for _ in range(min(self._starts_left, STARTS_A_STEP)):
            self._starts_left -= 1
            self.start(now_us)
            self.do(Tick(), now_us)

    def down(self, until_us: int) -> None:
        """The process dies, and is started again at that time."""
        self.machine = self.executor = None
        self.down_until_us = until_us
        self.world.lives.died(self.name)
        self.world.given_back(self)

    @property
    def listens(self) -> bool:
        """Whether frames reach it."""
        return self.machine is not None

    def heal(self) -> None:
        """Clock and disk are right from now on."""
        self._starts_left = 0
        self._right_us = self.world.now_us if self.offset_us else None
        self.disk.heal()


class MergerHost(Host):
    """A region."""

    def __init__(self, world: World, name: str, parent: str, build: Callable[[Host, Restored], Merger]) -> None:
        super().__init__(world, name, parent)
        self._build = build

    def build(self, restored: Restored) -> Merger:
        return self._build(self, restored)

    _lower_until_us = 0

    def performing(self, commit: Commit) -> None:
        del commit
        self.world.lives.commits(self.name)

    def committed(self) -> None:
        self.world.lives.committed(self.name)
        self.unacknowledged.clear()

    def started(self, now_us: int) -> None:
        self.do(LowerLink(up=True), now_us)

    def deliver(self, message: Message, now_us: int) -> None:
        """Frames are lost while the lower link is down."""
        if message.address.kind == "receipt" or now_us >= self._lower_until_us:
            super().deliver(message, now_us)

    @property
    def listens(self) -> bool:
        return self.machine is not None and not self._lower_until_us

    def tick(self, now_us: int) -> None:
        if self._lower_until_us and now_us >= self._lower_until_us:
            self._lower_until_us = 0
            self.do(LowerLink(up=True), now_us)
        elif self.machine is not None and self.world.faults.happens("link.lower"):
            self._lower_until_us = now_us + 5 * SECOND
            self.do(LowerLink(up=False), now_us)
        super().tick(now_us)


class World:
    """Hosts, network, time."""

    def __init__(self, seed: int, chaos: Chaos) -> None:
        self.seed, self.random = seed, Random(seed)
        self.faults = Faults(seed, chaos.chances())
        self.network = Network(seed, self.faults, chaos.delay_us)
        self.now_us = 0
        self.hosts: dict[str, Host | RootHost] = {}
        self.twins: dict[str, Host] = {}  # second devices with the id of a node
        self.notes: list[tuple[int, str, Any]] = []
        self.crashes: Counter[str] = Counter()
        self.step_us = self.settled_step_us = 250 * MS
        self.lives = Lives()

    def may_crash(self, host: Host | RootHost, name: str) -> None:
        """Die here, sometimes."""
        if "process.crash" in self.faults.chances and self.faults.happens("process.crash"):
            self.crashes[f"{type(host).__name__}:{name}"] += 1
            raise CrashError(name)

    def calm(self) -> None:
        """No more faults: what is left must come to its end."""
        self.faults.heal()
        self.network.cut_until.clear()
        self.network.apart_until.clear()
        for host in self.hosts.values():
            host.heal()

    def _more_faults(self) -> None:
        """Of all nodes at once."""
        faults, now_us = self.faults, self.now_us
        if faults.happens("broker.older"):
            self.network.restore_broker(now_us, faults.stream("broker.older").choice([2, 10, 60]) * SECOND)
        if faults.happens("clock.all"):
            random = faults.stream("clock.all")
            by_us = random.choice((-30, -3, 3, 30, 3_600, 30 * 86_400)) * SECOND
            until_us = now_us + random.choice((1, 5, 20)) * SECOND
            for host in self.hosts.values():
                host.turns = by_us, until_us
        if faults.happens("power.cut"):
            self.network.restart_broker()
            for host in (*self.hosts.values(), *self.twins.values()):
                host.down(now_us + faults.stream("power.cut").choice([0, 0, 1, 5]) * SECOND)
                host.unacknowledged.clear()

    def given_back(self, host: Host | RootHost) -> None:
        """What a process that died had not acknowledged comes again, before what came since."""
        if host.unacknowledged:
            held = self.network.held
            held[host.name] = [*host.unacknowledged, *held.get(host.name, ())]
            host.unacknowledged.clear()

    def _held(self) -> list[Message]:
        """What the broker kept for parents that are back."""
        held, cut = self.network.held, self.network.cut_until
        back = [name for name in held if self.hosts[name].listens and cut.get(name, 0) <= self.now_us]
        return [message for name in back for message in held.pop(name)]

    def run(self, until_us: int, each: Callable[[int], None]) -> None:
        """Advance to a time; `each` is called every step before the hosts' ticks."""
        while self.now_us < until_us:
            self.now_us += self.step_us
            if self.faults.happens("broker.restart"):
                self.network.restart_broker()
            self._more_faults()
            for message in [*self._held(), *self.network.due(self.now_us)]:
                host = self.hosts.get(message.address.to)
                if host is not None and not (host.listens or message.address.kind == "receipt"):
                    self.network.hold(message)
                elif host is not None:
                    host.deliver(message, self.now_us)
                twin = self.twins.get(message.address.to)
                if twin is not None:
                    twin.deliver(message, self.now_us)
            each(self.now_us)
            for host in (*self.hosts.values(), *self.twins.values()):
                self._tick(host)

    def settle(self, until_us: int) -> None:
        """Advance to a time without faults: step by step while messages and starts are under way, then as it is set.

        What is still to come by then waits for heartbeats, a lateness or a grace period: for the time, not for steps.
        """
        self.run(min(self.now_us + UNDER_WAY_US, until_us), lambda now: None)
        step_us, self.step_us = self.step_us, self.settled_step_us
        self.run(until_us, lambda now: None)
        self.step_us = step_us

    def _tick(self, host: Host | RootHost) -> None:
        if _dead(host):
            if self.now_us >= host.down_until_us:
                host.start(self.now_us)
        else:
            host.tick(self.now_us)


def _dead(host: Host | RootHost) -> bool:
    return host.machine is None if isinstance(host, Host) else host.lander is None
