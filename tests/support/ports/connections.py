"""Connections at a real broker, driven by one waiter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages, Report, Subscribed, Taken
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.waiter import Waiter
from tests.support.fakes import Mosquitto

QUICK = (0.05, 0.4)  # back-off of tests
LONGEST_S = 20.0
T = TypeVar("T", bound=Report)


class Net:
    """Some connections and one waiter, as a loop has them."""

    def __init__(self) -> None:
        self.waiter = Waiter()
        self.open: list[Connection] = []
        self.reports: dict[Connection, list[Report]] = {}

    def connect(self, link: Link, *filters: str, qos: int = 1, connected: bool = True) -> Connection:
        """connected: wait for the connection and its subscriptions."""
        connection = Connection(replace(link, backoff_s=QUICK), seed=1)
        self.open.append(connection)
        self.reports[connection] = []
        connection.subscribe(dict.fromkeys(filters, qos))
        connection.open()
        if filters:
            self.until(lambda: self.count(connection, Subscribed) > 0)
        elif connected:
            self.until(lambda: connection.up)
        return connection

    def turn(self, timeout_s: float = 0.05) -> None:
        self.waiter.wait(self.open, timeout_s)
        for connection in self.open:
            self.reports[connection] += connection.take()

    def until(self, done: Callable[[], object], within_s: float = LONGEST_S) -> None:
        end = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < end, self.reports
            self.turn()

    def settled(self, connection: Connection) -> None:
        """Waits until the broker has taken all that the connection sent so far, and sent what was due to it."""
        token = connection.publish("settled", b"")
        self.until(lambda: any(taken.token == token for taken in self.of(connection, Taken)))

    def quiet(self, seconds: float) -> None:
        """Time passes, where that is what is tested."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()

    def of(self, connection: Connection, kind: type[T]) -> list[T]:
        return [report for report in self.reports[connection] if isinstance(report, kind)]

    def count(self, connection: Connection, kind: type[Report]) -> int:
        return len(self.of(connection, kind))

    def messages(self, connection: Connection) -> list[Message]:
        return [message for report in self.of(connection, Messages) for message in report.messages]

    def payloads(self, connection: Connection) -> list[bytes]:
        return [message[1] for message in self.messages(connection)]

    def close(self) -> None:
        for connection in self.open:
            connection.close()
        self.waiter.close()


def link(broker: Mosquitto, client_id: str, **more: object) -> Link:
    return replace(Link(broker.url, client_id), **more)  # type: ignore[arg-type]
