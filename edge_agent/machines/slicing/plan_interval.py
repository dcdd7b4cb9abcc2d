"""A plan interval: a range of event time in which one plan serves one set of queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.aggregates.families.weighted import labels_of
from edge_agent.algebra.columns import NUMBERED
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Query
from edge_agent.machines.checkpoint.codec import Untyped
from edge_agent.machines.checkpoint.slots import IntervalState
from edge_agent.machines.slicing.sorted_batch import SortedBatch

NODES: Final = ("",)  # node table of a slicer's stores: all rows come from its own node, code 0


class PlanInterval(ABC):
    """Slices readings with from_us <= ts < until_us for its queries. plan: of the rows; None: there is no query.

    added: readings counted in rows minus readings pushed, since the last reset. If whole windows are sent, a reading
    counts once in each of its windows, when the window leaves.

    Subclasses: time, session, raw and punctuation slicers. The default methods are for slicers whose open rows cannot
    move to another plan.
    """

    def __init__(self, from_us: int, until_us: int, queries: tuple[Query, ...], scale: int | None) -> None:
        """queries: of one group. scale: see Slicer. Raises: ConfigError if no plan can serve the queries."""
        self.from_us, self.until_us = from_us, until_us
        self.queries, self.scale = queries, scale
        self._placements = plan(queries, scale)
        self.plan: Plan | None = self._placements[0].plan if self._placements else None
        self.basis = self.plan.basis if self.plan else ()
        self._numbered = any(COLUMNS[name].kind in NUMBERED for name in self.basis)
        self._newest_us = NEVER_US
        self.added = 0

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether rows are open or wait to be sent."""

    @property
    @abstractmethod
    def readings(self) -> int:
        """Number of readings in rows that are open or wait to be sent, without windows that are sent whole."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """An upper bound on the number of rows that are open or wait to be sent."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels whose numbers the plan needs for each reading."""
        return labels_of(self.basis)

    @abstractmethod
    def push(self, run: SortedBatch) -> int:
        """Adds readings on time. Returns how many are in no window."""

    @abstractmethod
    def push_late(self, run: SortedBatch, frontier_us: int) -> tuple[int, int]:
        """Adds late readings as separate deltas. Returns (readings in no window, readings dropped from a window)."""

    @abstractmethod
    def close(self, frontier_us: int) -> Iterator[tuple[Plan, bool, Partials]]:
        """Removes and yields (plan, late, rows): rows complete at the frontier, then all late rows. FAR_US: all."""

    def promise_anew(self, frontier_us: int) -> None:
        """Lower the frontier to frontier_us, after a flush has sent every row."""
        del frontier_us

    def gone_until(self, newest_us: int) -> None:
        """Note that readings up to newest_us (NEVER_US: none) are not in open rows: a new plan begins after them."""
        self._newest_us = max(self._newest_us, newest_us)

    def earliest_switch(self, trial: PlanInterval, cuts: Ints, at_us: int) -> int:
        """The earliest event time at or after at_us from which the plan of `trial` would get every reading.

        cuts: event times at which queries of `trial` begin.
        """
        del trial, cuts
        return max(at_us, self._newest_us + 1) if self._newest_us > NEVER_US else at_us

    def cut(self, at_us: int) -> list[tuple[Ints, Ints, Partials]]:
        """Ends the interval at at_us. Returns open slices after that time as (first readings, last readings, rows)."""
        if self.until_us > at_us:
            self.until_us = max(at_us, self.from_us)
        return []

    @abstractmethod
    def snapshot(self) -> IntervalState:
        """The state for the spool."""

    @abstractmethod
    def restore(self, state: Untyped) -> None:
        """Continues from the state that `snapshot` returned."""

    def check(self) -> None:
        assert self.plan is not None or not self.pending

    def _bounds(self) -> dict[str, Any]:
        return {"from_us": self.from_us, "until_us": self.until_us, "newest_us": self._newest_us}
