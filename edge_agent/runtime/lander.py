"""Runs the lander, the top of the tree: it writes frames to landing files, sends receipts and numbers definitions.

Its session at the broker continues after a restart of the process. Messages are acknowledged and receipted only after
the fsync of their file (edge_agent/machines/lander.py decides).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Birth, Flush, Frame, Heartbeat, ParentTime
from edge_agent.algebra.query.key import EpochKey
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.in_force.known_definitions import PUBLISHED, KnownDefinitions, publication, published_in
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.config.node_file.settings import Settings
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.downlink.line_watch import LineWatch
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick
from edge_agent.machines.lander import (
    Land,
    Landed,
    Lander,
    LanderAction,
    LanderEvent,
    LanderMessage,
    LanderSettings,
    MessagesArrived,
)
from edge_agent.ports.clock import SystemClock, vouched
from edge_agent.ports.journal import Journal
from edge_agent.ports.landing_folder import LandingFolder
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Taken, Up, Will
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime import root_report
from edge_agent.runtime.links import from_children, link
from edge_agent.runtime.loop import Loop
from edge_agent.runtime.quarantine import QUARANTINE, QuarantineFile
from edge_agent.runtime.status_and_commands import asked_in, publish_fitting, publish_or_log, retired_fields
from edge_agent.wire import frames, landing, late_starts, receipts

log = logging.getLogger("headwater.lander")

RETRY_US: Final = 1_000_000  # time until a failed write is tried again
LOG_EVERY_US: Final = 10_000_000
LONGEST_S: Final = 0.5
MOST_BEATS: Final = 10_000  # heartbeats remembered, of children with missing frames
TELL_EVERY_US: Final = 3_600_000_000  # how often all published definitions are written to a landing file
RECEIVED: Final = "received/"
NUMBERER: Final = "numberer"


def quarantine_of(settings: Settings) -> QuarantineFile:
    """The file of bad bytes, in the landing folder."""
    return QuarantineFile(Path(settings.lander.folder) / QUARANTINE)


class LanderLoop(Loop[LanderEvent, LanderAction]):
    """The lander's process: writes messages to landing files, sends receipts, and numbers published definitions."""

    def __init__(self, settings: Settings, version: str) -> None:
        """Open the journal and the landing folder; `run` connects. Raises: ConfigError, PortError."""
        if settings.lower is None or settings.lower.broker is None:
            raise ConfigError("[lower] with broker is missing: add the broker on which the children publish")
        self._node, self._version = settings.node.id, version
        self._retired = settings.lower.retired
        self._watch = LineWatch()
        self.journal = Journal(Path(settings.lander.folder), self._node)
        self.folder = LandingFolder(self.journal.folder)
        limits = LanderSettings(
            settings.lander.flush_interval_us,
            settings.lander.flush_messages,
            settings.lander.flush_size_bytes,
            horizon_us=settings.root.horizon_us,
        )
        received = self.journal.slots(RECEIVED)
        self.machine = Lander(self.journal.id, limits, received, rebuilt=self.journal.rebuilt)
        numbers = self.journal.slots(NUMBERER).get("")
        self.numberer = RevisionNumberer.restore(numbers)
        self.known = KnownDefinitions(published=published_in(numbers))
        self._news = {(each.node, each.query): each for each in self.known.published()}  # for the next landing file
        self._all_written_us = 0  # when all published definitions were last written to a landing file
        will = Will(topics.status(self._node), self._status(online=False))
        self.connection = Connection(from_children(link(settings.lower, self._node, will=will)))
        super().__init__(self.machine, SystemClock(), Waiter(), self.connection)
        filters = (topics.frames_of_children(self._node), topics.status(), topics.state(), *topics.definitions_below())
        self.connection.subscribe(dict.fromkeys(filters, 1))
        self.messages = self.files = self.bytes = self.attempts = 0
        self._asked: dict[str, int] = {}  # child that asked for the time -> its time since boot
        self._children: dict[str, str] = {}  # topic of a child's frames -> the child
        self._beats: dict[str, bytes] = {}  # child -> newest heartbeat, if it names frames that have not arrived
        self._stuck: tuple[Land, int] | None = None  # a file that could not be written, and when to try again
        self._unsaved = False  # the numbers of definitions have changed since they were stored
        self._save_us = 0  # when to try again to store them
        self._unkept: dict[str, object] = {}  # slots of received frames that the journal did not take, see `_keep`
        self._keep_us = 0  # when to try again to store them
        self._logged_us = self._refused_shown = 0
        self._of_root: dict[str, object] = {}  # the root's report, as in the last status

    # --- a turn ----------------------------------------------------------------------------------------------------

    def _pause_s(self, now_us: int) -> float:
        """The time to wait: a quarter of the interval of landing files, so that each is written on time."""
        return min(LONGEST_S, self.machine.settings.flush_us / 1e6 / 4)

    def _gathered(self, now_us: int) -> tuple[LanderEvent, ...]:
        return (Tick(),)

    def _settle(self, now_us: int) -> None:
        if self.connection.up:
            for publication in self.numberer.due(now_us):
                self.connection.publish(publication.topic, publication.payload, retain=True)
                log.info("definition.numbered", extra={"topic": publication.topic})
                self._unsaved = True
        if self._unsaved and not 0 < self._save_us - now_us <= RETRY_US:
            self._save(now_us)
        if self._unkept and not 0 < self._keep_us - now_us <= RETRY_US:
            self._keep({}, now_us)
        if now_us - self._logged_us >= LOG_EVERY_US:
            self._logged_us = now_us
            report = root_report.read(self.folder.folder)
            of_root = {part: report[part] for part in root_report.PARTS if report.get(part)}
            if self.refusals.total != self._refused_shown or of_root != self._of_root:
                self._refused_shown, self._of_root = self.refusals.total, of_root
                self._publish_status()
            log.info("landed", extra={"messages": self.messages, "files": self.files, "bytes": self.bytes})

    def _save(self, now_us: int) -> None:
        """Store the numbers of definitions. The broker retains them too, so on a full disk this can wait."""
        try:
            published = {PUBLISHED: [each.plain() for each in self.known.published()]}
            self.journal.keep(NUMBERER, {"": self.numberer.snapshot() | published})
            self._unsaved = False
        except PortError as err:
            log.error("journal.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            self._save_us = now_us + RETRY_US

    def _keep(self, received: Mapping[str, object | None], now_us: int) -> None:
        """Store which frames landed. On a full disk this can wait: their file is written.

        If the process ends before, they may land twice. A slot that was to be deleted is left: the next process forgets
        its epoch again.
        """
        slots = {**self._unkept, **received}
        try:
            self.journal.keep(RECEIVED, slots)
            self._unkept = {}
        except PortError as err:
            log.error("journal.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            self._unkept = {slot: value for slot, value in slots.items() if value is not None}
            self._keep_us = now_us + RETRY_US

    def _finish(self, now_us: int) -> None:
        if self._unkept:
            self._keep({}, now_us)
        self.connection.publish(topics.status(self._node), self._status(online=False), retain=True)

    def close(self) -> None:
        super().close()
        self.journal.close()

    def _retry(self, now_us: int) -> list[LanderEvent]:
        if self._stuck is None or 0 < self._stuck[1] - now_us <= RETRY_US:  # if the clock went back, try now
            return []
        land, self._stuck = self._stuck[0], None
        return self._land(land, now_us)

    def _perform(self, action: LanderAction, now_us: int) -> list[LanderEvent]:
        match action:
            case Land():
                return self._land(action, now_us)
            case SendReceipt(node, receipt):
                answer = receipts.encode(receipt, self._time_for(node))
                publish_or_log(self.connection, topics.ack(node), answer, "receipt.not_published")
            case Ack(tokens):
                self.connection.ack([token for token in tokens if isinstance(token, int)])
        return []

    def _land(self, land: Land, now_us: int) -> list[LanderEvent]:
        records = [record for record in land.objects if isinstance(record, bytes)]
        if not 0 <= now_us - self._all_written_us < TELL_EVERY_US:
            self._news = {(each.node, each.query): each for each in self.known.published()}
            self._all_written_us = now_us
        news = [(each.node, each.query, each.revision, each.text) for each in self._news.values()]
        up = self.connection.up
        records.insert(
            0, landing.encode_tick(land.now_us, self.journal.id, records, land.statement, news, connected=up)
        )
        self.attempts += 1
        try:
            self.folder.write(land.now_us, records)
        except PortError as err:
            log.error("landing.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            self._stuck = (land, now_us + RETRY_US)
            return []
        self._news.clear()
        self.files += 1
        self.bytes += sum(map(len, records))
        self.messages += len(land.objects)
        if land.received:
            self._keep(land.received, now_us)
        return [Landed()]

    # --- messages --------------------------------------------------------------------------------------------------

    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        self.numberer.connected(now_us)
        self._publish_status()

    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        """Nothing to do: the broker queues messages until the session is resumed."""

    def _taken(self, connection: Connection, report: Taken, now_us: int) -> None:
        if not report.ok:
            log.warning("publish.refused", extra={"why": report.reason})

    def _lacks(self, connection: Connection) -> bool:
        self._beats = {child: payload for child, payload in self._beats.items() if self._names_more(child, payload)}
        return bool(self._beats)

    def _names_more(self, child: str, payload: bytes) -> bool:
        """Whether a heartbeat names frames that have not arrived (docs/protocol.md 2.5)."""
        try:
            beat = frames.decode_body(frames.envelope(payload))
        except WireError:
            return False
        received = self.machine.received.get(EpochKey(child, beat.epoch))
        return isinstance(beat, Heartbeat) and beat.last_seq >= (0 if received is None else received.next)

    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        came: list[LanderMessage] = []
        settled: list[int] = []
        for name, payload, token, _ in messages:
            self.handling = (name, payload)
            child = self._children.get(name)
            if child is None:
                child = self._child(name)
            if not child:
                settled.append(token)
                self._other(name, payload, now_us)
                continue
            record = landing.encode(name, now_us, payload)
            epoch: int | None = None
            seq: int | None = None
            earliest_us: int | None = None
            birth: Birth | None = None
            flush: Flush | None = None
            run = 1
            try:
                envelope = frames.envelope(payload)
                epoch, seq = envelope.epoch, envelope.seq
                run, earliest_us = frames.run_of(envelope), late_starts.earliest_of(envelope)
                flush = frames.flush_of(envelope)
                if seq == 0:
                    birth = self._birth(child, envelope)
                elif seq is None and (child in self._beats or len(self._beats) < MOST_BEATS):
                    self._beats[child] = payload
            except WireError as err:
                if self.refusals.add(str(err), name):
                    log.warning("message.bad", extra={"topic": name, "why": str(err), "size_bytes": len(payload)})
            size = len(payload)
            came.append(LanderMessage(child, epoch, seq, record, size, token or None, run, earliest_us, birth, flush))
        self.connection.ack(settled)
        if came:
            if len(messages) > 1:
                self.handling = None  # any message of the batch may be at fault
            self.feed(MessagesArrived(tuple(came)), now_us)

    def _birth(self, node: str, envelope: frames.Envelope) -> Birth | None:
        """Decode a birth; raise an alarm if it is of a second device or an older copy of a spool. Raises: WireError."""
        frame = frames.decode_body(envelope)
        birth = frame.birth if isinstance(frame, Frame) else None
        if birth is None or birth.journal != self.journal.id:
            return birth
        before = birth.predecessor
        known = self.machine.received.get(EpochKey(node, before[0])) if isinstance(before, tuple) else None
        alarm = self._watch.birth(node, birth, None if known is None else known.next)
        if alarm:
            log.error("node.alarm", extra={"node": node, "what": alarm})
            self._publish_status()
        return birth

    def _left_out(self, connection: Connection, message: Message, why: str, now_us: int) -> None:
        """Land a frame that the guard leaves out, unchanged, without a receipt. The root declares its content lost."""
        name, payload, token, _ = message
        child = self._child(name)
        if not child:
            super()._left_out(connection, message, why, now_us)
            return
        record = landing.encode(name, now_us, payload)
        self.feed(MessagesArrived((LanderMessage(child, None, None, record, len(payload), token or None),)), now_us)

    def _child(self, name: str) -> str:
        """The child that sent a frame or heartbeat to this node on a topic; '' for other topics."""
        topic = topics.parse(name)
        if topic is None or topic.what != "frame" or topic.other != self._node:
            return ""
        self._children[name] = topic.node
        return topic.node

    def _other(self, name: str, payload: bytes, now_us: int) -> None:
        topic = topics.parse(name)
        match topic.what if topic is not None else "":
            case "definition":
                self.numberer.hear(name, payload, now_us)
                if (found := publication(name, payload)) is not None and self.known.publish(found):
                    self._news[found.node, found.query] = found
                self._unsaved = True
            case "state" if topic is not None:
                self.numberer.hear_state(payload, topic.node)
            case "status" if topic is not None and topic.node != self._node:
                self._status_of(topic.node, payload, now_us)
            case "":
                if self.refusals.add("not a topic of headwater", name):
                    log.warning("topic.foreign", extra={"topic": name, "size_bytes": len(payload)})

    def _status_of(self, node: str, payload: bytes, now_us: int) -> None:
        """Take the status of a node; ignore it unless the node is a child."""
        status = foreign_json.table(payload)
        if status.get("parent") == self._node and isinstance(status.get("online"), bool):
            if (asked_us := asked_in(status)) is not None:
                self._asked[node] = asked_us
            self.feed(ChildStatus(node, status["online"]), now_us)

    def _time_for(self, node: str) -> ParentTime | None:
        """The answer to a child that asked for the time; None if it did not ask, or the time is not known."""
        asked_us = self._asked.pop(node, None)
        if asked_us is None or not self.clock.synced:
            return None
        return ParentTime(self.clock.now_us(), 0 if vouched() else None, asked_us)

    def _publish_status(self) -> None:
        """Publish the retained status, without what is refused and omitted if the broker does not accept so much."""
        topic, status = topics.status(self._node), self._status(online=True)
        publish_fitting(self.connection, topic, status, lambda: self._status(online=True, short=True))

    def _status(self, *, online: bool, short: bool = False) -> bytes:
        status: dict[str, object] = {"online": online, "role": "root", "version": self._version}
        status["journal"] = f"{self.journal.id:016x}"
        if online and self._watch.alarms:
            status["alarms"] = self._watch.alarms
        if online and not short and self.refusals.total:
            status["refused"] = self.refusals.plain()
        if online and not short:
            status |= self._of_root | retired_fields(self._retired)
        return json.dumps(status, separators=(",", ":")).encode()
