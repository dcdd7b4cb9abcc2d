"""Reads the retained messages of all nodes from the brokers of a tree, and sends them commands."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.cli.support.message_rendering import json_of
from edge_agent.config import topics
from edge_agent.errors import PortError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Link, Messages, Subscribed
from edge_agent.ports.mqtt.packets import RETAIN
from edge_agent.ports.waiter import Waiter

TURN_S: Final = 0.1
QUIET_S: Final = 0.5  # retained messages arrive together: after this pause there are no more
EXPIRY_S: Final = 10  # of a command: brokers discard it after this time


@dataclass(slots=True)
class Retained:
    """What one broker keeps of a node."""

    status: dict[str, Any] = field(default_factory=dict)
    books: dict[str, Any] = field(default_factory=dict)

    @property
    def online(self) -> bool:
        return self.status.get("online") is True

    @property
    def at_us(self) -> int:
        """When the books were written; -1 without books."""
        at_us = self.books.get("at_us")
        return at_us if isinstance(at_us, int) else -1


@dataclass(slots=True)
class HeardNode:
    """The messages of one node. by_broker: index of a broker -> what it keeps. answer: to the last command."""

    by_broker: dict[int, Retained] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def broker(self) -> int:
        """The broker at which the node receives commands. A former one may keep an offline status or old books; one
        with frames of a former parent has the status only.
        """
        return max(self.by_broker, key=lambda at: (self.by_broker[at].online, self.by_broker[at].at_us, -at))

    @property
    def status(self) -> dict[str, Any]:
        return self.by_broker[self.broker].status if self.by_broker else {}

    @property
    def books(self) -> dict[str, Any]:
        return self.by_broker[self.broker].books if self.by_broker else {}

    @property
    def online(self) -> bool:
        return self.status.get("online") is True


class FleetListener:
    """Connections to the brokers of a tree. Use it as a context manager: `with FleetListener(links) as fleet`."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.nodes: dict[str, HeardNode] = {}
        self._connections = [Connection(link) for link in links]
        self._waiter, self._id = Waiter(), f"operator-{secrets.token_hex(8)}"  # a node executes an id once
        self._ready: set[int] = set()
        self._heard_s = time.monotonic()

    def __enter__(self) -> FleetListener:
        wanted = [topics.status(), topics.books(), topics.answer("+", self._id)]
        for connection in self._connections:
            connection.subscribe(dict.fromkeys(wanted, 1))
            connection.open()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        self._waiter.close()

    def retained(self, seconds: float) -> None:
        """Read the retained messages of all brokers. Raises: PortError if that takes longer than `seconds`."""
        until, quiet_s = time.monotonic() + seconds, min(QUIET_S, seconds / 2)

        def quiet() -> bool:
            return len(self._ready) == len(self._connections) and time.monotonic() - self._heard_s > quiet_s

        self._turn(quiet, until)
        for at, connection in enumerate(self._connections):
            if at not in self._ready:
                raise PortError(f"no answer from {connection.link.url} within {seconds:g} s; check that it runs")
        if not quiet():
            raise PortError(f"not all nodes were read within {seconds:g} s; use a larger --seconds")

    def ask(self, nodes: Iterable[str], seconds: float, command: str = "diagnose", **fields: str) -> set[str]:
        """Send a command to these nodes. Returns the nodes that do not answer in time."""
        waiting = set(nodes)
        question = json.dumps({"cmd": command, "id": self._id, **fields}).encode()
        for node in waiting:
            self.nodes[node].answer = {}
            self._connections[self.nodes[node].broker].publish(topics.commands(node), question, expiry_s=EXPIRY_S)

        def answered() -> bool:
            return all(self.nodes[node].answer for node in waiting)

        self._turn(answered, time.monotonic() + seconds)
        return {node for node in waiting if not self.nodes[node].answer}

    def _turn(self, done: Callable[[], bool], until: float) -> None:
        while not done() and time.monotonic() < until:
            self._waiter.wait(self._connections, TURN_S)
            for at, connection in enumerate(self._connections):
                for report in connection.take():
                    match report:
                        case Down() if at not in self._ready:
                            raise PortError(f"no broker {connection.link.url}: {report.why}")
                        case Subscribed():
                            self._ready.add(at)
                            self._heard_s = time.monotonic()
                        case Messages():
                            if any(flags & RETAIN for _, _, _, flags in report.messages):
                                self._heard_s = time.monotonic()
                            for name, payload, _, _ in report.messages:
                                self._take(at, name, payload)

    def _take(self, broker: int, name: str, payload: bytes) -> None:
        topic, content = topics.parse(name), json_of(payload) if payload else None
        if topic is None or not isinstance(content, dict):
            return
        node = self.nodes.setdefault(topic.node, HeardNode())
        match topic.what:
            case "status":
                node.by_broker.setdefault(broker, Retained()).status = content
            case "books":
                node.by_broker.setdefault(broker, Retained()).books = content
            case "answer":
                node.answer = content
