"""Reads landing files: envelopes and heads are decoded, rows stay bytes, known messages are skipped.

On the driver, once per message: the decision needs every head in order anyway, and rows are not looked at here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cloud_job.delta import tables
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
NONE: Final = -1  # epoch, seq, group or plan where there is none
_COLUMNS: Final = tuple(tables.MESSAGES.columns)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it landed. epoch, seq: NONE where they could not be read."""

    node: str
    received_us: int
    payload: bytes
    epoch: int = NONE
    seq: int = NONE


@dataclass(slots=True)
class Intake:
    """One batch being read.

    rows: what goes to bronze.messages, a column a list. parts: heads of what is not applied. now_us: the lander's time
    at its last tick (before one has come the newest receive time; 0: none). ticked: one has come. messages: frames that
    are new, bad ones included; unread: what could not be read; again: what was known.
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
    _stated: tuple[tuple[str, Receipt], ...] = ()  # what the lander has received, says the file that is being read
    ticked: bool = False

    def read(self, content: bytes, name: str) -> None:
        """One landing file. A damaged one is read as far as it goes; the rest is logged and quarantined."""
        self._stated = ()
        try:
            for topic, received_us, payload in landing.iterate(content):
                self._guarded(topic, received_us, payload)
        except WireError as err:
            log.warning("landing.damaged", extra={"file": name, "why": str(err)})
            self._bad(Received("", self.now_us, b""), "envelope", f"{name}: {err}")
        self.decider.stated(self._stated, self.now_us)

    def table(self) -> pa.Table:
        """The rows for bronze.messages."""
        import pyarrow as pa

        return pa.Table.from_pydict(self.rows, schema=tables.arrow_schema(tables.MESSAGES))

    def _guarded(self, topic: str, received_us: int, payload: bytes) -> None:
        """One record. Whatever decoding it raises, it is quarantined and the line goes on."""
        try:
            self._record(topic, received_us, payload)
        except Exception as err:
            found = topics.parse(topic)
            node = "" if found is None else found.node
            self._bad(
                Received(node, received_us, payload), "envelope", f"cannot be handled: {type(err).__name__}: {err}"
            )

    def _record(self, topic: str, received_us: int, payload: bytes) -> None:
        if topic == landing.TICK_TOPIC:
            self._tick(received_us, payload)
            return
        if not self.ticked:
            self.now_us = max(self.now_us, received_us)
        received_us = min(received_us, self.now_us)  # by a clock that has stepped back since
        found = topics.parse(topic)
        if found is None or found.what != "frame":
            self._bad(Received("", received_us, payload), "envelope", f"no topic of frames: {topic[:200]!r}")
            return
        try:
            envelope = frames.envelope(payload)
        except WireError as err:
            self._bad(Received(found.node, received_us, payload), "envelope", str(err))
            return
        if envelope.seq is not None and self._known(found.node, envelope.epoch, envelope.seq):
            self.again += 1
            return
        self._message(found.node, envelope, received_us, payload)

    def _tick(self, received_us: int, payload: bytes) -> None:
        """The lander's own record: its journal, and whether it hears its broker (docs/protocol.md 3.7, 4.4)."""
        try:
            tick = landing.tick(payload)
        except WireError as err:
            self._bad(Received("", received_us, payload), "envelope", f"the lander's own record: {err}")
            return
        self._stated = tick.received
        self.decider.published(map(Publication.of_plain, tick.published))
        self.decider.parent.inbox.journal = tick.journal
        self.decider.tick(received_us, self.now_us or None, connected=tick.connected)
        self.now_us, self.ticked = received_us, True

    def _known(self, node: str, epoch: int, seq: int) -> bool:
        return self.decider.parent.inbox.received(node, epoch, seq)

    def _message(self, node: str, envelope: frames.Envelope, received_us: int, payload: bytes) -> None:
        epoch, seq = envelope.epoch, envelope.seq
        try:
            message, parts = heads.head(envelope, self._plans(node, epoch))
        except WireError as err:
            self._bad(Received(node, received_us, payload, epoch, NONE if seq is None else seq), "body", str(err))
            if seq is not None:
                self.messages += 1
                self.decider.take(node, BadFrame(epoch, seq, str(err), b""), received_us)
            return
        if isinstance(message, Heartbeat):
            self.decider.take(node, message, received_us)
            return
        if parts:
            self.parts[node, epoch, message.seq] = tuple(replace(part, body=b"") for part in parts)
        self.decider.take(node, message, received_us)
        if not self._known(node, epoch, message.seq):  # a birth for another journal: the sender will be born again
            self.parts.pop((node, epoch, message.seq), None)
            return
        self.messages += 1
        head = payload if not parts else frames.encode(heads.bare(message)) if _says_more(message) else b""
        came = Received(node, received_us, head, epoch, message.seq)
        if head:
            self._row(came)
        for part in parts:
            self._row(came, part)

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


def _says_more(frame: Frame) -> bool:
    """Whether a frame carries more than rows and frontiers."""
    extras = (frame.birth, frame.define, frame.members, frame.gaps)
    return any(extras) or frame.flush is not None or frame.leave is not None
