"""One stretch of event time in which one set of punctuation queries is fed, with the shape of `Era`.

Readings wait as they came until the frontier has passed them: only then are all markers known that may part them. What
is open stays open over the end of an epoch, for its end is not known (docs/protocol.md 1.3 flushes what has one). A
window that was open at a change of definitions gives no row of the queries that changed: no window mixes two (6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.arrays import NO_INTS
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.punctuation.markers import Markers
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.gateway.plan_interval import PlanInterval
from edge_agent.machines.gateway.sorted_batch import SortedBatch
from edge_agent.machines.gateway.time_slicer import NODES


class PunctuationSlicer(PlanInterval):
    """Readings with from_us <= ts < until_us are put into the windows of the markers here. plan None: no query is fed.

    marker_plan: of the rows that say which windows there are. markers: those of the slicer, which all its eras share.
    """

    def __init__(
        self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None, markers: Markers
    ) -> None:
        """queries: of one group. Raises: ConfigError for what cannot be served."""
        super().__init__(from_us, until_us, queries, scale)
        self.marker_plan: Plan | None = self._placements[1].plan if self._placements else None
        self.outside = 0  # readings in no window since it was last asked for
        self._markers = markers
        basis = self._basis
        self._held: list[SortedBatch] = []
        # rows of the open window, whose end is not known: on time, and late ones
        self._open, self._tardy = Store(basis, None, NODES), Store(basis, None, NODES)
        self._late = Store(basis, None, NODES)

    @property
    def pending(self) -> bool:
        """Whether anything is open or waits to leave."""
        return bool(self._held or len(self._open) or len(self._tardy) or len(self._late))

    @property
    def readings_open(self) -> int:
        """Readings that have not left; where values get another scale they stay behind."""
        open_rows = sum(int(store.view().states["count"].sum()) for store in (self._open, self._tardy) if len(store))
        return open_rows + sum(len(run.time_us) for run in self._held)

    @property
    def first_us(self) -> int | None:
        """The earliest reading that waits for the frontier."""
        return min((int(run.time_us[0]) for run in self._held), default=None)

    def push(self, run: SortedBatch) -> int:
        """Take readings on time. Answers how many lie in no window; of those that wait that is not known."""
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        if self.plan is None:
            return len(run.time_us)
        self._held.append(run)
        return 0

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Readings below the frontier as deltas of their own. Answers how many lie in no window, how many miss one.

        Under the policy per_window one counts only while its window is open.
        """
        if self.plan is None:
            return len(run.time_us), 0
        self._markers.lead_late(int(run.time_us[0]))
        outside = lost = 0
        for start, end, part in self._by_window(run):
            if start == NEVER_US:
                outside += len(part.time_us)
            elif end == FAR_US:
                self._tardy.add(self._lifted(part, start, end))
            elif self.queries[0].late == "per_window":
                lost += len(part.time_us)
            else:
                self._late.add(self._lifted(part, start, end))
        return outside, lost

    def _by_window(self, run: SortedBatch) -> Iterator[tuple[int, int, SortedBatch]]:
        """Readings below the frontier by window: (start, end, part of the run)."""
        start, end = self._markers.around(run.time_us)
        cuts = [*np.flatnonzero(begins_run(start)).tolist(), len(start)]
        for first, last in pairwise(cuts):
            yield int(start[first]), int(end[first]), run.part(first, last)

    def _lifted(self, run: SortedBatch, start_us: int, end_us: int) -> Partials:
        """Readings of one window, a row a key."""
        if isinstance(run.keys, int):
            groups, key = Segments.runs(np.zeros(1, np.int64), len(run.time_us)), np.array([run.keys], np.int64)
        else:
            groups, key = self._grouped(run, np.zeros(1, np.int64))
        order = run.order() if self._numbered else NO_INTS
        readings = Readings(run.time_us, run.value, order, numbers=run.numbers)
        states = lift(readings, groups, self._basis, self.scale)
        return Partials(np.full(len(key), start_us), np.full(len(key), end_us), key, states)

    # --- what leaves --------------------------------------------------------------------------------------------

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """(plan, late, rows): the windows that have closed, and all late rows. FAR_US: only what has an end."""
        done: list[Partials] = []
        if frontier_us < FAR_US:
            done = [*self._ended(self._open), *self._passed(frontier_us)]  # in this order: the next window opens in it
        out = Store(self._basis, None, NODES)
        for rows in done:
            out.add(rows)
        for rows in self._ended(self._tardy):
            self._late.add(rows)
        for late, store in ((False, out), (True, self._late)):
            rows = store.flush()
            if len(rows):
                assert self.plan is not None
                yield self.plan, late, rows

    def _passed(self, frontier_us: int) -> Iterator[Partials]:
        """Readings that the frontier has passed, of windows that have closed; those of the open one go to its rows."""
        held: list[SortedBatch] = []
        for run in self._held:
            upto = int(np.searchsorted(run.time_us, frontier_us))
            if upto < len(run.time_us):
                held.append(run.part(upto, len(run.time_us)))
            for start, end, part in self._by_window(run.part(0, upto)) if upto else ():
                if start == NEVER_US:
                    self.outside += len(part.time_us)
                elif end == FAR_US:
                    self._open.add(self._lifted(part, start, end))
                else:
                    yield self._lifted(part, start, end)
        self._held = held

    def _ended(self, store: Store) -> Iterable[Partials]:
        """Rows of the window that was open, once it has closed."""
        lowest_us = store.lowest_start
        if lowest_us is None or self._is_open(lowest_us):
            return ()
        rows = store.flush()
        start, end = self._markers.around(rows.start)
        return (Partials(start, end, rows.key, rows.states),)

    def _is_open(self, start_us: int) -> bool:
        """Whether a window that began there is the open one; a late reading may have led it since, from earlier on."""
        return self._markers.open_us is not None and self._markers.open_us <= start_us

    def hold(self, windows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Those of the windows that have just closed which this era tells of."""
        return [window for window in windows if self.plan and self.from_us < window[1] <= self.until_us]

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "from": self.from_us,
            "until": self.until_us,
            "queries": [[query.id, query.revision] for query in self.queries],
            "held": [[getattr(run, field.name) for field in fields(SortedBatch)] for run in self._held],
            "rows": [store.snapshot() for store in (self._open, self._tardy, self._late)],
            "newest": self._newest_us,
        }

    @classmethod
    def resume(
        cls, state: Mapping[str, Any], known: Mapping[tuple[str, int], Query], scale: int | None, markers: Markers
    ) -> PunctuationSlicer:
        """The twin of `snapshot`. known: queries by (id, revision)."""
        queries = tuple(known[query, revision] for query, revision in state["queries"])
        era = cls(state["from"], state["until"], queries, scale, markers)
        era._held = [SortedBatch(*plain) for plain in state["held"]]
        for store, rows in zip((era._open, era._tardy, era._late), state["rows"], strict=True):
            store.restore(rows)
        era._newest_us = state["newest"]
        return era

    def check(self) -> None:
        """Invariants, for tests."""
        assert self.plan is not None or not self.pending
        for store in (self._open, self._tardy):
            rows = store.view()
            assert (rows.end == FAR_US).all()
            assert not len(rows) or self._is_open(int(rows.start.min()))
