"""The lander writes messages of children to landing files and sends receipts. The root orders and decodes the frames.

Rules (docs/protocol.md):
- A receipt follows the fsync of the landing file that contains the frame. It is repeated for every duplicate and when a
  child comes online (3.2).
- Each file contains the newest heartbeat of each node, and an idle lander writes a tick, so that the root's clock is
  the lander's receive time (2.5, 8.1).
- The received ranges are stored beside the files. If the newest ranges are lost, a frame lands twice and the root drops
  one copy.
- From time to time a file states which frames have been received. From this the root knows which frames were in a lost
  file, and where late rows in them may begin (3.2).
- A bound limits the landed frames that the root cannot apply yet because earlier frames are missing; children send
  frames beyond the bound again (2.2).
- A frame with a received number lands once more if it may be of a second device, because a flush with another origin
  may have taken the number (1.4).
- Epochs of which a child has no frame any more are forgotten, as its births say (3.4).
- While a file cannot be written, two more files' worth may wait. What is beyond that is turned away, and its sender
  sends it again (2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_agent.algebra.earliest_start import earlier_start
from edge_agent.algebra.frame import HORIZON_US, Birth, Flush, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.ended_epochs import UNDER_WAY
from edge_agent.machines.downlink.epochs.frames_ahead import FramesAhead
from edge_agent.machines.downlink.epochs.landed_flushes import LandedFlushes
from edge_agent.machines.downlink.epochs.landed_ranges import LandedRanges
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick

MOST_KNOWN: Final = 20_000  # most epochs of one child whose received frames are remembered
STATEMENTS: Final = 2  # each epoch heard is in so many statements, because the file with one of them may be lost
MOST_WAITING: Final = 2  # files' worth that may wait while one cannot be written; of QoS 0 no broker keeps anything
A_DAY: Final = 2_880  # number of statements in a day, one every 30 s


@dataclass(frozen=True, slots=True)
class LanderMessage:
    """One message of a child, still encoded. epoch None: the envelope is unreadable. seq None: a heartbeat.

    of: the object to write to the file (topic, receive time and payload in the real lander). size_bytes: of the
    payload. token: acknowledge it once the file is on disk. run: number of seqs that the message settles; a gap record
    may replace several frames that were never published (3.5). earliest_us: earliest start of its late rows and gap
    records; None: it has neither. birth: the birth in frame 0 of an epoch. flush: of its frame; None: it is of none.
    """

    node: str
    epoch: int | None
    seq: int | None
    of: object
    size_bytes: int
    token: object = None
    run: int = 1
    earliest_us: int | None = None
    birth: Birth | None = None
    flush: Flush | None = None


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Messages of children in arrival order."""

    messages: tuple[LanderMessage, ...]


@dataclass(frozen=True, slots=True)
class Landed:
    """The file of the last `Land` is on disk, fsynced."""


@dataclass(frozen=True, slots=True)
class Land:
    """Write one landing file with these objects, fsync it, then store `received` (slot -> plain value or None: delete).

    now_us: receive time of the file's tick, from which an idle root knows the time. statement: (child, receipt of one
    of its epochs): frames received in this file or an earlier one; empty in most files.
    """

    objects: tuple[object, ...]
    received: Mapping[str, object | None]
    now_us: int
    statement: tuple[tuple[str, Receipt], ...] = ()


@dataclass(frozen=True, slots=True)
class LanderSettings:
    """When to write a file: flush_us after the last one, or at flush_frames or flush_bytes; an idle one every tick_us.

    horizon_us: the root's correction horizon, for the receipts. statement_us: interval between statements.
    """

    flush_us: int = 500_000
    flush_frames: int = 8_000
    flush_bytes: int = 32 << 20
    tick_us: int = 1_000_000
    horizon_us: int = HORIZON_US
    statement_us: int = 30_000_000


LanderEvent = Tick | MessagesArrived | Landed | ChildStatus
LanderAction = Land | SendReceipt | Ack


class LateStarts:
    """Remembers, per epoch, the earliest start of late rows and gap records that landed today or the day before.

    Older ones are not needed, because a statement that reached the root covers them. A day is counted in statements, so
    that a step of the clock does not shorten it.
    """

    def __init__(self) -> None:
        self._today: dict[EpochKey, int] = {}
        self._before: dict[EpochKey, int] = {}
        self._statements = 0

    def note(self, key: EpochKey, start_us: int) -> None:
        """Note that a frame of an epoch landed whose late rows or gap records begin at start_us."""
        self._today[key] = earlier_start(start_us, self._today.get(key, start_us))

    def of(self, key: EpochKey) -> int | None:
        """The earliest start noted for an epoch, as of `earliest_start`; None if there is none."""
        today_us, before_us = self._today.get(key), self._before.get(key)
        return today_us if before_us is None else earlier_start(before_us, before_us if today_us is None else today_us)

    def stated(self) -> None:
        """Count one more statement; after a day of them forget the starts of the day before."""
        self._statements += 1
        if self._statements % A_DAY == 0:
            self._today, self._before = {}, self._today


