"""Performs the actions of a machine: commits, publishes, acknowledges, quarantines bad bytes, logs notes.

The results of actions are events for the machine. While a commit fails (a full disk), later actions wait, because
nothing is sent before its commit (docs/protocol.md 3.1). Frames of earlier commits are still published, and receipted
frames are deleted (`Relieve`) until there is room for the commit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from edge_agent.algebra.frame import Frame, ParentTime
from edge_agent.config import topics
from edge_agent.errors import PortError
from edge_agent.log import PLAIN
from edge_agent.machines.events import (
    Ack,
    Action,
    Beat,
    Commit,
    Committed,
    Damaged,
    Event,
    Note,
    Publish,
    Quarantine,
    Refused,
    Relieve,
    Relieved,
    SendReceipt,
    Sent,
)
from edge_agent.machines.node import Node
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Taken
from edge_agent.ports.spool import DamagedError, MalformedError, Spool
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.quarantine import QuarantineFile
from edge_agent.runtime.status_and_commands import NodeStatus, publish_or_log
from edge_agent.wire import frames, receipts

log = logging.getLogger("headwater")

RETRY_US: Final = 1_000_000  # time until a failed commit (disk full) is tried again
QUIET_NOTES: Final = frozenset(  # logged as information; every other note is a warning
    ("parent.journal", "command.rebirth", "command.resend", "source.ended", "child.new")
)


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """The parts of a process. status: its identity and state. quarantine: the file of bad bytes.

    up: the connection to the parent and to all parents that are not in `others`. others: parent -> its connection.
    """

    machine: Node
    spool: Spool
    clock: SystemClock
    waiter: Waiter
    up: Connection
    status: NodeStatus
    quarantine: QuarantineFile
    others: Mapping[str, Connection] = field(default_factory=dict)


class ActionExecutor:
    """Performs the actions of one node's machine."""

    def __init__(
        self,
        parts: RuntimeParts,
        slots: Callable[[], dict[str, object]],
        acknowledge: Callable[[tuple[object, ...]], None],
        is_news: Callable[[str, str], bool] = lambda reason, node: True,
    ) -> None:
        """slots: returns slots of the process itself, to commit with those of the machine. acknowledge: receives tokens
        of durable messages.

        is_news: counts a quarantined message by (reason, node), and returns whether to log it.
        """
        self.lower = parts.up  # the connection to children; a region may use another broker for them
        self._spool, self._quarantine = parts.spool, parts.quarantine
        self._up, self._others = parts.up, parts.others
        self.time_for: Callable[[str], ParentTime | None] = lambda node: None  # answers a child that asks for the time
        self._status, self._machine = parts.status, parts.machine
        self._slots, self._acknowledge, self._is_news = slots, acknowledge, is_news
        self._flying: dict[tuple[int, int], tuple[int, int]] = {}  # connection, token of a publish -> frame
        self._stuck: tuple[Commit, int] | None = None  # a commit that failed, and when to try it again
        self._held: list[Action] = []  # actions that wait for that commit
        self._unspooled: set[Publish] = set()  # publishes of frames in that commit
        self._relief: Relieve | None = None  # a relief that failed; it is tried again before that commit

    def perform(self, action: Action, now_us: int) -> list[Event]:
        """Perform an action, or let it wait for a commit that failed. Returns the events that follow."""
        if isinstance(action, Relieve):
            self._relief = action
            return self._relieve()
        if self._stuck is not None and not (isinstance(action, Publish) and action not in self._unspooled):
            self._held.append(action)
            return []
        match action:
            case Commit():
                return self._commit(self._whole(action), now_us)
            case Publish(epoch, seq, to):
                return self._publish(epoch, seq, to)
            case Beat(heartbeat, to):
                beat = frames.encode_heartbeat(heartbeat)
                publish_or_log(self.connection(to), self._topic(to), beat, "heartbeat.not_published")
            case SendReceipt(node, receipt):
                answer = receipts.encode(receipt, self.time_for(node))
                publish_or_log(self.lower, topics.ack(node), answer, "receipt.not_published")
            case Ack(tokens):
                self._acknowledge(tokens)
            case Quarantine(node, reason, payload):
                if self._is_news(reason, node):
                    log.warning("quarantined", extra={"node": node, "why": reason, "size_bytes": len(payload)})
                self._quarantine.put(now_us, node, reason, payload)
            case Note():
                log_note(action)
        return []

    def retry(self, now_us: int) -> list[Event]:
        """Try a failed commit again when it is time, then perform the actions that waited."""
        if self._stuck is None or 0 < self._stuck[1] - now_us <= RETRY_US:  # if the clock went back, try now
            return []
        commit = self._stuck[0]
        events = self._relieve()
        if self._relief is not None:  # the commit must not publish what the relief marks as sent
            self._stuck = (commit, now_us + RETRY_US)
            return []
        self._stuck = None
        events += self._commit(commit, now_us)
        held, self._held = self._held, []
        for action in held:
            events += self.perform(action, now_us)
        return events

    @property
    def stuck(self) -> bool:
        """Whether a commit waits for its disk."""
        return self._stuck is not None

    def taken(self, report: Taken, connection: Connection | None = None) -> list[Event]:
        """Handle the broker's answer to a publish. connection: that of the publish; None: `up`."""
        connection = connection or self._up
        if not report.ok:
            log.error("publish.refused", extra={"reason": report.reason, "broker": connection.link.url})
        frame = self._flying.pop((id(connection), report.token), None)
        return [] if frame is None else [Sent(*frame)]

    def void(self, connection: Connection | None = None) -> None:
        """Forget publishes under way on a connection to a parent, because it is lost. None: `up`."""
        lost = id(connection or self._up)
        self._flying = {key: frame for key, frame in self._flying.items() if key[0] != lost}

    def _whole(self, commit: Commit) -> Commit:
        """The commit with the slots of the process, and with hashes in gap records that need one (3.6)."""
        slots = self._slots()
        if slots:
            commit = replace(commit, state={**commit.state, **slots})
        if commit.replace:
            commit = replace(commit, replace=tuple(self._hashed(frame) for frame in commit.replace))
        return commit

    def _hashed(self, frame: Frame) -> Frame:
        if not any(gap.detail == "sha256" for gap in frame.gaps):
            return frame
        digest = hashlib.sha256(self._spool.raw(frame.epoch, frame.seq) or b"").hexdigest()
        gaps = tuple(replace(g, detail=f"sha256 {digest}") if g.detail == "sha256" else g for g in frame.gaps)
        return replace(frame, gaps=gaps)

    def _commit(self, commit: Commit, now_us: int) -> list[Event]:
        try:
            self._spool.commit(commit)
        except MalformedError:
            raise  # ends the loop; the next one begins a new spool (guard.py)
        except PortError as err:
            log.error("commit.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            self._stuck = (commit, now_us + RETRY_US)
            self._unspooled = {Publish(frame.epoch, frame.seq) for frame in (*commit.frames, *commit.replace)}
            return [Refused()]
        return [Committed(self._spool.used_bytes)]

    def _relieve(self) -> list[Event]:
        if self._relief is None:
            return []
        try:
            self._spool.commit(Commit(forget=self._relief.forget, mark_sent=self._relief.mark_sent))
        except MalformedError:
            raise
        except PortError as err:
            log.error("commit.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            return []
        done, self._relief = self._relief, None
        return [Relieved(done.mark_sent)]

    def _topic(self, to: str) -> str:
        """The topic of frames for a parent; '': the current one."""
        return topics.frames(self._status.node, to or self._machine.outbox.parent or self._status.parent)

    def connection(self, to: str) -> Connection:
        """The connection to a parent; '': the current one."""
        return self._others.get(to or self._machine.outbox.parent, self._up)

    def _publish(self, epoch: int, seq: int, to: str) -> list[Event]:
        try:
            connection = self.connection(to)
            token = connection.publish(self._topic(to), self._spool.payload(epoch, seq))
        except DamagedError:
            return [Damaged(epoch, seq)]
        except MalformedError:
            raise
        except PortError as err:  # too large for the broker, or the disk cannot be read: sent again later
            log.error("publish.failed", extra={"why": str(err), "epoch": f"{epoch:08x}", "seq": seq})
            return [Sent(epoch, seq)]
        if token is not None:
            self._flying[id(connection), token] = (epoch, seq)
        return []


def log_note(note: Note) -> None:
    """Write a note of a machine or a port to the log."""
    fields = {str(name): value for name, value in note.fields.items() if name not in PLAIN}
    log.log(logging.INFO if note.name in QUIET_NOTES else logging.WARNING, note.name, extra=fields)
