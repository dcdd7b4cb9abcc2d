"""What the local broker acknowledged to devices while the gateway was not connected is declared (protocol 3.1)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.machines.events import ClockChanged, Configured, Tick, Unheard
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read

LOCAL = replace(SENSOR, driver="mqtt", own_clock=False)
OTHER = replace(LOCAL, id="o")


def gateway(disk: Disk | None = None, now_us: int = T0) -> SimulatedHost[Gateway]:
    return gateway_host(disk, now_us, sensors=(LOCAL, OTHER))


def losses(host: SimulatedHost[Gateway], since: int = 0) -> list[tuple[int, int]]:
    """Start and end of the losses in the frames from number `since` on."""
    gaps: list[Gap] = [gap for frame in host.frames[since:] for gap in frame.gaps]
    assert all(gap.readings == -1 and gap.nodes == ("a",) for gap in gaps)
    assert all([group.source for group in gap.groups] == ["s"] for gap in gaps)
    return [(gap.start_us, gap.end_us) for gap in gaps if gap.reason != BEGAN]


def test_a_loss_at_the_local_broker_is_in_the_commit_of_this_moment() -> None:
    host = gateway()
    read(host, T0 + S, 1, T0 + S)
    host.do(Unheard(("s", "o", "gone"), None, 3 * S), T0 + 9 * S)
    assert losses(host) == [(T0 + 6 * S, T0 + 9 * S + 1)]


def test_after_a_start_the_loss_begins_at_the_last_commit() -> None:
    first = gateway()
    read(first, T0 + S, 1, T0 + S)
    first.do(Tick(), T0 + 5 * S)
    host = gateway(first.disk, T0 + 60 * S)
    assert losses(host) == []
    host.do(Unheard(("s",), T0 + 5 * S), T0 + 61 * S)
    assert losses(host) == [(T0 + 5 * S, T0 + 61 * S + 1)]


@pytest.mark.parametrize(("later_us", "want"), [(0, []), (2 * S, [(T0, T0 + 2 * S + 1)])])
def test_nothing_is_lost_before_listening_began(later_us: int, want: list[tuple[int, int]]) -> None:
    host = gateway()
    host.do(Unheard(("s",), None, 100 * S), T0 + later_us)
    assert losses(host) == want


def test_losses_of_one_commit_are_one_record() -> None:
    """However often a broker comes and goes while the disk is full."""
    host = gateway()
    read(host, T0 + S, 1, T0 + S)
    machine = host.machine
    assert machine.handle(Tick(), T0 + 5 * S)  # its commit is not answered
    for n in range(1, 1_000):
        machine.handle(Unheard(("s",), None, S // 2), T0 + (5 + n) * S)
    (waiting,) = machine.undated.take_unheard(machine.clock, "a")
    assert (waiting.start_us, waiting.end_us) == (T0 + 6 * S - S // 2, T0 + 1_004 * S + 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_without_a_clock_the_record_waits_for_it(restarted: bool) -> None:
    """protocol 4.3: a board without a battery boots in 1970 and meets its broker first."""
    disk = Disk()
    since_us = None
    if restarted:
        before = gateway(disk)
        read(before, T0 + S, 1, T0 + S)
        before.do(Tick(), T0 + 5 * S)
        since_us = T0 + 5 * S
    host = SimulatedHost(Gateway(NodeSettings("a"), Random(3), disk.restored(), disk.load), disk)
    host.do(ClockChanged(False, "b", 0), 10 * S)
    host.do(Configured((LOCAL, OTHER), (QUERY,), (), (QUERY.id,)), 10 * S)
    host.do(Unheard(("s",), since_us, 2 * S), 14 * S)
    host.do(Tick(), 30 * S)
    assert losses(host) == []
    offset_us = T0 + 1_000 * S
    host.do(ClockChanged(True, "b", offset_us, offset_us), offset_us + 31 * S)
    assert losses(host) == [(since_us or offset_us + 12 * S, offset_us + 14 * S + 1)]
