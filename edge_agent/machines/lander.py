"""The lander: messages to landing files, and receipts. The root orders and decodes.

Rules (docs/protocol.md): a receipt follows the fsync of the landing file that holds the frame (3.2); it is repeated
for every duplicate and when a child comes online (3.2); each file has the newest heartbeat of each node, and a tick
when idle, so that the root's clock is the lander's receive time (2.5, 8.1). The received ranges are stored beside the
files; if the last of them are lost, a frame lands twice and the root drops one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.algebra.frame import HORIZON_US, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.received_seqs import ReceivedSeqs
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick


@dataclass(frozen=True, slots=True)
class LanderMessage:
    """One message of a child as it came. epoch None: no envelope could be read. seq None: a heartbeat.

    of: the object that lands (topic, receive time and payload in the real lander); size_bytes: of the payload.
    """

    node: str
    epoch: int | None
    seq: int | None
    of: object
    size_bytes: int
    token: object = None


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Messages of children in arrival order."""

    messages: tuple[LanderMessage, ...]


@dataclass(frozen=True, slots=True)
class Landed:
    """The last `Land` is on disk, fsynced."""


@dataclass(frozen=True, slots=True)
class Land:
    """Write one landing file with these objects, fsync it, then keep `received` (slot -> plain value).

    now_us: the receive time of the file's tick, so that an idle root knows the time.
    """

    objects: tuple[object, ...]
    received: Mapping[str, object]
    now_us: int


@dataclass(frozen=True, slots=True)
class LanderSettings:
    """When a file is closed: after flush_us, at most so many frames or bytes; a tick at least every tick_us.

    horizon_us: the root's correction horizon, for the receipts.
    """

    flush_us: int = 500_000
    flush_frames: int = 8_000
    flush_bytes: int = 32 << 20
    tick_us: int = 1_000_000
    horizon_us: int = HORIZON_US


LanderEvent = Tick | MessagesArrived | Landed | ChildStatus
LanderAction = Land | SendReceipt | Ack


class Lander:
    """Custody at the top of the tree."""

    def __init__(self, journal: int, settings: LanderSettings, restored: Mapping[str, Any] | None = None) -> None:
        """restored: the slots of `Land.received` found at start."""
        self.journal, self.settings = journal, settings
        self.received: dict[EpochKey, ReceivedSeqs] = {}
        for slot, state in (restored or {}).items():
            node, _, epoch = slot.partition("/")
            self.received[EpochKey(node, int(epoch))] = ReceivedSeqs(state[0], set(state[1]))
        self._objects: list[object] = []
        self._size_bytes = 0
        self._beats: dict[str, object] = {}
        self._fresh: dict[EpochKey, dict[int, None]] = {}  # seqs in order of arrival
        self._owed: set[EpochKey] = set()
        self._landing: set[EpochKey] = set()
        self._tokens: list[object] = []
        self._acks: list[object] = []
        self._flying = False
        self._flushed_us: int | None = None
        self._newest: dict[str, int] = {}

    def handle(self, event: LanderEvent, now_us: int) -> list[LanderAction]:
        """One event in, what to do about it out."""
        out: list[LanderAction] = []
        match event:
            case MessagesArrived(messages):
                self._take(messages)
            case Landed():
                out += self._landed()
            case ChildStatus(node, online):
                if online:
                    self._owed.add(EpochKey(node, self._newest.get(node, 0)))
            case Tick():
                pass
        if self._due(now_us):
            out.append(self._land(now_us))
        elif self._owed and not self._flying and not self._fresh:
            out += self._receipts(self._owed)
            self._owed = set()
        return out

    def _take(self, messages: Iterable[LanderMessage]) -> None:
        objects = self._objects
        for message in messages:
            if message.token is not None:
                self._tokens.append(message.token)
            if message.epoch is None:
                objects.append(message.of)
                continue
            key = EpochKey(message.node, message.epoch)
            self._newest[message.node] = message.epoch
            if message.seq is None:
                self._beats[message.node] = message.of
                if key not in self.received:  # a child that asks for our journal (3.7)
                    self._owed.add(key)
                continue
            self._owed.add(key)
            if message.seq not in self.received.get(key, ()) and message.seq not in self._fresh.get(key, ()):
                self._fresh.setdefault(key, {})[message.seq] = None
                objects.append(message.of)
                self._size_bytes += message.size_bytes

    def _due(self, now_us: int) -> bool:
        settings = self.settings
        if self._flying:
            return False
        if self._flushed_us is None or now_us < self._flushed_us:
            return True
        if len(self._objects) >= settings.flush_frames or self._size_bytes >= settings.flush_bytes:
            return True
        waited_us = now_us - self._flushed_us
        return (
            waited_us >= settings.flush_us
            if self._objects or self._tokens or self._beats
            else (waited_us >= settings.tick_us)
        )

    def _land(self, now_us: int) -> Land:
        slots: dict[str, object] = {}
        for key, seqs in self._fresh.items():
            received = self.received.setdefault(key, ReceivedSeqs())
            for seq in seqs:
                received.add(seq)
            slots[f"{key.node}/{key.epoch}"] = [received.next, sorted(received.above)]
        objects = (*self._objects, *self._beats.values())
        self._landing, self._owed = self._owed, set()
        self._acks, self._tokens = self._tokens, []
        self._objects, self._size_bytes = [], 0
        self._beats.clear()
        self._fresh.clear()
        self._flying, self._flushed_us = True, now_us
        return Land(objects, slots, now_us)

    def _landed(self) -> list[LanderAction]:
        self._flying = False
        out: list[LanderAction] = [Ack(tuple(self._acks))] if self._acks else []
        out += self._receipts(self._landing)
        self._acks, self._landing = [], set()
        return out

    def _receipts(self, keys: Iterable[EpochKey]) -> list[LanderAction]:
        out: list[LanderAction] = []
        for node, epoch in sorted(keys):
            received = self.received.get(EpochKey(node, epoch), ReceivedSeqs())
            horizon_us = self.settings.horizon_us
            out.append(SendReceipt(node, Receipt(epoch, self.journal, *received.receipt(), horizon_us=horizon_us)))
        return out
