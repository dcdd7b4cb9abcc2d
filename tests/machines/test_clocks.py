"""Clocks that are wrong for a while: an hour's flags, never an hour's silence (docs/protocol.md 1.1, 3.1, 4.1, 4.4)."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import CountTumbling, Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.events import Action, Beat, Configured, Read, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.node import NodeSettings
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.simulated_host import JOURNAL, Disk, S, SimulatedHost

T0 = 1_800_000_000 * S
DAY = 86_400 * S
GRACE = 60 * S
ARRIVAL = Sensor("s", 1, "mqtt", scale=0, timeout_us=30 * S, delay_us=S)  # stamped when its readings come


class Line:
    """A gateway alone in its groups, and the root. Time is true; the gateway's clock is wrong by `wrong_us`."""

    def __init__(self, *queries: Query, sensor: Sensor = ARRIVAL) -> None:
        self.sensor, self.queries = sensor, queries
        self.now_us, self.wrong_us, self.disk = T0, 0, Disk()
        self.root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        self.root.decider.parent.children.link(T0, up=True)
        self.sent: set[tuple[int, int]] = set()
        self.stamped: list[int] = []
        self.rows: dict[tuple[str, int], Row] = {}
        self.host = self.start()

    @property
    def clock_us(self) -> int:
        return self.now_us + self.wrong_us

    def start(self) -> SimulatedHost[Gateway]:
        """A process begins on the disk."""
        machine = Gateway(NodeSettings("a"), Random(self.now_us), self.disk.restored(), self.disk.load)
        self.host = SimulatedHost(machine, self.disk)
        texts = tuple(canonical_query(query) for query in self.queries)
        self.host.do(Configured((self.sensor,), self.queries, ("s",), texts), self.clock_us)
        self.host.accepted(self.clock_us)
        return self.host

    def second(self, many: int = 1) -> None:
        """A second later, with so many readings."""
        self.now_us += S
        time, one = np.full(many, self.clock_us - S // 2, np.int64), np.ones(many, np.int64)
        self.stamped += time.tolist()
        actions: list[Action] = []
        if many:
            actions += self.host.do(Read("s", Batch(time, one, one * 0, [()])), self.clock_us)
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


def shown(line: Line) -> dict[int, float | None]:
    """Start of each window that has a row -> readings in it."""
    return {row.start: row.values["n"] for row in line.rows.values() if not row.withdrawn}


@pytest.mark.parametrize("wrong_us", [3_600 * S, 30 * DAY, 4 * 60 * S, 3 * S])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("window", [Tumbling(S), Sliding(4 * S, S)])
def test_a_clock_that_was_ahead_for_five_seconds_costs_no_silence(
    wrong_us: int, restart: bool, window: Tumbling | Sliding
) -> None:
    """protocol 4.1, 4.4: alone in its group; also where the process ended while its clock was ahead.

    Every reading is in the windows of its time, whether they closed before, in or after the wrong hour.
    """
    line = Line(query(window))
    line.seconds(20)
    line.wrong_us = wrong_us
    line.seconds(5)
    line.wrong_us = 0
    if restart:
        line.start()
    line.seconds(60)
    upto_us = line.now_us - 3 * S
    _, start = window.assign(np.array(line.stamped), np.array(line.stamped) + 1)
    want = Counter(us for us in start.tolist() if window.ends(np.array([us]))[0] <= upto_us)
    got = {start: n for start, n in shown(line).items() if window.ends(np.array([start]))[0] <= upto_us}
    assert got == want
    assert max(got) == upto_us - window.longest_us


@pytest.mark.parametrize("restart", [False, True])
def test_sessions_and_positions_go_on_after_a_wrong_hour(restart: bool) -> None:
    """protocol 4.1, 7.4: no position is given to the hour that was promised by mistake."""
    line = Line(query(Session(2 * S)), Query("p", 1, "s", CountTumbling(5), N, lateness_us=S))
    for i in range(100):
        if i in {40, 45}:
            line.wrong_us = 3_600 * S if i == 40 else 0
            if restart and i == 45:
                line.start()
        line.second(0 if i % 20 > 15 else 1)
    for _ in range(45):
        line.second(0)
    true = [us for us in line.stamped if us < line.now_us]
    sessions = [row for row in line.rows.values() if row.query == "q" and row.start < line.now_us]
    assert [row.values["n"] for row in sessions] == [16, 16, 11, 16, 16]
    positions = [row.values["n"] for row in line.rows.values() if row.query == "p"]
    assert len(positions) == len(true) // 5
    assert not line.root.beyond
