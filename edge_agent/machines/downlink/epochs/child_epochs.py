"""The epochs of all children: the epoch in force of each child, epochs of older lines, and ended epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge_agent.algebra.frame import LOST, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.early_births import EarlyBirths
from edge_agent.machines.downlink.epochs.ended_epochs import EndedEpochs, LastFlush
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames


class ChildEpochs:
    """The epochs of all children; `Inbox` adds and ends them.

    epochs: all that have not ended. current: node -> its epoch in force, whose birth took effect last. changed: epochs
    changed since the owner cleared this.
    """

    def __init__(self, journal: int) -> None:
        """journal: see Inbox."""
        self.journal = journal
        self.epochs: dict[EpochKey, EpochFrames] = {}
        self.ended = EndedEpochs()
        self.current: dict[str, int] = {}
        self.spoke_us: dict[str, int] = {}  # node -> when its line in force was last heard
        self.changed: set[EpochKey] = set()
        self._lines: dict[str, dict[int, EpochFrames]] = {}  # `epochs` by node
        self._early = EarlyBirths()

    def _change(self, key: EpochKey) -> None:
        self.changed.add(key)
        self._early.changed(key)

    def _open(self, key: EpochKey, frames: EpochFrames) -> None:
        self.epochs[key] = self._lines.setdefault(key.node, {})[key.epoch] = frames

    def _close(self, key: EpochKey) -> None:
        """End an epoch: of its frames only the number and the flush are kept."""
        del self._lines[key.node][key.epoch]
        frames = self.epochs.pop(key)
        last = None if frames.flush is None else LastFlush(frames.flush)
        for seq, flush in frames.refused_flushes.items():
            if last is not None:
                last.came(seq, flush)
        self.ended.add(key, frames.applied.next, last)
        self._change(key)

    def is_over(self, node: str, epoch: int, heard_us: int) -> bool:
        """Whether a child has spoken in the epoch in force since another one was heard: it has begun again."""
        return self.current.get(node) not in (None, epoch) and self.spoke_us.get(node, heard_us) > heard_us

    def spent(self) -> Iterator[EpochKey]:
        """Yields epochs of older lines of which their child has no frame any more, as the birth in force says (1.2)."""
        for node, lines in self._lines.items():
            birth = self.in_force(node)
            if birth is not None and birth.held is not None and len(lines) > 1:
                held = {*birth.held}
                yield from (
                    EpochKey(node, epoch)
                    for epoch, frames in lines.items()
                    if frames.lost and not frames.waiting and epoch not in held
                )

    def end_spent(self, key: EpochKey) -> None:
        """End one of these. Frames of it that come nevertheless are of another line: they are declared lost (3.4)."""
        self._close(key)

    def known(self, node: str, epoch: int) -> bool:
        """Whether a frame of the epoch has arrived."""
        key = EpochKey(node, epoch)
        return key in self.epochs or key in self.ended

    def received(self, node: str, epoch: int, seq: int) -> bool:
        """Whether the frame has arrived before, or its epoch has ended."""
        key = EpochKey(node, epoch)
        frames = self.epochs.get(key)
        return (frames is not None and seq in frames) or key in self.ended

    def flush_at(self, node: str, epoch: int, seq: int) -> bool:
        """Whether a flush has the number of a received frame, so that a repeat may be of a second device (1.3, 1.4)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return epoch in self.ended.flushes.get(node, ()) if frames is None else frames.flush_at(seq)

    def count(self, node: str, readings: int | None) -> None:
        """Count a frame of the line in force. readings: those that took effect; None: the frame was refused."""
        frames = self.in_force(node)
        if frames is None:
            return
        if readings is None:
            frames.refused += 1
        elif frames.readings is not None:
            frames.readings += readings

    def in_force(self, node: str) -> EpochFrames | None:
        """The epoch of a child that is in force; None if there is none."""
        return self._lines.get(node, {}).get(self.current.get(node, 0))

    def lines(self) -> dict[str, EpochFrames]:
        """Child -> its epoch in force. The counts in it are of the whole line of predecessors."""
        return {
            node: self.epochs[key]
            for node, epoch in self.current.items()
            if (key := EpochKey(node, epoch)) in self.epochs
        }

    def lines_of(self, node: str) -> Mapping[int, EpochFrames]:
        """All epochs of a child that have not ended."""
        return self._lines.get(node, {})

    def lost_epochs(self, node: str) -> list[int]:
        """Epochs of older lines of which a frame took effect. Data of their frames still counts."""
        lines = self._lines.get(node, {})
        return [epoch for epoch, frames in lines.items() if frames.lost and not frames.unheard]

    def copies(self, node: str) -> list[int]:
        """Epochs of older lines without a frame that took effect, if they may be of a copy of the spool (1.3)."""
        return [epoch for epoch, frames in self._lines.get(node, {}).items() if frames.unheard and frames.copied]

    def reached(self, node: str, epoch: int, seq: int) -> bool:
        """Whether the epoch is in force and all its frames up to seq took effect, so that a heartbeat counts (2.5)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and self.current.get(node) == epoch and frames.applied.next > seq

    def ended_before(self, node: str, epoch: int, seq: int) -> bool:
        """Whether the seq belongs to a flush, so that a heartbeat that names it is of another device (1.4)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and frames.flushed(seq)

    def unborn(self, node: str, epoch: int) -> bool:
        """Whether the birth of an epoch was settled as bad. Its node must learn this, to begin a new epoch (2.4)."""
        frames = self.epochs.get(EpochKey(node, epoch))
        return frames is not None and 0 in frames.quarantined

    def _settled(self, node: str, predecessor: tuple[int, int] | str | None) -> bool:
        if not isinstance(predecessor, tuple):
            return predecessor == LOST or node not in self.current
        before = self.epochs.get(EpochKey(node, predecessor[0]))
        return before is not None and before.applied.next == predecessor[1] + 1

    def _is_whole(self, key: EpochKey, frames: EpochFrames) -> bool:
        """Whether all frames of an epoch and the birth of its successor are here, so no missing definition can come."""
        for other in self._lines[key.node].values():
            before = other.predecessor
            if isinstance(before, tuple) and before[0] == key.epoch and other.birth_is_here:
                return not any(frames.missing(before[1]))
        return False

    def awaited(self) -> Iterator[EpochKey]:
        """Yields the epochs for which the birth of a later epoch waits.

        Of an earlier life of the node none: an epoch that came before the one in force, and does not list that as held.
        """
        for node, lines in self._lines.items():
            current = self.current.get(node)
            before = current in lines
            for epoch, frames in lines.items():  # in the order in which they came
                before = before and epoch != current
                of_earlier_life = before and frames.held is not None and current not in frames.held
                if 0 in frames.waiting and isinstance(frames.predecessor, tuple) and not of_earlier_life:
                    yield EpochKey(node, frames.predecessor[0])

    def _strays(self, node: str) -> set[int]:
        """Epochs without effect that continue none that took effect, through epochs known here: maybe of a copy.

        A child decides how long such lines are, so each epoch is looked at once.
        """
        lines, known = self._lines[node], dict[int, bool]()  # epoch -> whether it continues one that took effect
        for epoch in [epoch for epoch, frames in lines.items() if frames.unheard]:
            at, passed = epoch, list[int]()
            while at not in known:
                passed.append(at)
                known[at] = False  # of births that name each other
                found = self._follows(node, lines[at])
                if isinstance(found, bool):
                    known[at] = found
                    break
                at = found.epoch
            known.update(dict.fromkeys(passed, known[at]))
        return {epoch for epoch, continues in known.items() if not continues}

    def _follows(self, node: str, frames: EpochFrames) -> bool | EpochKey:
        """Whether an epoch without effect continues one that took effect; the one to ask, if that has no effect too."""
        if not frames.born:
            return False
        if not isinstance(frames.predecessor, tuple):
            return True  # it begins a life of the node without a past
        epoch, last = frames.predecessor
        if EpochKey(node, epoch) in self.ended:
            return self.ended.of[node][epoch] <= last + 1
        before = self._lines[node].get(epoch)
        if before is None:
            return False
        if not before.unheard:
            return before.applied.next <= last + 1
        return EpochKey(node, epoch)

    def receipt(self, node: str, epoch: int) -> Receipt:
        """The receipt for an epoch; if the epoch is unknown, an empty receipt, which names the journal (3.2, 3.7)."""
        key = EpochKey(node, epoch)
        if key in self.ended:
            return Receipt(epoch, self.journal, self.ended.of[node][epoch])
        frames = self.epochs.get(key) or EpochFrames()
        upto, above = frames.applied.receipt(frames.waiting)  # waiting frames count as received too (1.2)
        return Receipt(epoch, self.journal, upto, above, frames.newest_quarantined())

    def check(self) -> None:
        """Check invariants, for tests: no frame waits below the prefix; an epoch in force is neither lost nor ended."""
        for key, frames in self.epochs.items():
            assert all(seq >= frames.applied.next for seq in frames.waiting), key
            assert not (set(frames.waiting) & frames.applied.above), key
            assert key not in self.ended, key
        for node, epoch in self.current.items():
            assert not self.epochs[EpochKey(node, epoch)].lost, (node, epoch)