class Lander:
    """Takes frames of the top tier into landing files and answers with receipts."""

    def __init__(
        self,
        journal: int,
        settings: LanderSettings,
        restored: Mapping[str, Any] | None = None,
        *,
        rebuilt: bool = False,
    ) -> None:
        """journal: id of the lander's journal. restored: the slots of `Land.received` found at start.

        rebuilt: slots of an earlier run existed and are lost.
        """
        self.journal, self.settings = journal, settings
        self._ranges = LandedRanges()
        self.received: Mapping[EpochKey, ReceivedRanges] = self._ranges.of
        self._epochs: dict[str, dict[int, None]] = {}  # child -> its epochs in `received`, oldest first
        self._looked_at: dict[str, int] = {}  # child -> above this number, look for epochs to forget
        self._forgotten: list[EpochKey] = []  # epochs of which to delete the slots with the next file
        self._late = LateStarts()
        self._flushes = LandedFlushes()
        for slot, state in (restored or {}).items():
            node, _, epoch = slot.partition("/")
            upto, above, *more = state
            key = EpochKey(node, int(epoch))
            self._ranges.restore(key, upto, above)
            if more and more[0] is not None:
                self._late.note(key, more[0])
            if len(more) > 1:
                self._flushes.landed(key, 0, Flush(*more[1]))
        for key in sorted(self.received):
            self._epochs.setdefault(key.node, {})[key.epoch] = None
        self._objects: list[object] = []
        self._size_bytes = 0
        self._beats: dict[str, tuple[int, object]] = {}  # child -> epoch of its newest heartbeat, what to write
        self._fresh: dict[EpochKey, dict[int, int]] = {}  # seq -> its run, in order of arrival
        self._ahead = FramesAhead(self.received, rebuilt=rebuilt)
        self._owed: set[EpochKey] = set()
        self._landing: set[EpochKey] = set()
        self._tokens: list[object] = []
        self._acks: list[object] = []
        self._flying = False
        self._flushed_us: int | None = None
        self._newest: dict[str, int] = {}
        self.refused = 0  # frames beyond the bound since the process started; their senders send them again
        self._stated_us: int | None = None
        self._unstated = dict.fromkeys(self.received, STATEMENTS)  # epoch -> in how many more statements it belongs

    def handle(self, event: LanderEvent, now_us: int) -> list[LanderAction]:
        """Handle one event and return the actions."""
        out: list[LanderAction] = []
        match event:
            case MessagesArrived(messages):
                self._take(messages, now_us)
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

    def _take(self, messages: Iterable[LanderMessage], now_us: int) -> None:
        objects = self._objects
        for message in messages:
            if message.token is not None:
                self._tokens.append(message.token)
            if self._flying and self._is_full():
                self.refused += 1
                continue
            if message.epoch is None:
                objects.append(message.of)
                self._size_bytes += message.size_bytes
                continue
            key = EpochKey(message.node, message.epoch)
            self._newest[message.node] = message.epoch
            self._ahead.heard(message.node, now_us)
            if key in self.received:
                self._unstated[key] = STATEMENTS
            if message.seq is None:
                self._beats[message.node] = message.epoch, message.of
                if key not in self.received:  # the child asks for the lander's journal id (3.7)
                    self._owed.add(key)
                continue
            self._owed.add(key)
            if message.seq in self.received.get(key, ()) or message.seq in self._fresh.get(key, ()):
                if self._flushes.contest(key, message.seq, message.flush):
                    self._write(key, message)
                continue
            birth = message.birth if message.birth and message.birth.journal == self.journal else None
            self._answered(message.node, birth)
            room = self._ranges.room(key, message.seq, self._fresh.get(key, ()))
            if not room or not self._ahead.take(
                key, message.seq, birth, run=message.run, size_bytes=message.size_bytes
            ):
                self.refused += 1
                continue
            self._unstated[key] = STATEMENTS
            self._fresh.setdefault(key, {})[message.seq] = message.run
            self._flushes.landed(key, message.seq, message.flush)
            self._write(key, message)
            if birth is not None:
                before = birth.predecessor[0] if isinstance(birth.predecessor, tuple) else key.epoch
                self._forget(key.node, None if birth.held is None else {key.epoch, before, *birth.held})
            elif len(self._epochs.get(key.node, ())) > MOST_KNOWN:
                self._forget(key.node, None)

    def _is_full(self) -> bool:
        """Whether as much waits as may wait while a file cannot be written."""
        settings = self.settings
        many = len(self._objects) + len(self._owed) >= MOST_WAITING * settings.flush_frames
        return many or self._size_bytes >= MOST_WAITING * settings.flush_bytes

    def _write(self, key: EpochKey, message: LanderMessage) -> None:
        """Write a frame with the next file."""
        if message.earliest_us is not None:
            self._late.note(key, message.earliest_us)
        self._objects.append(message.of)
        self._size_bytes += message.size_bytes

    def _answered(self, node: str, birth: Birth | None) -> None:
        """Drop a question for the journal whose birth has come: behind that birth it would speak of another start."""
        beat = self._beats.get(node)
        if birth is not None and beat is not None and birth.follows_question(beat[0]):
            del self._beats[node]

    def _forget(self, node: str, held: set[int] | None) -> None:
        """Forget epochs of a child, but not the newest, nor those in `held`, nor any that waits or is not stated yet.

        held: None if the birth does not state it. Of more than MOST_KNOWN the oldest go whatever the child states.
        """
        own = self._epochs.get(node, {})
        if len(own) <= self._looked_at.get(node, 2 * UNDER_WAY):
            return
        old, most = list(own)[:-UNDER_WAY], len(own) - MOST_KNOWN // 2 if len(own) > MOST_KNOWN else 0
        for epoch in [epoch for i, epoch in enumerate(old) if i < most or (held is not None and epoch not in held)]:
            key = EpochKey(node, epoch)
            if key not in self._unstated and self._ahead.forget(key):
                self._ranges.forget(key)
                self._flushes.forget(key)
                del own[epoch]
                self._forgotten.append(key)
        self._looked_at[node] = max(len(own), UNDER_WAY) + UNDER_WAY  # not at each birth

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
        slots: dict[str, object | None] = {f"{key.node}/{key.epoch}": None for key in self._forgotten}
        self._forgotten = []
        for key, seqs in self._fresh.items():
            received = self._ranges.add(key, seqs)
            self._epochs.setdefault(key.node, {})[key.epoch] = None
            earliest_us, flush = self._late.of(key), self._flushes.state(key)
            more = [earliest_us, flush] if flush else [] if earliest_us is None else [earliest_us]
            slots[f"{key.node}/{key.epoch}"] = [received.next, [list(pair) for pair in received.above], *more]
        objects = (*self._objects, *(of for _, of in self._beats.values()))
        self._landing, self._owed = self._owed, set()
        self._acks, self._tokens = self._tokens, []
        self._objects, self._size_bytes = [], 0
        self._beats.clear()
        self._fresh.clear()
        self._ranges.landed()
        self._flying, self._flushed_us = True, now_us
        return Land(objects, slots, now_us, self._statement(now_us))

    def _statement(self, now_us: int) -> tuple[tuple[str, Receipt], ...]:
        """The statement for the next file: received frames of epochs heard recently; () if no statement is due.

        An epoch is in the next STATEMENTS statements after it was heard.
        """
        since_us = None if self._stated_us is None else now_us - self._stated_us
        if since_us is not None and 0 <= since_us < self.settings.statement_us:
            return ()
        self._stated_us = now_us
        keys = sorted(self._unstated)
        self._unstated = {key: left - 1 for key, left in self._unstated.items() if left > 1}
        stated = tuple((key.node, replace(self._receipt(key), earliest_us=self._late.of(key))) for key in keys)
        self._late.stated()
        return stated

    def _landed(self) -> list[LanderAction]:
        self._flying = False
        out: list[LanderAction] = [Ack(tuple(self._acks))] if self._acks else []
        return out + self._receipts(self._landing)

    def _receipts(self, keys: Iterable[EpochKey]) -> list[LanderAction]:
        return [SendReceipt(key.node, self._receipt(key)) for key in sorted(keys)]

    def _receipt(self, key: EpochKey) -> Receipt:
        received = self.received.get(key, ReceivedRanges())
        return Receipt(key.epoch, self.journal, *received.receipt(), horizon_us=self.settings.horizon_us)
