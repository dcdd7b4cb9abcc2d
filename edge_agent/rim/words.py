"""What a node says of itself and understands of an operator: status, answers, commands. JSON, for people and tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edge_agent.config import topics
from edge_agent.machines.node import Node
from edge_agent.ports import Clock
from edge_agent.ports.link import Will

COMMAND_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
MOST_WORDS: Final = 1024  # bytes of a command


@dataclass(frozen=True, slots=True)
class Asked:
    """A command: its name, and the id under which it is answered."""

    name: str
    id: str


def asked(payload: bytes) -> Asked:
    """Read a command: a bare word (`diagnose`), or {"cmd": "diagnose", "id": "x1"}."""
    text = payload[:MOST_WORDS].decode("utf-8", "replace").strip()
    name, given = text, ""
    if text.startswith("{"):
        try:
            table = json.loads(text)
        except ValueError:
            table = {}
        name, given = str(table.get("cmd", "")), str(table.get("id", ""))
    name = name[:64]
    fallback = name if COMMAND_ID.fullmatch(name) else "unknown"
    return Asked(name, given if COMMAND_ID.fullmatch(given) else fallback)


@dataclass(slots=True)
class Persona:
    """Who a process is. config: hash of the definitions in force. sensors: their ids."""

    node: str
    role: str
    parent: str
    version: str
    config: str = ""
    sensors: tuple[str, ...] = ()

    def card(self, machine: Node, clock: Clock) -> dict[str, object]:
        """What status and `diagnose` say."""
        return {
            "role": self.role,
            "parent": self.parent,
            "version": self.version,
            "epoch": f"{machine.outbox.epoch:08x}",
            "config": self.config,
            "sensors": list(self.sensors),
            "clock": {"synced": clock.synced},
        }

    def online(self, machine: Node, clock: Clock) -> bytes:
        """The retained status of a node that is there."""
        return _text({"online": True, **self.card(machine, clock)})

    def offline(self) -> bytes:
        """The retained status of a node that went, and its last will."""
        said = {"role": self.role, "parent": self.parent, "version": self.version, "config": self.config}
        return _text({"online": False, **said})

    def will(self) -> Will:
        """What the broker says when the connection dies."""
        return Will(topics.status(self.node), self.offline())

    def answer(self, command: Asked, said: Mapping[str, object]) -> bytes:
        """The answer to a command."""
        return _text({"cmd": command.name, "id": command.id, **said})


def _text(table: Mapping[str, object]) -> bytes:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
