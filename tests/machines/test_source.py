"""What a commit stores of a gateway's source, and when a source is silent (docs/protocol.md 1.1, 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Batch
from edge_agent.machines.checkpoint.slots import SourceState
from edge_agent.machines.events import ClockChanged, Read, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.gateway.source import Source
from tests.support.machines.simulated_host import SENSOR, T0, S, SimulatedHost, gateway_host, read


def own_clock(source: Source) -> None:
    source.own_clock, source.clock_us = True, T0


CHANGES: dict[str, Callable[[Source], object]] = {
    "newest_us": lambda source: setattr(source, "newest_us", T0),
    "position": lambda source: setattr(source, "position", {"file": np.arange(3)}),
    "clock_us": own_clock,
    "ended": lambda source: setattr(source, "ended", True),
    "readings": lambda source: setattr(source, "readings", 1),
    "changes": lambda source: source.changes.last.update({"site=a": 1.0}),
}


@pytest.mark.parametrize("name", [field.name for field in fields(SourceState)])
def test_a_source_is_stored_again_if_any_of_its_state_changed(name: str) -> None:
    source = Source(SENSOR, T0)
    assert source.changed() == Source(SENSOR, T0).snapshot()
    assert source.changed() is None
    CHANGES[name](source)
    changed = source.changed()
    assert changed is not None
    assert repr(getattr(changed, name)) != repr(getattr(Source(SENSOR, T0).snapshot(), name))
    assert source.changed() is None


@pytest.mark.parametrize(
    ("rows", "clock_us", "ended"), [(1, T0, False), (1, None, False), (0, T0, False), (0, None, True)]
)
def test_a_source_that_has_ended_goes_on_if_its_driver_does(rows: int, clock_us: int | None, ended: bool) -> None:
    """Its file has grown, or is another one."""
    source = Source(SENSOR, T0, ended=True)
    empty = np.zeros(rows, np.int64)
    source.take(Read(SENSOR.id, Batch(empty, empty, empty, [()]), clock_us=clock_us), T0)
    assert source.ended == ended


LIVE = replace(SENSOR, driver="mqtt", own_clock=False, rereadable=False, timeout_us=10 * S)


def reached_us(host: SimulatedHost[Gateway]) -> int:
    """What the gateway has promised of its only group."""
    (state,) = host.machine.groups.values()
    return state.frontier_us


def test_a_node_that_stood_still_takes_no_sensor_for_silent() -> None:
    """protocol 4.1: what came meanwhile waits at the broker, or in the socket, and is handled after the first tick."""
    host = gateway_host(sensors=(LIVE,))
    for second in range(3):
        read(host, T0 + second * S, 1, T0 + second * S)
    host.do(Tick(), T0 + 33 * S)
    assert reached_us(host) == T0 + 2 * S
    for second in range(3, 33):
        read(host, T0 + second * S, 1, T0 + 33 * S)
    for second in range(34, 45):
        host.do(Tick(), T0 + second * S)
    assert not [part for frame in host.frames for part in frame.groups if part.late]
    assert sum(frame.readings for frame in host.frames) == 33


def test_a_sensor_is_silent_after_its_timeout_of_a_clock_that_stepped_too() -> None:
    """A step of the clock is no time in which the node stood still."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0, 1, T0)
    host.do(ClockChanged(known=True, boot="", offset_us=90 * S, by_us=90 * S), T0 + 91 * S)
    for second in range(92, 99):
        host.do(Tick(), T0 + second * S)
    assert reached_us(host) == T0
    for second in range(99, 102):
        host.do(Tick(), T0 + second * S)
    assert reached_us(host) == T0 + 101 * S
