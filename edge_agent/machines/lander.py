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
- Epochs of which a child has no frame any more are forgotten, as its births say (3.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_agent.algebra.frame import HORIZON_US, LOST, Birth, Receipt, earlier_start
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.ended_epochs import UNDER_WAY
from edge_agent.machines.downlink.epochs.landed_ranges import LandedRanges
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges
from edge_agent.machines.downlink.epochs.waiting_frames import MOST_BYTES, MOST_FRAMES
from edge_agent.machines.downlink.losses.let_go import LOOK_US, PAUSE_US, WAIT_US
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick

MOST_EPOCHS: Final = 1_000  # most epochs of one child in which frames may wait; the same as in a merger's inbox
MOST_KNOWN: Final = 20_000  # most epochs of one child whose received frames are remembered
STATEMENTS: Final = 2  # each epoch heard is in so many statements, because the file with one of them may be lost
# frames missing for so long, while their child speaks, are settled by the root, which hears less: no refused frames
SETTLED_US: Final = 2 * WAIT_US
A_DAY: Final = 2_880  # number of statements in a day, one every 30 s


@dataclass(frozen=True, slots=True)
class LanderMessage:
    """One message of a child, still encoded. epoch None: the envelope is unreadable. seq None: a heartbeat.

    of: the object to write to the file (topic, receive time and payload in the real lander). size_bytes: of the
    payload. token: acknowledge it once the file is on disk. run: number of seqs that the message settles; a gap record
    may replace several frames that were never published (3.5). earliest_us: earliest start of its late rows and gap
    records; None: it has neither. birth: the birth in frame 0 of an epoch.
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


class FramesAhead:
    """Counts the frames of each child that the root cannot apply yet (2.2).

    A frame is counted if a frame before it in its epoch is missing, or if its whole epoch waits. An epoch waits if its
    birth names frames of the epoch before that are missing or wait themselves. An epoch counts alone, without its
    frames, if frame 0 does not say what it follows, although its child was heard: the root may keep it for long (1.4).

    Seqs up to the highest that an earlier run received, and those before the first frame of an epoch in this run, do
    not count as missing: a gap record covers them, or their receipt is no longer known, or they arrive soon. For the
    same reason the first birth of a child in this run waits for nothing. Nor does what has been missing for SETTLED_US
    while the child spoke, because the root settles it as lost (1.3) and applies the frames behind it.
    """

    def __init__(self, received: Mapping[EpochKey, ReceivedRanges], *, rebuilt: bool) -> None:
        """received: the ranges of the lander, which it updates itself. rebuilt: the ranges of earlier runs are lost."""
        self._received = received
        self._rebuilt, self._goes_on = rebuilt, rebuilt or bool(received)
        self._lines: dict[EpochKey, ReceivedRanges] = {}
        self._ahead: dict[str, dict[int, list[int]]] = {}  # node -> epoch -> [frames, bytes] that wait
        self._waits: dict[EpochKey, tuple[EpochKey, int]] = {}  # waiting epoch -> (epoch before it, last seq of that)
        self._awaited: dict[EpochKey, list[EpochKey]] = {}  # epoch -> epochs that wait for it
        self._heard: set[str] = set()  # children from which a frame has landed in this run
        self._apart: dict[str, set[int]] = {}  # node -> epochs that do not say what they follow, although it was heard
        # node -> (time of the last look, (epoch, first missing seq; -1: the epoch waits) -> how long it spoke since)
        self._missing: dict[str, tuple[int, dict[tuple[int, int], int]]] = {}

    def heard(self, node: str, now_us: int) -> None:
        """Note that a child speaks, and stop counting what the root has settled by now."""
        if not self._ahead.get(node):
            self._missing.pop(node, None)
            return
        looked_us, before = self._missing.get(node, (now_us, {}))
        if before and 0 <= now_us - looked_us < LOOK_US:
            return
        passed_us, holes = min(max(now_us - looked_us, 0), PAUSE_US), dict(self._holes(node))
        found = {hole: before[hole] + passed_us if hole in before else 0 for hole in holes}
        self._missing[node] = now_us, found
        for (epoch, first), missing_us in found.items():
            if missing_us >= SETTLED_US:
                self._settled(EpochKey(node, epoch), first, holes[epoch, first])

    def _holes(self, node: str) -> Iterator[tuple[tuple[int, int], int]]:
        """Yields ((epoch, first missing seq), last missing seq); ((epoch, -1), -1) for an epoch that waits."""
        for epoch in self._ahead[node]:
            key = EpochKey(node, epoch)
            first = self._lines[key].next
            for low, high in self._lines[key].above:
                yield (epoch, first), low - 1
                first = high + 1
            if key in self._waits:
                yield (epoch, -1), -1

    def _settled(self, key: EpochKey, first: int, last: int) -> None:
        """Stop counting a hole, or waiting for the epoch before if first is -1."""
        if first >= 0:
            self._lines[key].add_run(first, last)
        elif (waits := self._waits.pop(key, None)) is not None:
            self._awaited[waits[0]].remove(key)
            self._release(waits[0])  # it may be awaited by no other
        self._count(key)
        self._release(key)

    def _count(self, key: EpochKey) -> None:
        """Count the frames of an epoch anew: a hole in it is closed, or it waits no longer."""
        epochs, line = self._ahead.get(key.node, {}), self._lines[key]
        if key.epoch in epochs and key not in self._waits:
            if line.ahead:
                epochs[key.epoch][0] = line.ahead
            else:
                del epochs[key.epoch]

    def take(self, key: EpochKey, message: LanderMessage, birth: Birth | None) -> bool:
        """Count a new frame. Returns False if the frame exceeds the bound and must not land.

        birth: the birth in the frame, if it is for this lander's journal.
        """
        seq, line = message.seq or 0, self._lines.get(key)
        if line is None:
            line = self._new_line(key, seq)
        if seq < line.next:
            return True
        if seq == 0 and key.node in self._heard and (birth is None or birth.predecessor is None):
            apart = self._apart.setdefault(key.node, set())
            if key.epoch not in apart and len(apart) >= MOST_EPOCHS:
                return False
            apart.add(key.epoch)
        before = None if birth is None or key in self._waits else self._lacks(key.node, birth)
        waits = before is not None or key in self._waits
        if (seq > line.next or waits) and not self._room(key, 2 if seq < line.top else 1):
            return False
        self._lines[key] = line
        self._heard.add(key.node)
        if before is not None:
            self._waits[key] = before
            self._awaited.setdefault(before[0], []).append(key)
        elif birth is not None and birth.predecessor == LOST:
            self._forget_all_but(key)
        if message.run > 1:
            line.add_run(seq, seq + message.run - 1)
        elif seq not in line:
            line.add(seq)
        epochs = self._ahead.setdefault(key.node, {})
        frames, size_bytes = epochs.get(key.epoch, (0, 0))
        if waits or line.ahead:  # the bytes are reset only when no frame waits any more
            epochs[key.epoch] = [frames + 1 if waits else line.ahead, size_bytes + message.size_bytes]
        else:
            epochs.pop(key.epoch, None)
        if key in self._awaited:
            self._release(key)
        return True

    def forget(self, key: EpochKey) -> bool:
        """Forget an epoch of which no frame will come. Returns False if frames of it wait, or others wait for it."""
        if key in self._waits or key in self._awaited or key.epoch in self._ahead.get(key.node, ()):
            return False
        self._lines.pop(key, None)
        self._apart.get(key.node, set()).discard(key.epoch)
        return True

    def _new_line(self, key: EpochKey, seq: int) -> ReceivedRanges:
        if key in self._received:
            return ReceivedRanges(max(self._received[key].top, seq))
        return ReceivedRanges(seq if self._rebuilt else 0)

    def _lacks(self, node: str, birth: Birth) -> tuple[EpochKey, int] | None:
        """Returns (the epoch that a birth waits for, the last seq of that epoch); None if it does not wait."""
        if not isinstance(birth.predecessor, tuple) or (self._goes_on and node not in self._heard):
            return None
        before = EpochKey(node, birth.predecessor[0]), birth.predecessor[1]
        return None if self._usable(*before) else before

    def _usable(self, key: EpochKey, last: int) -> bool:
        """Whether an epoch does not wait, and all its frames up to seq `last` have been received."""
        if key not in self._lines:
            return key in self._received and self._received[key].top > last
        return self._lines[key].next > last and key not in self._waits

    def _release(self, key: EpochKey) -> None:
        """Release the epochs that wait for this one if it is usable now, and then those that wait for them."""
        done = [key]
        while done:
            before = done.pop()
            free = [each for each in self._awaited.get(before, ()) if self._usable(*self._waits[each])]
            left = [each for each in self._awaited.pop(before, ()) if each not in free]
            if left:
                self._awaited[before] = left
            for each in free:
                del self._waits[each]
                self._count(each)
            done += free

    def _forget_all_but(self, key: EpochKey) -> None:
        """Stop counting older epochs of the node, because a birth declares its predecessor lost (1.2)."""
        own = self._ahead.get(key.node, {})
        self._ahead[key.node] = {epoch: counts for epoch, counts in own.items() if epoch == key.epoch}
        for epoch in [each for each in self._waits if each.node == key.node]:
            before, _ = self._waits.pop(epoch)
            self._awaited.pop(before, None)

    def _room(self, key: EpochKey, share: int) -> bool:
        """Whether one more frame may wait. share: factor of the bound.

        A frame between others that landed gets twice the bound: the child sent it among 1 000 frames ahead, and would
        give it up if it were refused several times while its neighbours are receipted (3.6).
        """
        epochs = self._ahead.get(key.node, {})
        if key.epoch not in epochs and len(epochs) >= MOST_EPOCHS:
            return False
        frames, size_bytes = (sum(each[i] for each in epochs.values()) for i in (0, 1))
        return frames < MOST_FRAMES * share and size_bytes < MOST_BYTES * share


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
        for slot, state in (restored or {}).items():
            node, _, epoch = slot.partition("/")
            upto, above, *earliest = state
            key = EpochKey(node, int(epoch))
            self._ranges.restore(key, upto, above)
            if earliest:
                self._late.note(key, earliest[0])
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
            if message.epoch is None:
                objects.append(message.of)
                continue
            key = EpochKey(message.node, message.epoch)
            self._newest[message.node] = message.epoch
            self._ahead.heard(message.node, now_us)
            self._unstated[key] = STATEMENTS
            if message.seq is None:
                self._beats[message.node] = message.epoch, message.of
                if key not in self.received:  # the child asks for the lander's journal id (3.7)
                    self._owed.add(key)
                continue
            self._owed.add(key)
            if message.seq in self.received.get(key, ()) or message.seq in self._fresh.get(key, ()):
                continue
            birth = message.birth if message.birth and message.birth.journal == self.journal else None
            self._answered(message.node, birth)
            room = self._ranges.room(key, message.seq, self._fresh.get(key, ()))
            if not room or not self._ahead.take(key, message, birth):
                self.refused += 1
                continue
            self._fresh.setdefault(key, {})[message.seq] = message.run
            if message.earliest_us is not None:
                self._late.note(key, message.earliest_us)
            objects.append(message.of)
            self._size_bytes += message.size_bytes
            if birth is not None:
                before = birth.predecessor[0] if isinstance(birth.predecessor, tuple) else key.epoch
                self._forget(key.node, None if birth.held is None else {key.epoch, before, *birth.held})
            elif len(self._epochs.get(key.node, ())) > MOST_KNOWN:
                self._forget(key.node, None)

    def _answered(self, node: str, birth: Birth | None) -> None:
        """Drop a question for the journal whose birth has come: behind that birth it would speak of another start."""
        beat = self._beats.get(node)
        if birth is not None and beat is not None and birth.follows_question(beat[0]):
            del self._beats[node]

    def _forget(self, node: str, held: set[int] | None) -> None:
        """Forget epochs of a child, but not the newest, nor those in `held`, nor any that waits or is not stated.

        held: None if the birth does not state it. Of more than MOST_KNOWN the oldest go whatever the child states.
        """
        own = self._epochs.get(node, {})
        if len(own) <= self._looked_at.get(node, 2 * UNDER_WAY):
            return
        old, most = list(own)[:-UNDER_WAY], len(own) - MOST_KNOWN // 2 if len(own) > MOST_KNOWN else 0
        for epoch in [epoch for i, epoch in enumerate(old) if i < most or (held is not None and epoch not in held)]:
            key = EpochKey(node, epoch)
            if key not in self._unstated and key not in self._fresh and self._ahead.forget(key):
                self._ranges.forget(key)
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
            earliest_us = self._late.of(key)
            late = [] if earliest_us is None else [earliest_us]
            slots[f"{key.node}/{key.epoch}"] = [received.next, [list(pair) for pair in received.above], *late]
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
        keys = sorted(key for key in self._unstated if key in self.received)
        self._unstated = {key: left - 1 for key, left in self._unstated.items() if left > 1}
        stated = tuple((key.node, replace(self._receipt(key), earliest_us=self._late.of(key))) for key in keys)
        self._late.stated()
        return stated

    def _landed(self) -> list[LanderAction]:
        self._flying = False
        out: list[LanderAction] = [Ack(tuple(self._acks))] if self._acks else []
        out += self._receipts(self._landing)
        self._acks, self._landing = [], set()
        return out

    def _receipts(self, keys: Iterable[EpochKey]) -> list[LanderAction]:
        return [SendReceipt(key.node, self._receipt(key)) for key in sorted(keys)]

    def _receipt(self, key: EpochKey) -> Receipt:
        received = self.received.get(key, ReceivedRanges())
        return Receipt(key.epoch, self.journal, *received.receipt(), horizon_us=self.settings.horizon_us)
