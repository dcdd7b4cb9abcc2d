"""Overlapping windows of one query at the plain root, closed step by step at a constant cost a slice.

A step hands over the rows that end since the last one. Rows that come behind it (late deltas, another plan, another
scale) are noticed by their number, and the windows still to close are then begun anew from all rows held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat
from edge_agent.algebra.sliding.batch import in_windows_of
from edge_agent.algebra.sliding.incremental import Rolling
from edge_agent.algebra.windows import Sliding, evenly

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Ints
    from edge_agent.algebra.query.query import Query
    from edge_agent.root.numpy.partial_index import PartialIndex


class RollingWindows:
    """What one query has closed, and what its next windows need."""

    def __init__(self) -> None:
        """Nothing closed."""
        self._roll: Rolling | None = None
        self._made_of: tuple[object, ...] = ()
        self._closed_us = 0
        self._taken = 0  # rows of the holdings that were handed over, or that nothing needs any more
        self._late: list[Partials] = []  # readings that came late, of windows still to close

    @staticmethod
    def serves(query: Query, holdings: Sequence[PartialIndex]) -> bool:
        """Whether it pays: windows overlap, and are formed from slices."""
        window = evenly(query.time_window)
        overlapping = window is not None and window.length_us > window.slide_us
        return overlapping and all(holding.plan.kind != "window" for holding in holdings)

    def close(
        self,
        query: Query,
        holdings: Sequence[PartialIndex],
        scale: int | None,
        upto: tuple[int, int],
        ranks: Ints | None,
    ) -> tuple[Partials, Partials]:
        """(windows, their readings that came late as counts) with an end in upto: after, up to and with, in us.

        scale: at which the holdings meet.
        """
        after_us, upto_us = upto
        window = evenly(query.time_window)
        assert window is not None
        made_of = (query, scale, *(id(holding) for holding in holdings))
        come = sum(holding.added - holding.beyond(upto_us) for holding in holdings)
        if self._roll is not None and self._closed_us == after_us and self._made_of == made_of:
            self._take(query, holdings, scale, (after_us, upto_us))
        if self._roll is None or self._taken != come or self._closed_us != after_us or self._made_of != made_of:
            self._roll, self._late, self._made_of = Rolling(window, basis_of(query.aggregates, scale)), [], made_of
            number = (after_us - window.length_us - window.offset_us) // window.slide_us + 1
            self._roll.restore(NOTHING, window.offset_us + number * window.slide_us)
            self._take(query, holdings, scale, (after_us - window.length_us, upto_us))
            self._taken = come
        self._closed_us = upto_us
        return self._roll.upto(upto_us, ranks), self._behind(window, after_us, upto_us)

    def _take(self, query: Query, holdings: Sequence[PartialIndex], scale: int | None, ends: tuple[int, int]) -> None:
        """Hand over the rows with an end in `ends`."""
        assert self._roll is not None
        for holding in holdings:
            for held, late in holding.ending(*ends):
                rows = holding.states(held, query.aggregates, scale)
                self._roll.add(rows)
                self._taken += len(rows)
                if late:
                    self._late.append(Partials(rows.start, rows.end, rows.key, {"count": rows.states["count"]}))

    def _behind(self, window: Sliding, after_us: int, upto_us: int) -> Partials:
        """Readings that came late in each window that closes."""
        if not self._late:
            return NOTHING
        late = concat(self._late)
        counted = in_windows_of(late, window, ("count",), (after_us + 1 - window.length_us, upto_us - window.length_us))
        kept = late.take(np.asarray(late.start + window.length_us > upto_us))
        self._late = [kept] if len(kept) else []
        return counted
