"""A gateway and a merger whose parent has a new journal."""

from __future__ import annotations

from edge_agent.algebra.frame import (
    Frame,
    Gap,
    Receipt,
)
from edge_agent.machines.events import (
    LinkUp,
    Receipted,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.region.merger import Merger
from tests.support.machines.simulated_host import T0, S, SimulatedHost, gateway_host, read

NEW = 9


def at_work(*, published: bool) -> SimulatedHost[Gateway]:
    """A gateway with rows of four windows in its spool. published: whether its link was up meanwhile."""
    host = gateway_host()
    host.accepted(T0)
    if not published:
        host.machine.outbox.link(up=False)
    for i in range(6):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    return host


def meet(host: SimulatedHost[Gateway] | SimulatedHost[Merger], journal: int, now_us: int) -> list[Frame]:
    """A receipt of that journal, and the frames that follow."""
    known = len(host.frames)
    if not host.machine.outbox.link_up:
        host.do(LinkUp(), now_us)
    host.do(Receipted(Receipt(host.machine.outbox.epoch, journal, 0)), now_us)
    host.do(Tick(), now_us + S)
    host.do(Tick(), now_us + 2 * S)
    return host.frames[known:]


def readings(frames: list[Frame]) -> int:
    return sum(frame.readings for frame in frames)


def gaps(frames: list[Frame]) -> list[Gap]:
    return [gap for frame in frames for gap in frame.gaps]
