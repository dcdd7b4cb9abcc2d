"""The flushes of the waiting frames of an epoch, to find frames of another line (docs/protocol.md 1.3).

A child decides how many frames wait, and each frame is compared with all of them when it comes and when its turn comes.
So the answers are kept, and not found by going through the frames.
"""

from __future__ import annotations

from heapq import nlargest

from edge_agent.algebra.frame import Flush, Frame
from edge_agent.machines.events import BadFrame


class FlushesAhead:
    """Seqs of waiting frames by the flush to which they belong."""

    __slots__ = ("_flushes", "_highest", "_seqs", "_top")

    def __init__(self) -> None:
        self._flushes: dict[int, dict[Flush, int]] = {}  # `after` of a flush -> it -> number of its frames
        # `after` of their flush, None: ordinary frames -> seqs; without frames that may follow any flush
        self._seqs: dict[int | None, set[int]] = {}
        self._highest: dict[int | None, int] = {}  # of `_seqs`
        self._top: list[tuple[int, int]] = []  # (highest seq, `after`) of the two flushes with the highest

    def add(self, message: Frame | BadFrame, *, follows: bool) -> None:
        """Note that a frame waits. follows: it may follow any flush."""
        if not isinstance(message, Frame):
            return
        flush, seq = message.flush, message.seq
        if flush is not None:
            alike = self._flushes.setdefault(flush.after, {})
            alike[flush] = alike.get(flush, 0) + 1
        if follows:
            return
        of = None if flush is None else flush.after
        self._seqs.setdefault(of, set()).add(seq)
        if seq > self._highest.get(of, -1):
            self._highest[of] = seq
            if of is not None:
                self._top = nlargest(2, [*(each for each in self._top if each[1] != of), (seq, of)])

    def remove(self, message: Frame | BadFrame, *, follows: bool) -> None:
        """Note that a frame no longer waits."""
        if not isinstance(message, Frame):
            return
        flush, seq = message.flush, message.seq
        if flush is not None:
            alike = self._flushes[flush.after]
            alike[flush] -= 1
            if not alike[flush]:
                del alike[flush]
            if not alike:
                del self._flushes[flush.after]
        if follows:
            return
        of = None if flush is None else flush.after
        seqs = self._seqs[of]
        seqs.remove(seq)
        if seq < self._highest[of]:
            return
        if seqs:
            self._highest[of] = max(seqs)
        else:
            del self._seqs[of], self._highest[of]
        if any(each[1] == of for each in self._top):
            self._top = nlargest(2, ((high, each) for each, high in self._highest.items() if each is not None))

    def contradict(self, flush: Flush) -> bool:
        """Whether a frame waits of another flush after the same seq."""
        return any(not each.agrees(flush) for each in self._flushes.get(flush.after, ()))

    def has_others(self, after: int) -> bool:
        """Whether a frame above seq `after` waits that is not of a flush after that seq."""
        return self._highest.get(None, -1) > after or any(seq > after and of != after for seq, of in self._top)
