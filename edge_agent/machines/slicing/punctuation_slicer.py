"""Slices the readings of one plan interval of punctuation queries into windows between markers.

Readings wait until the frontier has passed them, because only then all markers between them are known. At the end of an
epoch the open window stays open, because its end is unknown (the flush of docs/protocol.md 1.3 sends windows with an
end). A window that is open at a change of definitions gives no row for the changed queries, because no window mixes two
revisions (6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

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
from edge_agent.machines.checkpoint.codec import Untyped, decode
from edge_agent.machines.checkpoint.slots import PunctuationIntervalState
from edge_agent.machines.slicing.plan_interval import NODES, PlanInterval
from edge_agent.machines.slicing.raw_slicer import rows_by_key
from edge_agent.machines.slicing.sorted_batch import SortedBatch
from edge_agent.machines.slicing.time_slicer import grouped


class PunctuationSlicer(PlanInterval):
    """Slices readings with from_us <= time < until_us into windows between markers. plan None: there is no query.

    marker_plan: the plan of rows that list the windows. outside: number of readings found to be in no window, since the
    caller last set it to 0.
    """

    def __init__(
        self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None, markers: Markers
    ) -> None:
        """markers: shared with all intervals of the slicer. Others, and errors: see PlanInterval."""
        super().__init__(from_us, until_us, queries, scale)
        self.marker_plan: Plan | None = self._placements[1].plan if self._placements else None
        self.outside = 0
        self._markers = markers
        basis = self.basis
        self._held: list[SortedBatch] = []
        # rows of the open window, whose end is not known: on time and late
        self._open, self._tardy = Store(basis, None, NODES), Store(basis, None, NODES)
        self._late = Store(basis, None, NODES)

    @property
    def rows(self) -> int:
        """See PlanInterval."""
        return len(self._open) + len(self._tardy) + len(self._late) + sum(len(run.time_us) for run in self._held)

    @property
    def pending(self) -> bool:
        """Whether rows are open or readings wait."""
        return bool(self._held or len(self._open) or len(self._tardy) or len(self._late))

    @property
    def readings_open(self) -> int:
        """Number of waiting readings and readings in the open window. A change of scale drops them."""
        return self._open.readings + self._tardy.readings + sum(len(run.time_us) for run in self._held)

    @property
    def readings(self) -> int:
        """See PlanInterval."""
        return self.readings_open + self._late.readings

    @property
    def first_us(self) -> int | None:
        """Event time of the earliest reading that waits for the frontier; None if none waits."""
        return min((int(run.time_us[0]) for run in self._held), default=None)

    def push(self, run: SortedBatch) -> int:
        """Adds readings on time. Returns how many no query uses. Their windows are found later, by `close`."""
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        if self.plan is None:
            return len(run.time_us)
        self._held.append(run)
        return 0

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings as separate deltas. Returns (readings in no window, readings dropped from a window).

        With the policy per_window a reading counts only while its window is open.
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
        """Groups readings below the frontier by window. Yields (start, end, the readings in it)."""
        start, end = self._markers.around(run.time_us)
        cuts = [*np.flatnonzero(begins_run(start)).tolist(), len(start)]
        for first, last in pairwise(cuts):
            yield int(start[first]), int(end[first]), run.part(first, last)

    def _lifted(self, run: SortedBatch, start_us: int, end_us: int) -> Partials:
        """Lifts readings of one window to one row per key."""
        if isinstance(run.keys, int):
            groups, key = Segments.runs(np.zeros(1, np.int64), len(run.time_us)), np.array([run.keys], np.int64)
        else:
            groups, key = grouped(run, np.zeros(1, np.int64))
        order = run.order() if self._numbered else NO_INTS
        readings = Readings(run.time_us, run.value, order, numbers=run.numbers)
        states = lift(readings, groups, self.basis, self.scale)
        return Partials(np.full(len(key), start_us), np.full(len(key), end_us), key, states)

    # --- what leaves --------------------------------------------------------------------------------------------

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """Removes and yields (plan, late, rows): closed windows, then all late rows. FAR_US: only late rows."""
        done: list[Partials] = []
        if frontier_us < FAR_US:
            done = [*self._ended(self._open), *self._passed(frontier_us)]  # this order: _passed fills the next window
        out = Store(self.basis, None, NODES)
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
        """Yields rows of closed windows from readings that the frontier has passed. The open window keeps its own."""
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
        """Removes and returns the rows of the window that was open in `store`, once it has closed."""
        lowest_us = store.lowest_start
        if lowest_us is None or self._is_open(lowest_us):
            return ()
        rows = store.flush()
        start, end = self._markers.around(rows.start)
        return (Partials(start, end, rows.key, rows.states),)

    def _is_open(self, start_us: int) -> bool:
        """Whether rows from start_us on are in the open window. A late reading may have moved its start back."""
        return self._markers.open_us is not None and self._markers.open_us <= start_us

    def begun_here(self, windows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The given windows (start, end, key code) that begin in this interval."""
        return [window for window in windows if self.plan and self.from_us <= window[0] < self.until_us]

    def ended_here(self, windows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The given windows (start, end, key code) that end in this interval."""
        return [window for window in windows if self.plan and self.from_us < window[1] <= self.until_us]

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> PunctuationIntervalState:
        rows = (self._open.view(), self._tardy.view(), self._late.view())
        return PunctuationIntervalState(**self._bounds(), held=self._held, rows=rows)

    def restore(self, state: Untyped) -> None:
        """Continues from the state that `snapshot` returned."""
        found = state.decode(PunctuationIntervalState)
        self._held = [decode(SortedBatch, plain) for plain in found.held]
        for store, rows in zip((self._open, self._tardy, self._late), found.rows, strict=True):
            store.restore(rows)
        self._newest_us = found.newest_us

    def check(self) -> None:
        super().check()
        for store in (self._open, self._tardy):
            rows = store.view()
            assert (rows.end == FAR_US).all()
            assert not len(rows) or self._is_open(int(rows.start.min()))


class InstantSlicer(PunctuationSlicer):
    """Passes raw readings on for windows that the markers of all nodes cut. The root slices them.

    Readings leave once the frontier has passed them, one row per key and step (root/instant_slices.py). With the policy
    per_window each late reading is a row of its own that ends after the frontier it missed, so that it counts only in a
    window that is still open. A late reading before all that the root knows of this node may open the first window.
    """

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings as separate deltas. Returns (readings that no query uses, 0)."""
        if self.plan is None:
            return len(run.time_us), 0
        per_window, first_us = self.queries[0].late == "per_window", int(run.time_us[0])
        self._markers.pass_late(first_us, (frontier_us if per_window else first_us) + 1)
        if per_window:
            rows = rows_by_key(run, self.basis, self.scale, apart=True)
            rows = Partials(rows.start, np.full(len(rows), frontier_us + 1), rows.key, rows.states)
        else:
            rows = rows_by_key(run, self.basis, self.scale)
        self._late.add(rows)
        return 0, 0

    def _passed(self, frontier_us: int) -> Iterator[Partials]:
        """Rows of readings that the frontier has passed."""
        held: list[SortedBatch] = []
        for run in self._held:
            upto = int(np.searchsorted(run.time_us, frontier_us))
            if upto:
                yield rows_by_key(run.part(0, upto), self.basis, self.scale)
            if upto < len(run.time_us):
                held.append(run.part(upto, len(run.time_us)))
        self._held = held
