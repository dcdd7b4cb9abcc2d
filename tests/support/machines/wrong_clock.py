"""A gateway alone in its groups whose clock is wrong, or not known, for a while; and its root."""

from __future__ import annotations

from random import Random

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.events import (
    Action,
    Beat,
    ClockChanged,
    Configured,
    Read,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.simulated_host import JOURNAL, Disk, S, SimulatedHost

T0 = 1_800_000_000 * S
DAY = 86_400 * S
GRACE = 60 * S
ARRIVAL = Sensor("s", 1, "mqtt", scale=0, timeout_us=30 * S, delay_us=S)  # stamped when its readings come


class Line:
    """A gateway alone in its groups, and the root. Time is true; the gateway's clock is wrong by `wrong_us`."""

    def __init__(self, *queries: Query, sensor: Sensor = ARRIVAL, known: bool = True) -> None:
        self.sensor, self.queries = sensor, queries
        self.now_us, self.wrong_us, self.disk = T0, 0, Disk()
        self.boot, self.booted_us, self.known = "boot-1", T0 - 100 * S, known
        self.root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        self.root.decider.parent.children.link(T0, up=True)
        self.sent: set[tuple[int, int]] = set()
        self.stamped: list[int] = []
        self.true: list[int] = []
        self.rows: dict[tuple[str, int], Row] = {}
        self.host = self.start()

    @property
    def clock_us(self) -> int:
        return self.now_us + self.wrong_us

    def configure(self, *queries: Query) -> None:
        """It serves these from now on."""
        self.queries, texts = queries, tuple(canonical_query(query) for query in queries)
        self.host.do(Configured((self.sensor,), queries, ("s",), texts), self.clock_us)

    def start(self) -> SimulatedHost[Gateway]:
        """A process begins on the disk."""
        machine = Gateway(NodeSettings("a"), Random(self.now_us), self.disk.restored(), self.disk.load)
        self.host = SimulatedHost(machine, self.disk)
        self.tell()
        self.configure(*self.queries)
        self.host.accepted(self.clock_us)
        return self.host

    def tell(self, by_us: int = 0) -> None:
        """The gateway learns what its clock says, and whether that is known."""
        offset_us = self.clock_us - (self.now_us - self.booted_us)
        self.host.do(ClockChanged(self.known, self.boot, offset_us, by_us), self.clock_us)

    def learn(self) -> None:
        """The clock is right from here on, and that is known."""
        by_us, self.wrong_us, self.known = -self.wrong_us, 0, True
        self.tell(by_us)

    def second(self, many: int = 1) -> None:
        """A second later, with so many readings."""
        self.now_us += S
        time, one = np.full(many, self.clock_us - S // 2, np.int64), np.ones(many, np.int64)
        self.stamped += time.tolist()
        self.true += [self.now_us - S // 2] * many
        actions: list[Action] = []
        if many:
            if not self.known:
                time = time - self.clock_us + self.now_us - self.booted_us
            batch = Batch(time, one, one * 0, [()])
            actions += self.host.do(Read("s", batch, since_boot=not self.known), self.clock_us)
        actions += self.host.do(Tick(), self.clock_us)
        for place in [place for place in self.disk.frames if place not in self.sent]:
            self.root.take("a", self.disk.frames[place][0], self.now_us)
            self.sent.add(place)
        for action in actions:
            if isinstance(action, Beat):
                self.root.take("a", action.heartbeat, self.now_us)
        for row in self.root.step(self.now_us):
            self.rows[row.query, row.start] = row

    def seconds(self, many: int) -> None:
        for _ in range(many):
            self.second()


N = (Aggregate("count", "n"),)


def query(window: Tumbling | Sliding | Session) -> Query:
    return Query("q", 1, "s", window, N, lateness_us=S)
