"""The epochs of all children: the one in force of each, those of older lines and those that have ended."""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.algebra.frame import Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.ended_epochs import EndedEpochs
from edge_agent.machines.downlink.epochs.epoch_frames import RECEIPT_QUARANTINED, EpochFrames


class ChildEpochs:
    """epochs: those that have not ended. current: node -> epoch whose birth took effect last. `Inbox` fills them."""

    def __init__(self, journal: int) -> None:
        """journal: see Inbox."""
        self.journal = journal
        self.epochs: dict[EpochKey, EpochFrames] = {}
        self.ended = EndedEpochs()
        self.current: dict[str, int] = {}
        self._lines: dict[str, dict[int, EpochFrames]] = {}  # node -> its part of `epochs`

    def _open(self, key: EpochKey, frames: EpochFrames) -> None:
        self.epochs[key] = self._lines.setdefault(key.node, {})[key.epoch] = frames

    def _close(self, key: EpochKey) -> None:
        """Keep of an epoch only how many frames of it are here."""
        del self._lines[key.node][key.epoch]
        self.ended.add(key, self.epochs.pop(key).applied.next)

    def known(self, node: str, epoch: int) -> bool:
        """Whether any frame of that epoch has arrived."""
        key = EpochKey(node, epoch)
        return key in self.epochs or key in self.ended

    def received(self, node: str, epoch: int, seq: int) -> bool:
        """Whether that frame has arrived before, or is of an epoch that has ended."""
        key = EpochKey(node, epoch)
        frames = self.epochs.get(key)
        return (frames is not None and seq in frames) or key in self.ended

    def count(self, node: str, readings: int | None) -> None:
        """Adds the readings of a frame that took effect (None: it had none) to the line of epochs in force."""
        frames = self.in_force(node)
        if frames is None:
            return
        if readings is None:
            frames.refused += 1
        elif frames.readings is not None:
            frames.readings += readings

    def in_force(self, node: str) -> EpochFrames | None:
        """The epoch of a child whose birth took effect last."""
        return self._lines.get(node, {}).get(self.current.get(node, 0))

    def lines(self) -> dict[str, EpochFrames]:
        """Child -> its epoch in force, whose counts are those of the whole line."""
        return {
            node: self.epochs[key]
            for node, epoch in self.current.items()
            if (key := EpochKey(node, epoch)) in self.epochs
        }

    def lines_of(self, node: str) -> Mapping[int, EpochFrames]:
        """All epochs of a child that have not ended."""
        return self._lines.get(node, {})

    def lost_epochs(self, node: str) -> list[int]:
        """Epochs of older lines of which a frame took effect, and whose frames still count for their data."""
        lines = self._lines.get(node, {})
        return [epoch for epoch, frames in lines.items() if frames.lost and not frames.unheard]

    def copies(self, node: str) -> list[int]:
        """Epochs of older lines of which no frame took effect, and which may be of a copy of the spool (1.3)."""
        return [epoch for epoch, frames in self._lines.get(node, {}).items() if frames.unheard and frames.copied]

    def reached(self, node: str, epoch: int, seq: int) -> bool:
        """Whether everything up to seq of the epoch in force took effect (a heartbeat holds then; 2.5)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and self.current.get(node) == epoch and frames.applied.next > seq

    def ended_before(self, node: str, epoch: int, seq: int) -> bool:
        """Whether a flush has that seq: then a heartbeat that names it is of another device (1.4)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and frames.flushed(seq)

    def unborn(self, node: str, epoch: int) -> bool:
        """Whether the birth of an epoch was settled as bad: its node must hear of it, and begins anew (2.4)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and 0 in frames.quarantined

    def receipt(self, node: str, epoch: int) -> Receipt:
        """The frames received of an epoch; of an unknown one an empty receipt, which names the journal (3.2, 3.7)."""
        key = EpochKey(node, epoch)
        if key in self.ended:
            return Receipt(epoch, self.journal, self.ended.of[node][epoch])
        frames = self.epochs.get(key) or EpochFrames()
        upto, above = frames.applied.receipt(frames.waiting)  # those that wait for a predecessor are received too (1.2)
        return Receipt(epoch, self.journal, upto, above, tuple(sorted(frames.quarantined)[-RECEIPT_QUARANTINED:]))
