"""Computes overlapping windows of one query step by step, at a constant cost per slice.

Each step adds the rows that end after the last step. If the number of rows shows that others were added too (late
deltas, another plan, another scale), the windows still to close are computed anew from all rows kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.sliding.batch import in_windows_of
from edge_agent.algebra.sliding.incremental import Rolling
from edge_agent.algebra.windows import Sliding
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.numpy.partial_index import PartialIndex

Shape = tuple[tuple[Aggregate, ...], int | None]  # aggregates of a query, and the scale of their states


class RollingWindows:
    """The state of one query between two steps."""

    def __init__(self) -> None:
        self._roll: Rolling | None = None
        self._source: tuple[object, ...] = ()
        self._closed_us = 0
        self._taken = 0  # rows of the indexes that were added to _roll, or are no longer needed
        self._late: list[Partials] = []  # late readings, as counts, of windows still to close

    @staticmethod
    def serves(span: WindowRange, indexes: Sequence[PartialIndex]) -> bool:
        """Whether rolling is faster for a query: its windows overlap and are made of slices."""
        return span.length_us > span.slide_us and all(index.plan.kind != "window" for index in indexes)

    def close(
        self, span: WindowRange, indexes: Sequence[PartialIndex], shape: Shape, ranks: Ints | None
    ) -> tuple[Partials, Partials]:
        """Returns the windows that end in (after, upto] of the range, and the counts of their late readings."""
        aggregates, scale = shape
        after_us, upto_us = span.after_us, span.upto_us
        window = Sliding(span.length_us, span.slide_us, span.offset_us)
        source = (window, shape, *(id(index) for index in indexes))
        come = sum(index.added - index.ending_after(upto_us) for index in indexes)
        if self._roll is not None and self._closed_us == after_us and self._source == source:
            self._take(indexes, shape, (after_us, upto_us))
        if self._roll is None or self._taken != come or self._closed_us != after_us or self._source != source:
            self._roll, self._late, self._source = Rolling(window, basis_of(aggregates, scale)), [], source
            number = (after_us - window.length_us - window.offset_us) // window.slide_us + 1
            self._roll.restore(NOTHING, window.offset_us + number * window.slide_us)
            self._take(indexes, shape, (after_us - window.length_us, upto_us))
            self._taken = come
        self._closed_us = upto_us
        return self._roll.upto(upto_us, ranks), self._behind(window, after_us, upto_us)

    def _take(self, indexes: Sequence[PartialIndex], shape: Shape, ends: tuple[int, int]) -> None:
        """Add the rows that end in (after, upto]. ends: (after, upto)."""
        assert self._roll is not None
        for index in indexes:
            for held, late in index.ending(*ends):
                rows = index.states(held, *shape)
                self._roll.add(rows)
                self._taken += len(rows)
                if late:
                    self._late.append(Partials(rows.start, rows.end, rows.key, {"count": rows.states["count"]}))

    def _behind(self, window: Sliding, after_us: int, upto_us: int) -> Partials:
        """Counts of late readings in the windows that end in (after, upto]."""
        if not self._late:
            return NOTHING
        late = concat(self._late)
        counted = in_windows_of(late, window, ("count",), (after_us + 1 - window.length_us, upto_us - window.length_us))
        kept = late.take(np.asarray(late.start + window.length_us > upto_us))
        self._late = [kept] if len(kept) else []
        return counted
