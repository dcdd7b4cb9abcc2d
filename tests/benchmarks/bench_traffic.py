"""What one more tier costs on the line: all MQTT bytes between a region and its parent, both ways."""

from __future__ import annotations

import socket
import threading
import time
from random import Random
from typing import Final

import numpy as np

from edge_agent.algebra.frame import Heartbeat, Leaf, Plan, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query import planner
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.demo.processes import free_ports
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire import frames
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_merger import PARENT, Ear
from tests.benchmarks.load import one_broker
from tests.support.processes.tree import Node, Top

SECOND: Final = 1_000_000
RATE: Final = 1_000_000  # readings a second, of 16 bytes each: int64 time and float64 value
READING_BYTES: Final = 16
WARM_S, SECONDS = 20, 120  # books are published once in 120 s, and once more after the start


class Counter:
    """A TCP relay that counts what passes, both ways."""

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self._to = port
        self._server = socket.create_server(("127.0.0.1", free_ports(1)[0]))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self.bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        """Take no more."""
        self._server.close()


@bench("extra_tier_share", budget_s=240)
def extra_tier_share() -> None:
    """A child that sends a window of a million readings each second; its region; a root that receipts."""
    query = Query("q", 1, "boiler", Tumbling(SECOND), (Aggregate("avg", "avg"),), lateness_us=0)
    plan = planner.plan((query,), None)[0].plan
    with one_broker() as (low, _), one_broker() as (high, folder), Top(high.url) as top:
        relay, ear = Counter(high.port), Ear(low.url)
        config = (
            f'[node]\nid = "{PARENT}"\nrole = "region"\n[uplink]\nbroker = "mqtt://127.0.0.1:{relay.port}"\n'
            f'[lower]\nbroker = "{low.url}"\n'
        )
        region = Node("merge", PARENT, folder / "region", config)
        region.start()
        try:
            while not ear.journal:
                ear.publish(topics.frames("gw-1", PARENT), frames.encode_heartbeat(Heartbeat(1, -1, ())))
                ear.turn(0.5)
            bytes_, windows = _minute(query, plan, ear, relay)
        finally:
            region.stop()
            ear.close()
            relay.close()
        rows = len(top.results())
    record(
        "extra_tier_share",
        bytes_ / (windows * RATE * READING_BYTES),
        "1",
        f"{bytes_ / windows:.0f} B a second between region and parent, both ways, TCP payload of MQTT 5 at QoS 1 with "
        f"acknowledgements, heartbeats and receipts, over {windows} windows of 1 s and 1 M readings of "
        f"{READING_BYTES} B ({rows} rows at the root)",
    )


def _minute(query: Query, plan: Plan, ear: Ear, relay: Counter) -> tuple[int, int]:
    """Send a window a second; answers the bytes that passed the relay and the windows, once warm."""
    out = Outbox("gw-1", Random(1), version="1")
    out.journal = ear.journal
    now_us = int(time.time()) * SECOND
    serving, leaf = (Serving("q", 1),), (Leaf("gw-1", 1),)
    step = Step((GroupStep(query.group, now_us, leaves=leaf, serving=serving),), (canonical_query(query),))
    out.draw()
    for frame in out.open(step):
        ear.publish(topics.frames("gw-1", PARENT), frames.encode(frame))
    before = 0
    rng = np.random.default_rng(1)
    for n in range(WARM_S + SECONDS):
        if n == WARM_S:
            before = relay.bytes
        start = np.array([now_us + n * SECOND])
        states = {"count": np.array([RATE]), "sum": rng.normal(2e7, 1e3, 1)}
        rows = Partials(start, start + SECOND, np.zeros(1, np.int64), {name: states[name] for name in plan.basis})
        release = StepRows(plan, False, rows, ("",), ())
        for frame in out.put(Step((GroupStep(query.group, now_us + (n + 1) * SECOND, (release,)),))):
            ear.publish(topics.frames("gw-1", PARENT), frames.encode(frame))
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            ear.turn(0.2)
    return relay.bytes - before, SECONDS


if __name__ == "__main__":
    extra_tier_share()
