"""Readings that were under way when the node stopped are in the record of the stop, as are the errors of its clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.machines.events import ClockChanged, Polled, Stop, Tick, Unheard
from edge_agent.machines.gateway.gateway import Gateway
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read

MS = S // 1_000
LIVE = replace(SENSOR, driver="mqtt", rereadable=False, own_clock=False)
LATE = replace(QUERY, id="late", lateness_us=700 * MS)


def gateway(
    *queries: Query, disk: Disk | None = None, now_us: int = T0, sensor: Sensor = LIVE, error_us: int = 0
) -> SimulatedHost[Gateway]:
    """One that knows its time, but for an error."""
    host = gateway_host(disk, now_us, sensors=(sensor,), queries=queries)
    host.do(ClockChanged(True, "", 0, error_us=error_us), now_us)
    return host


def losses(host: SimulatedHost[Gateway]) -> dict[int, tuple[int, int]]:
    """Lateness of the group -> from when and up to when its readings are lost."""
    gaps: list[Gap] = [gap for frame in host.frames for gap in frame.gaps if gap.reason != BEGAN]
    return {group.lateness_us: (gap.start_us, gap.end_us) for gap in gaps for group in gap.groups}


@pytest.mark.parametrize("delay_us", [0, 300 * MS])
def test_a_stop_lacks_what_was_under_way_at_the_last_commit(delay_us: int) -> None:
    """protocol 3.1: a reading of QoS 0 that is as old as the lateness, or the delay, came to a process that ended."""
    sensor = replace(LIVE, delay_us=delay_us)
    first = gateway(QUERY, LATE, sensor=sensor)
    read(first, T0 + S, 1, T0 + S)
    first.do(Stop(), T0 + 2 * S)
    again = gateway(QUERY, LATE, sensor=sensor, disk=first.disk, now_us=T0 + 60 * S)
    assert losses(again) == {
        0: (T0 + 2 * S - delay_us, T0 + 60 * S + 1),
        700 * MS: (T0 + 2 * S - delay_us - 700 * MS, T0 + 60 * S + 1),
    }


def test_a_lost_connection_to_the_local_broker_lacks_what_was_under_way() -> None:
    """protocol 3.1: but nothing from before listening began, which has a record of its own."""
    host = gateway(LATE)
    host.do(Unheard(("s",), None, S), T0 + S)
    assert losses(host) == {700 * MS: (T0, T0 + S + 1)}
    later = gateway(LATE)
    read(later, T0 + S, 1, T0 + S)
    later.do(Unheard(("s",), None, 3 * S), T0 + 9 * S)
    assert losses(later) == {700 * MS: (T0 + 6 * S - 700 * MS, T0 + 9 * S + 1)}


@pytest.mark.parametrize(("before_us", "after_us"), [(0, 0), (1_500 * MS, 0), (0, 400 * MS), (1_500 * MS, 400 * MS)])
def test_a_stop_covers_what_the_clocks_before_and_after_it_may_be_off(before_us: int, after_us: int) -> None:
    """protocol 3.1, 4.3: a parent's time may be off by seconds, and payloads have times of their own."""
    first = gateway(LATE, error_us=before_us)
    read(first, T0 + S, 1, T0 + S)
    first.do(Tick(), T0 + 5 * S)
    again = gateway(LATE, disk=first.disk, now_us=T0 + 60 * S, error_us=after_us)
    again.do(Unheard(("s",), None, 3 * S), T0 + 69 * S)
    start_us = T0 + 5 * S - 700 * MS - before_us
    stop = [gap for frame in again.frames if frame.flush is not None for gap in frame.gaps]
    # the flush was made before the test told the clock's error
    assert [(gap.start_us, gap.end_us) for gap in stop] == [(start_us, T0 + 60 * S + 1)]
    assert losses(again)[700 * MS] == (T0 + 66 * S - 700 * MS - after_us, T0 + 69 * S + 1 + after_us)


@pytest.mark.parametrize("by_us", [0, 10 * S])
def test_a_stop_lacks_what_waited_outside_of_the_machine_at_the_last_commit(by_us: int) -> None:
    """protocol 3.1: a receipt may cause the commit of a turn before the readings that have come are passed on.

    by_us: the clock steps meanwhile.
    """
    first = gateway(LATE)
    read(first, T0 + S, 1, T0 + S)
    first.do(Polled(T0 + 4 * S), T0 + 4 * S + 100 * MS)
    first.do(ClockChanged(True, "", by_us, by_us), T0 + 5 * S + by_us)
    first.do(Tick(), T0 + 6 * S + by_us)
    again = gateway(LATE, disk=first.disk, now_us=T0 + 60 * S)
    assert losses(again)[700 * MS] == (T0 + 4 * S + by_us - 700 * MS, T0 + 60 * S + 1)
