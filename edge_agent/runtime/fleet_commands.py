"""Commands with an id, to one node or to a whole fleet: a node executes each once, even if it arrives several times.

Several mergers on one broker pass on the same command, QoS 1 repeats messages, and people publish a command again. The
spool stores the id in the same commit as the effects of the command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from edge_agent.config.definitions.definitions import MOST_PATTERNS, fits
from edge_agent.machines.checkpoint.slots import COMMANDS
from edge_agent.runtime.status_and_commands import NO_COMMAND, OperatorCommand, unknown_key

FOR_ALL: Final = ("mark", "reload", "diagnose")  # other commands would make every node send its frames again at once
MOST_IDS: Final = 1_024  # ids remembered; commands are rare, from people or from a plant's system
MOST_PASSED: Final = 64  # commands that wait for the lower broker
PASSED_EXPIRY_S: Final = 60  # a merger drops a command that it cannot pass on within this time
REPEATED: Final[Mapping[str, object]] = MappingProxyType(  # the answer to a command to one node
    {"ok": False, "why": "a command with this id has been executed: it needs an id of its own to be executed again"}
)


class FleetCommands:
    """The commands that have been executed and, at a merger, those that wait to be passed on."""

    def __init__(self, restored: Mapping[str, object] = MappingProxyType({})) -> None:
        """restored: the slots of the spool."""
        self._ids: dict[str, None] = dict.fromkeys(COMMANDS.read(restored) or ())
        self._unsaved = False
        self._waiting: deque[tuple[int, bytes]] = deque(maxlen=MOST_PASSED)

    def refusal(self, command: OperatorCommand) -> dict[str, object] | None:
        """The answer that refuses a command to all nodes; None if it is valid."""
        if not command.name:
            return {"ok": False, "why": NO_COMMAND}
        if not command.named:
            return {
                "ok": False,
                "why": "a command to all nodes needs an id, by which a node recognises a repetition",
            }
        if command.name not in FOR_ALL:
            return {"ok": False, "why": f"{command.name}: not for all nodes at once", "hint": " ".join(FOR_ALL)}
        nodes = command.fields.get("nodes", [])
        if (
            not isinstance(nodes, list)
            or len(nodes) > MOST_PATTERNS
            or not all(isinstance(each, str) for each in nodes)
        ):
            return {"ok": False, "why": 'nodes: wanted a list of patterns, like ["press-*"]'}
        return None

    def is_new(self, command: OperatorCommand) -> bool:
        """Record the id of a command. Returns whether it has not been recorded before."""
        if command.id in self._ids:
            return False
        self._ids[command.id] = None
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]
        self._unsaved = True
        return True

    def begins(self, command: OperatorCommand) -> bool:
        """Whether to execute a command to this node: it has no id, changes nothing, or has not been recorded before."""
        return not command.named or command.name == "diagnose" or self.is_new(command)

    def failed(self, command: OperatorCommand) -> None:
        """Forget the id of a command that had no effect here, so that it can be repeated."""
        if command.named and command.id in self._ids:
            del self._ids[command.id]
            self._unsaved = True

    @staticmethod
    def concerns(command: OperatorCommand, node: str) -> bool:
        """Whether a command that was not refused is for this node."""
        nodes = command.fields.get("nodes", [])
        return fits(tuple(nodes), node) if isinstance(nodes, list) else False

    def wait(self, payload: bytes, now_us: int) -> None:
        self._waiting.append((now_us + PASSED_EXPIRY_S * 1_000_000, payload))

    def passed(self, now_us: int) -> list[bytes]:
        """The payloads to pass on now that the lower broker is connected."""
        waiting, self._waiting = self._waiting, deque(maxlen=MOST_PASSED)
        return [payload for until_us, payload in waiting if now_us < until_us]

    def slots(self) -> dict[str, object]:
        """The slots to commit, if an id is new."""
        if not self._unsaved:
            return {}
        self._unsaved = False
        return COMMANDS.write(list(self._ids))


def no_such_command(command: OperatorCommand) -> str:
    """The error text about a command that no role has."""
    return f"no such command: {command.name}" if command.name else NO_COMMAND


def misspelt_parent(command: OperatorCommand) -> str:
    """The error text about an `accept-loss` that might give up all frames by mistake; '' if it is right."""
    return unknown_key(command, "parent")
