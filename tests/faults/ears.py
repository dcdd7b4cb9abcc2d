"""Hears all brokers of a tree: when each node spoke last, and how long after its restart it spoke again."""

from __future__ import annotations

import time
from collections.abc import Iterable

from edge_agent.config import topics
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages
from edge_agent.ports.waiter import Waiter
from tests.support.processes.background import Background


class Ears(Background):
    """A thread that listens until the end of its block. spoken: node -> monotonic times of its messages, ascending."""

    def __init__(self, urls: Iterable[str]) -> None:
        super().__init__()
        self.spoken: dict[str, list[float]] = {}
        self._connections = [Connection(Link(url, "test-ears", backoff_s=(0.05, 0.2))) for url in urls]

    def _run(self) -> None:
        waiter = Waiter()
        for connection in self._connections:
            connection.subscribe(dict.fromkeys((topics.frames("+", "+"), topics.ack("+")), 0))
            connection.open()
        while not self._over.is_set():
            waiter.wait(self._connections, 0.05)
            now = time.monotonic()
            for connection in self._connections:
                for report in connection.take():
                    for name, _, _, flags in report.messages if isinstance(report, Messages) else ():
                        topic = topics.parse(name)
                        if topic is not None and not flags & 1:  # not a retained one
                            # a receipt is the word of the node's parent
                            who = topic.node if topic.what == "frame" else f"parent of {topic.node}"
                            self.spoken.setdefault(who, []).append(now)
        for connection in self._connections:
            connection.close()
        waiter.close()

    def after(self, names: Iterable[str], since: float) -> float | None:
        """Seconds from a monotonic time to the first message of one of them; None if there was none."""
        found = [t for name in names for t in self.spoken.get(name, ()) if t > since]
        return min(found) - since if found else None
