"""One stretch of event time in which one set of session queries is fed: what is open of it, with the shape of `Era`.

Rules (docs/protocol.md): a session is complete here when the frontier lies past its last reading + gap (5.1), late
readings leave at once as pieces of their own (4.2), and at a change of plan a session is cut (6.3): the root joins the
pieces of the plans that succeed each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
from edge_agent.machines.gateway.plan_interval import PlanInterval
from edge_agent.machines.gateway.sorted_batch import SortedBatch
from edge_agent.machines.gateway.time_slicer import NODES


class SessionSlicer(PlanInterval):
    """Readings with from_us <= ts < until_us make sessions here. plan None: no query is fed."""

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """queries: of one group, so of one gap. Raises: ConfigError for what cannot be served."""
        super().__init__(from_us, until_us, queries, scale)
        basis = self._basis
        window = queries[0].window if queries else Session(1)
        assert isinstance(window, Session)
        self._gap_us, self._max_us = window.gap_us, window.max_us
        self._open = SessionStore(basis, window.gap_us, window.max_us, NODES)
        self._tardy = SessionStore(basis, window.gap_us, window.max_us, NODES)

    @property
    def pending(self) -> bool:
        """Whether anything is open or waits to leave."""
        return bool(len(self._open) or len(self._tardy))

    def push(self, run: SortedBatch) -> int:
        """Take readings on time. Answers how many lie in no window."""
        if self.plan is None:
            return len(run.time_us)
        self._newest_us = max(self._newest_us, int(run.time_us[-1]))
        self._open.add(self._pieces(run))
        return 0

    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Readings below the frontier as pieces of their own. Answers how many lie in no window, how many are lost.

        Under the policy per_window one counts only while the session it would begin or join could still be open.
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
        """Lift readings by session and key; a piece is [first, last + 1 us)."""
        order, begins = pieces_of(run.time_us, run.keys, self._gap_us, self._max_us)
        time = run.time_us[order]
        groups = Segments.runs(begins, len(time))
        arrivals = run.order()[order] if self._numbered else NO_INTS
        numbers = {label: said[order] for label, said in run.numbers.items()}
        readings = Readings(time, run.value[order], arrivals, numbers=numbers)
        states = lift(readings, groups, self._basis, self.scale)
        key = np.full(len(begins), run.keys, np.int64) if isinstance(run.keys, int) else run.keys[order][begins]
        return Partials(time[begins], time[groups.last()] + 1, key.astype(np.int64), states)

    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """(plan, late, rows): sessions complete at the frontier (FAR_US: everything that is open), and all late."""
        done = self._open.flush() if frontier_us == FAR_US else self._open.close(frontier_us)
        for late, rows in ((False, done), (True, self._tardy.flush())):
            if len(rows):
                assert self.plan is not None
                yield self.plan, late, rows

    def lows(self) -> tuple[Ints, Ints]:
        """(key codes, earliest start still open of each)."""
        return self._open.lows()

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "from": self.from_us,
            "until": self.until_us,
            "queries": [[query.id, query.revision] for query in self.queries],
            "open": self._open.snapshot(),
            "late": self._tardy.snapshot(),
            "newest": self._newest_us,
        }

    @classmethod
    def restore(
        cls, state: Mapping[str, Any], known: Mapping[tuple[str, int], Query], scale: int | None
    ) -> SessionSlicer:
        """The twin of `snapshot`. known: queries by (id, revision)."""
        queries = tuple(known[query, revision] for query, revision in state["queries"])
        era = cls(state["from"], state["until"], queries, scale)
        era._open.restore(state["open"])
        era._tardy.restore(state["late"])
        era._newest_us = state["newest"]
        return era

    def check(self) -> None:
        """Invariants, for tests."""
        assert self.plan is not None or not self.pending
