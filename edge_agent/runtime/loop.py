"""The one place that waits: an event comes in, the machine decides, the rim performs. Start reading here.

A node is one thread. `turn` sleeps until a connection is ready, a sensor has something or the machine wants to be
woken; turns what came into events; hands each to the machine with the time; performs what it asks for, in its order.
What a role hears beyond its way up stands in runtime/gateway.py and runtime/region.py.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from edge_agent import packages
from edge_agent.algebra.query.query import Query
from edge_agent.config import topics
from edge_agent.errors import WireError
from edge_agent.machines.events import (
    Command,
    Event,
    Failed,
    LinkDown,
    LinkUp,
    Note,
    Quarantine,
    Receipted,
    Stop,
    Tick,
)
from edge_agent.ports.link import Confirmed, Down, Messages, Subscribed, Taken, Up
from edge_agent.ports.mqtt import Connection
from edge_agent.ports.packets import Message, RefusedPublish
from edge_agent.runtime.action_executor import ActionExecutor, RuntimeParts, tell
from edge_agent.runtime.fleet_commands import FleetCommands
from edge_agent.runtime.status_and_commands import OperatorCommand, asked
from edge_agent.wire import receipts

log = logging.getLogger("headwater")

COMMANDS: Final = "rebirth resend reload diagnose"
LONGEST_S: Final = 1.0  # the longest sleep: the machine is asked at least so often
STUCK_S: Final = 0.1  # while a commit waits for its disk, the machine wants it at once, in vain
TELL_EVERY_US: Final = 500_000  # asking hundreds of sensors for notes costs more than serving them
ANSWER_EXPIRY_S: Final = 300  # an answer nobody fetched in five minutes is of no use
REFUSED_CODE: Final = 0x80
MOST_FAILING: Final = 20  # functions that the status names: the latest, in a few kilobytes


class Loop:
    """One node as a process: the machine, its spool, its way up, and its operator."""

    def __init__(self, outfit: RuntimeParts) -> None:
        self.machine, self.spool, self.clock = outfit.machine, outfit.spool, outfit.clock
        self.waiter, self.up, self.persona, self.keep = outfit.waiter, outfit.up, outfit.persona, outfit.keep
        self.connections = [outfit.up]
        self.stopping = False
        self._node = outfit.persona.node
        self.performer = ActionExecutor(outfit, self._slots, self._acknowledge)
        self._events: deque[Event] = deque()
        self._parsed: dict[str, topics.Topic | None] = {}
        self._said_status = b""
        self._told_us = 0
        self.fleet = FleetCommands()
        outfit.up.subscribe(dict.fromkeys(self._filters(), 1))

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop`, or until `until` says so; then commit, say goodbye and let go.

        Raises: ProtocolError for our own bugs.
        """
        try:
            self.start()
            while not (self.stopping or (until is not None and until())):
                self.turn()
            self._finish()
        finally:
            self.close()

    def start(self) -> None:
        """Begin: connections dial, the machine is told what is in force."""
        for connection in self.connections:
            connection.open()

    def stop(self) -> None:
        """End after this turn; may be called from a signal handler."""
        self.stopping = True
        self.waiter.wake()

    def turn(self, longest_s: float = LONGEST_S) -> None:
        """Wait for something to happen, at most that long, and deal with it."""
        now_us = self.clock.now_us()
        due_s = (min(self._wake_us(), self.machine.wake_us) - now_us) / 1e6
        least_s = STUCK_S if self.performer.stuck else 0.0
        self.waiter.wait(self.connections, min(longest_s, max(least_s, due_s)))
        now_us = self.clock.now_us()
        if step_us := self.clock.step_us():
            log.warning("clock.stepped", extra={"by_s": step_us / 1e6})
        self._events.extend(self.performer.retry(now_us))
        for connection in self.connections:
            self._hear(connection, now_us)
        for event in self._gathered(now_us):
            self.feed(event, now_us)
        self.feed(Tick(), now_us)
        self._settle(now_us)
        if now_us >= self._told_us + TELL_EVERY_US or now_us < self._told_us:
            self._told_us = now_us
            for note in self._notes():
                tell(note)
            self._tell_failures(now_us)

    def feed(self, event: Event, now_us: int) -> None:
        """Give an event to the machine, perform what it asks for, and so on until all is quiet."""
        self._events.append(event)
        while self._events:
            for action in self.machine.handle(self._events.popleft(), now_us):
                self._events.extend(self.performer.perform(action, now_us))

    def _tell_failures(self, now_us: int) -> None:
        """Report new failures of packages' functions: in the log, in the status and to the root."""
        for failure in packages.news():
            queries = packages.users(failure.name, self._queries())
            tell(Note("package.failed", {"what": failure.text, "queries": " ".join(queries), "hint": failure.hint}))
            entry = {
                "function": failure.name,
                "package": failure.package,
                "step": failure.step,
                "why": failure.why,
                "off": failure.off,
                "queries": queries,
            }
            self.persona.failing = (*self.persona.failing, entry)[-MOST_FAILING:]
            self.feed(Failed(failure.text + (f"; queries {', '.join(queries)}" if queries else "")), now_us)
            self.say_status(now_us)

    def _finish(self) -> None:
        now_us = self.clock.now_us()
        for event in self._gathered(now_us):
            self.feed(event, now_us)
        self.feed(Stop(), now_us)
        for note in self._notes():
            tell(note)
        self.up.publish(topics.status(self._node), self.persona.offline(), retain=True)

    def close(self) -> None:
        """Let go of everything."""
        for connection in self.connections:
            connection.close()
        self.spool.close()
        self.waiter.close()

    # --- what a role adds ------------------------------------------------------------------------------------------

    def _filters(self) -> tuple[str, ...]:
        """What to hear on the way up."""
        return (topics.ack(self._node), topics.commands(self._node), topics.commands_to_all())

    def _wake_us(self) -> int:
        """When the role wants to be woken, as wall time."""
        return self.clock.now_us() + int(LONGEST_S * 1e6)

    def _gathered(self, now_us: int) -> Iterator[Event]:
        """Events that the role has gathered besides messages."""
        return iter(())

    def _other(self, connection: Connection, topic: topics.Topic, name: str, payload: bytes, now_us: int) -> None:
        """A message that only this role understands."""

    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        """A connection came."""

    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        """A connection went, or could not be made."""

    def _confirmed(self, connection: Connection, tokens: tuple[int, ...]) -> None:
        """A broker has read these acknowledgements."""

    def _settle(self, now_us: int) -> None:
        """After all events of a turn."""

    def _queries(self) -> Iterable[Query]:
        """Those in force here; a region knows none."""
        return ()

    def _slots(self) -> dict[str, object]:
        """State of the rim itself, to be committed with the machine's; None deletes."""
        return {}

    def _acknowledge(self, tokens: tuple[object, ...]) -> None:
        """Messages with these tokens are durable."""

    def _notes(self) -> list[Note]:
        """What the ports want an operator to read."""
        notes, self.spool.notes = self.spool.notes, []
        return notes

    def counters(self) -> dict[str, object]:
        """Numbers for `diagnose`."""
        return {
            "spool": {"frames": self.spool.frames, "bytes": self.spool.bytes},
            "traffic": {"in_bytes": self.up.in_bytes, "out_bytes": self.up.out_bytes},
            "quarantined": self.keep.count,
        }

    def reload(self) -> dict[str, object]:
        """Read the local file again; the answer says what came of it."""
        return {"ok": False, "why": "this role has no definitions of its own: restart it for other settings"}

    # --- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, connection: Connection, now_us: int) -> None:
        for report in connection.take():
            match report:
                case Messages(messages):
                    self._messages(connection, messages, now_us)
                case Taken():
                    for event in self.performer.taken(report):
                        self.feed(event, now_us)
                case Up():
                    log.info("link.up", extra={"broker": connection.link.url, "session": report.session_present})
                    self._on_up(connection, report, now_us)
                    if connection is self.up:
                        self.say_status(now_us, always=True)
                        self.feed(LinkUp(), now_us)
                case Down():
                    log.warning(
                        "link.down",
                        extra={"broker": connection.link.url, "why": report.why, "retry_s": round(report.retry_s, 1)},
                    )
                    self._on_down(connection, report, now_us)
                    if connection is self.up:
                        self.performer.void()
                        self.up.link = replace(self.up.link, will=self.persona.will())
                        if report.was_up:
                            self.feed(LinkDown(), now_us)
                case Confirmed(tokens):
                    self._confirmed(connection, tokens)
                case Subscribed():
                    for name, code in report.results:
                        if code >= REFUSED_CODE:
                            log.error("subscription.refused", extra={"broker": connection.link.url, "topic": name})
                case RefusedPublish():
                    log.warning(
                        "message.refused",
                        extra={"topic": report.topic, "why": report.why, "size_bytes": report.size_bytes},
                    )

    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        tokens = [message[2] for message in messages]
        if connection.link.manual_ack:
            connection.ack(tokens)  # nothing here has to wait for a commit
        for name, payload, _, _ in messages:
            self._message(connection, name, payload, now_us)

    def _message(self, connection: Connection, name: str, payload: bytes, now_us: int) -> None:
        if name not in self._parsed:
            if len(self._parsed) > 4096:
                self._parsed.clear()
            self._parsed[name] = topics.parse(name)
        topic = self._parsed[name]
        if topic is None:
            log.warning("topic.foreign", extra={"topic": name, "size_bytes": len(payload)})
        elif topic.what == "ack" and topic.node == self._node and connection is self.up:
            try:
                self.feed(Receipted(receipts.decode(payload)), now_us)
            except WireError as err:
                self.performer.perform(Quarantine(self.persona.parent, f"receipt: {err}", payload), now_us)
        elif topic.what == "cmd" and topic.node == self._node and connection is self.up:
            self._command(asked(payload), now_us)
        elif topic.what == "cmd" and topic.scope == topics.ALL:
            if connection is self.up:
                self._command_to_all(payload, now_us)
        else:
            self._other(connection, topic, name, payload, now_us)

    def _command_to_all(self, payload: bytes, now_us: int) -> None:
        """Obey it once, pass it on where others are below; answer what is no such command."""
        command = asked(payload)
        refusal = self.fleet.refusal(command)
        if command.named and not self.fleet.is_new(command):
            return
        if refusal is not None:
            self._answer(command, refusal)
            return
        self._pass_on(payload, now_us)
        if self.fleet.concerns(command, self._node):
            self._obey_with_all(command, now_us)

    def _pass_on(self, payload: bytes, now_us: int) -> None:
        """Nobody is below a gateway."""

    def _obey_with_all(self, command: OperatorCommand, now_us: int) -> None:
        """As a command to this node."""
        self._command(command, now_us)

    def _command(self, command: OperatorCommand, now_us: int) -> None:
        """Do what the operator asks, and answer."""
        log.log(
            logging.DEBUG if command.name == "diagnose" else logging.INFO,
            "command",
            extra={"command": command.name, "id": command.id},
        )
        match command.name:
            case "rebirth" | "resend":
                self.feed(Command(command.name), now_us)
                said: dict[str, object] = {"ok": True}
            case "reload":
                said = self.reload()
            case "diagnose":
                said = {"ok": True, **self.persona.card(self.machine, self.clock), **self.counters()}
            case _:
                said = self._other_command(command, now_us)
        self._answer(command, said)

    def _answer(self, command: OperatorCommand, said: Mapping[str, object]) -> None:
        self.up.publish(
            topics.answer(self._node, command.id),
            self.persona.answer(command, said),
            expiry_s=ANSWER_EXPIRY_S,
        )

    def _other_command(self, command: OperatorCommand, now_us: int) -> dict[str, object]:
        """A command that not every node has: what to answer."""
        del now_us
        return {"ok": False, "why": f"no such command: {command.name}", "hint": COMMANDS}

    def say_status(self, now_us: int, *, always: bool = False) -> None:
        """Publish the retained status if it differs from the last one said."""
        status = self.persona.online(self.machine, self.clock)
        if (always or status != self._said_status) and self.up.publish(
            topics.status(self._node), status, retain=True
        ) is not None:
            self._said_status = status
