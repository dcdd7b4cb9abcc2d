"""Receives the frames of all children: dedupe, order and receipts.

Rules (docs/protocol.md): identity of a frame is (node, epoch, seq) and nothing else dedupes (1.1); frames of an epoch
take effect in seq order, those ahead wait and count as received (2.2); a birth waits for the predecessor it names and
for no other (1.2); of an epoch declared lost, what comes applies once each for its data only (1.2); a flush is dropped
whole if any other frame stands above the seq it names (1.3); a bad body is settled where it stands (3.6); dedupe state
is a contiguous prefix and what waits above it, no more (3.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import LOST, Frame, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.checkpoint.slots import EpochFramesState
from edge_agent.machines.downlink.received_seqs import ReceivedSeqs
from edge_agent.machines.events import BadFrame

RECEIPT_QUARANTINED: Final = 16  # the newest seqs of bad frames that a receipt names
KEPT_EPOCHS: Final = 64  # closed epochs of a node whose prefix is kept: duplicates of older ones cannot be in flight


@dataclass(frozen=True, slots=True)
class Effect:
    """A frame that takes effect now. stale: its epoch was declared lost, so its data counts and nothing else does.

    frame is None where a bad body was settled or a flush dropped; `why` says which.
    """

    node: str
    epoch: int
    seq: int
    frame: Frame | None
    stale: bool = False
    why: str = ""


@dataclass(slots=True)
class EpochFrames:
    """The frames of one epoch. applied: those that took effect; waiting: those that came before their turn.

    readings: in the rows that took effect since the first epoch of an unbroken line of predecessors (9.1); None: the
    line is older than the books of this parent. refused: frames of that line that had no effect.
    """

    applied: ReceivedSeqs = field(default_factory=ReceivedSeqs)
    waiting: dict[int, Frame | BadFrame] = field(default_factory=dict)
    predecessor: tuple[int, int] | str | None = None
    born: bool = False  # frame 0 has come
    closed: bool = False  # its successor took effect
    lost: bool = False  # declared lost: order no longer matters
    quarantined: set[int] = field(default_factory=set)
    readings: int | None = 0
    refused: int = 0

    def __contains__(self, seq: int) -> bool:
        return seq in self.applied or seq in self.waiting


class Inbox:
    """Frames of children in the order in which they take effect."""

    def __init__(self, journal: int) -> None:
        """journal: this parent's id of its own durable state (docs/protocol.md 3.7)."""
        self.journal = journal
        self.epochs: dict[EpochKey, EpochFrames] = {}
        self.current: dict[str, int] = {}  # node -> epoch whose birth took effect last
        self.changed: set[EpochKey] = set()  # since the last snapshot of the owner
        self.rivals: dict[str, tuple[int, int]] = {}  # node -> two epochs of it that both go on: two devices, one name
        self._unborn: set[str] = set()  # nodes with frames of an epoch that is not in force yet

    def known(self, node: str, epoch: int) -> bool:
        """Whether any frame of that epoch has come."""
        return EpochKey(node, epoch) in self.epochs

    def received(self, node: str, epoch: int, seq: int) -> bool:
        """Whether that frame has come before."""
        known = self.epochs.get(EpochKey(node, epoch))
        return known is not None and seq in known

    def take(self, node: str, message: Frame | BadFrame) -> list[Effect]:
        """Store one frame. Returns the frames that take effect now, in order; a duplicate has none."""
        frame = message if isinstance(message, Frame) else None
        if frame is not None and frame.birth is not None and frame.birth.journal != self.journal:
            return []  # addressed to a journal that is no more: the sender will be born again for this one
        key = EpochKey(node, message.epoch)
        frames = self.epochs.get(key)
        if frames is None:
            frames = self.epochs[key] = EpochFrames()
        seq = message.seq
        if seq in frames:
            return []
        self.changed.add(key)
        if frame is not None and frame.flush is not None and self._beyond(frames, frame.flush):
            bad = BadFrame(message.epoch, seq, "flush of a restored spool: later frames are here already", b"")
            frames.waiting[seq] = bad
        else:
            frames.waiting[seq] = message
        if seq == 0:
            frames.born = True
            frames.predecessor = frame.birth.predecessor if frame is not None and frame.birth is not None else None
        if self.current.get(node) != message.epoch or frames.lost:
            return self._advance(node)
        if seq != frames.applied.next:
            return []
        out = self._run(node, message.epoch, frames)  # the usual case: in order, of the epoch in force
        return out + self._advance(node) if node in self._unborn else out

    @staticmethod
    def _beyond(frames: EpochFrames, last: int) -> bool:
        """Whether a frame that is no flush stands above `last` (1.3)."""
        if any(s > last and not (isinstance(f, Frame) and f.flush is not None) for s, f in frames.waiting.items()):
            return True
        return frames.applied.next > last + 1

    def _advance(self, node: str) -> list[Effect]:
        out: list[Effect] = []
        again = True
        while again:
            again = False
            for (name, epoch), frames in list(self.epochs.items()):
                if name != node or not frames.waiting:
                    continue
                if frames.lost:
                    out += self._apply_lost(node, epoch, frames)
                    continue
                if frames.closed or frames.applied.next not in frames.waiting:
                    continue
                if frames.applied.next == 0:
                    if not self._may_be_born(node, epoch, frames, out):
                        continue
                elif epoch != self.current.get(node):
                    self.rivals[node] = (epoch, self.current.get(node, 0))
                out += self._run(node, epoch, frames)
                again = True
        ahead = any(n == node and e != self.current.get(n) and frames.waiting for (n, e), frames in self.epochs.items())
        (self._unborn.add if ahead else self._unborn.discard)(node)
        return out

    def _may_be_born(self, node: str, epoch: int, frames: EpochFrames, out: list[Effect]) -> bool:
        predecessor = frames.predecessor
        if predecessor == LOST:
            for (name, other_epoch), other in self.epochs.items():
                if (
                    name == node
                    and other_epoch != epoch
                    and not other.closed
                    and (other.applied.next > 0 or not other.born)
                ):
                    other.lost = other.closed = True
                    self.changed.add(EpochKey(name, other_epoch))
                    out += self._apply_lost(node, other_epoch, other)
        elif isinstance(predecessor, tuple):
            before = self.epochs.get(EpochKey(node, predecessor[0]))
            if before is None or (not before.closed and before.applied.next <= predecessor[1]):
                return False
            before.closed = True
            frames.readings, frames.refused = before.readings, before.refused
            self.changed.add(EpochKey(node, predecessor[0]))
        self.current[node] = epoch
        self._prune(node)
        return True

    def _run(self, node: str, epoch: int, frames: EpochFrames) -> list[Effect]:
        out = []
        applied = frames.applied
        while applied.next in frames.waiting:
            out.append(self._effect(node, epoch, frames, applied.next, stale=False))
            applied.next += 1
        return out

    def _apply_lost(self, node: str, epoch: int, frames: EpochFrames) -> list[Effect]:
        out = [self._effect(node, epoch, frames, seq, stale=True) for seq in sorted(frames.waiting)]
        for effect in out:
            frames.applied.add(effect.seq)
        return out

    def _effect(self, node: str, epoch: int, frames: EpochFrames, seq: int, *, stale: bool) -> Effect:
        message = frames.waiting.pop(seq)
        self.changed.add(EpochKey(node, epoch))
        if isinstance(message, BadFrame):
            frames.quarantined.add(seq)
            if not stale:
                self._pass_over(frames, message.run - 1)
            return Effect(node, epoch, seq, None, stale, message.reason)
        if message.gaps and not stale:  # one gap record may stand for several frames that were never published (3.5)
            self._pass_over(frames, sum(gap.run - 1 for gap in message.gaps if gap.run > 1))
        return Effect(node, epoch, seq, message, stale)

    @staticmethod
    def _pass_over(frames: EpochFrames, more: int) -> None:
        """The frame that takes effect stands for `more` that come after it as well."""
        if more:
            frames.applied.next += more
            for covered in [s for s in frames.waiting if s < frames.applied.next]:
                del frames.waiting[covered]

    def _prune(self, node: str) -> None:
        closed = [k for k, frames in self.epochs.items() if k[0] == node and frames.closed and not frames.waiting]
        for key in closed[:-KEPT_EPOCHS]:
            del self.epochs[key]
            self.changed.add(key)

    def count(self, node: str, readings: int | None) -> None:
        """Adds the readings of a frame that took effect (None: it had none) to the line of epochs in force."""
        frames = self.epochs.get(EpochKey(node, self.current.get(node, 0)))
        if frames is None:
            return
        if readings is None:
            frames.refused += 1
        elif frames.readings is not None:
            frames.readings += readings

    def lines(self) -> dict[str, EpochFrames]:
        """Child -> its epoch in force, which counts for the whole line."""
        return {
            node: self.epochs[key]
            for node, epoch in self.current.items()
            if (key := EpochKey(node, epoch)) in self.epochs
        }

    def reached(self, node: str, epoch: int, seq: int) -> bool:
        """Whether everything up to seq of the epoch in force took effect (a heartbeat holds then; 2.5)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and self.current.get(node) == epoch and frames.applied.next > seq

    def receipt(self, node: str, epoch: int) -> Receipt:
        """The frames received of an epoch; of an unknown one an empty receipt, which names the journal (3.2, 3.7)."""
        frames = self.epochs.get(EpochKey(node, epoch)) or EpochFrames()
        upto, above = frames.applied.receipt(frames.waiting)  # those that wait for a predecessor are received too (1.2)
        return Receipt(epoch, self.journal, upto, above, tuple(sorted(frames.quarantined)[-RECEIPT_QUARANTINED:]))

    def snapshot(self, key: EpochKey, waiting: list[tuple[int, Any]] | None = None) -> EpochFramesState | None:
        """The state of one epoch; None once it is pruned. waiting: the frames that wait, as the owner packs them."""
        frames = self.epochs.get(key)
        if frames is None:
            return None
        return EpochFramesState(
            next=frames.applied.next,
            predecessor=frames.predecessor,
            born=frames.born,
            closed=frames.closed,
            lost=frames.lost,
            applied=sorted(frames.applied.above),
            quarantined=sorted(frames.quarantined)[-RECEIPT_QUARANTINED:],
            current=self.current.get(key.node) == key.epoch,
            waiting=waiting,
            readings=frames.readings,
            refused=frames.refused,
        )

    def restore(self, key: EpochKey, state: EpochFramesState, waiting: Mapping[int, Frame | BadFrame]) -> None:
        """From what `snapshot` returns, with the frames that wait."""
        received = ReceivedSeqs(state.next, set(state.applied))
        flags = (state.predecessor, state.born, state.closed, state.lost)
        bad = set(state.quarantined)
        self.epochs[key] = EpochFrames(received, dict(waiting), *flags, bad, state.readings, state.refused)
        if state.current:
            self.current[key.node] = key.epoch
        if waiting:
            self._unborn.add(key.node)

    def check(self) -> None:
        """Invariants, for tests: nothing waits below its prefix; at most one epoch of a node is in force."""
        for key, frames in self.epochs.items():
            assert all(seq >= frames.applied.next for seq in frames.waiting), key
            assert not (set(frames.waiting) & frames.applied.above), key
        for node, epoch in self.current.items():
            assert not self.epochs[EpochKey(node, epoch)].closed, (node, epoch)
