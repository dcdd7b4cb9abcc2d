"""Slices the readings of one plan interval for windows of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials, in_windows, readings_in
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.sliding.incremental import WindowStore
from edge_agent.algebra.span import FAR_US, NO_EDGE
from edge_agent.algebra.windows.edges import Edges
from edge_agent.machines.checkpoint.codec import Untyped
from edge_agent.machines.checkpoint.slots import SliceIntervalState, TimeIntervalState, WindowIntervalState
from edge_agent.machines.slicing.plan_interval import NODES, PlanInterval
from edge_agent.machines.slicing.sorted_batch import SortedBatch

_SPARSE: Final = 4  # a table of groups is dense up to so many entries per reading (as in algebra.partial)
_SMALL: Final = 1_024  # entries that a dense table may have in addition
_CHUNKS: Final = 256  # extents are joined after so many batches


class TimeSlicer(PlanInterval):
    """Slices readings with from_us <= ts < until_us. plan: of rows on time; None: there is no query."""

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """See PlanInterval."""
        super().__init__(from_us, until_us, queries, scale)
        self._late_plan = self._placements[-1].plan if self._placements else None
        self._windows = list({query.time_window: None for query in queries})
        self.edges = Edges(self._windows) if queries else None
        self._store: Store | WindowStore = Store(self.basis, self.plan.unit_us if self.plan else None, NODES)
        if self.plan is not None and self.plan.kind == "window":
            self._store = WindowStore(self.basis, self._windows, NODES)
        self._late = Store(self.basis, None, NODES)
        self._closed_us = NEVER_US  # the frontier as of the last `close`
        self._gone_us = NEVER_US  # readings below this time have left or were in no window: they cannot move
        self._extents = SliceExtents()  # of slices that may move to another plan

    @property
    def rows(self) -> int:
        """See PlanInterval."""
        return len(self._store) + len(self._late)

    @property
    def pending(self) -> bool:
        """Whether rows are open or wait to be sent."""
        return bool(len(self._store) or len(self._late))

    @property
    def readings(self) -> int:
        """See PlanInterval."""
        return self._late.readings + (self._store.readings if isinstance(self._store, Store) else 0)

    # --- readings -----------------------------------------------------------------------------------------------

    def push(self, run: SortedBatch) -> int:
        """Slices readings on time. Returns how many are in no window."""
        run, outside = self._inside(run)
        if not len(run.time_us):
            return outside
        slices, rows, start = self._slice(run)
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        if self._moves:
            last = np.empty_like(rows)
            np.subtract(rows[1:], 1, out=last[:-1])
            last[-1] = len(run.time_us) - 1
            self._extents.add(start, run.time_us[rows], run.time_us[last])
        self._keep(slices)
        return outside

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings as separate deltas. Returns (readings in no window, readings dropped from a window)."""
        run, outside = self._inside(run)
        if not len(run.time_us):
            return outside, 0
        slices, _rows, _start = self._slice(run, spans=True)
        if self._late_plan is None or self._late_plan.kind == "slice":
            self._late.add(slices)
            return outside, 0
        lost = 0
        if self.queries[0].late == "per_window":  # counts in windows with end > frontier, is dropped from the others
            gone = np.zeros(len(slices), np.bool_)
            for window in self._windows:
                rows, start = window.assign(slices.start, slices.end)
                gone[rows[window.ends(start) <= frontier_us]] = True
            lost = int(slices.states["count"][gone].sum())
            rows_of = in_windows(slices, self._windows)
            rows_of = rows_of.take(rows_of.end > frontier_us)
        else:
            rows_of = in_windows(slices, self._windows)
        self.added += readings_in(rows_of) + lost - readings_in(slices)
        self._late.add(rows_of)
        return outside, lost

    def _inside(self, run: SortedBatch) -> tuple[SortedBatch, int]:
        """Returns (the readings between the first and the last edge, the number of other readings)."""
        many = first = last = len(run.time_us)
        if self.edges is not None:
            if run.time_us[0] >= self.edges.first_us and run.time_us[-1] < self.edges.last_us:
                return run, 0
            first, last = np.searchsorted(run.time_us, [self.edges.first_us, self.edges.last_us]).tolist()
        if first:
            self.gone_until(int(run.time_us[first - 1]))
        if last < many:
            self.gone_until(int(run.time_us[-1]))
        return run.part(first, last), first + many - last

    def _slice(self, run: SortedBatch, *, spans: bool = False) -> tuple[Partials, Ints, Ints]:
        """Lifts readings by (slice, key). Returns the partials, and the first row and the start of each slice.

        spans: the range of each partial is [first, last + 1 us) of its own readings, not that of the slice.
        """
        assert self.edges is not None
        rows, start, end = self.edges.cut(run.time_us)
        start, end = self._clipped(start, end)
        slot: Ints | slice = slice(None)  # the slice of each partial
        if isinstance(run.keys, int):
            groups, key = Segments.runs(rows, len(run.time_us)), np.full(len(rows), run.keys, np.int64)
        else:
            groups, label = grouped(run, rows)
            slot, key = np.divmod(label, run.limit)
        order = run.order() if self._numbered else NO_INTS
        readings = Readings(run.time_us, run.value, order, numbers=run.numbers)
        states = lift(readings, groups, self.basis, self.scale)
        if spans:
            return Partials(run.time_us[groups.first()], run.time_us[groups.last()] + 1, key, states), rows, start
        return Partials(start[slot], end[slot], key, states), rows, start

    def _clipped(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Limit slices to this interval, because they are cut where the plan changes (docs/protocol.md 6.3)."""
        if self.from_us > NEVER_US:
            start = np.maximum(start, self.from_us)
        if self.until_us < FAR_US:
            end = np.minimum(end, self.until_us)
        return start, end

    def _keep(self, slices: Partials) -> None:
        if isinstance(self._store, WindowStore):
            self.added -= readings_in(slices)
        self._store.add(slices)

    # --- what leaves --------------------------------------------------------------------------------------------

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """Removes and yields (plan, late, rows): rows that end by the frontier (FAR_US: all), then all late rows."""
        if frontier_us == FAR_US:
            self.gone_until(self._newest_us)
            done = self._store.flush()
        else:
            self._closed_us = frontier_us
            done = self._store.close(frontier_us)
        if isinstance(self._store, WindowStore):
            self.added += readings_in(done)
        for plan_, late, rows in (
            (self.plan, False, done),
            (self._late_plan, True, self._late.flush()),
        ):
            if len(rows):
                assert plan_ is not None
                yield plan_, late, rows
        if self._extents.many:
            self._joined()

    def promise_anew(self, frontier_us: int) -> None:
        """Lower the frontier to frontier_us, after a flush has sent every row."""
        self._closed_us = min(self._closed_us, frontier_us)
        if isinstance(self._store, WindowStore):
            self._store.reopen(frontier_us)

    def gone_until(self, newest_us: int) -> None:
        """Note that readings up to newest_us (NEVER_US: none) cannot move to another plan."""
        if newest_us > NEVER_US:
            self._gone_us = max(self._gone_us, newest_us + 1)

    # --- a change of plan ---------------------------------------------------------------------------------------

    @property
    def _moves(self) -> bool:
        """Whether open rows can move to another plan. Whole windows cannot, because a reading is in several of them."""
        return self.plan is not None and self.plan.kind == "slice"

    def earliest_switch(self, trial: PlanInterval, cuts: Ints, at_us: int) -> int:
        """The earliest event time at or after at_us from which the queries of `trial` would get every reading.

        Slices at or after that time must have all states that `trial` needs, and neither an edge of `trial` nor a cut
        may divide them. The result lies after the last slice that does not fit.
        """
        assert isinstance(trial, TimeSlicer)
        at_us = max(at_us, self._gone_us)
        if self.plan is None or self._newest_us < max(at_us, NEVER_US + 1):
            return at_us
        if not self._moves:
            return self._newest_us + 1
        _start, low, high = self._joined()
        fits = (low >= at_us) | (high < at_us)
        if trial.edges is not None:
            _, after = trial.edges.around(low)
            whole = after > high
            whole &= np.searchsorted(cuts, low, side="right") == np.searchsorted(cuts, high, side="right")
            whole &= set(trial.basis) <= set(self.basis)
            fits &= whole | (high < at_us)
        return at_us if fits.all() else int(high[~fits][-1]) + 1

    def cut(self, at_us: int) -> list[tuple[Ints, Ints, Partials]]:
        """Ends the interval at at_us. Returns open slices after that time as (first readings, last readings, rows)."""
        if self.until_us <= at_us:
            return []
        self.until_us = max(at_us, self.from_us)
        if not self._moves or not len(self._store):
            return []
        start, low, high = self._joined()
        first = int(np.searchsorted(low, at_us))  # slices are disjoint, so their first readings are sorted too
        self._extents = SliceExtents(start[:first], low[:first], high[:first])
        rows = self._store.flush()
        rows = Partials(rows.start, np.minimum(rows.end, self.until_us), rows.key, rows.states)
        if not len(start):
            self._store.add(rows)
            return []
        row = np.minimum(np.searchsorted(start, rows.start), len(start) - 1)
        moves = (row >= first) & (start[row] == rows.start)  # a slice without an extent lies below the frontier
        self._store.add(rows.take(~moves))
        return [(low[row[moves]], high[row[moves]], rows.take(moves))]

    def rehome(self, low: Ints, high: Ints, slices: Partials) -> int:
        """Adds slices of another plan that fit this one. Returns how many of their readings are in no window.

        low, high: event times of the first and last reading of each slice.
        """
        if self.edges is None:
            self.gone_until(int(high.max()))
            return int(slices.states["count"].sum())
        start, end = self.edges.around(low)
        inside = (start != NO_EDGE) & (end != FAR_US)
        outside = int(slices.states["count"][~inside].sum())
        if outside:
            self.gone_until(int(high[~inside].max()))
            start, end, low, high, slices = start[inside], end[inside], low[inside], high[inside], slices.take(inside)
        if not len(slices):
            return outside
        start, end = self._clipped(start, end)
        self._newest_us = max(self._newest_us, int(high.max()))
        if self._moves:
            self._extents.add(start, low, high)
        self._keep(Partials(start, end, slices.key, {name: slices.states[name] for name in self.basis}))
        return outside

    def _joined(self) -> tuple[Ints, Ints, Ints]:
        """Start, first and last reading of each open slice."""
        return self._extents.joined(self.edges, self._closed_us)

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> TimeIntervalState:
        late, extents = self._late.view(), self._joined()
        of = {**self._bounds(), "late": late, "closed_us": self._closed_us, "gone_us": self._gone_us}
        if isinstance(self._store, WindowStore):
            return WindowIntervalState(**of, extents=extents, open=self._store.snapshot())
        return SliceIntervalState(**of, extents=extents, open=self._store.view())

    def restore(self, state: Untyped) -> None:
        """Continues from the state that `snapshot` returned."""
        found: WindowIntervalState | SliceIntervalState
        if isinstance(self._store, WindowStore):
            found = state.decode(WindowIntervalState)
            self._store.restore(found.open)
        else:
            found = state.decode(SliceIntervalState)
            self._store.restore(found.open)
        self._late.restore(found.late)
        self._newest_us, self._closed_us, self._gone_us = found.newest_us, found.closed_us, found.gone_us
        self._extents = SliceExtents(*found.extents)

    def check(self) -> None:
        rows = self._store.view()
        super().check()
        if self.plan is not None and self.plan.kind == "slice":
            assert (rows.start >= self.from_us).all()
            assert (rows.end <= self.until_us).all()
            assert (rows.end > rows.start).all()
            start, low, high = self._joined()
            assert (start <= low).all()
            assert (low <= high).all()
            assert (high[:-1] < low[1:]).all()


def grouped(run: SortedBatch, rows: Ints) -> tuple[Segments, Ints]:
    """Group readings by slice and key. rows: first reading of each slice.

    Returns (the groups, slice number * run.limit + key code of each group).
    """
    assert not isinstance(run.keys, int)
    k, many = len(run.time_us), len(rows)
    codes = run.keys
    if many > 1:
        codes = np.repeat(np.arange(many) * run.limit, np.diff(rows, append=k)) + codes
    if many * run.limit <= _SPARSE * k + _SMALL:
        groups = Segments.coded(codes, many * run.limit)
        return groups, groups.label
    label, codes = np.unique(codes, return_inverse=True)
    return Segments.coded(codes, len(label)), label


class SliceExtents:
    """The event times of the first and last reading of each open slice, by which a slice may move to another plan.

    Slices are disjoint. A slice may be added more than once.
    """

    __slots__ = ("_chunks",)

    def __init__(self, start: Ints = NO_INTS, low: Ints = NO_INTS, high: Ints = NO_INTS) -> None:
        """start, low, high: shape (n,), int64, us, as `joined` returns them."""
        self._chunks: list[tuple[Ints, Ints, Ints]] = [(start, low, high)]

    @property
    def many(self) -> bool:
        """Whether so many batches were added that `joined` should be called to free memory."""
        return len(self._chunks) > _CHUNKS

    def add(self, start: Ints, low: Ints, high: Ints) -> None:
        """Adds the slices of a batch: start of the slice, first and last reading; each shape (n,), int64, us."""
        self._chunks.append((start, low, high))

    def joined(self, edges: Edges | None, closed_us: int) -> tuple[Ints, Ints, Ints]:
        """Returns (start, low, high), one entry per slice, sorted. Slices that are no longer open are forgotten.

        edges: of the slices. closed_us: the frontier up to which slices have left.
        """
        start, low, high = (np.concatenate([chunk[i] for chunk in self._chunks]) for i in range(3))
        order = np.argsort(start, kind="stable")
        start, low, high = start[order], low[order], high[order]
        if len(start):
            first = np.flatnonzero(begins_run(start))
            start, low, high = start[first], np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
        # a slice with readings on both sides of the frontier is kept: it must not move without its part below
        if len(start) and edges is not None:
            open_ = (edges.around(start)[1] > closed_us) | (high >= closed_us)
            start, low, high = start[open_], low[open_], high[open_]
        self._chunks = [(start, low, high)]
        return start, low, high
