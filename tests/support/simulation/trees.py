"""Trees of up to four tiers of mergers, drawn small from a seed, whose every fault is a failpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import MAX_KEYS
from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import Command, Commit, Read
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.numpy.rows import Row
from tests.support.simulation import verdict
from tests.support.simulation.failpoints import FORGETFUL, MS, SECOND
from tests.support.simulation.fleets import REMOVED_US, START, Fleet, GatewayHost, Reading
from tests.support.simulation.limits import drawn
from tests.support.simulation.moves import BACK_US, Moves
from tests.support.simulation.twins import Twins
from tests.support.simulation.world import Chaos, Host, MergerHost

HEAL_US: Final = 600 * SECOND  # after that much calm what has not arrived is stuck
KINDS: Final = ("file", "live", "tokens")  # of sources; see Source
FEW_KEYS: Final = 2
EARLY_US: Final = (0, 0, 0, SECOND, 10 * SECOND)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a world is. tiers: of mergers. share: of the readings that are there."""

    tiers: int
    gateways: int
    seconds: int
    share: float = 1.0

    @classmethod
    def of(cls, seed: int) -> Shape:
        """Small ones mostly: what a fault does shows with few nodes."""
        random = Random(f"shape {seed}")
        tiers, gateways = random.choice([0, 1, 1, 1, 1, 2, 2, 3, 4]), random.choice([1, 1, 1, 2, 2, 3])
        return cls(tiers, gateways, random.choice([8, 12, 16, 24]))

    def smaller(self) -> Iterable[Shape]:
        """Shapes with less of one thing."""
        for tiers in range(self.tiers):
            yield replace(self, tiers=tiers)
        for gateways in range(1, self.gateways):
            yield replace(self, gateways=gateways)
        if self.seconds > 4:
            yield replace(self, seconds=self.seconds // 2)
        if self.share > 0.1:
            yield replace(self, share=self.share / 2)


class SourceHost(GatewayHost):
    """A gateway with a source of any kind.

    file: goes on at the committed position. live: what comes while the process is down, or is not committed, is gone.
    tokens: messages are given again until they are acknowledged.
    """

    kind = "file"
    first_us = 0  # the process is started then for the first time
    _started = False
    _in_commit = 0
    durable = 0  # readings in a commit

    def start(self, now_us: int) -> None:
        if now_us >= self.first_us:
            super().start(now_us)

    def started(self, now_us: int) -> None:
        self.position = self.durable  # what the process before had read is in no commit of this one
        super().started(now_us)
        if self.kind == "tokens":
            self.position = self.durable
        elif self.kind == "live":
            self.position = sum(reading.arrives_us < now_us for reading in self.readings)
        if self.kind != "file" and self.disk.found_empty:
            self.world.lives.begins(self.name, self.position)
        if self.kind != "file" and self._started:
            self.world.faults.hits[f"source.{self.kind}"] += 1
        self._started = True

    def publish(self, topic: str, payload: bytes) -> int:
        self.world.lives.speaks(self.name, payload)
        return super().publish(topic, payload)

    def event_of(self, part: list[Reading]) -> Read:
        """Readings with what the kind of source goes on from."""
        if self.kind == "file":
            return super().event_of(part)
        if self.kind != "tokens":
            return Read("s", self.batch_of(part))
        known = np.arange(self.position, dtype=np.uint16)  # what the broker of the sensors may repeat: arrays
        return Read("s", self.batch_of(part), position={"id": known, "crc": known}, token=self.position)

    def performing(self, commit: Commit) -> None:
        """All that was read so far is in this commit."""
        del commit
        self._in_commit = self.position

    def committed(self) -> None:
        """The commit is on the disk."""
        super().committed()
        self.durable = self._in_commit

    def acknowledge(self, tokens: tuple[object, ...]) -> None:
        """Messages are acknowledged when they are in a commit, and no earlier (3.1)."""
        assert all(isinstance(token, int) and token <= self.durable for token in tokens), (tokens, self.durable)


class Tree(Fleet):
    """A world drawn from a seed."""

    def __init__(self, seed: int, chaos: Chaos, shape: Shape) -> None:
        self.shape, self.mergers = shape, 0
        self.times: verdict.Truth | None = None  # of the readings that there are
        random = Random(f"tree {seed}")
        self.kind = next((kind for kind in KINDS if chaos.more.get(f"source.{kind}")), "file")
        sessions = random.random() < 0.4
        changes = not sessions and random.random() < 0.3
        self._few_keys = bool(chaos.more.get("keys.many"))
        super().__init__(seed, chaos, changes=changes, sessions=sessions)
        self.problems: list[str] = []
        self._checked = 0
        self.moves = Moves(self)
        self.twins = Twins(self)

    # --- what it is made of -----------------------------------------------------------------------------------------

    def _sensor(self) -> Sensor:
        sensor = super()._sensor()
        if self.kind == "file":
            return sensor
        return replace(sensor, driver="mqtt", rereadable=self.kind == "tokens", own_clock=False)

    def _grow(self, random: Random, prefix: str) -> None:
        world, hosts = self.world, self.world.hosts
        self.length_us = self.shape.seconds * SECOND
        parents = ["root"]
        for level in range(self.shape.tiers):
            names = [f"{prefix}m{level}-{i}" for i in range(random.choice([1, 1, 1, 2]))]
            for name in names:
                hosts[name] = MergerHost(world, name, random.choice(parents), self._merger)
            parents = names
        self.gateways = [f"{prefix}g{i}" for i in range(self.shape.gateways)]
        for name in self.gateways:
            readings = [r for r in self._readings(random) if random.random() < self.shape.share]
            if self._loses_without_trace():
                readings = sorted((replace(r, arrives_us=r.time_us) for r in readings), key=lambda r: r.arrives_us)
            elif world.faults.on("source.early"):
                early = Random(f"early {self.seed} {name}")
                readings = [replace(r, arrives_us=r.arrives_us - early.choice(EARLY_US)) for r in readings]
                readings.sort(key=lambda r: r.arrives_us)
            self.truth[name] = readings
            host = SourceHost(world, name, random.choice(parents), readings, self)
            host.kind = self.kind
            if world.faults.happens("node.late"):
                host.first_us = START + random.randint(1, self.shape.seconds) * SECOND
            hosts[name] = host

    def _loses_without_trace(self) -> bool:
        """Whether late readings may be gone with a spool and not be read again: nobody knows of what time they were."""
        forgotten = any(self.world.faults.on(name) for name in FORGETFUL)
        return self.kind == "live" or (self.kind == "tokens" and forgotten)

    def settings(self, name: str) -> NodeSettings:
        keys = FEW_KEYS if self._few_keys else MAX_KEYS
        return NodeSettings(
            name,
            "sim",
            500 * MS if self.seed % 2 else SECOND,
            SECOND,
            max_keys=keys,
            parents=self.moves.parents(name),
            away_us=self.moves.away_us,
            back_us=BACK_US,
        )

    # --- a run ------------------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Faults while there are readings, then calm until nothing is under way any more."""
        with drawn(self.world.faults, self.frame_bytes):
            world = self.world
            world.now_us = START
            world.run(START + self.length_us, self._step)
            world.calm()
            self.twins.end()
            if world.faults.hits["landing.cut"] or world.faults.hits["landing.lost"]:
                self._say_all_again()
            until_us = world.now_us + HEAL_US
            calm_us = 0
            while world.now_us < until_us and calm_us <= self.shape.tiers * 2 * SECOND:  # what a tier holds goes on
                world.run(world.now_us + 2 * SECOND, self.check)
                calm_us = calm_us + 2 * SECOND if self.settled_down() else 0
            self.root_host.flush()
        self._end_of_truth()
        return [*self.problems, *verdict.of(self), *self.further()]

    def _end_of_truth(self) -> None:
        """What nobody can know of is no reading of the truth: see `lives`."""
        under_way = self.world.network.under_way()
        for name in self.gateways:
            host = self.world.hosts[name]
            assert isinstance(host, SourceHost)
            self.truth[name] = self.world.lives.readings(name, host.readings, under_way)
        self.times = None

    def _say_all_again(self) -> None:
        """What an operator does where frames with definitions are lost: the root knows no child without its birth."""
        for host in self.world.hosts.values():
            if isinstance(host, Host):
                host.do(Command("rebirth"), self.world.now_us)

    def _step(self, now_us: int) -> None:
        self.moves.step(now_us)
        self.twins.step(now_us)
        self.check(now_us)

    def check(self, now_us: int) -> None:
        """What holds after every step: nothing is counted twice."""
        del now_us
        rows, self._checked = self.root_host.rows[self._checked :], len(self.root_host.rows)
        if rows and not self.problems:
            self.problems += verdict.counted_twice(self, self.timed(rows))

    def timed(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of windows that have a place in time."""
        return rows

    def further(self) -> list[str]:
        """What is wrong with the others."""
        return []

    def removed_about(self, query: str, _key: str, _start: int) -> bool:
        """Whether a query is removed: a node that was down for most of a short run ends it at its last reading."""
        return self.changes and query == self.queries[0].id

    def settled_down(self) -> bool:
        """Whether every reading is read, every spool empty and every frontier past the last window."""
        root, end_us = self.root_host, START + self.length_us + 12 * SECOND
        if self.changes and self.world.now_us < START + REMOVED_US + 5 * SECOND:
            return False
        if root.lander is None or root.read_files < len(root.landed):
            return False
        for host in self.world.hosts.values():
            if isinstance(host, Host) and (host.machine is None or host.disk.stored.frames or host.offset_us):
                return False
            below = host.machine.parent if isinstance(host, MergerHost) and isinstance(host.machine, Merger) else None
            if below is not None and (below.let_go.waiting or self._a_line_waits(below.inbox)):
                return False
            if isinstance(host, SourceHost) and (host.durable < len(host.readings) or host.behind):
                return False
        parent = root.root.decider.parent
        if self._a_line_waits(parent.inbox):
            return False
        memberships = parent.children.memberships.values()
        fronts: list[Any] = [us for each in memberships for us, _ in each.leaf_frontiers().values()]
        return all(us >= end_us for us in fronts)

    def _a_line_waits(self, inbox: Inbox) -> bool:
        """Whether frames of a child wait: for others, or until the line before has been silent for a grace time."""
        return any(frames.waiting for key, frames in inbox.epochs.items() if key.node != self.twins.of)
