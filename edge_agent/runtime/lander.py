"""The top of the tree on MQTT: frames to fsynced landing files, receipts down, definitions numbered.

The machine (edge_agent/machines/lander.py) decides; this performs. One thread: it hears its broker through a session
that outlives it, writes a file when the machine says so, and acknowledges and receipts only after the fsync.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from edge_agent.config import topics
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.config.node_file.node_tables import LowerTable
from edge_agent.config.node_file.settings import Settings
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines import lander
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick
from edge_agent.machines.lander import Land, Landed, LanderEvent, LanderSettings, MessagesArrived
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.journal import Journal
from edge_agent.ports.link import Down, Link, Messages, Subscribed, Taken, Up, Will
from edge_agent.ports.mqtt import Connection
from edge_agent.ports.packets import Message, RefusedPublish
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import frames, landing, receipts

log = logging.getLogger("headwater.lander")

SUFFIX: Final = ".cborseq"
SESSION_S: Final = 14 * 86_400  # the broker keeps what comes while the lander is repaired
RETRY_US: Final = 1_000_000  # a disk that cannot be written is tried again after that
TOLD_EVERY_US: Final = 10_000_000
LONGEST_S: Final = 0.5
REFUSED_CODE: Final = 0x80
RECEIVED: Final = "received/"
NUMBERER: Final = "numberer"


class LandingFolder:
    """Whole files only: written under a hidden name, fsynced, renamed, the folder fsynced."""

    def __init__(self, folder: Path) -> None:
        """Files that an earlier run left half-written go."""
        self.folder = folder
        self.count = 0
        for part in folder.glob(f".*{SUFFIX}.tmp"):
            part.unlink()

    def write(self, now_us: int, records: Iterable[bytes]) -> Path:
        """One landing file. Names sort by time and are never used again. Raises: PortError."""
        name = f"{now_us:017d}-{os.getpid():07d}-{self.count:07d}{SUFFIX}"
        part, whole = self.folder / f".{name}.tmp", self.folder / name
        try:
            with part.open("wb", buffering=0) as file:
                file.write(b"".join(records))
                os.fsync(file.fileno())
            part.rename(whole)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as err:
            part.unlink(missing_ok=True)
            raise PortError(f"landing file {name}: {err.strerror}") from err
        self.count += 1
        return whole


class LanderLoop:
    """The lander as a process: `run` it."""

    def __init__(self, settings: Settings, version: str) -> None:
        """Opens journal and folder; connects when it runs. Raises: ConfigError, PortError."""
        if settings.lower is None or settings.lower.broker is None:
            raise ConfigError("[lower] with broker is missing: the lander hears its children there")
        self._node, self._version = settings.node.id, version
        self.journal = Journal(Path(settings.lander.folder), self._node)
        self.folder = LandingFolder(self.journal.folder)
        limits = LanderSettings(
            settings.lander.flush_interval_us,
            settings.lander.flush_messages,
            settings.lander.flush_size_bytes,
            horizon_us=settings.root.horizon_us,
        )
        self.machine = lander.Lander(self.journal.id, limits, self.journal.slots(RECEIVED))
        self.numberer = RevisionNumberer.restore(self.journal.slots(NUMBERER).get(""))
        self.clock, self.waiter = SystemClock(), Waiter()
        self.connection = Connection(_link(settings.lower, self._node, self._status(online=False)))
        self.connection.subscribe(
            dict.fromkeys(
                (
                    *(topics.frames_of_children(self._node), topics.status(), topics.state()),
                    *topics.definitions_below(),
                ),
                1,
            )
        )
        self.stopping = self.hearing = False
        self.messages = self.files = self.bytes = 0
        self._children: dict[str, str] = {}  # topic of a child's frames -> the child
        self._events: deque[LanderEvent] = deque()
        self._stuck: tuple[Land, int] | None = None  # a file that could not be written, and when to try again
        self._unkept = False
        self._told_us = 0

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop`, or until `until` says so."""
        self.connection.open()
        try:
            while not (self.stopping or (until is not None and until())):
                self.turn()
            self.connection.publish(topics.status(self._node), self._status(online=False), retain=True)
        finally:
            self.connection.close()
            self.journal.close()
            self.waiter.close()

    def stop(self) -> None:
        """End after this turn; may be called from a signal handler."""
        self.stopping = True
        self.waiter.wake()

    def turn(self, longest_s: float = LONGEST_S) -> None:
        """Wait for something to happen, at most that long, and deal with it."""
        self.waiter.wait([self.connection], min(longest_s, self._pause_s()))
        now_us = self.clock.now_us()
        if self._stuck is not None and now_us >= self._stuck[1]:
            land, self._stuck = self._stuck[0], None
            self._land(land, now_us)
        self._hear(now_us)
        self._feed(Tick(), now_us)
        if self.connection.up:
            for publication in self.numberer.due(now_us):
                self.connection.publish(publication.topic, publication.payload, retain=True)
                log.info("definition.numbered", extra={"topic": publication.topic})
                self._unkept = True
        if self._unkept:
            self._unkept = False
            self.journal.keep(NUMBERER, {"": self.numberer.snapshot()})
        if now_us - self._told_us >= TOLD_EVERY_US:
            self._told_us = now_us
            log.info("landed", extra={"messages": self.messages, "files": self.files, "bytes": self.bytes})

    def _pause_s(self) -> float:
        """A file is due at the end of its interval."""
        return self.machine.settings.flush_us / 1e6 / 4

    def _feed(self, event: LanderEvent, now_us: int) -> None:
        self._events.append(event)
        while self._events:
            for action in self.machine.handle(self._events.popleft(), now_us):
                match action:
                    case Land():
                        self._land(action, now_us)
                    case SendReceipt(node, receipt):
                        self.connection.publish(topics.ack(node), receipts.encode(receipt))
                    case Ack(tokens):
                        self.connection.ack([token for token in tokens if isinstance(token, int)])

    def _land(self, land: Land, now_us: int) -> None:
        tick = landing.encode_tick(land.now_us, self.journal.id, connected=self.connection.up)
        records = [tick, *(record for record in land.objects if isinstance(record, bytes))]
        try:
            self.folder.write(land.now_us, records)
        except PortError as err:
            log.error("landing.failed", extra={"why": str(err), "retry_s": RETRY_US / 1e6})
            self._stuck = (land, now_us + RETRY_US)
            return
        self.files += 1
        self.bytes += sum(map(len, records))
        self.messages += len(land.objects)
        if land.received:
            try:
                self.journal.keep(RECEIVED, land.received)
            except PortError as err:  # the file stands: what is not noted lands twice at worst
                log.error("journal.failed", extra={"why": str(err)})
        self._events.append(Landed())

    # --- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, now_us: int) -> None:
        for report in self.connection.take():
            match report:
                case Messages(messages):
                    self._messages(messages, now_us)
                case Up():
                    log.info("link.up", extra={"broker": self.connection.link.url, "session": report.session_present})
                    self.numberer.connected(now_us)
                    self.connection.publish(topics.status(self._node), self._status(online=True), retain=True)
                case Down():
                    self.hearing = False
                    log.warning(
                        "link.down",
                        extra={
                            "broker": self.connection.link.url,
                            "why": report.why,
                            "retry_s": round(report.retry_s, 1),
                        },
                    )
                case Subscribed():
                    self._subscribed(report)
                case RefusedPublish():
                    log.warning("message.refused", extra={"topic": report.topic, "why": report.why})
                case Taken() if not report.ok:
                    log.warning("publish.refused", extra={"why": report.reason})
                case Taken():
                    pass

    def _subscribed(self, report: Subscribed) -> None:
        refused = [name for name, code in report.results if code >= REFUSED_CODE]
        for name in refused:
            log.error("subscription.refused", extra={"broker": self.connection.link.url, "topic": name})
        self.hearing = not refused

    def _messages(self, messages: list[Message], now_us: int) -> None:
        came: list[lander.LanderMessage] = []
        settled: list[int] = []
        for name, payload, token, _ in messages:
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
            try:
                envelope = frames.envelope(payload)
                epoch, seq = envelope.epoch, envelope.seq
            except WireError as err:
                log.warning("message.bad", extra={"topic": name, "why": str(err), "size_bytes": len(payload)})
            came.append(lander.LanderMessage(child, epoch, seq, record, len(payload), token or None))
        self.connection.ack(settled)
        if came:
            self._feed(MessagesArrived(tuple(came)), now_us)

    def _child(self, name: str) -> str:
        """Whose frames for us a topic carries; '' if it is no such topic."""
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
                self._unkept = True
            case "state":
                self.numberer.hear_state(payload)
            case "status" if topic is not None and topic.node != self._node:
                online = _online(payload, self._node)
                if online is not None:
                    self._feed(ChildStatus(topic.node, online), now_us)
            case "":
                log.warning("topic.foreign", extra={"topic": name, "size_bytes": len(payload)})

    def _status(self, *, online: bool) -> bytes:
        said = {"online": online, "role": "root", "version": self._version, "journal": f"{self.journal.id:016x}"}
        return json.dumps(said, separators=(",", ":")).encode()


def _online(payload: bytes, parent: str) -> bool | None:
    """What a child's status says, if it is a child of ours."""
    try:
        said = json.loads(payload)
    except ValueError:
        return None
    if isinstance(said, dict) and said.get("parent") == parent and isinstance(said.get("online"), bool):
        return bool(said["online"])
    return None


def _link(lower: LowerTable, node: str, offline: bytes) -> Link:
    def path(text: str | None) -> Path | None:
        return None if text is None else Path(text)

    return Link(
        url=lower.broker or "",
        client_id=node,
        clean_start=False,
        session_expiry_s=SESSION_S,
        manual_ack=True,
        will=Will(topics.status(node), offline),
        user=lower.user,
        password_file=path(lower.password_file),
        ca_file=path(lower.ca_file),
        cert_file=path(lower.cert_file),
        key_file=path(lower.key_file),
    )
