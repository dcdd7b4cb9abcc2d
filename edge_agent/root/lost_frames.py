"""Frames that the lander received and that no landing file brings: after a grace time the root settles them as lost.

A landing file that its disk cut short, changed or lost has been receipted, so its children have let its frames go; the
line of such a child would wait for them for ever. The lander states from time to time what it has received, in this
file or an earlier one. What the root lacks of that it waits for during the grace time, because files need not be listed
in their order; then a record of the loss takes the place of the frames (docs/protocol.md 3.2, 2.2). It begins where the
child's line stands, or with the earliest late row that the lander has seen in frames of that epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edge_agent.algebra.frame import Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.epochs.received_seqs import SeqRanges
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.loss_records import FRAMES_LOST
from edge_agent.machines.events import BadFrame


class LostFrames:
    """What is missing of each epoch, and since when."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        # since [us], inclusive ranges, earliest start of late rows in the epoch
        self._missing: dict[EpochKey, tuple[int, SeqRanges, int | None]] = {}

    def stated(self, received: Iterable[tuple[str, Receipt]], speaking: Mapping[str, int], received_us: int) -> None:
        """The lander's word, once the records of its file have been taken.

        speaking: child -> epoch in which it speaks and whose frames have not all come.
        """
        if not received:
            return
        awaited = self._awaited()
        for node, receipt in received:
            key = EpochKey(node, receipt.epoch)
            if key in self._missing or not (key in awaited or self._goes_on(key)):
                continue
            missing = self._lacking(key, (((0, receipt.upto - 1),) if receipt.upto else ()) + receipt.above)
            # The birth of an epoch may be one for another journal, which was discarded with its epoch (1.2): then the
            # epoch is settled only where a later one waits for it, or the child still speaks in it.
            if missing and (missing[0][0] > 0 or key in awaited or speaking.get(node) == key.epoch):
                self._missing[key] = received_us, missing, receipt.earliest_us

    def due(self, now_us: int, grace_us: int) -> Iterator[tuple[str, BadFrame]]:
        """(child, what stands for its frames) of what has been missing for the grace time."""
        for key, (since_us, ranges, earliest_us) in list(self._missing.items()):
            left = self._lacking(key, ranges)
            if left and now_us - since_us < grace_us:
                continue
            del self._missing[key]
            for first, last in left:
                why = f"{FRAMES_LOST}: epoch {key.epoch:08x}, {first} to {last}"
                yield key.node, BadFrame(key.epoch, first, why, b"", last - first + 1, earliest_us)

    def shift(self, by_us: int) -> None:
        """The lander's clock stepped, or it stood still: that is no time of waiting."""
        self._missing = {key: (since + by_us, ranges, us) for key, (since, ranges, us) in self._missing.items()}

    def snapshot(self) -> list[object]:
        """Plain values."""
        return [
            [*key, since_us, [list(pair) for pair in ranges], earliest_us]
            for key, (since_us, ranges, earliest_us) in self._missing.items()
        ]

    def restore(self, state: Iterable[Any]) -> None:
        """From what `snapshot` returns."""
        for node, epoch, since_us, ranges, *earliest in state:  # of an older root without the last
            found = tuple((first, last) for first, last in ranges)
            self._missing[EpochKey(node, epoch)] = since_us, found, earliest[0] if earliest else None

    def _goes_on(self, key: EpochKey) -> bool:
        """Whether frames of the epoch are known and more may take effect in their order."""
        frames = self._inbox.epochs.get(key)
        return frames is not None and not frames.lost

    def _awaited(self) -> set[EpochKey]:
        """The predecessors that births wait for."""
        return {
            EpochKey(key.node, frames.predecessor[0])
            for key, frames in self._inbox.epochs.items()
            if 0 in frames.waiting and isinstance(frames.predecessor, tuple)
        }

    def _lacking(self, key: EpochKey, ranges: SeqRanges) -> SeqRanges:
        """The part of these frames that has not come: inclusive ranges."""
        if key.epoch in self._inbox.ended.get(key.node, ()):
            return ()
        frames = self._inbox.epochs.get(key) or EpochFrames()
        upto, above = frames.applied.receipt(frames.waiting)
        out: list[tuple[int, int]] = []
        for first, last in ranges:
            at = max(first, upto)
            for low, high in above:
                if low > last:
                    break
                if at < low:
                    out.append((at, low - 1))
                at = max(at, high + 1)
            if at <= last:
                out.append((at, last))
        return tuple(out)
