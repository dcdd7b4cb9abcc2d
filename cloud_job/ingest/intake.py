"""Reads landing files: decodes envelopes and heads, leaves rows as bytes, skips messages that were received before.

This runs on the driver, once per message, because the decision needs every head in order. Rows are not decoded here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cloud_job.delta import driver_rows, tables
from edge_agent.algebra.frame import Frame, Heartbeat, Plan, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.config import topics
from edge_agent.config.in_force.known_definitions import Publication
from edge_agent.errors import WireError
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider
from edge_agent.wire import frames, heads, landing

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("headwater.root")
SHOWN: Final = 300  # characters of an exception's text that are shown
MOST_READINGS: Final = 2**63 - 1  # of a frame: tables keep sums of readings as BIGINT
NONE: Final = -1  # stands for a missing epoch, seq, group or plan
_COLUMNS: Final = tuple(tables.MESSAGES.columns)


class RecordError(Exception):
    """Handling a record raised an exception. The state may be half changed, so the batch is repeated without it."""

    def __init__(self, record: landing.Record, error: Exception) -> None:
        """error: the exception; its text becomes the reason in ops.quarantine."""
        super().__init__(f"cannot be handled: {type(error).__name__}: {str(error)[:SHOWN]}")
        self.record = record


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a record is not handled.

    settled: the record's frame is settled as unusable, so that later frames of its epoch can take effect at once.
    Otherwise they wait for the grace time and for the lander's statement of the frames that it received.
    """

    why: str
    settled: bool = True


