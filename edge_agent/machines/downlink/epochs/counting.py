"""Decides which rows of a line of frames count: those within a range (docs/protocol.md 1.2, 1.3)."""

from __future__ import annotations

from typing import Final, NamedTuple

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.span import FAR_US


class Counting(NamedTuple):
    """Rows count if they start at from_us or later and end at upto_us or earlier."""

    from_us: int = NEVER_US
    upto_us: int = FAR_US

    def of(self, rows: Partials) -> Partials:
        """The rows that count."""
        wanted = (rows.start >= self.from_us) & (rows.end <= self.upto_us)
        return rows if wanted.all() else rows.take(wanted)

    def of_pieces(self, key: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """The pieces of sessions that count, as (key numbers, starts, ends)."""
        wanted = (start >= self.from_us) & (end <= self.upto_us)
        return key[wanted], start[wanted], end[wanted]

    def cuts(self, start_us: int, end_us: int) -> bool:
        """Whether rows in [start_us, end_us) may be repeats, which do not count."""
        return start_us < self.from_us or end_us > self.upto_us


class Repeats(NamedTuple):
    """Which rows of one plan count in one epoch, in frames with seq < below_seq. All rows of later frames count.

    The root keeps this, because it decodes frames repeatedly.
    """

    counting: Counting = Counting()
    below_seq: int = 0

    def joined(self, found: Counting, seq: int) -> Repeats:
        """Add the counting of one more frame."""
        from_us, upto_us = max(self.counting.from_us, found.from_us), min(self.counting.upto_us, found.upto_us)
        return Repeats(Counting(from_us, upto_us), max(self.below_seq, seq + 1))

    def of(self, rows: Partials, seq: int) -> Partials:
        """The rows of a frame that count."""
        return self.counting.of(rows) if seq < self.below_seq else rows


ALL: Final = Counting()
NONE: Final = Counting(FAR_US, NEVER_US)
