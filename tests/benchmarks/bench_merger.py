"""A merger process, from a broker at QoS 1 to its spool: dedupe, order, merging, receipts and commits included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from edge_agent.algebra.frame import Heartbeat, Leaf, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query import planner
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import frames, receipts
from tests.benchmarks.bench import bench, record
from tests.benchmarks.load import cpu_s, one_broker, packet, publish_file
from tests.support.processes.tree import region

CHILDREN: Final = 10
ROWS: Final = 100  # of a frame: one window of 100 keys
WINDOWS: Final = 6_000
SECOND: Final = 1_000_000
KEYS: Final = [f"machine=m{n:03}" for n in range(ROWS)]
PARENT: Final = "region-1"


def child(name: str, journal: int, first_us: int, windows: int) -> Iterator[bytes]:
    """A gateway's frames: its birth, then a window of 1 s a frame, with 100 averages of a thousand readings."""
    query = Query("q", 1, "boiler", Tumbling(SECOND), (Aggregate("avg", "avg"),), by=("machine",), lateness_us=0)
    plan = planner.plan((query,), None)[0].plan
    out, rng = Outbox(name, Random(name), version="1"), np.random.default_rng(abs(hash(name)) % 2**32)
    out.journal = journal
    leaf, serving = (Leaf(name, 1),), (Serving("q", 1),)
    birth = Step((GroupStep(query.group, first_us, leaves=leaf, serving=serving),), (canonical_query(query),))
    out.draw()
    yield from map(frames.encode, out.open(birth))
    count, key = np.full(ROWS, 1_000), np.arange(ROWS)
    for n in range(windows):
        start = np.full(ROWS, first_us + n * SECOND)
        states = {"count": count, "sum": rng.normal(20_000, 500, ROWS)}
        rows = Partials(start, start + SECOND, key, {name: states[name] for name in plan.basis})
        release = StepRows(plan, False, rows, KEYS, ())
        yield from map(frames.encode, out.put(Step((GroupStep(query.group, first_us + (n + 1) * SECOND, (release,)),))))


class Ear:
    """Hears the receipts: when how many frames were durable at the merger."""

    def __init__(self, broker: str) -> None:
        self.journal = 0
        self.times: list[tuple[float, int]] = []
        self._upto: dict[tuple[str, int], int] = {}
        self._connection, self._waiter = Connection(Link(broker, "ear")), Waiter()
        self._connection.subscribe({topics.ack("+"): 0})
        self._connection.open()

    def turn(self, longest_s: float = 0.1) -> int:
        """Hear; answers the frames receipted so far."""
        self._waiter.wait([self._connection], longest_s)
        for report in self._connection.take():
            if isinstance(report, Messages):
                for name, payload, _, _ in report.messages:
                    receipt = receipts.decode(payload)
                    self.journal = receipt.journal
                    self._upto[name, receipt.epoch] = receipt.upto
                self.times.append((time.monotonic(), sum(self._upto.values())))
        return sum(self._upto.values())

    def publish(self, topic: str, payload: bytes) -> None:
        self._connection.publish(topic, payload)

    def close(self) -> None:
        self._connection.close()
        self._waiter.close()


def backlog(file: Path, journal: int) -> int:
    """All children's frames in turn, as packets; answers how many."""
    first_us = int(time.time()) * SECOND - WINDOWS * SECOND
    lines = [(f"gw-{n}", child(f"gw-{n}", journal, first_us, WINDOWS)) for n in range(CHILDREN)]
    count = 0
    with file.open("wb") as out:
        for _ in range(WINDOWS + 1):
            for name, frames_ in lines:
                count += 1
                out.write(packet(topics.frames(name, PARENT), next(frames_), count % 65_535 + 1))
    return count


@bench("merger_rows", budget_s=180)
def merger_rows() -> None:
    """The frames wait at the broker in the merger's session, so that only broker and merger work."""
    with one_broker() as (broker, folder):
        merger = region(PARENT, folder / "region", broker.url, "root")
        ear = Ear(broker.url)
        try:
            merger.start()
            question = frames.encode_heartbeat(Heartbeat(1, -1, ()))
            until = time.monotonic() + 20
            while not ear.journal and time.monotonic() < until:
                ear.publish(topics.frames("gw-0", PARENT), question)
                ear.turn(0.5)
            merger.stop()
            total = backlog(folder / "packets", ear.journal)
            publish_file(broker.port, folder / "packets")
            ear.times.clear()
            merger.start()
            until = time.monotonic() + 120
            while ear.turn() < total and time.monotonic() < until:
                pass
            cpu = cpu_s(merger.pid)
        finally:
            ear.close()
            merger.stop()
    (first_s, before), (last_s, after) = ear.times[0], ear.times[-1]
    rate = (after - before) * ROWS / (last_s - first_s)
    record(
        "merger_rows",
        rate,
        "rows/s",
        f"{CHILDREN} children, {total} frames of {ROWS} rows (count, sum of 1 s windows), QoS 1, waiting at Mosquitto; "
        f"receipted frames over {last_s - first_s:.1f} s; merger CPU {cpu:.1f} s in all",
    )


if __name__ == "__main__":
    merger_rows()
