"""The eras of one group side by side: which queries are fed when, and where one plan gives way to the next.

Rules (docs/protocol.md 6.3): at a change of plan every reading goes, by event time, to exactly one of the plans that
succeed each other, and an edge is cut there. A plan past the horizon goes; what is older still goes to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.punctuation.markers import Markers
from edge_agent.algebra.query.group_cut import OrderedCut, SessionCut
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.gateway import query_validity
from edge_agent.machines.gateway.instant_slicer import InstantSlicer
from edge_agent.machines.gateway.punctuation_slicer import PunctuationSlicer
from edge_agent.machines.gateway.query_validity import QueryValidity
from edge_agent.machines.gateway.raw_slicer import RawSlicer
from edge_agent.machines.gateway.session_slicer import SessionSlicer
from edge_agent.machines.gateway.time_slicer import TimeSlicer

MAX_ERAS: Final = 64  # plans kept, should definitions change all the time


class PlanTimeline:
    """All event time, cut into eras without a hole: the first begins at NEVER_US, the last goes on to FAR_US.

    ended_us: no reading from then on is of any query; NEVER_US: there is no query.
    """

    def __init__(self, group: Group, scale: int | None, markers: Markers | None) -> None:
        """markers: of the slicer, where they cut the group's windows; else None."""
        self.ended_us = NEVER_US
        self._group, self._scale, self._markers = group, scale, markers
        self._tenures: tuple[QueryValidity, ...] = ()
        self._resettled = True  # tenures or eras since `snapshot_settled` was last asked for
        self._all: list[TimeSlicer] = [self._era(NEVER_US, FAR_US, ())]

    def _era(self, from_us: int, until_us: int, queries: tuple[Query, ...]) -> TimeSlicer:
        """An interval of the slicer that the cut of the group needs."""
        if self._markers is not None:
            return self._at_markers(from_us, until_us, queries, self._scale, self._markers)
        return self._slicer(from_us, until_us, queries, self._scale)

    @property
    def _slicer(self) -> type[TimeSlicer]:
        """The class of the intervals of a group without markers."""
        match self._group.cut:
            case SessionCut():
                return SessionSlicer
            case OrderedCut():
                return RawSlicer
            case _:
                return TimeSlicer

    @property
    def _at_markers(self) -> type[PunctuationSlicer]:
        return InstantSlicer if self._group.cut.central else PunctuationSlicer

    # --- what is here -------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TimeSlicer]:
        """In the order of event time."""
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def by_time(self, time_us: Ints) -> Iterator[tuple[TimeSlicer, int, int]]:
        """(era, first, last) for the parts of sorted times; nothing for none."""
        if not len(time_us):
            return
        if time_us[0] >= self._all[-1].from_us:
            yield self._all[-1], 0, len(time_us)
            return
        cuts = np.searchsorted(time_us, [era.from_us for era in self._all[1:]])
        bounds = [0, *cuts.tolist(), len(time_us)]
        for era, first, last in zip(self._all, bounds, bounds[1:], strict=False):
            if first < last:
                yield era, first, last

    @property
    def servings(self) -> tuple[Serving, ...]:
        """From when until when each (query, revision) is fed; the newest tenure of each."""
        return tuple({(t.query.id, t.query.revision): t.serving for t in self._tenures}.values())

    @property
    def in_force(self) -> dict[str, Query]:
        """The queries that no change has ended, by id."""
        return query_validity.current(self._tenures)

    def open_queries(self, frontier_us: int) -> frozenset[str]:
        """Ids of the queries of which a window may still begin."""
        return frozenset(t.query.id for t in self._tenures if t.start_until_us > frontier_us)

    @property
    def pending(self) -> bool:
        """Whether anything is open or waits to leave."""
        return any(era.pending for era in self._all)

    # --- a change of definitions --------------------------------------------------------------------------------

    def change(
        self, queries: tuple[Query, ...], moved: Mapping[str, int | None], frontier_us: int, newest_us: int
    ) -> int:
        """Put these queries in force (see Slicer.change). Answers how many readings are then in no window.

        newest_us: the newest reading, whatever became of it. Raises: ConfigError; then nothing has changed.
        """
        at_us = self._earliest_switch(queries, frontier_us, newest_us)
        tenures = query_validity.changed(self._tenures, queries, at_us, moved)
        fresh = [self._era(*cut) for cut in query_validity.eras(tenures, at_us)]
        outside = self._switch(at_us, fresh)
        self._hold(tenures)
        return outside

    def _earliest_switch(self, queries: tuple[Query, ...], frontier_us: int, newest_us: int) -> int:
        """The event time from which these can be fed exactly beside what older revisions still need."""
        fed = [t.query for t in self._tenures if t.fed_until_us > frontier_us] if queries else []
        trial = self._era(NEVER_US, FAR_US, tuple(dict.fromkeys((*fed, *queries))))
        cuts = sorted(query.effective_from_us for query in queries if query.effective_from_us is not None)
        at_us = frontier_us
        if self.in_force.items() <= {query.id: query for query in queries}.items():
            at_us = min(at_us, newest_us + 1 if newest_us > NEVER_US else NEVER_US)
        for era in self._all:
            if era.until_us > at_us:
                at_us = era.earliest_switch(trial, np.array(cuts, np.int64), at_us)
        return at_us

    def _switch(self, at_us: int, fresh: list[TimeSlicer]) -> int:
        """Put new eras in force from at_us on, and readings from then on into them."""
        outside = 0
        moved = [part for era in self._all for part in era.cut(at_us)]
        self._all = [era for era in self._all if era.from_us < at_us] + fresh
        for low, high, slices in moved:
            for era, first, last in self.by_time(low):
                rows = slice(first, last)
                outside += era.rehome(low[rows], high[rows], slices.take(rows))
        return outside

    def _hold(self, tenures: tuple[QueryValidity, ...]) -> None:
        self._tenures, self._resettled = tenures, True
        self.ended_us = max((t.fed_until_us for t in tenures), default=NEVER_US)

    def gone_until(self, newest_us: int) -> None:
        """Readings up to there (NEVER_US: none) went by: no window may hold only a part of them."""
        for era in self._all:
            era.gone_until(newest_us)

    def follow(self, before: PlanTimeline, newest_us: int) -> None:
        """Serve the windows of these, of which what is open stays there."""
        self._hold(before._tenures)
        self._all = [self._era(*cut) for cut in query_validity.eras(self._tenures, NEVER_US)]
        self.gone_until(newest_us)

    def forget(self, frontier_us: int, horizon_us: int) -> None:
        """Drop plans that ended a horizon before the frontier, also others beyond MAX_ERAS; the oldest kept takes
        what is older.
        """
        while len(self._all) > 1:
            oldest = self._all[0]
            past = oldest.until_us < frontier_us - horizon_us
            if oldest.pending or oldest.until_us > frontier_us or not (past or len(self._all) > MAX_ERAS):
                return
            del self._all[0]
            self._all[0].from_us = NEVER_US
            self._hold(tuple(t for t in self._tenures if t.fed_until_us > oldest.until_us))

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> list[dict[str, object]]:
        """What any reading changes, an era each."""
        return [{name: value for name, value in era.snapshot().items() if name != "queries"} for era in self._all]

    def snapshot_settled(self) -> dict[str, object]:
        """What definitions made."""
        return {
            "tenures": [query_validity.to_plain(each) for each in self._tenures],
            "fed": [[[query.id, query.revision] for query in era.queries] for era in self._all],
        }

    def resettled(self) -> bool:
        """Whether `snapshot_settled` has changed since this was last asked."""
        new, self._resettled = self._resettled, False
        return new

    def restore(self, eras: Sequence[Mapping[str, Any]], settled: Mapping[str, Any]) -> None:
        """The twin of both snapshots; what else is in the settled one is not looked at."""
        self._hold(tuple(query_validity.from_plain(each) for each in settled["tenures"]))
        known = {(t.query.id, t.query.revision): t.query for t in self._tenures}
        states = [{**era, "queries": fed} for era, fed in zip(eras, settled["fed"], strict=True)]
        if self._markers is not None:
            markers = self._markers
            self._all = [self._at_markers.resume(each, known, self._scale, markers) for each in states]
        else:
            self._all = [self._slicer.restore(each, known, self._scale) for each in states]

    def check(self) -> None:
        """Invariants, for tests."""
        assert self._all[0].from_us == NEVER_US
        assert self._all[-1].until_us == FAR_US
        for era, following in pairwise(self._all):
            assert era.from_us < era.until_us == following.from_us
        for era in self._all:
            era.check()
