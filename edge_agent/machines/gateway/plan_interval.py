"""What eras without edges have in common: what is open in them does not move to another plan."""

from __future__ import annotations

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import NUMBERED
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.planner import Placement, plan
from edge_agent.algebra.query.query import Query
from edge_agent.machines.gateway.time_slicer import TimeSlicer


class PlanInterval(TimeSlicer):
    """The shape of `TimeSlicer` for readings that no edge of a definition parts: sessions, markers, raw readings."""

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """queries: of one group. Raises: ConfigError for what cannot be served. Nothing of `TimeSlicer` is made: no
        edges.
        """
        self.from_us, self.until_us = from_us, until_us
        self.queries, self.scale = queries, scale
        self._placements: tuple[Placement, ...] = plan(queries, scale)
        self.plan: Plan | None = self._placements[0].plan if self._placements else None
        self._basis = self.plan.basis if self.plan else ()
        self._numbered = any(COLUMNS[name].kind in NUMBERED for name in self._basis)
        self._newest_us = NEVER_US

    def gone_until(self, newest_us: int) -> None:
        """Readings up to there (NEVER_US: none) went by: what comes in force begins after them."""
        self._newest_us = max(self._newest_us, newest_us)

    def earliest_switch(self, trial: TimeSlicer, cuts: Ints, at_us: int) -> int:
        """The event time from which another plan may be fed: after the newest reading."""
        del trial, cuts
        return max(at_us, self._newest_us + 1) if self._newest_us > NEVER_US else at_us

    def cut(self, at_us: int) -> list[tuple[Ints, Ints, Partials]]:
        """End the era at at_us."""
        if self.until_us > at_us:
            self.until_us = max(at_us, self.from_us)
        return []

    def rehome(self, low: Ints, high: Ints, slices: Partials) -> int:
        """Never asked for: `cut` gives nothing away."""
        raise NotImplementedError
