"""A fleet whose queries, series and nodes change for years, at the decision of the Spark root: no tables, no waiting.

Gateways and a region are the production machines, with spools in memory; messages arrive at once. Rows of readings are
taken to have left the tables as soon as they may (docs/protocol.md 8.4).
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np

from cloud_job.delta.expiring import over
from cloud_job.spark import decision_checkpoint, state_log
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import CountTumbling, Punctuation, Session, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.machines.events import (
    Arrived,
    Beat,
    Configured,
    Event,
    LinkUp,
    LowerLink,
    Publish,
    Read,
    Receipted,
    SendReceipt,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.node import Node
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import snapshot
from tests.support.machines.simulated_host import Disk, SimulatedHost

S: Final = 1_000_000
DAY: Final = 86_400 * S
BEGIN_US: Final = 1_790_000_000 * S
JOURNAL: Final = 77
HORIZON_US: Final = DAY
TICK_US: Final = 2 * S
LOOK_US, LOOKS = 8 * S, 9
SENSOR: Final = Sensor("boiler", 1, "simulated", scale=-1, timeout_us=DAY, rereadable=True, own_clock=True)
MEAN: Final = (Aggregate("avg", "avg"),)
STAYS: Final = Query("stays", 1, "boiler", Tumbling(3_600 * S), MEAN, by=("k",))


def some_queries(number: int) -> tuple[Query, ...]:
    """What is asked for in one term: a query of every kind, with names of their own."""
    base = Query(f"t{number}", 1, "boiler", Tumbling(600 * S), MEAN, by=("k",))
    return (
        base,
        replace(base, id=f"w{number}", where=f"value > {number % 7}", window=Tumbling(7_200 * S)),
        replace(base, id=f"s{number}", window=Session(900 * S)),
        replace(base, id=f"c{number}", window=CountTumbling(5)),
        replace(base, id=f"m{number}", window=Punctuation(punctuation_id=f"m{number}")),
        replace(STAYS, id="edited", revision=number + 1, window=Tumbling((1 + number % 3) * 600 * S)),
    )


class ChangingFleet:
    """Two gateways and a region with one below it. state: of the root, as it would be stored. rows: all there were."""

    def __init__(self) -> None:
        self.now_us, self.term = BEGIN_US, -1
        self._ticked_us = BEGIN_US
        self.root = NumpyRoot(JOURNAL, grace_us=60 * S, horizon_us=HORIZON_US)
        self.hosts: dict[str, SimulatedHost[Any]] = {}
        self.leaves, self.born = ["gw-0-0", "gw-1-0", "gw-2-0"], 0
        self.queries: tuple[Query, ...] = ()
        self.rows: list[Row] = []
        self._start("region", Disk())
        for leaf in self.leaves:
            self._start(leaf, Disk())

    # --- what happens ----------------------------------------------------------------------------------------------

    def next_term(self) -> None:
        """The queries of the term before go, others come, and series have other names."""
        self.term += 1
        self.queries = (STAYS, *some_queries(self.term))
        if self.term % 8 == 7:
            for name in (*self.leaves, "region"):
                self._start(name, self.hosts[name].disk)
        if self.term % 24 == 23:
            self._rename(self.term // 24 % 2)
        for leaf in self.leaves:
            self._do(leaf, self._configured())
        for _ in range(2):
            self._pass_time(DAY // 4)

    def _pass_time(self, us: int) -> None:
        """Readings of that time, and what all say then."""
        times = np.arange(self.now_us, self.now_us + us, us // 8) + 1
        self.now_us += us
        for leaf in self.leaves:
            labels = [(("k", f"{leaf}-{self.term}"),)]
            batch = Batch(times, times // S % 50, np.zeros(len(times), np.int64), labels)
            self._do(leaf, Read("boiler", batch, self.now_us, clock_us=self.now_us))
        self._tick()
        for _ in range(LOOKS):  # after a pause a region takes no promise for a minute (4.4)
            self.now_us += LOOK_US
            self._do("region", Tick())
        for _ in range(3):
            self._exchange()
            self.now_us += 2 * S
        self._tick()
        self.rows += self.root.step(self.now_us)
        self._forget_rows()

    def _tick(self) -> None:
        """The lander's records until now."""
        for us in range(self._ticked_us + TICK_US, self.now_us + 1, TICK_US):
            self.root.decider.tick(us, us - TICK_US, connected=True)
            self._ticked_us = us

    def _rename(self, place: int) -> None:
        """A gateway is put out of use, and another takes its place."""
        old, new = self.leaves[place], f"gw-{place}-{self.term}"
        del self.hosts[old]
        self.leaves[place] = new
        self.root.decider.parent.children.retire(old)
        self._start(new, Disk())

    def _start(self, name: str, disk: Disk) -> None:
        settings = NodeSettings(name, commit_interval_us=S, heartbeat_us=S)
        machine: Node
        if name == "region":
            machine = Merger(
                settings, Random(self.born), disk.restored(), disk.load, grace_us=60 * S, definitions=KnownDefinitions()
            )
        else:
            machine = Gateway(settings, Random(self.born), disk.restored(), disk.load)
        self.born += 1
        self.hosts[name] = SimulatedHost(machine, disk)
        if name == "region":
            self._do(name, LowerLink(up=True))
        elif self.queries:
            self._do(name, self._configured())
        self._do(name, LinkUp())

    def _configured(self) -> Configured:
        return Configured((SENSOR,), self.queries, (), tuple(map(canonical_query, self.queries)))

    # --- messages --------------------------------------------------------------------------------------------------

    def _do(self, name: str, event: Event) -> None:
        self.hosts[name].do(event, self.now_us)

    def _exchange(self) -> None:
        """All say what they have to say, and hear the answers."""
        for name in (self.leaves[2], "region", *self.leaves[:2]):
            host = self.hosts[name]
            self._do(name, Tick())
            done, host.done = host.done, []
            host.frames.clear()
            for action in done:
                if isinstance(action, SendReceipt):
                    self._do(action.node, Receipted(action.receipt))
            messages: list[Any] = []
            for action in done:
                if isinstance(action, Publish) and (action.epoch, action.seq) in host.disk.frames:
                    messages.append(host.disk.load(action.epoch, action.seq))
                    self._do(name, Sent(action.epoch, action.seq))
                elif isinstance(action, Beat):
                    messages.append(action.heartbeat)
            for message in messages:
                if name == self.leaves[2]:
                    self._do("region", Arrived(((name, message, None),)))
                else:
                    self.root.take(name, message, self.now_us)
                    self._do(name, Receipted(self.root.receipt(name, message.epoch)))

    # --- the root --------------------------------------------------------------------------------------------------

    def _forget_rows(self) -> None:
        """The step of upkeep, where the tables have no rows of these epochs."""
        gone = over(self.root.decider, self.root.state, {})
        state_log.forget(self.root.decider, self.root.state, gone)

    @property
    def state(self) -> bytes:
        return decision_checkpoint.dumps(self.root.decider, self.root.state, {})

    def sizes(self) -> dict[str, int]:
        """Bytes of each part of the state, before it is compressed."""
        plain: dict[str, Any] = snapshot.loads(zlib.decompress(self.state))
        found = {}
        for part in ("decider", "ledger"):
            for name, value in plain[part].items():
                found[f"{part}.{name}"] = len(snapshot.dumps({"": value}))
        for name, value in plain["decider"]["parent"].items():
            found[f"parent.{name}"] = len(snapshot.dumps({"": value}))
        return found
