"""What a loop touches, in the hands of a test: connections without a broker, a spool whose disk fills, a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from edge_agent.errors import PortError
from edge_agent.machines.events import Commit
from edge_agent.machines.node import Node
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages, Report, Up
from edge_agent.ports.spool import Spool
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime import build, lander
from edge_agent.runtime.action_executor import RuntimeParts
from edge_agent.runtime.quarantine import QuarantineFile
from edge_agent.runtime.status_and_commands import NodeStatus
from edge_agent.wire import frames
from tests.support.fakes import BEGIN_US


class ScriptedClock(SystemClock):
    """Stands still; `pass_s` moves it."""

    def __init__(self) -> None:
        self.us = BEGIN_US
        super().__init__()

    def now_us(self) -> int:
        return self.us

    def boot_us(self) -> int:
        return self.us

    def step_us(self) -> int:
        return 0

    def pass_s(self, seconds: float) -> int:
        self.us += round(seconds * 1e6)
        return self.us


class ScriptedConnection(Connection):
    """Connected from the start. arrives: reports for the next `take`. published, acked: what left, in order.

    renewed: why it was to connect anew.
    """

    def __init__(self, name: str) -> None:
        super().__init__(Link("mqtt://127.0.0.1:9", name, manual_ack=True))
        self.up = True
        self.arrives: list[Report] = [Up(session_present=True)]
        self.published: list[tuple[str, bytes]] = []
        self.acked: list[int] = []
        self.renewed: list[str] = []

    def open(self) -> None:
        """There is no broker."""

    def misc(self) -> None:
        """Nothing is due."""

    def take(self) -> list[Report]:
        arrived, self.arrives = self.arrives, []
        return arrived

    def message(self, topic: str, payload: bytes, token: int = 0) -> None:
        self.heard += bool(token)
        self.arrives.append(Messages([(topic, payload, token, 0)]))

    def renew(self, why: str) -> None:
        self.renewed.append(why)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        self.published.append((topic, payload))
        return len(self.published)

    def ack(self, tokens: Iterable[int]) -> None:
        self.acked += [token for token in tokens if token]

    def sent(self, topic: str) -> list[bytes]:
        """The payloads that left on a topic."""
        return [payload for name, payload in self.published if name == topic]


class FillingSpool(Spool):
    """A real spool. full: its disk has no room."""

    full = False

    def commit(self, commit: Commit) -> None:
        if self.full:
            raise PortError(f"the spool {self.path} cannot commit: database or disk is full")
        super().commit(commit)


@contextmanager
def without_brokers(clock: SystemClock, connection: Callable[[str], Connection]) -> Iterator[None]:
    """What `build` and a lander make in this block has this clock and connections of this kind, by client id."""

    def made(link: Link, **_: object) -> Connection:
        return connection(link.client_id)

    with ExitStack() as stack:
        for module, name in ((build, "JudgedClock"), (lander, "SystemClock")):
            stack.enter_context(mock.patch.object(module, "Connection", made))
            stack.enter_context(mock.patch.object(module, name, return_value=clock))
        yield


def parts(machine: Node, folder: Path, parent: str, role: str = "gateway") -> tuple[RuntimeParts, FillingSpool]:
    """A node's process, ready to run, and its spool, open."""
    name = machine.settings.node
    spool = FillingSpool(folder / "spool.db", name, frames.encode)
    spool.open()
    status = NodeStatus(name, role, parent, "0")
    quarantine = QuarantineFile(folder / "quarantine.jsonl")
    made = RuntimeParts(machine, spool, ScriptedClock(), Waiter(), ScriptedConnection(name), status, quarantine)
    return made, spool
