"""Slices the readings of one plan interval into sessions.

Rules (docs/protocol.md): a session is complete at this node when the frontier is above its last reading + gap (5.1).
Late readings leave at once as separate pieces (4.2). A change of plan cuts a session (6.3); the root joins the pieces
of both plans.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.sessions import SessionStore, pieces_of
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import Session
from edge_agent.machines.checkpoint.codec import Untyped
from edge_agent.machines.checkpoint.slots import SessionIntervalState
from edge_agent.machines.slicing.plan_interval import NODES, PlanInterval
from edge_agent.machines.slicing.sorted_batch import SortedBatch


class SessionSlicer(PlanInterval):
    """Slices readings with from_us <= ts < until_us into sessions. plan None: there is no query."""

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """queries: of one group, so they have the same gap. Raises: see PlanInterval."""
        super().__init__(from_us, until_us, queries, scale)
        basis = self.basis
        window = queries[0].window if queries else Session(1)
        assert isinstance(window, Session)
        self._gap_us, self._max_us = window.gap_us, window.max_us
        self._open = SessionStore(basis, window.gap_us, window.max_us, NODES)
        self._tardy = SessionStore(basis, window.gap_us, window.max_us, NODES)

    @property
    def rows(self) -> int:
        """See PlanInterval."""
        return len(self._open) + len(self._tardy)

    @property
    def pending(self) -> bool:
        """Whether rows are open or wait to be sent."""
        return bool(len(self._open) or len(self._tardy))

    @property
    def readings(self) -> int:
        """See PlanInterval."""
        return self._open.readings + self._tardy.readings

    def push(self, run: SortedBatch) -> int:
        """Adds readings on time. Returns how many are in no window."""
        if self.plan is None:
            return len(run.time_us)
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        self._open.add(self._pieces(run))
        return 0

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings as separate pieces. Returns (readings in no window, readings dropped).

        Under the policy per_window a reading counts only while the session that it would begin or join could still be
        open.
        """
        if self.plan is None:
            return len(run.time_us), 0
        lost = 0
        if self.queries[0].late == "per_window":
            lost = int(np.searchsorted(run.time_us, frontier_us - self._gap_us))
            run = run.part(lost, len(run.time_us))
        if len(run.time_us):
            self._tardy.add(self._pieces(run))
        return 0, lost

    def _pieces(self, run: SortedBatch) -> Partials:
        """Lift readings by session and key. The range of a piece is [first, last + 1 us) of its readings."""
        order, begins = pieces_of(run.time_us, run.keys, self._gap_us, self._max_us)
        time = run.time_us[order]
        groups = Segments.runs(begins, len(time))
        arrivals = run.order()[order] if self._numbered else NO_INTS
        numbers = {label: values[order] for label, values in run.numbers.items()}
        readings = Readings(time, run.value[order], arrivals, numbers=numbers)
        states = lift(readings, groups, self.basis, self.scale)
        key = np.full(len(begins), run.keys, np.int64) if isinstance(run.keys, int) else run.keys[order][begins]
        return Partials(time[begins], time[groups.last()] + 1, key.astype(np.int64), states)

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """Removes and yields (plan, late, rows): complete sessions (FAR_US: all), then all late rows."""
        done = self._open.flush() if frontier_us == FAR_US else self._open.close(frontier_us)
        for late, rows in ((False, done), (True, self._tardy.flush())):
            if len(rows):
                assert self.plan is not None
                yield self.plan, late, rows

    def lows(self) -> tuple[Ints, Ints]:
        """Returns (key codes, earliest start of an open session of each key)."""
        return self._open.lows()

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> SessionIntervalState:
        return SessionIntervalState(**self._bounds(), open=self._open.view(), late=self._tardy.view())

    def restore(self, state: Untyped) -> None:
        """Continues from the state that `snapshot` returned."""
        found = state.decode(SessionIntervalState)
        self._open.restore(found.open)
        self._tardy.restore(found.late)
        self._newest_us = found.newest_us
