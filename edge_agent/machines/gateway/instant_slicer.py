"""One stretch of event time in which one set of queries is fed whose windows the markers of all nodes cut.

Readings leave as they are once the frontier has passed them, of each key those of one step together; the root makes
slices of them (root/instant_slices.py). Under the policy per_window a late one is a row by itself, and its range
reaches past the frontier that it missed: so it lies in its window only where that was still open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.algebra.partials.partial import Partials
from edge_agent.machines.gateway.punctuation_slicer import PunctuationSlicer
from edge_agent.machines.gateway.raw_slicer import rows_by_key
from edge_agent.machines.gateway.sorted_batch import SortedBatch


class InstantSlicer(PunctuationSlicer):
    """Readings with from_us <= ts < until_us leave raw; markers go beside them."""

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Readings below the frontier as deltas of their own. Answers how many are for no query, and 0."""
        if self.plan is None:
            return len(run.time_us), 0
        if self.queries[0].late == "per_window":
            rows = rows_by_key(run, self._basis, self.scale, apart=True)
            rows = Partials(rows.start, np.full(len(rows), frontier_us + 1), rows.key, rows.states)
        else:
            rows = rows_by_key(run, self._basis, self.scale)
        self._late.add(rows)
        return 0, 0

    def _passed(self, frontier_us: int) -> Iterator[Partials]:
        """Readings that the frontier has passed."""
        held: list[SortedBatch] = []
        for run in self._held:
            upto = int(np.searchsorted(run.time_us, frontier_us))
            if upto:
                yield rows_by_key(run.part(0, upto), self._basis, self.scale)
            if upto < len(run.time_us):
                held.append(run.part(upto, len(run.time_us)))
        self._held = held
