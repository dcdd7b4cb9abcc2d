"""The received sequence numbers of one epoch: a contiguous prefix and the numbers above (docs/protocol.md 3.4)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

SeqRanges = tuple[tuple[int, int], ...]  # inclusive, ascending, not adjacent


@dataclass(slots=True)
class ReceivedSeqs:
    """Contains all numbers below `next`, and those in `above`, which are greater than `next`."""

    next: int = 0
    above: set[int] = field(default_factory=set)

    def __contains__(self, seq: int) -> bool:
        return seq < self.next or seq in self.above

    def add(self, seq: int) -> None:
        """Add a number that is not yet received."""
        if seq != self.next:
            self.above.add(seq)
            return
        self.next += 1
        while self.next in self.above:
            self.above.remove(self.next)
            self.next += 1

    def receipt(self, more: Iterable[int] = ()) -> tuple[int, SeqRanges]:
        """Returns (first number that is missing, inclusive ranges of received numbers above it), as in a receipt (3.2).

        more: numbers at or above `next` that also count as received.
        """
        ranges = _ranges(sorted({*self.above, *more}))
        if ranges and ranges[0][0] == self.next:
            return ranges[0][1] + 1, ranges[1:]
        return self.next, ranges


def _ranges(numbers: list[int]) -> SeqRanges:
    """Turn sorted distinct numbers into inclusive ranges.

    >>> _ranges([3, 4, 5, 9])
    ((3, 5), (9, 9))
    """
    out: list[tuple[int, int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1] = (out[-1][0], n)
        else:
            out.append((n, n))
    return tuple(out)


@dataclass(slots=True)
class ReceivedRanges:
    """Like ReceivedSeqs, but with ranges, because many numbers may be above a frame that never comes.

    ahead: how many numbers the ranges in `above` contain.
    """

    next: int = 0
    above: list[list[int]] = field(default_factory=list)  # [first, last], ascending, not adjacent
    ahead: int = 0

    def __contains__(self, seq: int) -> bool:
        if seq < self.next:
            return True
        at = bisect_left(self.above, seq, key=itemgetter(1))
        return at < len(self.above) and self.above[at][0] <= seq

    def add(self, seq: int) -> None:
        """Add a number that is not yet received."""
        if seq == self.next:
            self.next = seq + 1
            self._absorb()
            return
        self.ahead += 1
        at = bisect_left(self.above, seq, key=itemgetter(1))
        left = at > 0 and self.above[at - 1][1] == seq - 1
        right = at < len(self.above) and self.above[at][0] == seq + 1
        if left and right:
            self.above[at - 1][1] = self.above.pop(at)[1]
        elif left:
            self.above[at - 1][1] = seq
        elif right:
            self.above[at][0] = seq
        else:
            self.above.insert(at, [seq, seq])

    def add_run(self, first: int, last: int) -> None:
        """Add all numbers from first to last (last >= first); some of them may be received already."""
        low = bisect_left(self.above, first - 1, key=itemgetter(1))
        near = self.above[low : bisect_right(self.above, last + 1, key=itemgetter(0))]
        joined = [min(first, *(a for a, _ in near)), max(last, *(b for _, b in near))] if near else [first, last]
        self.above[low : low + len(near)] = [joined]
        self.ahead += joined[1] - joined[0] + 1 - sum(b - a + 1 for a, b in near)
        self._absorb()

    def _absorb(self) -> None:
        """Move the ranges that follow the prefix into it."""
        while self.above and self.above[0][0] <= self.next:
            first, last = self.above.pop(0)
            self.ahead -= last - first + 1
            self.next = max(self.next, last + 1)

    @property
    def top(self) -> int:
        """The number after the highest received one."""
        return self.above[-1][1] + 1 if self.above else self.next

    def receipt(self) -> tuple[int, SeqRanges]:
        """See ReceivedSeqs.receipt."""
        return self.next, tuple((first, last) for first, last in self.above)

    @classmethod
    def restore(cls, upto: int, above: Iterable[int | list[int]]) -> ReceivedRanges:
        """upto: all numbers below were received. above: inclusive ranges, or single numbers as in older journals."""
        found = cls(upto)
        for each in above:
            if isinstance(each, int):
                found.add(each)
            else:
                found.above.append(list(each))
                found.ahead += each[1] - each[0] + 1
        return found
