"""Gateways whose windows merge by number, and one of them has lost some (docs/protocol.md 3.5, 4.7, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.events import Configured, Mark, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.uplink.gap_records import record_of
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.simulated_host import JOURNAL, SENSOR, T0, S, SimulatedHost, read

QUERY = Query("q", 1, "s", Punctuation("order"), (Aggregate("sum", "sum"),), lateness_us=0, on_missing="hold")
WINDOW_US = 10 * S


def host_of(name: str, now_us: int) -> SimulatedHost[Gateway]:
    settings = NodeSettings(name, commit_interval_us=1, frontier_step_us=1)
    host = SimulatedHost(Gateway(settings, Random(f"{name} {now_us}")))
    host.do(Configured((SENSOR,), (QUERY,), (), (canonical_query(QUERY),)), now_us)
    host.accepted(now_us)
    return host


@dataclass
class Fleet:
    """The gateways a and b with a marker every 10 s each, and the root that reads their frames."""

    root: NumpyRoot = field(default_factory=lambda: NumpyRoot(JOURNAL, grace_us=5 * S, named=("a", "b")))
    hosts: dict[str, SimulatedHost[Gateway]] = field(default_factory=lambda: {n: host_of(n, T0) for n in "ab"})
    seen: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})

    def window(self, number: int, *, lost: str = "") -> list[Row]:
        """A window begins at each gateway, so that the one before ends. lost: the gateway whose frames are lost."""
        now_us = T0 + number * WINDOW_US
        for name, host in self.hosts.items():
            host.do(Mark(Marker(now_us)), now_us + 1)
            read(host, now_us + 1, number, now_us + 2)
            host.do(Tick(), now_us + 3)
            frames = [frame for frame, _ in host.disk.frames.values()]
            fresh, self.seen[name] = frames[self.seen[name] :], len(frames)
            for frame in fresh:
                self.root.take(name, dropped(host, frame) if name == lost else frame, now_us)
        return self.root.step(now_us)

    def replaced(self, name: str, now_us: int) -> None:
        """A gateway gets an empty disk."""
        self.hosts[name], self.seen[name] = host_of(name, now_us), 0


def dropped(host: SimulatedHost[Gateway], frame: Frame) -> Frame:
    """The record of a full spool in the place of a frame."""
    groups = {number: group for group, number in host.machine.outbox.encoder.groups.items()}
    return record_of([frame], groups, tuple(groups.values()))


def told(rows: list[Row]) -> list[tuple[int, int, float | None, tuple[tuple[str, str], ...]]]:
    """(start, end, sum, missing) of each, in windows."""
    out = []
    for row in rows:
        start, end = ((us - T0) // WINDOW_US for us in (row.start, row.end))
        out.append((start, end, row.values["sum"], row.coverage.missing))
    return out


def test_a_window_that_a_full_spool_dropped_holds_no_other() -> None:
    """protocol 3.5: its record takes the place of the frame; the next window of that gateway says that it is over."""
    fleet = Fleet()
    assert [told(fleet.window(number)) for number in (0, 1)] == [[], [(0, 1, 0.0, ())]]
    assert fleet.window(2, lost="b") == []
    assert told(fleet.window(3)) == [(1, 2, 1.0, (("b", "lost"),)), (2, 3, 4.0, ())]
    assert told(fleet.window(4)) == [(3, 4, 6.0, ())]


def test_a_gateway_with_an_empty_disk_takes_part_from_its_first_window_on() -> None:
    """protocol 1.2: it counts from 0 again; rows stopped until it had had as many windows as before."""
    fleet = Fleet()
    for number in range(4):
        fleet.window(number)
    fleet.replaced("b", T0 + 4 * WINDOW_US - S)
    rows = [row for number in range(4, 9) for row in told(fleet.window(number))]
    assert [(start, end) for start, end, _, _ in rows] == [(3, 5), (4, 6), (5, 7), (6, 8)]
