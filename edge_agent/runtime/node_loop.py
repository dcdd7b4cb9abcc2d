"""The loop of gateways and regions: the machine, its spool, connections to parents, commands of the operator."""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final

from edge_agent import packages
from edge_agent.algebra.frame import ParentTime
from edge_agent.algebra.query.query import Query
from edge_agent.config import topics
from edge_agent.errors import PortError, WireError
from edge_agent.machines.events import (
    AcceptLoss,
    Action,
    ClockChanged,
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
from edge_agent.machines.node_clock import ClockState
from edge_agent.ports.clock import JudgedClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Taken, Up
from edge_agent.ports.mqtt.packets import RETAIN, Message
from edge_agent.ports.service_manager import parent_answers
from edge_agent.runtime.action_executor import ActionExecutor, RuntimeParts, log_note
from edge_agent.runtime.fleet_commands import REPEATED, FleetCommands, misspelt_parent, no_such_command
from edge_agent.runtime.loop import LONGEST_S, Loop
from edge_agent.runtime.status_and_commands import BooksTimes, OperatorCommand, parse_command, publish_fitting
from edge_agent.wire import receipts

log = logging.getLogger("headwater")

COMMANDS: Final = "rebirth resend reload diagnose accept-loss"
STUCK_S: Final = 0.1  # least sleep while a commit fails, because the machine then asks for a turn at once
NOTES_EVERY_US: Final = 500_000  # collecting notes of hundreds of sensors in each turn would cost too much
ANSWER_EXPIRY_S: Final = 300  # the broker drops an answer that nobody has fetched in this time
DOUBT_EVERY_US: Final = 5_000_000  # frames in doubt for a shorter time are not shown
REFUSED_EVERY_US: Final = 10_000_000  # so that a flood of bad messages does not cause a flood of statuses
MOST_FAILING: Final = 20  # functions in the status, the latest: a few kilobytes


class NodeLoop(Loop[Event, Action], ABC):
    """One node as a process: the machine, its spool, its connections to parents, and its operator."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts.machine, parts.clock, parts.waiter, parts.up)
        self.machine, self.spool = parts.machine, parts.spool
        self.status, self.quarantine = parts.status, parts.quarantine
        self._node = parts.status.node
        self.executor = ActionExecutor(parts, self._slots, self._acknowledge, self._is_news)
        self._default = parts.up
        self.ways = tuple(dict.fromkeys((parts.up, *parts.others.values())))  # to present and former parents
        self.connections = [*self.ways]
        self.status.parent = parts.machine.outbox.parent or parts.status.parent
        self.up = self._way()  # to the present parent: its broker alone sends commands and definitions
        self._topics = topics.TopicCache()
        self._sent_status = b""
        self._alarms: Mapping[str, str] = {}
        self._noted_us = 0
        self._books = BooksTimes()
        self._shown_us = self._refused_shown = 0  # time and count of the refusals last shown in the status
        self.fleet = FleetCommands()
        self._answered = False  # the parent has answered this process
        self._doubt_shown_us = 0  # when frames in doubt were last checked for the status
        self._parents_time: tuple[ParentTime, int] | None = None  # an answer and its arrival, us since boot
        for way in self.ways:
            way.subscribe({topics.ack(self._node): 1})
        self.up.subscribe(dict.fromkeys(self._filters(), 1))

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._report_clock()
        super().start()

    def _look(self) -> None:
        """Judge the clock once per turn. An answer of the parent takes effect in the turn after its arrival."""
        if isinstance(self.clock, JudgedClock):
            answer, self._parents_time = self._parents_time, None
            if answer is not None:
                self._judged(self.clock, self.clock.judge.answered(*answer))
            self._judged(self.clock, self.clock.judge.look(self.clock.reading()))

    def _judged(self, clock: JudgedClock, state: ClockState) -> None:
        """Use a new state of the clock, after passing on readings that arrived before it (docs/protocol.md 4.3)."""
        if state == clock.state:
            return
        now_us = clock.now_us()
        for event in self._gathered_so_far(now_us):
            self.feed(event, now_us)
        known = {"source": state.source or "none", "error_s": state.error_us / 1e6}
        log.warning("clock.known" if state.known else "clock.unknown", extra=known)
        self._report_clock(clock.use(state))
        self.publish_status(clock.now_us())

    def _report_clock(self, by_us: int = 0) -> None:
        """Pass the state of the clock to the machine, if it has changed."""
        if not isinstance(self.clock, JudgedClock):
            return
        judge, state = self.clock.judge, self.clock.state
        wrong, judge.wrong = judge.wrong, None
        changed = ClockChanged(state.known, self.clock.boot_id, state.offset_us, by_us, wrong, state.error_us)
        if changed != self.machine.clock:
            self.feed(changed, self.clock.now_us())

    def _ask_for_time(self, now_us: int) -> None:
        """Ask the parent for its time in the retained status; the answer comes with a receipt."""
        clock = self.clock
        if isinstance(clock, JudgedClock) and self.up.up and clock.judge.asks(clock.boot_us()):
            self.status.asked_us = clock.boot_us()
            self.publish_status(now_us)

    def _gathered_so_far(self, now_us: int) -> Iterable[Event]:
        """Readings that arrived before the clock changed."""
        return ()

    def _pause_s(self, now_us: int) -> float:
        if self._parents_time is not None:
            return 0.0
        due_s = (min(self._wake_us(), self.machine.wake_us) - now_us) / 1e6
        return max(STUCK_S if self.executor.stuck else 0.0, due_s)

    def _perform(self, action: Action, now_us: int) -> list[Event]:
        return self.executor.perform(action, now_us)

    def _retry(self, now_us: int) -> list[Event]:
        return self.executor.retry(now_us)

    def _gathered(self, now_us: int) -> Iterator[Event]:
        yield from self._readings(now_us)
        yield Tick()

    def _settle(self, now_us: int) -> None:
        self._follow(now_us)
        self._publish(now_us)
        self._ask_for_time(now_us)
        if now_us >= self._noted_us + NOTES_EVERY_US or now_us < self._noted_us:
            self._noted_us = now_us
            for note in self._notes():
                log_note(note)
            self._report_failures(now_us)
        if self.machine.alarms != self._alarms:
            self._alarms = self.machine.alarms
            self.publish_status(now_us)
        if self.refusals.total != self._refused_shown and (
            now_us >= self._shown_us + REFUSED_EVERY_US or now_us < self._shown_us
        ):
            self._shown_us, self._refused_shown = now_us, self.refusals.total
            self.status.refused = self.refusals.plain()
            self.publish_status(now_us)
        if now_us >= self._doubt_shown_us + DOUBT_EVERY_US or now_us < self._doubt_shown_us:
            self._doubt_shown_us = now_us
            self._report_doubt(now_us)
        if self.up.up and self._books.look(now_us):
            self._publish_books(now_us)

    def _report_doubt(self, now_us: int) -> None:
        """Show frames that wait for a former parent in the status, unless the node has only just left it (1.5)."""
        lines = self.machine.outbox.former_lines
        found = {
            parent: {"frames": frames, "since_us": lines.lines[parent].left_us}
            for parent, frames in lines.waiting().items()
            if not 0 <= now_us - lines.lines[parent].left_us < DOUBT_EVERY_US
        }
        if found != self.status.in_doubt:
            self.status.in_doubt = found
            self.publish_status(now_us)

    def _publish_books(self, now_us: int, *, final: bool = False) -> None:
        """Publish the retained books if that is due, or if they are final."""
        book = self.book()
        if (final or self._books.due(book, now_us)) and self.up.up:
            self._books.published(book, now_us)
            try:
                self.up.publish(topics.books(self._node), self.status.books(book, now_us, final=final), retain=True)
            except PortError as err:  # too large for the broker, with thousands of children
                log.warning("books.not_published", extra={"why": str(err)})

    def _report_failures(self, now_us: int) -> None:
        """Report new failures of functions of packages: in the log, in the status and to the root."""
        for failure in packages.news():
            queries = packages.users(failure.name, self._queries())
            log_note(Note("package.failed", {"what": failure.text, "queries": " ".join(queries), "hint": failure.hint}))
            entry = {
                "function": failure.name,
                "package": failure.package,
                "step": failure.step,
                "why": failure.why,
                "off": failure.off,
                "queries": queries,
            }
            self.status.failing = (*self.status.failing, entry)[-MOST_FAILING:]
            self.feed(Failed(failure.text + (f"; queries {', '.join(queries)}" if queries else "")), now_us)
            self.publish_status(now_us)

    def _finish(self, now_us: int) -> None:
        for event in self._readings(now_us):
            self.feed(event, now_us)
        self.book()  # updates counts of the process, for the last commit
        self.feed(Stop(), now_us)
        self._publish_books(now_us, final=True)
        for note in self._notes():
            log_note(note)
        for way in self.ways:
            way.publish(topics.status(self._node), self.status.offline(), retain=True)

    def close(self) -> None:
        super().close()
        self.spool.close()

    # --- what a role adds ------------------------------------------------------------------------------------------

    def _filters(self) -> tuple[str, ...]:
        """The topic filters to subscribe to at the parent's broker."""
        return (topics.ack(self._node), topics.commands(self._node), topics.commands_to_all())

    def _filters_below(self, connection: Connection) -> tuple[str, ...]:
        """The topic filters for messages of children on a connection; a gateway has no children."""
        return ()

    def _wake_us(self) -> int:
        """The time of the clock at which the role needs a turn."""
        return self.clock.now_us() + int(LONGEST_S * 1e6)

    def _readings(self, now_us: int) -> Iterator[Event]:
        return iter(())

    def _other(self, connection: Connection, topic: topics.Topic, name: str, payload: bytes, now_us: int) -> None:
        """Handle a message that only this role understands."""

    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        self.status.note_limit(connection)
        if connection is self.up:
            self.publish_status(now_us, always=True)
        elif connection in self.ways:
            self._stand_by(connection)
        for parent in self._parents_at(connection):
            self.feed(LinkUp(parent), now_us)

    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        self.status.note_limit(connection, report.why)
        if connection in self.ways:
            self.executor.void(connection)
            connection.link = replace(connection.link, will=self.status.will())
        for parent in self._parents_at(connection) if report.was_up else ():
            self.feed(LinkDown(parent), now_us)

    def _taken(self, connection: Connection, report: Taken, now_us: int) -> None:
        for event in self.executor.taken(report, connection):
            self.feed(event, now_us)

    # --- parents on several brokers (docs/protocol.md 1.5) ---------------------------------------------------------

    def _way(self) -> Connection:
        """The connection to the current parent; the default one if the node is about to leave that parent."""
        parent = self.machine.outbox.parent
        return self.executor.connection(parent) if parent in self.machine.settings.parents else self._default

    def _parents_at(self, connection: Connection) -> tuple[str, ...]:
        """The present and former parents that a connection reaches, as in events: '' if all share one connection."""
        if connection not in self.ways:
            return ()
        if len(self.ways) == 1:
            return ("",)
        outbox = self.machine.outbox
        names = dict.fromkeys((outbox.parent, *outbox.former_lines.lines))
        return tuple(name for name in names if self.executor.connection(name) is connection)

    def _follow(self, now_us: int) -> None:
        """After a change of parent, publish it, and receive commands and definitions only at its broker."""
        parent = self.machine.outbox.parent or self.status.parent
        if parent == self.status.parent:
            return
        self.status.parent = parent
        before, self.up = self.up, self._way()
        if self.up is not before:
            kept = {topics.ack(self._node), *self._filters_below(before)}
            before.unsubscribe([name for name in self._filters() if name not in kept])
            self.up.subscribe(dict.fromkeys(self._filters(), 1))
            self._stand_by(before)
            if self.up.up:
                self._at_another_broker(now_us)
        if len(self.ways) > 1:
            reached = self.executor.connection(parent).up
            self.feed(LinkUp(parent) if reached else LinkDown(parent), now_us)
        self.publish_status(now_us, always=True)

    def _stand_by(self, connection: Connection) -> None:
        """Publish the status at the broker of another parent, and delete state and books there."""
        self._publish_status_at(connection, self.status.online(self.machine, self.clock))
        connection.publish(topics.state(self._node), b"", retain=True)
        connection.publish(topics.books(self._node), b"", retain=True)

    def _at_another_broker(self, now_us: int) -> None:
        """Handle a change of `up` to another connection, which is connected."""

    def _publish(self, now_us: int) -> None:
        """Publish the messages that are due, after all events of a turn."""

    def _queries(self) -> Iterable[Query]:
        """The queries in force here; none at a region."""
        return ()

    def _slots(self) -> dict[str, object]:
        """The slots of the process itself, to commit with those of the machine; None deletes a slot."""
        return {}

    def _acknowledge(self, tokens: tuple[object, ...]) -> None:
        """Acknowledge messages with these tokens: they are durable."""

    def _notes(self) -> list[Note]:
        """Notes of the ports for the operator."""
        notes, self.spool.notes = self.spool.notes, []
        return notes

    def counters(self) -> dict[str, object]:
        return {
            "spool": {"frames": self.spool.frames, "bytes": self.spool.bytes},
            "traffic": {
                "in_bytes": sum(way.in_bytes for way in self.ways),
                "out_bytes": sum(way.out_bytes for way in self.ways),
            },
            "quarantined": self.quarantine.count,
            **({"refused": self.refusals.plain()} if self.refusals.total else {}),
            **({"began_again": self.guard.restarts} if self.guard is not None and self.guard.restarts else {}),
        }

    def book(self) -> dict[str, object]:
        """The counts of readings (docs/protocol.md 9.1), the frontier and the spool of the node, as plain values."""
        frontier_us, why = self._standing(self.clock.now_us())
        if not why and not self.clock.synced:
            why = "its clock is not synchronised"
        spool = {"frames": self.spool.frames, "bytes": self.spool.bytes}
        return {**self.machine.book(), "frontier_us": frontier_us, "why": why, "spool": spool}

    def _is_news(self, reason: str, example: str) -> bool:
        """Count a refusal. Returns whether to log it."""
        return self.refusals.add(reason, example)

    def _standing(self, now_us: int) -> tuple[int | None, str]:
        """(least frontier, reason why the node is behind). None before the first promise; '' if not behind."""
        del now_us
        return None, ""

    def reload(self) -> dict[str, object]:
        """Read the definitions of the local file again. Returns the answer to the operator."""
        return {"ok": False, "why": "this role has no definitions of its own: restart it to change settings"}

    # --- messages --------------------------------------------------------------------------------------------------

    def _lacks(self, connection: Connection) -> bool:
        return connection is self.up and self.machine.outbox.owed

    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        for name, payload, _, flags in messages:
            self.handling = (name, payload)
            self._message(connection, name, payload, now_us, flags)
        if connection.link.manual_ack:
            connection.ack([message[2] for message in messages])  # none of these has to wait for a commit

    def _make_durable(self, now_us: int) -> None:
        for event in self._gathered_so_far(now_us):
            self.feed(event, now_us)
        self._settle(now_us)
        self.feed(Stop(), now_us)  # causes a commit

    def _message(self, connection: Connection, name: str, payload: bytes, now_us: int, flags: int = 0) -> None:
        topic = self._topics.parse(name)
        if topic is None:
            if self.refusals.add("not a topic of headwater", name):
                log.warning("topic.foreign", extra={"topic": name, "size_bytes": len(payload)})
        elif topic.what == "ack" and topic.node == self._node and connection in self.ways:
            try:
                self.feed(Receipted(receipts.decode(payload)), now_us)
                self._report_answered()
                answer = receipts.time_in(payload)
                if answer is not None and isinstance(self.clock, JudgedClock):
                    self._parents_time = answer, self.clock.boot_us()
            except WireError as err:
                self.executor.perform(Quarantine(self.status.parent, f"receipt: {err}", payload), now_us)
        elif topic.what == "cmd" and (not payload or flags & RETAIN):  # it would be executed again at each connection
            if payload and self.refusals.add("a retained command: publish it without retain", name):
                log.warning("command.retained", extra={"topic": name})
        elif topic.what == "cmd" and topic.node == self._node and connection is self.up:
            command = parse_command(payload)
            if not self.fleet.begins(command):
                self._answer(command, REPEATED)
            elif not self._command(command, now_us):
                self.fleet.failed(command)
        elif topic.what == "cmd" and topic.scope == topics.ALL:
            if connection is self.up:
                self._command_to_all(payload, now_us)
        else:
            self._other(connection, topic, name, payload, now_us)

    def _report_answered(self) -> None:
        """Report to systemd, once, that the parent has answered."""
        if not self._answered:
            self._answered = True
            self._systemd.status(parent_answers(self.status.version))

    def _command_to_all(self, payload: bytes, now_us: int) -> None:
        """Execute a command to all nodes once and pass it on to children; refuse any other payload."""
        command = parse_command(payload)
        refusal = self.fleet.refusal(command)
        if command.named and not self.fleet.is_new(command):
            return
        if refusal is not None:
            self.fleet.failed(command)
            self._answer(command, refusal)
            return
        self._pass_on(payload, now_us)
        if self.fleet.concerns(command, self._node) and not self._obey_with_all(command, now_us):
            self.fleet.failed(command)

    def _pass_on(self, payload: bytes, now_us: int) -> None:
        """Pass a command on to children. A gateway has none."""

    def _obey_with_all(self, command: OperatorCommand, now_us: int) -> bool:
        """Execute a command to all nodes like a command to this node."""
        return self._command(command, now_us)

    def _command(self, command: OperatorCommand, now_us: int) -> bool:
        """Execute an operator's command and publish the answer. Returns whether it could be executed."""
        level = logging.DEBUG if command.name == "diagnose" else logging.INFO
        log.log(level, "command", extra={"command": command.name, "id": command.id})
        match command.name:
            case "rebirth" | "resend":
                self.feed(Command(command.name), now_us)
                answer: dict[str, object] = {"ok": True}
            case "accept-loss":
                answer = self._accept_loss(command, now_us)
            case "reload":
                answer = self.reload()
            case "diagnose":
                card = self.status.card(self.machine, self.clock)
                answer = {"ok": True, **card, **self.counters(), "books": self.book()}
            case _:
                answer = self._other_command(command, now_us)
        self._answer(command, answer)
        return answer["ok"] is True

    def _accept_loss(self, command: OperatorCommand, now_us: int) -> dict[str, object]:
        """Give up the frames that wait for a former parent, or for all of them if no parent is named (1.5)."""
        parent = command.fields.get("parent", "")
        if why := misspelt_parent(command):
            return {"ok": False, "why": why}
        if self.executor.stuck:
            return {"ok": False, "why": "the disk accepts no commit, so no frame can be given up: free some space"}
        waiting = self.machine.outbox.former_lines.waiting()
        if not waiting:
            return {"ok": False, "why": "no frame waits for a former parent: nothing to give up"}
        if not isinstance(parent, str) or (parent and parent not in waiting):
            why = f"no frame waits for {str(parent)[:64]}; frames wait for {', '.join(sorted(waiting))}"
            return {"ok": False, "why": why}
        self.feed(AcceptLoss(parent), now_us)
        self._report_doubt(now_us)
        return {"ok": True, "given_up": [asdict(each) for each in self.machine.given_up]}

    def _answer(self, command: OperatorCommand, answer: Mapping[str, object]) -> None:
        topic = topics.answer(self._node, command.id)
        try:
            self.up.publish(topic, self.status.answer(command, answer), expiry_s=ANSWER_EXPIRY_S)
        except PortError as err:  # too large for the broker
            log.warning("answer.not_published", extra={"why": str(err)})
            with suppress(PortError):
                short = self.status.answer(command, {"ok": False, "why": str(err)})
                self.up.publish(topic, short, expiry_s=ANSWER_EXPIRY_S)

    def _other_command(self, command: OperatorCommand, now_us: int) -> dict[str, object]:
        """Execute a command of this role only. Returns the answer."""
        del now_us
        return {"ok": False, "why": no_such_command(command), "hint": COMMANDS}

    def publish_status(self, now_us: int, *, always: bool = False) -> None:
        """Publish the retained status if it differs from the last one sent. always: the books follow, too."""
        self._books = BooksTimes() if always else self._books
        status = self.status.online(self.machine, self.clock)
        if (always or status != self._sent_status) and self._publish_status_at(self.up, status):
            self._sent_status = status

    def _publish_status_at(self, connection: Connection, status: bytes) -> bool:
        """Publish the status, or a shorter one. Returns False if not connected."""
        topic, machine, clock = topics.status(self._node), self.machine, self.clock
        return publish_fitting(connection, topic, status, lambda: self.status.online(machine, clock, short=True))
