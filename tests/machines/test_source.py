"""What a commit stores of a gateway's source (docs/protocol.md 1.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Batch
from edge_agent.machines.checkpoint.slots import SourceState
from edge_agent.machines.events import Read
from edge_agent.machines.gateway.source import Source
from tests.support.machines.simulated_host import SENSOR, T0


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
