"""The rows of one plan, kept in chunks and found by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates import basis_of, convert
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.arrays import Mask
from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.query.query import Aggregate

_CHUNKS: Final = 64  # each look-up visits all chunks, so more than this are joined
_CHUNK_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows with their bounds: lowest start, latest end."""

    rows: Partials
    late: bool
    low_us: int
    high_us: int

    @classmethod
    def of(cls, rows: Partials, *, late: bool) -> _Chunk:
        return cls(rows, late, int(rows.start.min()), int(rows.end.max()))


class PartialIndex:
    """All rows of one plan that some window may still need, with the key and node numbers of the root."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.added = 0  # rows added so far, even if dropped since
        self._chunks: list[_Chunk] = []
        self._most = _CHUNKS
        self._below_us = NEVER_US  # rows that end before this time are no longer needed
        self.low_us = -NEVER_US  # no row starts earlier

    def __len__(self) -> int:
        return sum(len(chunk.rows) for chunk in self._chunks)

    def add(self, rows: Partials, *, late: bool) -> None:
        """Add at least one row."""
        self.added += len(rows)
        self._chunks.append(_Chunk.of(rows, late=late))
        self.low_us = min(self.low_us, self._chunks[-1].low_us)
        if len(self._chunks) > self._most:
            self._join()

    def within(self, low_us: int, high_us: int) -> Iterator[tuple[Partials, bool]]:
        """(rows, late) of all rows with start >= low and end <= high."""
        return self._chosen(low_us, high_us, lambda rows: (rows.start >= low_us) & (rows.end <= high_us))

    def touching(self, low_us: int, high_us: int) -> Iterator[tuple[Partials, bool]]:
        """(rows, late) of all rows with start < high and end > low."""
        return self._chosen(low_us, high_us, lambda rows: (rows.start < high_us) & (rows.end > low_us))

    def ending(self, after_us: int, upto_us: int) -> Iterator[tuple[Partials, bool]]:
        """(rows, late) of all rows with an end in (after, upto]."""
        return self._chosen(after_us, upto_us, lambda rows: (rows.end > after_us) & (rows.end <= upto_us))

    def _chosen(self, low_us: int, high_us: int, wanted: Callable[[Partials], Mask]) -> Iterator[tuple[Partials, bool]]:
        """(rows, late) of the rows that `wanted` selects. They must start before high and end after low."""
        for chunk in self._chunks:
            if chunk.high_us > low_us and chunk.low_us < high_us:
                inside = wanted(chunk.rows)
                if inside.any():
                    yield (chunk.rows if inside.all() else chunk.rows.take(inside)), chunk.late

    def ending_after(self, upto_us: int) -> int:
        """The number of rows that end after that time."""
        return sum(int(np.count_nonzero(c.rows.end > upto_us)) for c in self._chunks if c.high_us > upto_us)

    def states(self, rows: Partials, aggregates: tuple[Aggregate, ...], scale: int | None) -> Partials:
        """The rows with only the states of these aggregates, converted to a scale (docs/protocol.md 7.1)."""
        basis = basis_of(aggregates, self.plan.scale)
        states = convert({name: rows.states[name] for name in basis}, self.plan.scale, scale)
        return Partials(rows.start, rows.end, rows.key, {name: states[name] for name in basis_of(aggregates, scale)})

    def free(self, below_us: int) -> None:
        """Drop rows that end before below_us: whole chunks at once, single rows when chunks are joined."""
        self._below_us = below_us
        self._chunks = [chunk for chunk in self._chunks if chunk.high_us >= below_us]
        self.low_us = min((chunk.low_us for chunk in self._chunks), default=-NEVER_US)

    def _join(self) -> None:
        """Join all chunks and cut them anew, in the order of time. Late rows stay in chunks of their own."""
        joined: list[_Chunk] = []
        for late in (False, True):
            rows = concat([chunk.rows for chunk in self._chunks if chunk.late == late])
            rows = rows.take(rows.end >= self._below_us)
            order = np.argsort(rows.start, kind="stable")
            cuts = range(0, len(order), _CHUNK_ROWS)
            joined += [_Chunk.of(rows.take(order[cut : cut + _CHUNK_ROWS]), late=late) for cut in cuts]
        self._chunks, self._most = joined, max(_CHUNKS, 2 * len(joined))
