"""Runs one machine without a world: a spool in memory, no links, no clock of its own.

Every commit succeeds at once. Links, losses and crashes are in tests/support/simulation, which uses the same disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

import numpy as np

from edge_agent.algebra.frame import Frame, Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.events import (
    Action,
    Commit,
    Committed,
    Configured,
    Event,
    LinkUp,
    Read,
    Receipted,
    Restored,
    SpooledFrame,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.node import Node
from edge_agent.machines.parents import NodeSettings

N = TypeVar("N", bound=Node)
JOURNAL = 7
S = 1_000_000
T0 = 1_000 * S
SENSOR = Sensor("s", 1, "simulated", scale=0, timeout_us=3 * S, rereadable=True, own_clock=True)
QUERY = Query("q", 1, "s", Tumbling(S), (Aggregate("sum", "sum"),), lateness_us=0)


@dataclass(slots=True)
class Disk:
    """A spool: slots and frames, changed by whole commits only.

    slots: name -> pickled value, as it was at the commit. frames: (epoch, seq) -> (frame, sent).
    """

    slots: dict[str, bytes] = field(default_factory=dict)
    frames: dict[tuple[int, int], tuple[Frame, bool]] = field(default_factory=dict)

    def commit(self, commit: Commit) -> None:
        for slot, value in commit.state.items():
            if value is None:
                self.slots.pop(slot, None)
            else:
                self.slots[slot] = pickle.dumps(value)
        for key in commit.forget:  # a leave may take the number of a frame that moves
            self.frames.pop(key, None)
        for frame in commit.frames:
            assert (frame.epoch, frame.seq) not in self.frames, "a seq is used twice"
            self.frames[frame.epoch, frame.seq] = (frame, False)
        for frame in commit.replace:
            self.frames[frame.epoch, frame.seq] = (frame, self.frames[frame.epoch, frame.seq][1])
        for key in commit.mark_sent:
            self.frames[key] = (self.frames[key][0], True)

    def restored(self) -> Restored:
        frames = tuple(SpooledFrame(e, s, sent, frame) for (e, s), (frame, sent) in self.frames.items())
        return Restored({slot: pickle.loads(value) for slot, value in self.slots.items()}, frames)

    def load(self, epoch: int, seq: int) -> Frame:
        return self.frames[epoch, seq][0]


class SimulatedHost(Generic[N]):
    """A machine and its disk. frames: all that were committed, in order; done: every action."""

    def __init__(self, machine: N, disk: Disk | None = None) -> None:
        self.machine, self.disk = machine, disk or Disk()
        self.frames: list[Frame] = []
        self.done: list[Action] = []

    def do(self, event: Event, now_us: int) -> list[Action]:
        """One event and what follows from its commit. Returns all actions."""
        out: list[Action] = []
        waiting = self.machine.handle(event, now_us)
        while waiting:
            action = waiting.pop(0)
            out.append(action)
            if isinstance(action, Commit):
                self.disk.commit(action)
                self.frames += action.frames
                waiting += self.machine.handle(Committed(1_000 * len(self.disk.frames)), now_us)
        self.done += out
        return out

    def accepted(self, now_us: int, journal: int = JOURNAL) -> None:
        """The link is up and the parent has answered: frames may leave."""
        self.do(LinkUp(), now_us)
        box = self.machine.outbox
        self.do(Receipted(Receipt(box.ask_epoch if box.journal is None else box.epoch, journal, -1)), now_us)


def gateway_host(
    disk: Disk | None = None,
    now_us: int = T0,
    *,
    settings: NodeSettings | None = None,
    sensors: Sequence[Sensor] = (SENSOR,),
    queries: Sequence[Query] = (QUERY,),
) -> SimulatedHost[Gateway]:
    """A gateway that has started on a disk: a new one, or one that another process has left."""
    disk = disk or Disk()
    host = SimulatedHost(Gateway(settings or NodeSettings("a"), Random(3), disk.restored(), disk.load), disk)
    host.do(Configured(tuple(sensors), tuple(queries), (), tuple(query.id for query in queries)), now_us)
    return host


def read(host: SimulatedHost[Gateway], time_us: int, value: int, now_us: int, token: object = None) -> list[Action]:
    """One reading of the sensor "s", without labels."""
    one = np.ones(1, np.int64)
    batch = Batch(one * time_us, one * value, one * 0, [()])
    return host.do(Read("s", batch, position=1, token=token), now_us)
