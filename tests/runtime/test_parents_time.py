"""A process that gets its time from its parent (docs/protocol.md 4.3)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from edge_agent.algebra.frame import ParentTime, Receipt
from edge_agent.config import topics
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.machines.events import Event, Restored
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.clock import JudgedClock
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.wire import receipts
from tests.support.runtime.scripted import ScriptedConnection, parts

HOUR_US = 3_600_000_000


@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US])
def test_a_turn_has_one_clock_also_where_the_parent_answers_in_it(
    ahead_us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time steps once: forward where the parent's is later, else back."""
    monkeypatch.setattr("edge_agent.ports.clock.vouched", lambda run: False)
    clock = JudgedClock(trust="auto", max_error_us=2_000_000, run=tmp_path)
    made, spool = parts(
        Gateway(NodeSettings("g", parents=("region-1",)), Random(1), Restored({})), tmp_path, "region-1"
    )
    assert isinstance(made.up, ScriptedConnection)
    loop = GatewayLoop(replace(made, clock=clock), restored={}, limits=LimitsTable(), definitions=())
    times, handle = list[int](), loop.machine.handle

    def seen(event: Event, now_us: int) -> object:
        times.append(now_us)
        return handle(event, now_us)

    monkeypatch.setattr(loop.machine, "handle", seen)
    try:
        loop.start()
        loop.turn(0.0)
        answer = ParentTime(clock.now_us() + ahead_us, 0, clock.boot_us())
        made.up.message(topics.ack("g"), receipts.encode(Receipt(1, 1, 0), answer))
        for _ in range(3):
            loop.turn(0.0)
    finally:
        loop.waiter.close()
        spool.close()
    assert clock.synced
    steps = [later - before for before, later in pairwise(times) if abs(later - before) > HOUR_US // 2]
    assert len(steps) == 1, steps
    assert abs(steps[0] - ahead_us) < 60_000_000
