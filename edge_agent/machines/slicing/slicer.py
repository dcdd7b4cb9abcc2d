"""The slicer of one group turns batches of readings into rows of closed slices.

Rules (docs/protocol.md): a reading with ts >= frontier is on time. An older one leaves in a late partial, whose range
is that of its own readings (4.2). Open rows are flushed at the end of an epoch (1.3). The timeline assigns each reading
to a plan by its event time.

The cost per reading does not depend on the number of windows. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.frame import MAX_HORIZON_US, NEVER_US, Serving
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Batch, Partials, readings_in
from edge_agent.algebra.punctuation.markers import (
    LEAD,
    MARKER_KEY,
    Marker,
    Markers,
    role_key,
    window_key,
)
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.slots import DefinitionsState, GroupSlicerState, SlicerState
from edge_agent.machines.slicing.key_index import FEW_KEYS, KeyIndex
from edge_agent.machines.slicing.label_values import LabelValues
from edge_agent.machines.slicing.plan_timeline import PlanTimeline
from edge_agent.machines.slicing.punctuation_slicer import PunctuationSlicer
from edge_agent.machines.slicing.reading_filter import ReadingFilter
from edge_agent.machines.slicing.session_slicer import SessionSlicer
from edge_agent.machines.slicing.sorted_batch import SortedBatch
from edge_agent.machines.uplink.step import Hints, StepRows

SETTLE_US: Final = 3_600_000_000  # a group without queries is kept so much longer, because other members may be behind


class Slicer:
    """One group's slicer at one node.

    frontier_us: the promise so far; readings below it are late. newest_us: event time of the newest reading pushed,
    even if it was rejected. counters: readings, late, nan_skipped, bad (infinite or too large), filtered (by `where`),
    outside (in no window of a query in force), dropped_late, left (in returned rows), added (see PlanInterval; plus one
    for each row that lists a window). horizon_us: how long plans are kept for late readings: the root's correction
    horizon (docs/protocol.md 4.2).
    """

    def __init__(self, group: Group, scale: int | None, node: str) -> None:
        """scale: values are integers times 10^scale; None: floats. Raises: ConfigError if `where` cannot be parsed."""
        self.group = group
        self.scale = scale
        self.frontier_us = NEVER_US
        self.newest_us = NEVER_US
        self.horizon_us = MAX_HORIZON_US
        self.counters = dict.fromkeys(
            ("readings", "late", "nan_skipped", "bad", "filtered", "outside", "dropped_late", "left", "added"), 0
        )
        self._nodes = [node]
        self._keys = KeyIndex(group.by)
        self._label_values = LabelValues()
        self._markers = Markers(group.cut.leading) if isinstance(group.cut, PunctuationCut) else None
        self._filter = ReadingFilter(group.where, scale)
        self._arrivals = 0
        self._timeline = PlanTimeline(group, scale, self._markers)

    # --- definitions --------------------------------------------------------------------------------------------

    @property
    def servings(self) -> tuple[Serving, ...]:
        """The serving range of each query revision at this node. If a revision has several, the newest."""
        return self._timeline.servings

    @property
    def in_force(self) -> Mapping[str, Query]:
        """The queries that no change has ended, by id."""
        return self._timeline.in_force

    @property
    def open_queries(self) -> frozenset[str]:
        """Ids of the queries for which a window may still begin."""
        return self._timeline.open_queries(self.frontier_us)

    @property
    def ended_us(self) -> int:
        """The event time from which on no query uses readings; NEVER_US: there was none yet."""
        return self._timeline.ended_us

    @property
    def unit_us(self) -> int:
        """Greatest common divisor [us] of the window edges of all plans; 0 if there is no plan."""
        return gcd(*(interval.plan.unit_us for interval in self._timeline if interval.plan is not None))

    @property
    def drained(self) -> bool:
        """Whether the slicer may be dropped: no query in force, no open row, and no late reading may revise a row."""
        ended_us = self._timeline.ended_us
        if ended_us > NEVER_US and ended_us + self.group.cut.gap_us + self.horizon_us + SETTLE_US > self.frontier_us:
            return False
        if self._markers is not None:  # no query will ask for the open window, so only waiting readings count
            return all(
                interval.first_us is None for interval in self._timeline if isinstance(interval, PunctuationSlicer)
            )
        return not self._timeline.pending

    def change(
        self, queries: tuple[Query, ...], moved: Mapping[str, int | None] = MappingProxyType({})
    ) -> tuple[Serving, ...]:
        """Puts these queries of the group in force, from the earliest event time for which they get every reading.

        That time is at or after the frontier; if queries are only added, it may be right after the newest reading.
        Slices already made at or after it move to the new plan if they fit it as a whole, else the change comes after
        them. moved: queries that move from or to another group, with the time of the move (see query_validity.changed).
        Returns `servings`. Raises: ConfigError for queries that cannot be served; then nothing has changed.
        """
        goes = any(moved.get(name) is not None for name in self.open_queries)
        if not goes and {query.id: query for query in queries} == self._timeline.in_force:
            return self.servings
        self._count_out()
        self.counters["outside"] += self._timeline.change(queries, moved, self.frontier_us, self.newest_us)
        return self.servings

    def gone_until(self, newest_us: int) -> None:
        """Note that readings of the source up to newest_us (NEVER_US: none) are not in open rows.

        A query may begin only after them, because no window may contain only a part of its readings.
        """
        self.newest_us = max(self.newest_us, newest_us)
        self._timeline.gone_until(newest_us)

    # --- markers ------------------------------------------------------------------------------------------------

    def mark(self, markers: Iterable[Marker]) -> int:
        """Takes markers in any order. Returns how many were below the frontier, where they have no effect."""
        cut = self.group.cut
        if self._markers is None or not isinstance(cut, PunctuationCut):
            return 0
        wanted = [marker for marker in markers if cut.marker_id in {"", marker.id}]
        on_time = [marker for marker in wanted if marker.time_us >= self.frontier_us]
        self._markers.add(on_time)
        self.counters["late_markers"] = self.counters.get("late_markers", 0) + len(wanted) - len(on_time)
        return len(wanted) - len(on_time)

    def _cut_at_markers(self, markers: Markers) -> Iterator[StepRows]:
        """Yields rows that list the windows closed at the frontier, one per window, even without readings.

        If only the root knows the windows, yields one row for each marker below the frontier.
        """
        intervals = [interval for interval in self._timeline if isinstance(interval, PunctuationSlicer)]
        firsts = [interval.first_us for interval in intervals if interval.first_us is not None]
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
        for interval in intervals:
            yield from self._listed(interval, interval.ended_here(closed), late=False)

    def _led_late(self, markers: Markers) -> Iterator[StepRows]:
        """Removes and yields the rows of late readings that may open the first window of all nodes."""
        leads, markers.late_leads = markers.late_leads, []
        windows = [(start, end, self._keys.code(role_key(LEAD))) for start, end in leads]
        for interval in self._timeline if windows else ():
            if isinstance(interval, PunctuationSlicer):
                yield from self._listed(interval, interval.begun_here(windows), late=True)

    def _listed(
        self, interval: PunctuationSlicer, windows: Sequence[tuple[int, int, int]], *, late: bool
    ) -> Iterator[StepRows]:
        """Yields one row per window (start, end, key code)."""
        if windows and interval.marker_plan is not None:
            columns, one = np.array(windows, np.int64), {"count": np.ones(len(windows), np.int64)}
            self.counters["added"] += len(windows)
            rows = Partials(columns[:, 0], columns[:, 1], columns[:, 2], one)
            yield StepRows(interval.marker_plan, late, rows, self._keys.table, self._nodes)

    # --- readings -----------------------------------------------------------------------------------------------

    def push(self, batch: Batch) -> None:
        """Slices readings in arrival order. Raises: ValueError if the type of the values contradicts `scale`."""
        time, value = batch.time_us, batch.value
        if not len(time):
            return
        if (value.dtype.kind == "f") != (self.scale is None):
            raise ValueError(f"{value.dtype} values from a sensor of scale {self.scale} (None: floats, else integers)")
        counters = self.counters
        counters["readings"] += len(time)
        if (first := int(time.min())) >= max(self._timeline.ended_us, self.frontier_us):  # no query uses these readings
            self.gone_until(int(time.max()))
            counters["outside"] += len(time)
            return
        keys = self._keys.of(batch)
        ordered = bool((time[1:] >= time[:-1]).all())
        self.newest_us = max(self.newest_us, int(time[-1] if ordered else time.max()))
        index: Ints | None = None  # positions in the batch, if they are not 0..k-1
        keep = self._filter.passing(batch, counters)
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
        for interval, first, last in self._timeline.by_time(run.time_us):
            counters["outside"] += interval.push(run.part(first, last))

    def _numbers(self, batch: Batch, index: Ints | None) -> dict[str, NDArray[np.float64]]:
        """Label -> number of each reading, for labels that a plan needs. index: positions of readings; None: all."""
        wanted = sorted({label for interval in self._timeline for label in interval.labels})
        if not wanted:
            return {}
        found = self._label_values.of(batch, wanted)
        return found if index is None else {label: values[index] for label, values in found.items()}

    def _push_late(self, run: SortedBatch) -> None:
        for interval, first, last in self._timeline.by_time(run.time_us):
            outside, lost = interval.push_late(run.part(first, last), self.frontier_us)
            self.counters["outside"] += outside
            self.counters["dropped_late"] += lost

    # --- what leaves --------------------------------------------------------------------------------------------

    def advance(self, frontier_us: int) -> list[StepRows]:
        """Raises the frontier to frontier_us: from now on readings below it are late. A lower value changes nothing.

        Returns all rows that close (end <= frontier), and all late rows since the last call.
        """
        self.frontier_us = max(self.frontier_us, frontier_us)
        markers = self._markers
        windows = [] if markers is None else [*self._led_late(markers), *self._cut_at_markers(markers)]
        out = windows + [
            StepRows(plan, late, partials, self._keys.table, self._nodes)
            for interval in self._timeline
            for plan, late, partials in interval.close(self.frontier_us)
        ]
        for interval in self._timeline:
            if isinstance(interval, PunctuationSlicer):
                self.counters["outside"] += interval.outside
                interval.outside = 0
        self._count_out(out)
        self._timeline.forget(self.frontier_us, self.horizon_us)
        return out

    def flush(self) -> list[StepRows]:
        """Removes and returns all open rows. Slicing may continue afterwards, because each row is a delta."""
        out = [] if self._markers is None else list(self._led_late(self._markers))
        out += [
            StepRows(plan, late, partials, self._keys.table, self._nodes)
            for interval in self._timeline
            for plan, late, partials in interval.close(FAR_US)
        ]
        self._count_out(out)
        return out

    def _count_out(self, rows: Iterable[StepRows] = ()) -> None:
        """Adds the readings in rows that leave, and those added by the intervals, to the counters."""
        self.counters["left"] += sum(readings_in(each.partials) for each in rows)
        for interval in self._timeline:
            self.counters["added"] += interval.added
            interval.added = 0

    def book(self) -> dict[str, int]:
        """Counts of readings: taken + added = left + open + outside + dropped (docs/protocol.md 9.1)."""
        self._count_out()
        counters = self.counters
        passed_by = ("filtered", "nan_skipped", "bad")
        return {
            "taken": counters["readings"] - sum(counters[name] for name in passed_by),
            "added": counters["added"],
            "left": counters["left"],
            "open": sum(interval.readings for interval in self._timeline),
            "outside": counters["outside"],
            "dropped": counters["dropped_late"],
        }

    def promise_anew(self, frontier_us: int) -> bool:
        """Lowers the frontier to frontier_us, after `flush` and a step back of the clock.

        Later rows add to those already sent. Changes of definitions that were made while the clock was ahead are now
        in force from frontier_us on, or after the readings taken if that is later (6.3). The frontier stays if a marker
        after frontier_us has cut windows, because these are already sent. Returns whether changes of definitions moved.
        """
        if frontier_us >= self.frontier_us or (self._markers is not None and self._markers.cut_after(frontier_us)):
            return False
        self.frontier_us = frontier_us
        self._timeline.gone_until(self.newest_us)  # also readings that were late: no plan may begin before them
        for interval in self._timeline:
            interval.promise_anew(frontier_us)
        self._count_out()
        return self._timeline.begin_by(max(frontier_us, self.newest_us + 1))

    def hints(self) -> Hints | None:
        """The earliest start of an open session of each key (docs/protocol.md 5.2); None: the group has no sessions."""
        if not self.group.cut.gap_us:
            return None
        if self._markers is not None:
            starts_open = np.array([us for us in (self._markers.open_us,) if us is not None], np.int64)
            return Hints(self._keys.table, np.full(len(starts_open), self._keys.code(MARKER_KEY)), starts_open)
        lows = [interval.lows() for interval in self._timeline if isinstance(interval, SessionSlicer)]
        if len(lows) == 1:
            return Hints(self._keys.table, *lows[0])
        codes, starts = (np.concatenate([NO_INTS, *(low[i] for low in lows)]) for i in range(2))
        return Hints(self._keys.table, codes, starts)

    def forget_keys(self) -> list[StepRows]:
        """Ends a turn (see SilentKeys). If few of many keys had a reading in it, begins a new key table.

        Returns the open rows of the old table, to send as deltas (6.1). The table stays if many rows are open, because
        little would be gained, and if markers cut the windows, because an open window cannot be divided.
        """
        many = len(self._keys.table)
        few = self._keys.end_turn() <= many // 8 and sum(interval.rows for interval in self._timeline) <= many // 2
        if many <= FEW_KEYS or not few or self._markers is not None:
            return []
        rows = self.flush()
        self._keys = KeyIndex(self.group.by)
        return rows

    def rescaled(self, scale: int | None) -> Slicer:
        """A new slicer for values of another scale. Flush this one before.

        The new slicer serves the same windows, including open ones: its rows are deltas of separate plans, and the root
        merges unequal scales (docs/protocol.md 6.1, 7.1).
        """
        after = Slicer(self.group, scale, self._nodes[0])
        after.frontier_us, after.newest_us, after._arrivals = self.frontier_us, self.newest_us, self._arrivals
        after.counters = dict(self.counters)
        after._keys = KeyIndex(self.group.by, self._keys.table)
        if self._markers is not None and after._markers is not None:  # the open window stays open
            after._markers.restore(self._markers.snapshot())
            after.counters["outside"] += sum(
                interval.readings_open for interval in self._timeline if isinstance(interval, PunctuationSlicer)
            )
        after._timeline.follow(self._timeline, self.newest_us)
        return after

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> GroupSlicerState:
        self._count_out()
        return GroupSlicerState(
            group=self.group,
            scale=self.scale,
            slicer=SlicerState(
                frontier_us=self.frontier_us,
                newest_us=self.newest_us,
                arrivals=self._arrivals,
                counters=dict(self.counters),
                intervals=self._timeline.snapshot(),
                markers=None if self._markers is None else self._markers.snapshot(),
            ),
        )

    def definitions(self) -> DefinitionsState | None:
        """The query revisions, perhaps thousands; None if unchanged since the last call."""
        return self._timeline.definitions() if self._timeline.changed() else None

    @property
    def keys(self) -> list[str]:
        """Key texts by code. The list only grows."""
        return self._keys.table

    @classmethod
    def restore(
        cls, state: GroupSlicerState, definitions: DefinitionsState | None, keys: Sequence[str], node: str
    ) -> Slicer:
        """Continue from the results of `snapshot`, `definitions` and `keys`."""
        slicer, found = cls(state.group, state.scale, node), state.slicer
        slicer.frontier_us, slicer.newest_us, slicer._arrivals = found.frontier_us, found.newest_us, found.arrivals
        slicer._keys = KeyIndex(state.group.by, keys)
        slicer.counters |= found.counters
        if slicer._markers is not None and found.markers is not None:
            slicer._markers.restore(found.markers)
        if definitions is not None:
            slicer._timeline.restore(found.intervals, definitions)
        if "left" not in found.counters:  # an older version wrote this spool without books: they start balanced
            slicer.counters["left"] = off(slicer.book())
        return slicer

    def check(self) -> None:
        self._timeline.check()
        assert off(self.book()) == 0, self.book()


def off(book: Mapping[str, int]) -> int:
    """The imbalance of a group's book, in readings: above 0: lost; below 0: counted twice; 0: balanced."""
    out = book["left"] + book["open"] + book["outside"] + book["dropped"]
    return book["taken"] + book["added"] - out
