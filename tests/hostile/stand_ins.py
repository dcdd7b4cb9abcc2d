"""Whole processes on a broker that lives in the test: sessions, retained messages, and what comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from edge_agent.config.node_file.settings import Settings, load
from edge_agent.ports.mqtt.link import Messages, Report
from edge_agent.ports.mqtt.packets import DUP
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime import build as building
from edge_agent.runtime import guard as guards
from edge_agent.runtime import lander as landing
from edge_agent.runtime.guard import Guard, Service
from edge_agent.runtime.lander import LanderLoop
from edge_agent.runtime.loop import Loop
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, without_brokers

TURN_S = 0.6
TEXTS = {
    "gateway": '[node]\nid = "g"\n[uplink]\nbroker = "mqtt://127.0.0.1:9"\nparent = "m"\n'
    '[local]\nbroker = "mqtt://127.0.0.1:9"\n[clock]\ntrust = "always"\n',
    "region": '[node]\nid = "m"\nrole = "region"\n[uplink]\nbroker = "mqtt://127.0.0.1:9"\n',
    "root": '[node]\nid = "m"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n',
}


class Broker:
    """QoS 1 with sessions: what a client has not acknowledged comes again when it connects anew."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[str, bytes]]] = {}  # client id -> all that was published to it
        self.done: dict[str, set[int]] = {}  # client id -> tokens that it has acknowledged
        self.given: dict[str, set[int]] = {}  # client id -> tokens that it has heard, maybe on another connection
        self.published: list[tuple[str, bytes]] = []
        self.delivering: Callable[[str], None] = lambda topic: None

    def send(self, client: str, topic: str, payload: bytes) -> None:
        self.sent.setdefault(client, []).append((topic, payload))

    def connect(self, client: str) -> Connected:
        return Connected(client, self)

    def open(self, client: str) -> list[tuple[str, bytes]]:
        """What a client has not acknowledged."""
        done = self.done.get(client, set())
        return [message for n, message in enumerate(self.sent.get(client, ()), 1) if n not in done]


class Connected(ScriptedConnection):
    """A client of the broker above."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name)
        self._who, self._broker = name, broker
        self._given = set[int](broker.done.get(name, ()))

    def take(self) -> list[Report]:
        if self.arrives:
            return super().take()
        for token, (topic, payload) in enumerate(self._broker.sent.get(self._who, ()), 1):
            if token not in self._given:
                self._given.add(token)
                before = self._broker.given.setdefault(self._who, set())
                flags = DUP if token in before else 0
                before.add(token)
                self._broker.delivering(topic)
                return [Messages([(topic, payload, token, flags)])]
        return []

    def ack(self, tokens: Iterable[int]) -> None:
        self._broker.done.setdefault(self._who, set()).update(token for token in tokens if token)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        self._broker.published.append((topic, payload))
        return super().publish(topic, payload)


class Process:
    """One role as a process: `run` serves so many turns, beginning again as the real one does."""

    def __init__(self, role: str, folder: Path, broker: Broker) -> None:
        path = folder / "headwater.toml"
        path.write_text(TEXTS[role])
        self.settings: Settings = load(path)
        self.broker, self.clock = broker, ScriptedClock()
        self.loop: Loop[Any, Any] | None = None
        of = landing if role == "root" else building
        self.guard = Guard(of.quarantine_of(self.settings))
        self.service = Service(self._made, self.guard)
        self._turns = 0
        self.each_turn: Callable[[], None] = lambda: None

    def _made(self, guard: Guard) -> Loop[Any, Any]:
        with without_brokers(self.clock, self.broker.connect):
            if self.settings.node.role == "root":
                made: Loop[Any, Any] = LanderLoop(self.settings, "0")
            else:
                made = building.build(self.settings, "0", lambda: self.settings.definitions, guard)
        self.loop = made
        return made

    def run(self, turns: int) -> None:
        """Serve so many turns; then end in order."""
        self._turns = turns

        def over(_: object) -> bool:
            self._turns -= 1
            self.clock.pass_s(TURN_S)
            self.each_turn()
            return self._turns < 0

        with hurried():
            self.service.run(over)


@contextmanager
def hurried() -> Iterator[None]:
    """Nobody waits: not for a socket, not before beginning again."""
    with mock.patch.object(Waiter, "wait"), mock.patch.object(guards, "PAUSE_S", 0.0):
        yield
