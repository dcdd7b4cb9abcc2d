"""Which readings each open slice holds, first and last: what decides whether it may move to another plan."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.segments import begins_run
from edge_agent.algebra.windows.edges import Edges

_CHUNKS: Final = 256  # extents are kept by batch; so many before they are joined


class SliceExtents:
    """(slice start, first and last reading) of slices, which are disjoint; a slice may be told of more than once."""

    __slots__ = ("_chunks",)

    def __init__(self, start: Ints = NO_INTS, low: Ints = NO_INTS, high: Ints = NO_INTS) -> None:
        """start, low, high: shape (n,), int64, us, as `joined` answers them."""
        self._chunks: list[tuple[Ints, Ints, Ints]] = [(start, low, high)]

    @property
    def many(self) -> bool:
        """Whether it is time to join them."""
        return len(self._chunks) > _CHUNKS

    def add(self, start: Ints, low: Ints, high: Ints) -> None:
        """Those of the slices of a batch."""
        self._chunks.append((start, low, high))

    def joined(self, edges: Edges | None, closed_us: int) -> tuple[Ints, Ints, Ints]:
        """(start, low, high), one entry a slice, in order; those of slices not open any more are forgotten.

        edges: of the slices; closed_us: the frontier up to which they have left.
        """
        start, low, high = (np.concatenate([chunk[i] for chunk in self._chunks]) for i in range(3))
        order = np.argsort(start, kind="stable")
        start, low, high = start[order], low[order], high[order]
        if len(start):
            first = np.flatnonzero(begins_run(start))
            start, low, high = start[first], np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
        if len(start) and edges is not None:  # one read in part below the frontier must not move without that
            open_ = (edges.around(start)[1] > closed_us) | (high >= closed_us)
            start, low, high = start[open_], low[open_], high[open_]
        self._chunks = [(start, low, high)]
        return start, low, high
