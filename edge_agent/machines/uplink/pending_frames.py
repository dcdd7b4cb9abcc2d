"""Keeps track of spooled frames without a receipt, in order.

Frames that may be in flight have an entry each; all others are kept as ranges of seqs. A month of outage is one range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from dataclasses import dataclass
from random import Random
from typing import Final

from edge_agent.algebra.frame import Receipt

FrameKey = tuple[int, int]  # epoch, seq


RESEND_US: Final = 5_000_000  # first back-off: several commit intervals of the parent, so that receipts have time
RESEND_MOST_US: Final = 60_000_000  # longest back-off
POISON_TRIES: Final = 5  # re-sendings before a frame is replaced although later frames were receipted (3.6)


@dataclass(slots=True)
class Pending:
    """A frame that is marked as sent.

    sent_us: last publish since the link came up; None: none. tries: publishes since the link came up. refused: number
    of re-sendings after which a receipt named later frames, but not this one.
    """

    sent_us: int | None = None
    tries: int = 0
    refused: int = 0


class PendingFrames:
    """Frames by (epoch, seq). marked: frames marked as sent, in order; all others follow them."""

    __slots__ = ("_unmarked", "marked")

    def __init__(self) -> None:
        self.marked: dict[FrameKey, Pending] = {}
        self._unmarked: dict[int, list[list[int]]] = {}  # epoch -> [first, last], ascending, not adjacent

    def add(self, epoch: int, first: int, run: int = 1) -> None:
        """Add `run` frames from seq `first` on, after all others of their epoch. Epochs must be added in order."""
        ranges = self._unmarked.setdefault(epoch, [])
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1][1] = first + run - 1
        else:
            ranges.append([first, first + run - 1])

    def mark(self, most: int, without: Set[FrameKey] = frozenset()) -> list[FrameKey]:
        """Mark at most `most` next frames as sent, up to the first that is in `without`. Returns the marked frames."""
        out: list[FrameKey] = []
        if not self._unmarked:
            return out
        for epoch, seq in self.unmarked():
            if len(out) >= most or (epoch, seq) in without:
                break
            out.append((epoch, seq))
        for key in out:
            del self[key]
            self.marked[key] = Pending()
        return out

    def due(
        self, now_us: int, room: int, flying: set[FrameKey], waiting: Set[FrameKey], random: Random
    ) -> list[FrameKey]:
        """The marked frames to publish now, in order while more may be in flight; also if a receipt is overdue (3.3).

        room: most frames in flight. flying: frames published and not confirmed by the broker; the returned frames are
        added. waiting: frames not committed yet.
        """
        out: list[FrameKey] = []
        if room - len(flying) <= 0:
            return out
        soon_us = now_us - RESEND_US * 3 // 4  # the shortest back-off
        for key, pending in self.marked.items():
            sent_us = pending.sent_us
            if (sent_us is not None and sent_us > soon_us) or key in flying or key in waiting:
                continue
            if room - len(flying) <= 0:
                break
            if sent_us is not None:
                backoff_us, waited_us = min(RESEND_US << min(pending.tries - 1, 8), RESEND_MOST_US), now_us - sent_us
                if waited_us < backoff_us * 0.75 or waited_us < backoff_us * (0.75 + 0.5 * random.random()):
                    continue
            pending.sent_us = now_us
            pending.tries += 1
            flying.add(key)
            out.append(key)
        return out

    def receipted(self, receipt: Receipt, flying: set[FrameKey]) -> tuple[list[FrameKey], list[FrameKey]]:
        """Delete the frames in a receipt. Returns (deleted frames, frames to give up because it skips them; 3.6)."""
        gone: list[FrameKey] = []
        poison: list[FrameKey] = []
        top = receipt.above[-1][1] if receipt.above else receipt.upto - 1
        for key in [k for k in self.marked if k[0] == receipt.epoch]:  # unmarked frames were never sent
            seq, pending = key[1], self.marked[key]
            if seq < receipt.upto or any(low <= seq <= high for low, high in receipt.above):
                del self[key]
                flying.discard(key)
                gone.append(key)
            elif seq < top and pending.tries > pending.refused + 1:
                pending.refused = pending.tries - 1
                if pending.refused >= POISON_TRIES:
                    poison.append(key)
        return gone, poison

    def void(self) -> None:
        """Treat published frames as possibly lost, so that they are sent again without back-off."""
        for pending in self.marked.values():
            pending.sent_us, pending.tries = None, 0

    def unmarked(self) -> Iterator[FrameKey]:
        """Iterate over frames never sent, in order. The caller must not change this object meanwhile."""
        return (
            (epoch, seq)
            for epoch, ranges in self._unmarked.items()
            for first, last in ranges
            for seq in range(first, last + 1)
        )

    def unsent(self) -> tuple[int, ...]:
        """The epochs with frames never sent, in order."""
        return tuple(self._unmarked)

    def epochs(self) -> set[int]:
        """The epochs of all frames without a receipt."""
        return {epoch for epoch, _ in self.marked} | self._unmarked.keys()

    def highest(self, epoch: int) -> int:
        """The highest seq of an epoch without a receipt; -1 if there is none."""
        ranges = self._unmarked.get(epoch)
        return ranges[-1][1] if ranges else max((seq for of, seq in self.marked if of == epoch), default=-1)

    def __contains__(self, key: FrameKey) -> bool:
        return key in self.marked or self._range(key) is not None

    def __len__(self) -> int:
        ranges = (pair for ranges in self._unmarked.values() for pair in ranges)
        return len(self.marked) + sum(last - first + 1 for first, last in ranges)

    def __iter__(self) -> Iterator[FrameKey]:
        yield from self.marked
        yield from self.unmarked()

    def __delitem__(self, key: FrameKey) -> None:
        """Raises: KeyError if the frame is not here."""
        if self.marked.pop(key, None) is not None:
            return
        at = self._range(key)
        if at is None:
            raise KeyError(key)
        epoch, seq = key
        ranges = self._unmarked[epoch]
        first, last = ranges[at]
        ranges[at : at + 1] = [[a, b] for a, b in ((first, seq - 1), (seq + 1, last)) if a <= b]
        if not ranges:
            del self._unmarked[epoch]

    def _range(self, key: FrameKey) -> int | None:
        """The index of the range that contains an unmarked frame; None if there is none."""
        ranges = self._unmarked.get(key[0], [])
        at = bisect_left(ranges, key[1], key=lambda pair: pair[1])
        return at if at < len(ranges) and ranges[at][0] <= key[1] else None
