"""The plan intervals of one group along event time, and the change from one plan to the next.

Rules (docs/protocol.md 6.3): at a change of plan each reading goes, by its event time, to exactly one plan, and slices
are cut at the time of the change. A plan that ended a horizon ago is dropped; older readings go to the next plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.punctuation.markers import Markers
from edge_agent.algebra.query.group_cut import OrderedCut, SessionCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.codec import Untyped
from edge_agent.machines.checkpoint.slots import DefinitionsState, IntervalState
from edge_agent.machines.slicing import query_validity
from edge_agent.machines.slicing.plan_interval import PlanInterval
from edge_agent.machines.slicing.punctuation_slicer import InstantSlicer, PunctuationSlicer
from edge_agent.machines.slicing.query_validity import QueryValidity
from edge_agent.machines.slicing.raw_slicer import RawSlicer
from edge_agent.machines.slicing.session_slicer import SessionSlicer
from edge_agent.machines.slicing.time_slicer import TimeSlicer

MAX_INTERVALS: Final = 64  # most plans kept, even if definitions change all the time


class PlanTimeline:
    """Divides all event time, from NEVER_US to FAR_US, into plan intervals without a hole.

    ended_us: no query uses readings from this event time on; NEVER_US: there is no query.
    """

    def __init__(self, group: Group, scale: int | None, markers: Markers | None) -> None:
        """markers: those of the slicer if they cut the group's windows; else None."""
        self.ended_us = NEVER_US
        self._group, self._scale, self._markers = group, scale, markers
        self._validities: tuple[QueryValidity, ...] = ()
        self._changed = True  # queries or intervals, since `definitions` was last asked for
        self._all: list[PlanInterval] = [self._interval(NEVER_US, FAR_US, ())]

    def _interval(self, from_us: int, until_us: int, queries: tuple[Query, ...]) -> PlanInterval:
        """Create a plan interval with the slicer that suits the group."""
        if self._markers is not None:
            kind = InstantSlicer if self._group.cut.central else PunctuationSlicer
            return kind(from_us, until_us, queries, self._scale, self._markers)
        match self._group.cut:
            case SessionCut():
                return SessionSlicer(from_us, until_us, queries, self._scale)
            case OrderedCut():
                return RawSlicer(from_us, until_us, queries, self._scale)
            case _:
                return TimeSlicer(from_us, until_us, queries, self._scale)

    # --- readings -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[PlanInterval]:
        """Iterate over the intervals in the order of event time."""
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def by_time(self, time_us: Ints) -> Iterator[tuple[PlanInterval, int, int]]:
        """Yields (interval, first, last): times [first:last] belong to the interval. time_us: sorted, may be empty."""
        if not len(time_us):
            return
        if time_us[0] >= self._all[-1].from_us:
            yield self._all[-1], 0, len(time_us)
            return
        cuts = np.searchsorted(time_us, [interval.from_us for interval in self._all[1:]])
        bounds = [0, *cuts.tolist(), len(time_us)]
        for interval, first, last in zip(self._all, bounds, bounds[1:], strict=False):
            if first < last:
                yield interval, first, last

    @property
    def servings(self) -> tuple[Serving, ...]:
        """The serving range of each query revision. If a revision has several, the newest."""
        newest = {serving.key: serving for serving in (each.serving for each in self._validities)}
        return tuple(newest.values())

    @property
    def in_force(self) -> dict[str, Query]:
        """The queries that no change has ended, by id."""
        return query_validity.in_force(self._validities)

    def open_queries(self, frontier_us: int) -> frozenset[str]:
        """Ids of the queries for which a window may still begin."""
        return frozenset(each.query.id for each in self._validities if each.start_until_us > frontier_us)

    @property
    def pending(self) -> bool:
        """Whether rows are open or wait to be sent."""
        return any(interval.pending for interval in self._all)

    # --- a change of definitions --------------------------------------------------------------------------------

    def change(
        self, queries: tuple[Query, ...], moved: Mapping[str, int | None], frontier_us: int, newest_us: int
    ) -> int:
        """Puts these queries in force (see Slicer.change). Returns how many sliced readings are in no window now.

        newest_us: the newest reading, even if the filter rejected it. Raises: ConfigError; then nothing has changed.
        """
        at_us = self._earliest_switch(queries, frontier_us, newest_us)
        validities = query_validity.changed(self._validities, queries, at_us, moved)
        fresh = [self._interval(*cut) for cut in query_validity.intervals(validities, at_us)]
        outside = self._switch(at_us, fresh)
        self._hold(validities)
        return outside

    def _earliest_switch(self, queries: tuple[Query, ...], frontier_us: int, newest_us: int) -> int:
        """The event time from which these queries, and older revisions still in use, can get every reading."""
        fed = [each.query for each in self._validities if each.fed_until_us > frontier_us] if queries else []
        trial = self._interval(NEVER_US, FAR_US, tuple(dict.fromkeys((*fed, *queries))))
        cuts = sorted(query.effective_from_us for query in queries if query.effective_from_us is not None)
        at_us = frontier_us
        if self.in_force.items() <= {query.id: query for query in queries}.items():
            at_us = min(at_us, newest_us + 1 if newest_us > NEVER_US else NEVER_US)
        for interval in self._all:
            if interval.until_us > at_us:
                at_us = interval.earliest_switch(trial, np.array(cuts, np.int64), at_us)
        return at_us

    def begin_by(self, at_us: int) -> bool:
        """Moves changes that were to begin after at_us, because the clock was ahead, to at_us. Returns whether any did.

        at_us: at or after the frontier, and after all readings, which have left.
        """
        validities = query_validity.begun_by(self._validities, at_us)
        if validities == self._validities:
            return False
        self._switch(at_us, [self._interval(*cut) for cut in query_validity.intervals(validities, at_us)])
        self._hold(validities)
        return True

    def _switch(self, at_us: int, fresh: list[PlanInterval]) -> int:
        """Replaces the intervals from at_us on by `fresh`, and moves open slices of that time into them.

        Returns how many of their readings are in no window.
        """
        outside = 0
        moved = [part for interval in self._all for part in interval.cut(at_us)]
        self._all = [interval for interval in self._all if interval.from_us < at_us] + fresh
        for low, high, slices in moved:
            for interval, first, last in self.by_time(low):
                assert isinstance(interval, TimeSlicer)  # the others return no slices from `cut`
                rows = slice(first, last)
                outside += interval.rehome(low[rows], high[rows], slices.take(rows))
        return outside

    def _hold(self, validities: tuple[QueryValidity, ...]) -> None:
        self._validities, self._changed = validities, True
        self.ended_us = max((each.fed_until_us for each in validities), default=NEVER_US)

    def gone_until(self, newest_us: int) -> None:
        """Note that readings up to newest_us (NEVER_US: none) are not in open rows: see PlanInterval.gone_until."""
        for interval in self._all:
            interval.gone_until(newest_us)

    def follow(self, before: PlanTimeline, newest_us: int) -> None:
        """Takes over the queries of `before`, but not its open rows."""
        self._hold(before._validities)
        self._all = [self._interval(*cut) for cut in query_validity.intervals(self._validities, NEVER_US)]
        self.gone_until(newest_us)

    def forget(self, frontier_us: int, horizon_us: int) -> None:
        """Drops intervals whose rows end a horizon before the frontier, and the oldest beyond MAX_INTERVALS.

        Older readings go to the oldest interval that is left. Until a query is fed again, those fed last are known.
        """
        while len(self._all) > 1:
            oldest = self._all[0]
            past = oldest.until_us + self._group.cut.gap_us < frontier_us - horizon_us
            if oldest.pending or oldest.until_us > frontier_us or not (past or len(self._all) > MAX_INTERVALS):
                return
            del self._all[0]
            self._all[0].from_us = NEVER_US
            left = tuple(each for each in self._validities if each.fed_until_us > oldest.until_us)
            self._hold(left or self._validities)  # the end of the last ones says how long the slicer is kept

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> list[Untyped]:
        return [Untyped(interval.snapshot()) for interval in self._all]

    def definitions(self) -> DefinitionsState:
        """The query revisions of the group and of each interval, for the spool."""
        return DefinitionsState(
            validities=[each.snapshot() for each in self._validities],
            fed=[[QueryKey(query.id, query.revision) for query in interval.queries] for interval in self._all],
        )

    def changed(self) -> bool:
        """Whether `definitions` has changed since the last call."""
        new, self._changed = self._changed, False
        return new

    def restore(self, states: Sequence[Untyped], definitions: DefinitionsState) -> None:
        """Continues from the results of `snapshot` and `definitions`."""
        self._hold(tuple(QueryValidity.restore(each) for each in definitions.validities))
        known = {QueryKey(each.query.id, each.query.revision): each.query for each in self._validities}
        self._all = []
        for state, fed in zip(states, definitions.fed, strict=True):
            bounds = state.decode(IntervalState)
            interval = self._interval(bounds.from_us, bounds.until_us, tuple(known[key] for key in fed))
            interval.restore(state)
            self._all.append(interval)

    def check(self) -> None:
        assert self._all[0].from_us == NEVER_US
        assert self._all[-1].until_us == FAR_US
        for interval, following in pairwise(self._all):
            assert interval.from_us < interval.until_us == following.from_us
        for interval in self._all:
            interval.check()
