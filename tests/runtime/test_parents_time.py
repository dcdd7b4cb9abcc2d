"""A process that gets its time from its parent (docs/protocol.md 4.3)."""

from __future__ import annotations

import json
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
from edge_agent.machines.node_clock import COMPUTER, PARENT, SERVICE, UNKNOWN, ClockState
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.clock import JudgedClock
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.region import RegionLoop
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


@pytest.mark.parametrize(("source", "error_us"), [(SERVICE, 40), (PARENT, 40), (COMPUTER, None)])
def test_a_region_says_how_far_its_time_may_be_off_unless_nothing_confirms_it(
    source: str, error_us: int | None, tmp_path: Path
) -> None:
    """protocol 4.3: it answers a child that asked, once, and only while it knows the time."""
    clock = JudgedClock(trust="auto", max_error_us=2_000_000, run=tmp_path)
    merger = Merger(NodeSettings("m", parents=("root",)), Random(1), grace_us=60_000_000)
    made, spool = parts(merger, tmp_path, "root", "region")
    loop = RegionLoop(replace(made, clock=clock), restored={}, lower=ScriptedConnection("m"))
    assert isinstance(loop.lower, ScriptedConnection)

    def answer(source: str) -> ParentTime | None:
        status = {"parent": "m", "online": True, "clock": {"synced": False, "asked": 77}}
        loop.lower.message(topics.status("g"), json.dumps(status).encode())  # type: ignore[attr-defined]
        loop.turn(0.0)
        clock.use(ClockState(clock.state.offset_us, source, 40))
        return loop.executor.time_for("g")

    try:
        loop.turn(0.0)
        assert answer(UNKNOWN) is None
        found = answer(source)
        assert found is not None
        assert (found.error_us, found.asked_us) == (error_us, 77)
        assert loop.executor.time_for("g") is None
    finally:
        loop.close()
        spool.close()
