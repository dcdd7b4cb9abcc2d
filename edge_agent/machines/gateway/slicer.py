"""The slicer of one group: batches of readings in, closed slices out.

Rules (docs/protocol.md): a reading with ts >= frontier is on time, an older one leaves in late partials with the span
of its own readings (4.2); what is open at the end of an epoch is flushed (1.3). Which plan a reading is for, by event
time, its eras know.

A reading is touched a few times by numpy, whatever the number of windows. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.frame import MAX_HORIZON_US, NEVER_US, Serving
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Batch, Partials
from edge_agent.algebra.punctuation.markers import (
    MARKER_KEY,
    Marker,
    Markers,
    role_key,
    window_key,
)
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.gateway.key_index import KeyIndex
from edge_agent.machines.gateway.label_values import LabelValues
from edge_agent.machines.gateway.plan_timeline import PlanTimeline
from edge_agent.machines.gateway.punctuation_slicer import PunctuationSlicer
from edge_agent.machines.gateway.reading_filter import ReadingFilter
from edge_agent.machines.gateway.session_slicer import SessionSlicer
from edge_agent.machines.gateway.sorted_batch import SortedBatch
from edge_agent.machines.uplink.step import Hints, StepRows

SETTLE_US: Final = 3_600_000_000  # others may be behind: by the time a member leaves, rows are final everywhere


class Slicer:
    """One group's slicer at one node.

    horizon_us: how long windows are kept for late readings, the root's correction horizon (docs/protocol.md 4.2).
    frontier_us: the promise so far; readings below it are late. newest_us: the newest reading pushed, whatever became
    of it. counters: readings, late, nan_skipped, bad (infinite or too large), filtered (by `where`), outside (in no
    window of any query in force), dropped_late.
    """

    def __init__(self, group: Group, scale: int | None, node: str) -> None:
        """scale: of the sensor's values, None for floats. Raises: ConfigError for a `where` that cannot be read."""
        self.group = group
        self.scale = scale
        self.horizon_us = MAX_HORIZON_US
        self.frontier_us = NEVER_US
        self.newest_us = NEVER_US
        self.counters = dict.fromkeys(
            ("readings", "late", "nan_skipped", "bad", "filtered", "outside", "dropped_late"), 0
        )
        self._nodes = [node]
        self._keys = KeyIndex(group.by)
        self._weights = LabelValues()
        self._markers = Markers(group.cut.leading) if isinstance(group.cut, PunctuationCut) else None
        self._sieve = ReadingFilter(group.where, scale)
        self._arrivals = 0
        self._eras = PlanTimeline(group, scale, self._markers)

    # --- definitions --------------------------------------------------------------------------------------------

    @property
    def servings(self) -> tuple[Serving, ...]:
        """From when until when this node feeds each (query, revision); the newest tenure of each."""
        return self._eras.servings

    @property
    def in_force(self) -> Mapping[str, Query]:
        """The queries that no change has ended, by id."""
        return self._eras.in_force

    @property
    def open_queries(self) -> frozenset[str]:
        """Ids of the queries of which a window may still begin."""
        return self._eras.open_queries(self.frontier_us)

    @property
    def unit_us(self) -> int:
        """Greatest common divisor of the edges of the plans not yet past; 0 if there is none."""
        units = [era.plan.unit_us for era in self._eras if era.plan is not None]
        return int(np.gcd.reduce(units)) if units else 0

    @property
    def drained(self) -> bool:
        """Whether no query is in force, nothing is open, and no late reading could still revise a row: it may go."""
        ended_us = self._eras.ended_us
        if ended_us > NEVER_US and ended_us + self.group.cut.gap_us + self.horizon_us + SETTLE_US > self.frontier_us:
            return False
        if self._markers is not None:  # what is open has no end that anybody asks for
            return all(era.first_us is None for era in self._eras if isinstance(era, PunctuationSlicer))
        return not self._eras.pending

    def change(
        self, queries: tuple[Query, ...], moved: Mapping[str, int | None] = MappingProxyType({})
    ) -> tuple[Serving, ...]:
        """Put these queries of the group in force, from the earliest exact event time on. Answers `servings`.

        That time is at or after the frontier, for queries that only come in addition also right after the newest
        reading; readings already sliced at or after it move to the new plan where their slices can be taken whole,
        else the switch comes after them. moved: queries that come from another group or go on in one, and from when
        (see tenure.changed). Raises: ConfigError for what cannot be served; then nothing has changed.
        """
        goes = any(moved.get(name) is not None for name in self.open_queries)
        if not goes and {query.id: query for query in queries} == self._eras.in_force:
            return self.servings
        self.counters["outside"] += self._eras.change(queries, moved, self.frontier_us, self.newest_us)
        return self.servings

    def gone_until(self, newest_us: int) -> None:
        """Say first that the source's readings up to there (NEVER_US: none) went by before this slicer was.

        What is served begins after them: no window may hold only a part of its readings.
        """
        self.newest_us = max(self.newest_us, newest_us)
        self._eras.gone_until(newest_us)

    # --- markers ------------------------------------------------------------------------------------------------

    def mark(self, markers: Iterable[Marker]) -> int:
        """Take markers in any order. Answers how many came below the frontier: those part nothing any more."""
        cut = self.group.cut
        if self._markers is None or not isinstance(cut, PunctuationCut):
            return 0
        wanted = [marker for marker in markers if cut.marker_id in {"", marker.id}]
        on_time = [marker for marker in wanted if marker.time_us >= self.frontier_us]
        self._markers.add(on_time)
        self.counters["late_markers"] = self.counters.get("late_markers", 0) + len(wanted) - len(on_time)
        return len(wanted) - len(on_time)

    def _cut_at_markers(self, markers: Markers) -> Iterator[StepRows]:
        """The windows that close at the frontier, told of: a row each, whether it holds a reading or not.

        Where only the root knows the windows, the markers below the frontier.
        """
        eras = [era for era in self._eras if isinstance(era, PunctuationSlicer)]
        firsts = [era.first_us for era in eras if era.first_us is not None]
        first_us = min(firsts, default=None)
        if self.group.cut.central:
            passed = markers.passed(self.frontier_us, first_us)
            closed = [(us, us + 1, self._keys.code(role_key(role))) for us, role in passed]
        else:
            numbered = self.group.cut.numbered
            closed = [
                (start, end, self._keys.code(window_key(n if numbered else None)))
                for start, end, n in markers.advance(self.frontier_us, first_us, self.frontier_us - self.horizon_us)
            ]
        for era in eras:
            told = era.hold(closed)
            if told and era.marker_plan is not None:
                columns = np.array(told, np.int64)
                one = {"count": np.ones(len(told), np.int64)}
                rows = Partials(columns[:, 0], columns[:, 1], columns[:, 2], one)
                yield StepRows(era.marker_plan, False, rows, self._keys.table, self._nodes)

    # --- readings -----------------------------------------------------------------------------------------------

    def push(self, batch: Batch) -> None:
        """Take readings in arrival order. Raises: ValueError for values of the wrong type (see Batch, scale)."""
        time, value = batch.time_us, batch.value
        if not len(time):
            return
        if (value.dtype.kind == "f") != (self.scale is None):
            raise ValueError(f"{value.dtype} values from a sensor of scale {self.scale}")
        counters = self.counters
        counters["readings"] += len(time)
        if (first := int(time.min())) >= max(self._eras.ended_us, self.frontier_us):  # of no query: not looked at
            self.gone_until(int(time.max()))
            counters["outside"] += len(time)
            return
        keys = self._keys.of(batch)
        ordered = bool((time[1:] >= time[:-1]).all())
        self.newest_us = max(self.newest_us, int(time[-1] if ordered else time.max()))
        index: Ints | None = None  # positions in the batch, if they are not 0..k-1
        keep = self._sieve.passing(batch, counters)
        if keep is not None:
            index = np.flatnonzero(keep)
            time = time[index]
        if not ordered:
            order = np.argsort(time, kind="stable")
            index, time = order if index is None else index[order], time[order]
        if not len(time):
            return
        if index is not None:
            value = value[index]
            keys = keys if isinstance(keys, int) else keys[index]
        run = SortedBatch(time, value, keys, len(self._keys.table), index, self._arrivals, self._numbers(batch, index))
        self._arrivals += len(batch.time_us)
        late = int(np.searchsorted(time, self.frontier_us)) if time[0] < self.frontier_us else 0
        if late:
            counters["late"] += late
            if self.group.late == "drop":
                counters["dropped_late"] += late
            else:
                self._push_late(run.part(0, late))
            run = run.part(late, len(time))
        for era, first, last in self._eras.by_time(run.time_us):
            counters["outside"] += era.push(run.part(first, last))

    def _numbers(self, batch: Batch, index: Ints | None) -> dict[str, NDArray[np.float64]]:
        """What the labels that some plan wants say as numbers, of the readings that are pushed."""
        wanted = sorted({label for era in self._eras for label in era.labels})
        if not wanted:
            return {}
        found = self._weights.of(batch, wanted)
        return found if index is None else {label: said[index] for label, said in found.items()}

    def _push_late(self, run: SortedBatch) -> None:
        for era, first, last in self._eras.by_time(run.time_us):
            outside, lost = era.push_late(run.part(first, last), self.frontier_us)
            self.counters["outside"] += outside
            self.counters["dropped_late"] += lost

    # --- what leaves --------------------------------------------------------------------------------------------

    def advance(self, frontier_us: int) -> list[StepRows]:
        """Promise that nothing below frontier_us is on time any more (a lower one changes nothing).

        Answers everything that closes (end <= frontier) and all late partials since the last call.
        """
        self.frontier_us = max(self.frontier_us, frontier_us)
        told = [] if self._markers is None else list(self._cut_at_markers(self._markers))
        out = told + [
            StepRows(plan, late, partials, self._keys.table, self._nodes)
            for era in self._eras
            for plan, late, partials in era.close(self.frontier_us)
        ]
        for era in self._eras:
            if isinstance(era, PunctuationSlicer):
                self.counters["outside"] += era.outside
                era.outside = 0
        self._eras.forget(self.frontier_us, self.horizon_us)
        return out

    def flush(self) -> list[StepRows]:
        """Everything that is open, at the end of an epoch; readings may go on (each partial is a delta)."""
        return [
            StepRows(plan, late, partials, self._keys.table, self._nodes)
            for era in self._eras
            for plan, late, partials in era.close(FAR_US)
        ]

    def hints(self) -> Hints | None:
        """The earliest start still open of each key, of a group of sessions (docs/protocol.md 5.2); else None."""
        if not self.group.cut.gap_us:
            return None
        if self._markers is not None:
            starts_open = np.array([us for us in (self._markers.open_us,) if us is not None], np.int64)
            return Hints(self._keys.table, np.full(len(starts_open), self._keys.code(MARKER_KEY)), starts_open)
        lows = [era.lows() for era in self._eras if isinstance(era, SessionSlicer)]
        codes, starts = (np.concatenate([NO_INTS, *(low[i] for low in lows)]) for i in range(2))
        return Hints(self._keys.table, codes, starts)

    def rescaled(self, scale: int | None) -> Slicer:
        """A slicer that goes on after this one for values of another scale; to be flushed before.

        It serves the same windows, also those under way: its partials are deltas of plans of their own, and unequal
        scales meet at the root (docs/protocol.md 6.1, 7.1).
        """
        after = Slicer(self.group, scale, self._nodes[0])
        after.frontier_us, after.newest_us, after._arrivals = self.frontier_us, self.newest_us, self._arrivals
        after.counters = dict(self.counters)
        after._keys = KeyIndex(self.group.by, self._keys.table)
        if self._markers is not None and after._markers is not None:  # the open window goes on, with what is to come
            after._markers.restore(self._markers.snapshot())
            after.counters["outside"] += sum(
                era.readings_open for era in self._eras if isinstance(era, PunctuationSlicer)
            )
        after._eras.follow(self._eras, self.newest_us)
        return after

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Plain values (machines.events.Commit) from which `restore` goes on: all of what a commit writes in parts."""
        return {**self.snapshot_open(), **self._eras.snapshot_settled(), "keys": list(self._keys.table)}

    def snapshot_open(self) -> dict[str, object]:
        """What any reading changes."""
        return {
            "frontier": self.frontier_us,
            "newest": self.newest_us,
            "arrivals": self._arrivals,
            "counters": dict(self.counters),
            "eras": self._eras.snapshot(),
            **({} if self._markers is None else {"markers": self._markers.snapshot()}),
        }

    def snapshot_settled(self) -> dict[str, object] | None:
        """What definitions made, of thousands of queries maybe; None while nothing changed since the last call."""
        return self._eras.snapshot_settled() if self._eras.resettled() else None

    @property
    def keys(self) -> Sequence[str]:
        """The texts of the keys so far; more are only added."""
        return self._keys.table

    def restore(self, state: Mapping[str, Any]) -> None:
        """The twin of `snapshot`, on a slicer of the same group, scale and node."""
        self.frontier_us, self.newest_us = state["frontier"], state["newest"]
        self._arrivals = state["arrivals"]
        self._keys = KeyIndex(self.group.by, state["keys"])
        self.counters = {**self.counters, **state["counters"]}
        if self._markers is not None:
            self._markers.restore(state["markers"])
        self._eras.restore(state["eras"], state)

    def check(self) -> None:
        """Invariants, for tests."""
        self._eras.check()
