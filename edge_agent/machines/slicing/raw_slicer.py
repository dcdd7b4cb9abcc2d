"""Passes on the raw readings of one plan interval, for windows that the root forms.

Rules (docs/protocol.md): rows are of the kind `raw` (6.2). A row contains the readings of a key between two steps of
the frontier; its range is [first, last + 1 us). The root gives the readings their positions (7.4). Late readings leave
at once, and the root decides about them (4.2); under the policy per_window they are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.codec import Untyped
from edge_agent.machines.checkpoint.slots import RawIntervalState
from edge_agent.machines.slicing.plan_interval import PlanInterval
from edge_agent.machines.slicing.sorted_batch import SortedBatch

RawRows = tuple[Ints, Ints, Ints, Array]  # time, key code, arrival number, value


class RawSlicer(PlanInterval):
    """Keeps readings with from_us <= ts < until_us until the frontier passes them. plan None: there is no query."""

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """See PlanInterval."""
        super().__init__(from_us, until_us, queries, scale)
        self._open: list[RawRows] = []
        self._tardy: list[RawRows] = []

    @property
    def rows(self) -> int:
        """See PlanInterval."""
        return self.readings

    @property
    def pending(self) -> bool:
        """Whether readings are open or wait to be sent."""
        return bool(self._open or self._tardy)

    @property
    def readings(self) -> int:
        """See PlanInterval."""
        return sum(len(rows[0]) for rows in (*self._open, *self._tardy))

    def push(self, run: SortedBatch) -> int:
        """Adds readings on time. Returns how many no query uses."""
        if self.plan is None:
            return len(run.time_us)
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        self._open.append(_rows_of(run))
        return 0

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings. Returns (readings that no query uses, readings dropped)."""
        del frontier_us
        if self.plan is None:
            return len(run.time_us), 0
        if self.queries[0].late == "per_window":
            return 0, len(run.time_us)
        self._tardy.append(_rows_of(run))
        return 0, 0

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """Removes and yields (plan, late, rows): the readings before frontier_us (FAR_US: all), then all late ones.

        Nothing is yielded for an empty part.
        """
        done: list[RawRows] = []
        if self._open:
            rows = _joined(self._open)
            below = rows[0] < frontier_us
            if below.any():
                done.append(_take(rows, below))
                rows = _take(rows, ~below)
            self._open = [rows] if len(rows[0]) else []
        late, self._tardy = self._tardy, []
        for is_late, some in ((False, done), (True, late)):
            if some:
                assert self.plan is not None
                yield self.plan, is_late, _partials(_joined(some), self.plan.basis, self.scale, apart=False)

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> RawIntervalState:
        parts = ([_joined(rows)] if rows else [] for rows in (self._open, self._tardy))
        return RawIntervalState(**self._bounds(), open=next(parts), late=next(parts))

    def restore(self, state: Untyped) -> None:
        """Continues from the state that `snapshot` returned."""
        found = state.decode(RawIntervalState)
        self._open, self._tardy, self._newest_us = found.open, found.late, found.newest_us

    def check(self) -> None:
        super().check()
        for time, *_ in self._open:
            assert len(time)
            assert self.from_us <= time.min()
            assert time.max() < (self.until_us if self.until_us < FAR_US else FAR_US)


def rows_by_key(run: SortedBatch, basis: tuple[str, ...], scale: int | None, *, apart: bool = False) -> Partials:
    """Turn a run of at least one reading into raw rows: one per key, or with `apart` one per key and time."""
    return _partials(_rows_of(run), basis, scale, apart=apart)


def _partials(rows: RawRows, basis: tuple[str, ...], scale: int | None, *, apart: bool) -> Partials:
    time, key, order, value = rows
    by = np.lexsort((order, time, key))
    time, key = time[by], key[by]
    new = key[1:] != key[:-1]
    if apart:
        new |= time[1:] != time[:-1]
    begins = np.flatnonzero(np.concatenate([[True], new]))
    groups = Segments.runs(begins, len(time))
    states = lift(Readings(time, value[by], order[by]), groups, basis, scale)
    return Partials(time[begins], time[groups.last()] + 1, key[begins], states)


def _rows_of(run: SortedBatch) -> RawRows:
    key = np.full(len(run.time_us), run.keys, np.int64) if isinstance(run.keys, int) else run.keys.astype(np.int64)
    return run.time_us, key, run.order().astype(np.int64), run.value


def _joined(parts: list[RawRows]) -> RawRows:
    if len(parts) == 1:
        return parts[0]
    time, key, order, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return time, key, order, value


def _take(rows: RawRows, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> RawRows:
    time, key, order, value = rows
    return time[mask], key[mask], order[mask], value[mask]
