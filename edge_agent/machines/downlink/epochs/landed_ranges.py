"""The frames that a lander has received, as ranges with a bound for each child (docs/protocol.md 2.2, 3.4)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges

# most ranges above a hole of one child, over all its epochs: twice the frames that may wait for a hole, because between
# others that landed a frame has twice the room
MOST_RANGES: Final = 20_000
LAST_SEQ: Final = 2**60  # a run ends here at the latest; no child sends so many frames


class LandedRanges:
    """of: (child, epoch) -> its received frames, of which each file and each statement writes those that changed.

    The bound on frames that wait for a hole does not bound the ranges: the root settles a hole as lost after a while,
    and a gap record of many frames or a settled hole leaves room behind which a child could send every second frame.
    """

    def __init__(self) -> None:
        self.of: dict[EpochKey, ReceivedRanges] = {}
        self._ranges: dict[str, int] = {}  # child -> ranges above holes in all its epochs
        self._opened: dict[str, int] = {}  # child -> frames taken since the last file that may become a range

    def restore(self, key: EpochKey, upto: int, above: Iterable[int | list[int]]) -> None:
        """Continue with the numbers of a slot."""
        self.of[key] = ReceivedRanges.restore(upto, above)
        self._count(key.node, len(self.of[key].above))

    def room(self, key: EpochKey, seq: int, fresh: Container[int]) -> bool:
        """Whether a new frame may land. A frame in order, or beside one that came, always may.

        fresh: frames of the epoch for the next file.
        """
        known = self.of.get(key)
        if seq == (0 if known is None else known.next) or (
            known is not None and (seq - 1 in known or seq + 1 in known)
        ):
            return True
        if seq - 1 in fresh or seq + 1 in fresh:
            return True
        opened = self._opened.get(key.node, 0)
        if self._ranges.get(key.node, 0) + opened >= MOST_RANGES:
            return False
        self._opened[key.node] = opened + 1
        return True

    def add(self, key: EpochKey, runs: Mapping[int, int]) -> ReceivedRanges:
        """Note that frames land. runs: seq -> how many seqs the frame settles, in order of arrival."""
        received = self.of.setdefault(key, ReceivedRanges())
        before = len(received.above)
        for seq, run in runs.items():
            if run > 1 and seq < LAST_SEQ:
                received.add_run(seq, min(seq + run - 1, LAST_SEQ))
            elif seq not in received:
                received.add(seq)
        self._count(key.node, len(received.above) - before)
        return received

    def landed(self) -> None:
        """A file takes all frames that were taken."""
        self._opened.clear()

    def forget(self, key: EpochKey) -> None:
        """Forget an epoch."""
        self._count(key.node, -len(self.of.pop(key).above))

    def _count(self, node: str, more: int) -> None:
        self._ranges[node] = self._ranges.get(node, 0) + more
