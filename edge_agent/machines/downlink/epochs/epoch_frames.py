"""The frames of one epoch of a child: which took effect, which wait, and which belong to another line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from edge_agent.algebra.earliest_start import earliest_start
from edge_agent.algebra.frame import Flush, Frame
from edge_agent.algebra.gap_scope import has_times
from edge_agent.machines.checkpoint.slots import EpochFramesState
from edge_agent.machines.downlink.epochs.counting import Counting
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.flushes_ahead import FlushesAhead
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedSeqs
from edge_agent.machines.events import BadFrame

RECEIPT_QUARANTINED: Final = 16  # so many of the newest seqs of bad frames are kept, and named by receipts
MOST_QUARANTINED: Final = 4 * RECEIPT_QUARANTINED  # until then none is forgotten
OTHERS_HERE = "flush of a restored spool: later frames are here already"
ANOTHER_FLUSH = "a flush of another line: one that names another epoch after it is here already"
SECOND_LINE = "a second line of its node: this epoch has a successor"
AFTER_FLUSH = "a frame of another line: a flush of its epoch is here"


class Effect(NamedTuple):
    """A frame that takes effect now.

    frame: None if a bad body was settled or a frame refused; `why` is the reason. stale: its epoch was declared lost,
    so only its data counts. copied (of a birth), unheard: see EpochFrames. counting: plan number -> which of its rows
    count, for plans with possible repeats. since_us: see BadFrame.
    """

    node: str
    epoch: int
    seq: int
    frame: Frame | None
    stale: bool = False
    why: str = ""
    copied: bool = False
    counting: Mapping[int, Counting] = MappingProxyType({})
    unheard: bool = False
    since_us: int | None = None

    @property
    def forgot(self) -> bool:
        """Whether a birth takes effect that does not know the epochs before it."""
        birth = None if self.frame is None or self.stale else self.frame.birth
        return birth is not None and (self.copied or not isinstance(birth.predecessor, tuple))


@dataclass(slots=True)
class EpochFrames:
    """The frames of one epoch. applied: seqs of frames that took effect; waiting: frames that wait for their turn.

    readings: number of readings that took effect since the first epoch of an unbroken line of predecessors (9.1); None:
    the line is older than the books of this parent, or goes on from a copy of the spool, whose own count is of before.
    refused: number of frames of that line without effect.
    """

    applied: ReceivedSeqs = field(default_factory=ReceivedSeqs)
    waiting: dict[int, Frame | BadFrame] = field(default_factory=dict)
    predecessor: tuple[int, int] | str | None = None
    born: bool = False  # frame 0 has arrived
    lost: bool = False  # declared lost: order no longer matters
    quarantined: set[int] = field(default_factory=set)
    birth_frames: int = 1  # number of frames of its birth
    held: tuple[int, ...] | None = None  # epochs of which its node still had frames at the birth; None: not stated
    # the highest seq of an ordinary frame: neither of a flush, nor a gap record for a frame, nor a `leave`
    ordinary: int = -1
    flush: Flush | None = None  # the flush of which a frame took effect (1.3)
    copied: bool = False  # its node continued from an older copy of its spool, or without its past (1.3)
    since_us: int | None = None  # since when it waits for another line to fall silent (1.4)
    blocked: bool = False  # the next frame has unknown numbers
    unheard: bool = False  # declared lost before any frame of it took effect
    readings: int | None = 0
    refused: int = 0
    ahead: DefinitionsAhead = field(default_factory=DefinitionsAhead, compare=False)  # what `waiting` defines
    flushes: FlushesAhead = field(default_factory=FlushesAhead, compare=False)  # those in `waiting`
    counted: tuple[int, int] = field(default=(0, 0), compare=False)  # of a birth: next seq to look at, end of a run
    # seq -> the refused flush to which its frame belongs, for the newest, in this process
    refused_flushes: dict[int, Flush] = field(default_factory=dict, compare=False)
    looked: bool = False  # declared lost, and no frame has come since those that wait were looked at

    def __contains__(self, seq: int) -> bool:
        return seq in self.applied or seq in self.waiting

    @property
    def last_seq(self) -> int:
        """The highest seq of a frame that took effect or waits; -1 if there is none."""
        return max((self.applied.next - 1, *self.applied.above, *self.waiting))

    @property
    def birth_is_here(self) -> bool:
        """Whether all frames of the birth, or declared losses in their place, have arrived and wait.

        Goes on where the last look ended, because a birth may have thousands of frames.
        """
        at, upto = max(self.counted, (self.applied.next, self.applied.next))
        while at < self.birth_frames and (at in self.waiting or at < upto):
            if at in self.waiting:
                upto = max(upto, at + run_of(self.waiting[at]))
            at += 1
        self.counted = at, upto
        return at >= self.birth_frames

    def completed_by(self, seq: int) -> bool:
        """Whether a frame that just began to wait may have completed the birth; another one changes nothing yet."""
        return self.applied.next > 0 or (seq < self.birth_frames and self.birth_is_here)

    def store(self, seq: int, message: Frame | BadFrame) -> None:
        """Let a frame wait."""
        self.waiting[seq], self.looked = message, False
        self._note_waiting(message)
        self._touched(seq)

    def take_out(self, seq: int) -> Frame | BadFrame:
        """Remove and return a frame that waits."""
        message = self.waiting.pop(seq)
        self.ahead.remove(seq)
        self.flushes.remove(message, follows=isinstance(message, Frame) and apart(message))
        self._touched(seq)
        return message

    def _note_waiting(self, message: Frame | BadFrame) -> None:
        self.ahead.add(message)
        self.flushes.add(message, follows=isinstance(message, Frame) and apart(message))

    def _touched(self, seq: int) -> None:
        if seq < self.counted[0]:
            self.counted = 0, 0

    def birth_is_for_another(self, journal: int) -> bool:
        """Whether the birth waits here and is for another journal of the parent."""
        first = self.waiting.get(0)
        birth = first.birth if isinstance(first, Frame) else None
        return birth is not None and birth.journal != journal

    def unborn(self) -> None:
        """Forget the birth, which was discarded."""
        self.born, self.predecessor, self.birth_frames, self.held = False, None, 1, None

    @property
    def ended(self) -> bool:
        """Whether its last frame waits, a `leave` (1.5), and none before it is missing: no definition can come."""
        leaves = (seq for seq, each in self.waiting.items() if isinstance(each, Frame) and each.leave is not None)
        end = max(leaves, default=-1)
        return end >= 0 and not any(self.missing(end))

    def missing(self, last: int) -> Iterator[tuple[int, int]]:
        """Yields the inclusive ranges of seqs, up to `last`, of frames that neither took effect nor wait."""
        first = self.applied.next
        few = last - first < len(self.waiting)  # as of a birth, which many frames may follow
        for seq in range(first, last + 1) if few else sorted(self.waiting):
            message = self.waiting.get(seq)
            if message is None or seq > last:
                continue
            if first < seq:
                yield first, seq - 1
            first = max(first, seq + run_of(message))
        if first <= last:
            yield first, last

    def refuses(self, frame: Frame) -> str:
        """Why a frame must be of another line; '' if it may be of this one. A flush counts as a whole (1.3)."""
        if frame.flush is None:
            return AFTER_FLUSH if self.flushed(frame.seq) and not apart(frame) else ""
        here = self.flush
        contradicts = here is not None and here.after == frame.flush.after and not here.agrees(frame.flush)
        if contradicts or self.flushes.contradict(frame.flush):
            return ANOTHER_FLUSH
        return OTHERS_HERE if self._has_others(frame.flush.after) else ""

    def leads_to(self, birth: Frame | BadFrame, last: int) -> bool:
        """Whether a birth continues from the frames here. It names this epoch with the last seq `last`.

        The birth is of a copy if other frames are here in the place of the flush that it names, even if they are as
        many as in the flush (1.3).
        """
        if self.lost or self.applied.next != last + 1:
            return False
        if self.flush is not None and self.flush.successor not in (None, birth.epoch):
            return False  # the flush here is of another device, which was restarted behind the same frame (1.4)
        named = birth.birth if isinstance(birth, Frame) else None
        return named is None or named.flush is None or not self._has_others(named.flush)

    def _has_others(self, after: int) -> bool:
        """Whether frames above seq `after` are here that are not of a flush after that seq."""
        if self.flush is not None and self.flush.after != after:
            return True
        return self.ordinary > after or self.flushes.has_others(after)

    def note(self, frame: Frame) -> None:
        """Note that a frame takes effect."""
        if frame.flush is not None:
            self.flush = frame.flush
        elif frame.leave is not None and self.flush is not None:
            self.flush = Flush(self.flush.after)  # the epoch that it named was for another parent (1.5)
        elif not apart(frame):
            self.ordinary = max(self.ordinary, frame.seq)

    def flushed(self, seq: int) -> bool:
        """Whether a flush that took effect has ended this epoch before that seq."""
        return self.flush is not None and seq > self.flush.after

    def flush_at(self, seq: int) -> bool:
        """Whether the frame with a seq is of a flush, which may have been refused."""
        there = self.waiting.get(seq)
        waits = isinstance(there, Frame) and there.flush is not None
        return waits or self.flushed(seq) or seq in self.refused_flushes

    def contested(self, frame: Frame) -> bool:
        """Whether a flush of another line has used the seq of a frame (1.3)."""
        if apart(frame) or self.lost:
            return False
        if (refused := self.refused_flushes.get(frame.seq)) is not None:
            return not refused.agrees(frame.flush)
        if frame.seq in self.quarantined:
            return False
        there = self.waiting.get(frame.seq)
        here = self.flush if there is None else there.flush if isinstance(there, Frame) else None
        return here is not None and frame.seq > here.after and not here.agrees(frame.flush)

    def refuse(self, frame: Frame) -> None:
        """Note that a frame is refused: if it is of a flush, the other device may have sent one with its seq (1.4)."""
        if frame.flush is not None:
            self.refused_flushes[frame.seq] = frame.flush
            if len(self.refused_flushes) > MOST_QUARANTINED:
                del self.refused_flushes[next(iter(self.refused_flushes))]

    def quarantine(self, seq: int) -> None:
        """Note a quarantined seq. Only the newest are kept, and that of a birth: without it the child sends in vain."""
        self.quarantined.add(seq)
        if len(self.quarantined) > MOST_QUARANTINED:
            self.quarantined = set(self.newest_quarantined())

    def newest_quarantined(self) -> tuple[int, ...]:
        """The quarantined seqs that a receipt tells, in order: the first frame of the birth, then the newest."""
        if len(self.quarantined) <= RECEIPT_QUARANTINED:
            return tuple(sorted(self.quarantined))
        newest = tuple(sorted(self.quarantined)[-RECEIPT_QUARANTINED:])
        return (0, *newest[1:]) if 0 in self.quarantined else newest

    def snapshot(self, *, current: bool) -> EpochFramesState:
        """The state without waiting frames. current: whether this epoch is in force."""
        return EpochFramesState(
            next=self.applied.next,
            predecessor=self.predecessor,
            born=self.born,
            closed=self.lost,
            lost=self.lost,
            applied=sorted(self.applied.above),
            quarantined=list(self.newest_quarantined()),
            current=current,
            readings=self.readings,
            refused=self.refused,
            birth_frames=self.birth_frames,
            held=None if self.held is None else list(self.held),
            ordinary=self.ordinary,
            flush=None if self.flush is None else self.flush.after,
            successor=None if self.flush is None else self.flush.successor,
            copied=self.copied,
            since_us=self.since_us,
            unheard=self.unheard,
        )

    @classmethod
    def restore(cls, state: EpochFramesState, waiting: Mapping[int, Frame | BadFrame]) -> EpochFrames:
        """Continue from the result of `snapshot` and the waiting frames."""
        frames = cls(
            ReceivedSeqs(state.next, set(state.applied)),
            dict(waiting),
            state.predecessor,
            state.born,
            state.lost,
            set(state.quarantined),
            state.birth_frames,
            None if state.held is None else tuple(state.held),
            state.next - 1 if state.ordinary is None else state.ordinary,
            None if state.flush is None else Flush(state.flush, state.successor),
            state.copied,
            state.since_us,
            unheard=state.unheard,
            readings=state.readings,
            refused=state.refused,
        )
        for message in waiting.values():
            frames._note_waiting(message)
        return frames


def earliest(frame: Frame) -> int | None:
    """The earliest start of the rows and gap records of a frame, as of `earliest_start`; None if it has none."""
    rows = (section.span_us[0] for part in frame.groups for section in (*part.sections, *part.late))
    gaps = (gap.start_us for gap in frame.gaps if has_times(gap))
    return earliest_start((*rows, *gaps))


def run_of(message: Frame | BadFrame) -> int:
    """How many seqs a message takes: one gap record may stand for several frames that were never published (3.5)."""
    if isinstance(message, BadFrame):
        return max(message.run, 1)
    return 1 + sum(max(gap.run - 1, 0) for gap in message.gaps)


def stands_in(frame: Frame) -> bool:
    """Whether a frame is a gap record that replaces other frames (3.5)."""
    return any(gap.run for gap in frame.gaps)


def apart(frame: Frame) -> bool:
    """Whether a frame may follow a flush: a gap record that replaces frames, or a `leave`, the end of a line (1.5)."""
    return stands_in(frame) or frame.leave is not None
