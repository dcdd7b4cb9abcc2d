"""Processes of a tree, a folder each, and a plain-Python root above them in a thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from edge_agent.algebra.query.query import Sensor
from edge_agent.config import topics
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.demo.processes import ChildProcess
from edge_agent.machines.events import BadEnvelope
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages, Up
from edge_agent.ports.sensors.simulated import Simulation
from edge_agent.ports.waiter import Waiter
from edge_agent.root.books import Line, RootBook
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.runtime.region import heard
from edge_agent.wire import receipts
from tests.support.processes.background import Background
from tests.support.waiting import eventually

RowKey = tuple[str, str, str, int]


class Node(ChildProcess):
    """`headwater run` or `headwater merge` with a configuration of its own."""

    def __init__(self, verb: str, name: str, folder: Path, config: str, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "headwater.toml"
        file.write_text(config)
        super().__init__(name, [sys.executable, "-m", "edge_agent", verb, str(file)], folder, env)


def gateway(
    name: str, folder: Path, broker: str, parent: str, rest: str = "", *, env: dict[str, str] | None = None
) -> Node:
    """A gateway with a quick rhythm; rest: further TOML. env: added to the environment."""
    uplink = f'[uplink]\nbroker = "{broker}"\nparent = "{parent}"\nheartbeat = "200ms"\n'
    spool = '[spool]\ncommit_interval = "200ms"\n'
    return Node("run", name, folder, f'[node]\nid = "{name}"\n{uplink}{spool}{rest}', env)


def region(name: str, folder: Path, broker: str, parent: str, lower: str | None = None, *, rest: str = "") -> Node:
    """A region with a quick rhythm; lower None: both sides are one broker."""
    uplink = f'[uplink]\nbroker = "{broker}"\nparent = "{parent}"\nheartbeat = "200ms"\n'
    below = "[lower]\n" + (f'broker = "{lower}"\n' if lower else "") + rest
    spool = '[spool]\ncommit_interval = "200ms"\n'
    return Node("merge", name, folder, f'[node]\nid = "{name}"\nrole = "region"\n{uplink}{below}\n{spool}')


class Top(Background):
    """A plain-Python root in a thread, with receipts at once: it is never killed, so memory is durable enough."""

    def __init__(self, broker: str | Link, name: str = "root", grace_us: int = 60_000_000) -> None:
        super().__init__()
        self.name = name
        self.root = NumpyRoot(4711, grace_us=grace_us)
        self.rows: dict[RowKey, Row] = {}
        self.revisions = 0
        self.payload_bytes = 0
        self.quarantined: list[str] = []
        self._numberer = RevisionNumberer(300_000)
        self._lock = threading.Lock()
        self._connection = Connection(broker if isinstance(broker, Link) else Link(broker, name, backoff_s=(0.1, 0.5)))
        filters = [topics.frames_of_children(name), topics.state(), *topics.definitions_below()]
        self._connection.subscribe(dict.fromkeys(filters, 1))

    def _run(self) -> None:
        waiter, clock, connection = Waiter(), SystemClock(), self._connection
        connection.open()
        while not self._over.is_set():
            waiter.wait([connection], 0.05)
            now_us = clock.now_us()
            owed: set[tuple[str, int]] = set()
            for report in connection.take():
                if isinstance(report, Up):
                    self._numberer.connected(now_us)
                elif isinstance(report, Messages):
                    for name, payload, _, _ in report.messages:
                        self._message(name, payload, now_us, owed)
            for node, epoch in owed:
                connection.publish(topics.ack(node), receipts.encode(self.root.receipt(node, epoch)))
            for publication in self._numberer.due(now_us):
                connection.publish(publication.topic, publication.payload, retain=True)
            with self._lock:
                for row in self.root.step(now_us):
                    key = (row.query, row.node, row.key, row.start)
                    self.revisions += key in self.rows
                    self.rows[key] = row
        connection.close()
        waiter.close()

    def _message(self, name: str, payload: bytes, now_us: int, owed: set[tuple[str, int]]) -> None:
        topic = topics.parse(name)
        if topic is None:
            return
        if topic.what == "definition":
            self._numberer.hear(name, payload, now_us)
        elif topic.what == "state":
            self._numberer.hear_state(payload)
        elif topic.what == "frame":
            self.payload_bytes += len(payload)
            message = heard(payload)
            if isinstance(message, BadEnvelope):
                self.quarantined.append(message.reason)
                return
            self.root.take(topic.node, message, now_us)
            owed.add((topic.node, message.epoch))

    def results(self, query: str | None = None) -> dict[RowKey, Row]:
        """A copy of the rows as they are now."""
        with self._lock:
            return {key: row for key, row in self.rows.items() if query in (None, key[0]) and not row.withdrawn}


def book_of(top: Top) -> RootBook:
    """The plain root's books, as tables would hold them."""
    with top._lock:
        inbox, readings = top.root.decider.parent.inbox, dict(top.root.state.readings or {})
        epochs = {node: (inbox.current[node], line) for node, line in inbox.lines().items()}
        found = {
            node: Line(epoch, line.applied.next, line.readings, line.refused) for node, (epoch, line) in epochs.items()
        }
    return RootBook("root", found, readings, readings)


def commits(node: ChildProcess, count: int) -> None:
    """Waits until a node has committed so often: the only sign of life of a node without a broker.

    Its spool cannot be opened meanwhile, but every commit writes to the log of the database.
    """
    log, seen = node.folder / "spool.db-wal", set[int]()

    def committed() -> bool:
        if log.exists():
            seen.add(log.stat().st_mtime_ns)
        return len(seen) > count

    eventually(committed)


def truth(sensors: Mapping[str, Sensor], begin_us: int, window_us: int, until_us: int) -> dict[int, tuple[int, int]]:
    """Window start -> (count, sum in units of the resolution) over all sensors, from their own formulas."""
    out: dict[int, tuple[int, int]] = {}
    for sensor in sensors.values():
        assert sensor.scale is not None
        made = Simulation(sensor, begin_us).between(begin_us, until_us)
        units = (made.value / 10.0**sensor.scale).round().astype(int)
        starts = made.time_us // window_us * window_us
        for start in sorted(set(starts.tolist())):
            inside = starts == start
            count, total = out.get(start, (0, 0))
            out[start] = (count + int(inside.sum()), total + int(units[inside].sum()))
    return out