Leave = Mapping[landing.Record | str, LeftOut]  # by record; by topic: all its records; by file name: the whole file
NOTHING: Final[Leave] = {}


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a landing file. epoch, seq: NONE if they could not be read."""

    node: str
    received_us: int
    payload: bytes
    epoch: int = NONE
    seq: int = NONE


@dataclass(slots=True)
class Intake:
    """Reads the messages of one batch.

    rows: for bronze.messages, one list per column. parts: heads of the parts of frames that have not taken effect.
    now_us: the lander's time at its last tick; before the first tick the newest receive time, 0 if there is none.
    ticked: whether a tick was read. messages: number of new frames, unusable ones included; unread: messages that could
    not be read; again: messages received before. left_out: records that are not handled. most: how many records to
    read, None for all. last: the newest record read.
    """

    decider: Decider
    parts: heads.Parts
    batch: int
    owner: str
    now_us: int
    rows: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    messages: int = 0
    unread: int = 0
    again: int = 0
    _stated: tuple[tuple[str, Receipt], ...] = ()  # frames that the lander received, from the current file's last tick
    ticked: bool = False
    left_out: Leave = field(default_factory=lambda: NOTHING)
    most: int | None = None
    count: int = 0
    last: landing.Record | None = None

    def read(self, content: bytes, name: str) -> None:
        """Read one landing file. A damaged file is read up to the damage; the rest is logged and quarantined."""
        self._stated = ()
        if name in self.left_out:
            self._bad(Received("", self.now_us, b""), "envelope", self.left_out[name].why)
            return
        try:
            if not content:
                raise WireError("landing file cut short: it is empty, and a lander writes none without records")
            for record in landing.iterate(content):
                self._guarded(record)
        except WireError as err:
            log.warning("landing.damaged", extra={"file": name, "why": str(err)})
            self._bad(Received("", self.now_us, b""), "envelope", f"{name}: {err}")
        self.decider.stated(self._stated, self.now_us)

    def table(self) -> pa.Table:
        """The rows for bronze.messages."""
        import pyarrow as pa

        return pa.Table.from_pydict(self.rows, schema=driver_rows.arrow_schema(tables.MESSAGES))

    def _guarded(self, record: landing.Record) -> None:
        """Handle one record. Raises: RecordError for any exception."""
        if self.most is not None and self.count >= self.most:
            return
        self.count, self.last = self.count + 1, record
        out = (self.left_out.get(record) or self.left_out.get(record[0])) if self.left_out else None
        try:
            if out is None:
                self._record(*record)
            else:
                self._leave_out(record, out)
        except Exception as err:
            raise RecordError(record, err) from err

    def _leave_out(self, record: landing.Record, out: LeftOut) -> None:
        topic, received_us, payload = record
        found = topics.parse(topic)
        node = "" if found is None else found.node
        came = Received(node, min(received_us, self.now_us) if self.ticked else received_us, payload)
        if found is None or found.what != "frame" or not out.settled:
            self._bad(came, "envelope", out.why)
            return
        try:
            envelope = frames.envelope(payload)
        except Exception:  # the payload may be anything, and so may the decoder's exception
            self._bad(came, "envelope", out.why)
            return
        if envelope.seq is None or not self._known(node, envelope.epoch, envelope.seq):
            self._unusable(replace(came, epoch=envelope.epoch), envelope.seq, out.why)

    def _record(self, topic: str, received_us: int, payload: bytes) -> None:
        if topic == landing.TICK_TOPIC:
            self._tick(received_us, payload)
            return
        if not self.ticked:
            self.now_us = max(self.now_us, received_us)
        received_us = min(received_us, self.now_us)  # the lander's clock may have been set back since
        found = topics.parse(topic)
        if found is None or found.what != "frame":
            self._bad(Received("", received_us, payload), "envelope", f"not a topic of frames: {topic[:200]!r}")
            return
        try:
            envelope = frames.envelope(payload)
        except WireError as err:
            self._bad(Received(found.node, received_us, payload), "envelope", str(err))
            return
        if envelope.seq is not None and self._known(found.node, envelope.epoch, envelope.seq):
            self._repeated(found.node, envelope, received_us, payload)
            return
        self._message(found.node, envelope, received_us, payload)

    def _tick(self, received_us: int, payload: bytes) -> None:
        """Handle the lander's own record: its journal, and whether it has a broker connection (protocol 3.7, 4.4)."""
        tick = landing.tick(payload)
        self._stated = tick.received
        self.decider.published(map(Publication.of_plain, tick.published))
        self.decider.change_journal(tick.journal)
        self.decider.tick(received_us, self.now_us or None, connected=tick.connected)
        self.now_us, self.ticked = received_us, True

    def _known(self, node: str, epoch: int, seq: int) -> bool:
        return self.decider.parent.inbox.received(node, epoch, seq)

    def _repeated(self, node: str, envelope: frames.Envelope, received_us: int, payload: bytes) -> None:
        """Handle a frame that was received before, or whose epoch has ended.

        One of an ended epoch, or with the number of a flush, may be new: of a second device with the node's id, or of
        an epoch beyond the bounds. The lander has sent a receipt for it, so it is quarantined and declared lost
        (docs/protocol.md 1.3, 1.4, 3.6). In an epoch that goes on its number has a row already.
        """
        epoch, inbox = envelope.epoch, self.decider.parent.inbox
        upto = inbox.ended.of.get(node, {}).get(epoch)
        seq = NONE if envelope.seq is None else envelope.seq
        new = False
        if inbox.flush_at(node, epoch, seq) or (upto is not None and seq >= upto):
            message: Frame | Heartbeat | BadFrame
            try:
                message, _ = _head(envelope)
            except Exception as err:  # foreign bytes; nobody needs their rows
                message = BadFrame(epoch, seq, str(err)[:SHOWN], b"")
            new = self.decider.take(node, message, received_us) and upto is not None
        if new:
            self.messages += 1
            self._row(Received(node, received_us, payload, epoch, seq))
        else:
            self.again += 1

    def _message(self, node: str, envelope: frames.Envelope, received_us: int, payload: bytes) -> None:
        epoch, seq = envelope.epoch, envelope.seq
        came = Received(node, received_us, payload, epoch)
        try:
            message, parts = _head(envelope, self._plans(node, epoch))
        except WireError as err:
            self._unusable(came, seq, str(err))
            return
        except Exception as err:  # the state has not changed yet, so only this message is affected
            self._unusable(came, seq, f"cannot be handled: {type(err).__name__}: {str(err)[:SHOWN]}")
            return
        if isinstance(message, Heartbeat):
            self.decider.take(node, message, received_us)
            return
        if parts:
            self.parts[node, epoch, message.seq] = tuple(replace(part, body=b"") for part in parts)
        self.decider.take(node, message, received_us)
        if not self._known(node, epoch, message.seq):  # refused: a birth for another journal; the sender repeats it
            self.parts.pop((node, epoch, message.seq), None)
            return
        self.messages += 1
        head = payload if not parts else frames.encode(heads.bare(message)) if _says_more(message) else b""
        came = replace(came, payload=head, seq=message.seq)
        if head:
            self._row(came)
        for part in parts:
            self._row(came, part)

    def _unusable(self, came: Received, seq: int | None, why: str) -> None:
        """Quarantine a frame or heartbeat (seq None) that cannot be used. A frame is settled, so that later ones can
        take effect.
        """
        self._bad(replace(came, seq=NONE if seq is None else seq), "body", why)
        if seq is not None:
            self.messages += 1
            self.decider.take(came.node, BadFrame(came.epoch, seq, why, b""), came.received_us)

    def _plans(self, node: str, epoch: int) -> dict[int, Plan]:
        dictionary = self.decider.parent.dictionaries.get(EpochKey(node, epoch))
        return {} if dictionary is None else {number: plan for number, (_group, plan) in dictionary.plans.items()}

    def _bad(self, came: Received, kind: str, reason: str) -> None:
        log.warning(
            "message.quarantined", extra={"node": came.node, "epoch": came.epoch, "seq": came.seq, "why": reason}
        )
        self._row(came, kind=kind, reason=reason)
        self.unread += 1

    def _row(
        self, came: Received, part: heads.Part | None = None, *, kind: str = "frame", reason: str | None = None
    ) -> None:
        rows: tuple[object, ...] = (NONE, NONE, None, 0, 0, None, None)
        number, payload = 0, came.payload
        if part is not None:
            counted = (part.rows, part.readings)
            rows = (part.group, part.plan, part.late, *counted, part.first_start_us, part.latest_end_us)
            number, payload = part.number, part.body
        who = (self.batch, self.owner, came.node, came.epoch, came.seq, number, kind)
        for column, value in zip(self.rows.values(), (*who, *rows, came.received_us, payload, reason), strict=True):
            column.append(value)


def _head(
    envelope: frames.Envelope, plans: Mapping[int, Plan] | None = None
) -> tuple[Frame | Heartbeat, tuple[heads.Part, ...]]:
    """`heads.head`. Raises: WireError, also if no table can hold the number of readings."""
    message, parts = heads.head(envelope, plans)
    if abs(sum(part.readings for part in parts)) > MOST_READINGS:
        raise WireError("its counts add up to more than 2^63 - 1 readings")
    return message, parts


def _says_more(frame: Frame) -> bool:
    """Whether a frame carries more than rows and frontiers."""
    extras = (frame.birth, frame.define, frame.members, frame.gaps)
    return any(extras) or frame.flush is not None or frame.leave is not None
