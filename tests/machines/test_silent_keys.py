"""Keys that fell silent after a burst: their room is given back, and every answer stays what it was."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.events import Configured, Read, Receipted, Tick
from edge_agent.machines.gateway import silent_keys
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.slicing.key_index import FEW_KEYS
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.wire.frames import decode, encode
from tests.support.machines.simulated_host import JOURNAL, SENSOR, T0, Disk, S, SimulatedHost

MANY = FEW_KEYS + 500
LABELS = [(("k", str(n)),) for n in range(MANY)]
QUERIES = {
    "tumbling": Query("q", 1, "s", Tumbling(5 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=S),
    "hours": Query("q", 1, "s", Tumbling(100 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=S),
    "sliding": Query("q", 1, "s", Sliding(20 * S, 5 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=S),
    "session": Query("q", 1, "s", Session(3 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=S),
}


def started(disk: Disk | None, now_us: int, query: Query) -> SimulatedHost[Gateway]:
    disk = disk or Disk()
    host = SimulatedHost(Gateway(NodeSettings("a"), Random(now_us), disk.restored(), disk.load), disk)
    host.do(Configured((SENSOR,), (query,), (), (canonical_query(query),)), now_us)
    host.accepted(now_us)
    return host


def push(host: SimulatedHost[Gateway], time_us: int, keys: range, labels: Any = LABELS) -> None:
    series = np.array(keys, np.int64)
    batch = Batch(np.full(len(series), time_us, np.int64), np.ones(len(series), np.int64), series, labels)
    host.do(Read("s", batch, position=time_us, clock_us=time_us), time_us)


def run(query: Query, *, restart_at: int = -1) -> tuple[dict[Any, Any], SimulatedHost[Gateway]]:
    """Ninety seconds with a burst of keys in the third; ten keys go on. All rows that stand at the end."""
    root, host = NumpyRoot(JOURNAL, grace_us=600 * S), started(None, T0, query)
    rows: dict[Any, Any] = {}
    for second in range(90):
        now_us = T0 + second * S
        if second == restart_at:
            host = started(host.disk, now_us, query)
        push(host, now_us, *((range(MANY),) if second == 2 else (range(10), LABELS[:10])))
        host.do(Tick(), now_us)
        rows |= step(root, host, now_us)
        for epoch in {*host.machine.outbox.pending.epochs(), host.machine.outbox.epoch}:
            host.do(Receipted(root.decider.parent.inbox.receipt("a", epoch)), now_us)
    end_us = T0 + 400 * S
    host.do(Read("s", empty(), ended=True), end_us)
    host.do(Tick(), end_us)
    rows |= step(root, host, end_us)
    for state in host.machine.groups.values():
        state.slicer.check()
    return {where: row for where, row in rows.items() if not row.withdrawn}, host


def empty() -> Batch:
    return Batch(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), [()])


def step(root: NumpyRoot, host: SimulatedHost[Gateway], now_us: int) -> dict[Any, Any]:
    for frame, _ in host.disk.frames.values():  # those that are not receipted yet
        decoded = decode(encode(frame))
        assert isinstance(decoded, Frame)
        root.take("a", decoded, now_us)
    return {(row.key, row.start): row for row in root.step(now_us, flush=True)}


@cache
def kept(kind: str) -> dict[Any, Any]:
    """The rows of a gateway that gives no key back; the same whenever another one starts again."""
    with mock.patch.object(silent_keys, "TURN_US", 10**18):
        rows, host = run(QUERIES[kind])
    assert len(next(iter(host.machine.groups.values())).slicer.keys) >= MANY
    return rows


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("restart_at", [-1, 30, 50])
def test_every_answer_is_the_same_and_the_keys_are_gone(kind: str, restart_at: int) -> None:
    """protocol 2.4, 6.1"""
    found, host = run(QUERIES[kind], restart_at=restart_at)
    assert len(found) >= MANY
    (state,) = host.machine.groups.values()
    if kind != "hours":  # there most keys are open until the window ends
        assert len(state.slicer.keys) <= 11
        assert len(host.machine.outbox.encoder.keys) <= 11
        assert len(host.machine.outbox.former[1].keys) <= 11  # of the epoch before too, once its frames are receipted
    wanted = kept(kind)
    assert {at: row.values for at, row in found.items()} == {at: row.values for at, row in wanted.items()}
    assert sum(row.readings for row in found.values()) == sum(row.readings for row in wanted.values())


def test_of_few_keys_and_of_those_that_go_on_nothing_is_said_again() -> None:
    host = started(None, T0, QUERIES["tumbling"])
    for second in range(70):
        push(host, T0 + second * S, *((range(MANY),) if second % 10 == 0 else (range(10), LABELS[:10])))
        host.do(Tick(), T0 + second * S)
    assert host.machine.silent_keys.given_back == 0


def test_a_parent_that_is_away_gets_no_epoch_after_the_other() -> None:
    host = started(None, T0, QUERIES["tumbling"])
    epochs = set()
    for second in range(200):
        push(host, T0 + second * S, *((range(MANY),) if second % 50 == 2 else (range(10), LABELS[:10])))
        host.do(Tick(), T0 + second * S)
        epochs.add(host.machine.outbox.epoch)
    assert host.machine.silent_keys.given_back >= 3
    assert len(epochs) <= 1 + silent_keys.FEW_FRAMES // 20
