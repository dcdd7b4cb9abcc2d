"""Settles frames as lost, after a grace time, that the lander received but that no landing file contains.

A disk may truncate, change or lose a landing file. The lander has already sent receipts for its frames and the children
have deleted them, so the root would wait for them for ever. The lander therefore states from time to time which frames
it has received, in this file or an earlier one. If the root lacks some, it waits for the grace time, because files need
not be listed in order. Then a gap record replaces the frames (docs/protocol.md 3.2, 2.2). The record begins at the
lowest frontier or register of the child, or at the earliest late row that the lander has seen in frames of that epoch,
if that is earlier.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from edge_agent.algebra.frame import FRAMES_LOST, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.epochs.received_seqs import SeqRanges
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame


class LostFrames:
    """The missing frames of each epoch, and since when they have been missing."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        # (missing since [us], inclusive ranges of seqs, earliest start of late rows in the epoch)
        self._missing: dict[EpochKey, tuple[int, SeqRanges, int | None]] = {}

    def stated(self, received: Iterable[tuple[str, Receipt]], speaking: Mapping[str, int], received_us: int) -> None:
        """Take a statement of the lander, after the records of its file.

        speaking: child -> the epoch in which it sends now, if frames of it are missing.
        """
        if not received:
            return
        awaited = set(self._inbox.awaited())
        for node, receipt in received:
            key = EpochKey(node, receipt.epoch)
            if key in self._missing or not (key in awaited or self._goes_on(key)):
                continue
            missing = self._lacking(key, (((0, receipt.upto - 1),) if receipt.upto else ()) + receipt.above)
            if missing and _may_begin(key, missing, awaited, speaking):
                self._missing[key] = received_us, missing, receipt.earliest_us

    def due(self, now_us: int, grace_us: int, speaking: Mapping[str, int]) -> Iterator[tuple[str, BadFrame]]:
        """Yields (child, replacement of its frames) for frames that have been missing for the grace time.

        speaking: see `stated`. A child that lost its past meanwhile has begun again, and nothing waits for the epoch.
        """
        awaited = set(self._inbox.awaited()) if self._missing else set()
        for key, (since_us, ranges, earliest_us) in list(self._missing.items()):
            left = self._lacking(key, ranges)
            if left and now_us - since_us < grace_us:
                continue
            del self._missing[key]
            for first, last in left if left and _may_begin(key, left, awaited, speaking) else ():
                why = f"{FRAMES_LOST}: epoch {key.epoch:08x}, {first} to {last}"
                yield key.node, BadFrame(key.epoch, first, why, b"", last - first + 1, earliest_us)

    def shift(self, by_us: int) -> None:
        """Do not count by_us as waiting: the lander's clock stepped by it, or the lander did not run."""
        self._missing = {key: (since + by_us, ranges, us) for key, (since, ranges, us) in self._missing.items()}

    def snapshot(self) -> list[object]:
        """The state as plain values, for `restore`."""
        return [
            [*key, since_us, [list(pair) for pair in ranges], earliest_us]
            for key, (since_us, ranges, earliest_us) in self._missing.items()
        ]

    def restore(self, state: Iterable[Any]) -> None:
        """Continue from the result of `snapshot`."""
        for node, epoch, since_us, ranges, *earliest in state:  # older versions stored no `earliest`
            found = tuple((first, last) for first, last in ranges)
            self._missing[EpochKey(node, epoch)] = since_us, found, earliest[0] if earliest else None

    def _goes_on(self, key: EpochKey) -> bool:
        """Whether frames of the epoch are known and later frames may still take effect in order."""
        frames = self._inbox.epochs.get(key)
        return frames is not None and not frames.lost

    def _lacking(self, key: EpochKey, ranges: SeqRanges) -> SeqRanges:
        """The frames of these ranges that have not arrived, as inclusive ranges."""
        if key in self._inbox.ended:
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


def _may_begin(key: EpochKey, missing: SeqRanges, awaited: Container[EpochKey], speaking: Mapping[str, int]) -> bool:
    """Whether missing frames of an epoch may be settled.

    Its birth may have named another journal; it was then discarded, with its epoch (1.2). If the birth is missing, the
    epoch is settled only if a later epoch waits for it or the child still sends in it.
    """
    return missing[0][0] > 0 or key in awaited or speaking.get(key.node) == key.epoch
