"""What a sensor lets through can be committed and sent, also by a process that begins where another has ended."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import CountTumbling, Session, Tumbling
from edge_agent.machines.events import ClockChanged, Read, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.ports.sensors.payloads import BEYOND_US
from edge_agent.ports.sensors.quality import Quality
from edge_agent.wire import frames, snapshot
from tests.support.machines.simulated_host import SimulatedHost, gateway_host

S = 1_000_000
NOW_US = 1_800_000_000 * S
SENSOR = Sensor("s", 1, "mqtt", timeout_us=30 * S, delay_us=S)
QUERIES = tuple(
    Query(name, 1, "s", window, (Aggregate("sum", "sum"), Aggregate("median", "median")), lateness_us=S)
    for name, window in (("sessions", Session(10 * S)), ("counts", CountTumbling(3)), ("windows", Tumbling(3_600 * S)))
)


@pytest.mark.parametrize("time_us", [2**62, 2**62 - 1, 2**61, BEYOND_US, -(2**62)])
def test_a_gateway_runs_on_after_a_restart_whatever_times_its_devices_told_before_its_clock_was_known(
    time_us: int,
) -> None:
    """protocol 4.3: no time is too far ahead for a clock that is unknown."""
    quality = Quality(SENSOR)
    series = quality.series(())
    host = gateway_host(now_us=NOW_US, sensors=(SENSOR,), queries=QUERIES)
    host.do(ClockChanged(False, "boot", NOW_US - 60 * S), NOW_US)
    host.accepted(NOW_US)
    for second in range(3):
        times = np.array([NOW_US + second * S, time_us - second])
        now_us = NOW_US + second * S
        host.do(Read("s", quality.batch(times, np.ones(2), series, None)), now_us)
        host.do(Tick(), now_us)
    encoded(host)
    again = gateway_host(host.disk, NOW_US + 60 * S, sensors=(SENSOR,), queries=QUERIES)
    again.do(ClockChanged(True, "boot", NOW_US - 60 * S), NOW_US + 60 * S)
    again.accepted(NOW_US + 60 * S)
    for second in range(60, 120, 10):
        again.do(Tick(), NOW_US + second * S)
    encoded(again)
    assert quality.count.readings >= 3


def encoded(host: SimulatedHost[Gateway]) -> None:
    """The spool can write all that the machine has committed."""
    for frame in host.frames:
        frames.decode(frames.encode(frame))
    for value in host.disk.restored().state.values():
        snapshot.dumps(value)
