"""One stretch of event time in which one set of queries is fed whose windows the markers of all nodes cut.

No marker of any node falls within a microsecond: what has come of one key at one time travels as one slice, whatever
the functions, once the frontier has passed it; the root puts slices into windows. Under the policy per_window the range
of a late one reaches past the frontier that it missed: so it lies in its window only where that was still open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.partial import NO_INTS, Ints, Partials
from edge_agent.algebra.segments import Segments
from edge_agent.machines.era import Run
from edge_agent.machines.marker_era import MarkerEra


class InstantEra(MarkerEra):
    """Readings with from_us <= ts < until_us leave as slices of a microsecond; markers go beside them."""

    def push_late(self, run: Run, frontier_us: int) -> tuple[int, int]:
        """Readings below the frontier as deltas of their own. Answers how many are for no query, and 0."""
        if self.plan is None:
            return len(run.time_us), 0
        rows = self._instants(run)
        if self.queries[0].late == "per_window":
            rows = Partials(rows.start, np.maximum(rows.end, frontier_us + 1), rows.key, rows.states)
        self._late.add(rows)
        return 0, 0

    def _passed(self, frontier_us: int) -> Iterator[Partials]:
        """Readings that the frontier has passed."""
        held: list[Run] = []
        for run in self._held:
            upto = int(np.searchsorted(run.time_us, frontier_us))
            if upto:
                yield self._instants(run.part(0, upto))
            if upto < len(run.time_us):
                held.append(run.part(upto, len(run.time_us)))
        self._held = held

    def _instants(self, run: Run) -> Partials:
        """A row a key and time. run: at least one reading."""
        key: Ints = np.full(len(run.time_us), run.keys) if isinstance(run.keys, int) else run.keys.astype(np.int64)
        by = np.lexsort((key, run.time_us))  # readings of one time and key stay in the order of arrival
        time, key = run.time_us[by], key[by]
        first = np.flatnonzero(np.concatenate([[True], (time[1:] != time[:-1]) | (key[1:] != key[:-1])]))
        order = run.order()[by] if self._numbered else NO_INTS
        numbers = {label: said[by] for label, said in run.numbers.items()}
        readings = Readings(time, run.value[by], order, numbers=numbers)
        states = lift(readings, Segments.runs(first, len(time)), self._basis, self.scale)
        return Partials(time[first], time[first] + 1, key[first], states)
