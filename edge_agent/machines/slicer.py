"""The slicer of one group: batches of readings in, closed slices out.

Rules (docs/protocol.md): a reading with ts >= frontier is on time, an older one leaves in late partials with the span
of its own readings (4.2); at a change of plan every reading goes, by event time, to exactly one of the plans that
succeed each other, and an edge is cut there (6.3); what is open at the end of an epoch is flushed (1.3).

A reading is touched a few times by numpy, whatever the number of windows. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra import where
from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.markers import (
    MARKER_KEY,
    Marker,
    Markers,
    concerns,
    cut_key,
    is_central,
    is_marked,
    is_ordered,
    key_of,
    leading_of,
)
from edge_agent.algebra.partial import NO_INTS, Batch, Column, Ints, Partials
from edge_agent.algebra.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows.central import RAW
from edge_agent.machines import tenure
from edge_agent.machines.era import Era, Run
from edge_agent.machines.instant_era import InstantEra
from edge_agent.machines.keys import Keys
from edge_agent.machines.marker_era import MarkerEra
from edge_agent.machines.raw_era import RawEra
from edge_agent.machines.release import Hints, Release
from edge_agent.machines.session_era import SessionEra
from edge_agent.machines.tenure import Tenure
from edge_agent.machines.weights import Weights

LIMITS: Final = {"f": 1e300, "i": 2**61 - 1}  # beyond, sums of floats overflow, and integers do not travel (7.1)
HORIZON_US: Final = 7 * 86_400_000_000  # the correction horizon: plans are kept as long for readings that come late
SETTLE_US: Final = 3_600_000_000  # others may be behind: by the time a member leaves, rows are final everywhere
MAX_ERAS: Final = 64  # plans kept, should definitions change all the time

Mask = NDArray[np.bool_]


class Slicer:
    """One group's slicer at one node.

    frontier_us: the promise so far; readings below it are late. newest_us: the newest reading pushed, whatever became
    of it. counters: readings, late, nan_skipped, bad (infinite or too large), filtered (by `where`), outside (in no
    window of any query in force), dropped_late.
    """

    def __init__(self, group: Group, scale: int | None, node: str) -> None:
        """scale: of the sensor's values, None for floats. Raises: ConfigError for a `where` that cannot be read."""
        self.group = group
        self.scale = scale
        self.frontier_us = NEVER_US
        self.newest_us = NEVER_US
        self.counters = dict.fromkeys(
            ("readings", "late", "nan_skipped", "bad", "filtered", "outside", "dropped_late"), 0
        )
        self._nodes = [node]
        self._keys = Keys(group.by)
        self._weights = Weights()
        self._markers = Markers(leading_of(group)) if is_marked(group) else None
        self._where = where.parse(group.where) if group.where.strip() else None
        self._where_cache: dict[where.Expr, Mask] = {}
        self._where_labels: object = None
        self._arrivals = 0
        self._tenures: tuple[Tenure, ...] = ()
        self._ended_us = NEVER_US  # no reading from then on is of any query
        self._resettled = True  # tenures or eras since `snapshot_settled` was last asked for
        self._eras: list[Era] = [self._era(NEVER_US, FAR_US, ())]

    # --- definitions --------------------------------------------------------------------------------------------

    @property
    def servings(self) -> tuple[Serving, ...]:
        """From when until when this node feeds each (query, revision); the newest tenure of each."""
        return tuple({(t.query.id, t.query.revision): t.serving for t in self._tenures}.values())

    @property
    def in_force(self) -> Mapping[str, Query]:
        """The queries that no change has ended, by id."""
        return tenure.current(self._tenures)

    @property
    def open_queries(self) -> frozenset[str]:
        """Ids of the queries of which a window may still begin."""
        return frozenset(t.query.id for t in self._tenures if t.start_until_us > self.frontier_us)

    @property
    def unit_us(self) -> int:
        """Greatest common divisor of the edges of the plans not yet past; 0 if there is none."""
        units = [era.plan.unit_us for era in self._eras if era.plan is not None]
        return int(np.gcd.reduce(units)) if units else 0

    @property
    def drained(self) -> bool:
        """Whether no query is in force, nothing is open, and no late reading could still revise a row: it may go."""
        if self._tenures and self._ended_us + self.group.gap_us + HORIZON_US + SETTLE_US > self.frontier_us:
            return False
        if self._markers is not None:  # what is open has no end that anybody asks for
            return all(era.first_us is None for era in self._eras if isinstance(era, MarkerEra))
        return not any(era.pending for era in self._eras)

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
        if not goes and {query.id: query for query in queries} == tenure.current(self._tenures):
            return self.servings
        at_us = self._earliest_switch(queries)
        tenures = tenure.changed(self._tenures, queries, at_us, moved)
        fresh = [self._era(*cut) for cut in tenure.eras(tenures, at_us)]
        self._switch(at_us, fresh)
        self._hold(tenures)
        return self.servings

    def _era(self, from_us: int, until_us: int, queries: tuple[Query, ...]) -> Era:
        """An era of the group's kind."""
        if self._markers is not None:
            return self._marker_era(from_us, until_us, queries, self.scale, self._markers)
        if self.group.gap_us:
            return SessionEra(from_us, until_us, queries, self.scale)
        if self.group.form == RAW:
            return RawEra(from_us, until_us, queries, self.scale)
        return Era(from_us, until_us, queries, self.scale)

    @property
    def _marker_era(self) -> type[MarkerEra]:
        return InstantEra if is_central(self.group) else MarkerEra

    def gone_until(self, newest_us: int) -> None:
        """Say first that the source's readings up to there (NEVER_US: none) went by before this slicer was.

        What is served begins after them: no window may hold only a part of its readings.
        """
        self.newest_us = max(self.newest_us, newest_us)
        for era in self._eras:
            era.gone_until(newest_us)

    def _hold(self, tenures: tuple[Tenure, ...]) -> None:
        self._tenures, self._resettled = tenures, True
        self._ended_us = max((t.fed_until_us for t in tenures), default=NEVER_US)

    def _earliest_switch(self, queries: tuple[Query, ...]) -> int:
        """The event time from which these can be fed exactly beside what older revisions still need."""
        fed = [t.query for t in self._tenures if t.fed_until_us > self.frontier_us] if queries else []
        trial = self._era(NEVER_US, FAR_US, tuple(dict.fromkeys((*fed, *queries))))
        cuts = sorted(query.effective_from_us for query in queries if query.effective_from_us is not None)
        at_us = self.frontier_us
        if tenure.current(self._tenures).items() <= {query.id: query for query in queries}.items():
            at_us = min(at_us, self.newest_us + 1 if self.newest_us > NEVER_US else NEVER_US)
        for era in self._eras:
            if era.until_us > at_us:
                at_us = era.earliest_switch(trial, np.array(cuts, np.int64), at_us)
        return at_us

    def _switch(self, at_us: int, fresh: list[Era]) -> None:
        """Put new eras in force from at_us on, and readings from then on into them."""
        moved = [part for era in self._eras for part in era.cut(at_us)]
        self._eras = [era for era in self._eras if era.from_us < at_us] + fresh
        for low, high, slices in moved:
            for era, first, last in self._by_era(low):
                rows = slice(first, last)
                self.counters["outside"] += era.rehome(low[rows], high[rows], slices.take(rows))

    # --- markers ------------------------------------------------------------------------------------------------

    def mark(self, markers: Iterable[Marker]) -> int:
        """Take markers in any order. Answers how many came below the frontier: those part nothing any more."""
        if self._markers is None:
            return 0
        wanted = [marker for marker in markers if concerns(self.group, marker)]
        on_time = [marker for marker in wanted if marker.time_us >= self.frontier_us]
        self._markers.add(on_time)
        self.counters["late_markers"] = self.counters.get("late_markers", 0) + len(wanted) - len(on_time)
        return len(wanted) - len(on_time)

    def _cut_at_markers(self, markers: Markers) -> Iterator[Release]:
        """The windows that close at the frontier, told of: a row each, whether it holds a reading or not.

        Where only the root knows the windows, the markers below the frontier.
        """
        eras = [era for era in self._eras if isinstance(era, MarkerEra)]
        firsts = [era.first_us for era in eras if era.first_us is not None]
        first_us = min(firsts, default=None)
        if is_central(self.group):
            passed = markers.passed(self.frontier_us, first_us)
            closed = [(us, us + 1, self._keys.code(cut_key(kind))) for us, kind in passed]
        else:
            numbered = is_ordered(self.group)
            closed = [
                (start, end, self._keys.code(key_of(n if numbered else None)))
                for start, end, n in markers.advance(self.frontier_us, first_us, self.frontier_us - HORIZON_US)
            ]
        for era in eras:
            told = era.hold(closed)
            if told and era.marker_plan is not None:
                columns = np.array(told, np.int64)
                one = {"count": np.ones(len(told), np.int64)}
                rows = Partials(columns[:, 0], columns[:, 1], columns[:, 2], one)
                yield Release(era.marker_plan, False, rows, self._keys.table, self._nodes)

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
        if (first := int(time.min())) >= max(self._ended_us, self.frontier_us):  # of no query: not looked at
            self.gone_until(int(time.max()))
            counters["outside"] += len(time)
            return
        keys = self._keys.of(batch)
        ordered = bool((time[1:] >= time[:-1]).all())
        self.newest_us = max(self.newest_us, int(time[-1] if ordered else time.max()))
        index: Ints | None = None  # positions in the batch, if they are not 0..k-1
        keep = self._passing(batch)
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
        run = Run(time, value, keys, len(self._keys.table), index, self._arrivals, self._numbers(batch, index))
        self._arrivals += len(batch.time_us)
        late = int(np.searchsorted(time, self.frontier_us)) if time[0] < self.frontier_us else 0
        if late:
            counters["late"] += late
            if self.group.late == "drop":
                counters["dropped_late"] += late
            else:
                self._push_late(run.part(0, late))
            run = run.part(late, len(time))
        for era, first, last in self._by_era(run.time_us):
            counters["outside"] += era.push(run.part(first, last))

    def _numbers(self, batch: Batch, index: Ints | None) -> dict[str, NDArray[np.float64]]:
        """What the labels that some plan wants say as numbers, of the readings that are pushed."""
        wanted = sorted({label for era in self._eras for label in era.labels})
        if not wanted:
            return {}
        found = self._weights.of(batch, wanted)
        return found if index is None else {label: said[index] for label, said in found.items()}

    def _push_late(self, run: Run) -> None:
        for era, first, last in self._by_era(run.time_us):
            outside, lost = era.push_late(run.part(first, last), self.frontier_us)
            self.counters["outside"] += outside
            self.counters["dropped_late"] += lost

    def _by_era(self, time_us: Ints) -> Iterator[tuple[Era, int, int]]:
        """(era, first, last) for the parts of sorted times; nothing for none."""
        if not len(time_us):
            return
        if time_us[0] >= self._eras[-1].from_us:
            yield self._eras[-1], 0, len(time_us)
            return
        cuts = np.searchsorted(time_us, [era.from_us for era in self._eras[1:]])
        bounds = [0, *cuts.tolist(), len(time_us)]
        for era, first, last in zip(self._eras, bounds, bounds[1:], strict=False):
            if first < last:
                yield era, first, last

    def _passing(self, batch: Batch) -> Mask | None:
        """Which readings are sound and wanted; None: all. The clean case costs two passes (least and greatest)."""
        value = batch.value
        limit = LIMITS[value.dtype.kind]
        keep: Mask | None = None
        if not (-limit <= value.min() and value.max() <= limit):  # false for NaN too
            nan = np.isnan(value)
            with np.errstate(invalid="ignore"):
                keep = (value >= -limit) & (value <= limit)
            skipped = int(np.count_nonzero(nan))
            self.counters["nan_skipped"] += skipped
            self.counters["bad"] += len(value) - int(np.count_nonzero(keep)) - skipped
        if self._where is not None:
            if batch.labels is not self._where_labels:
                self._where_cache, self._where_labels = {}, batch.labels
            with np.errstate(invalid="ignore"):
                wanted = where.evaluate(self._where, self._units(value), batch.series, batch.labels, self._where_cache)
            sound = len(value) if keep is None else int(np.count_nonzero(keep))
            keep = wanted if keep is None else keep & wanted
            self.counters["filtered"] += sound - int(np.count_nonzero(keep))
        return None if keep is None or keep.all() else keep

    def _units(self, value: Column) -> Column:
        """Values in the sensor's unit, as the filter means them."""
        if not self.scale:
            return value
        return value / 10.0**-self.scale if self.scale < 0 else value * 10.0**self.scale

    # --- what leaves --------------------------------------------------------------------------------------------

    def advance(self, frontier_us: int) -> list[Release]:
        """Promise that nothing below frontier_us is on time any more (a lower one changes nothing).

        Answers everything that closes (end <= frontier) and all late partials since the last call.
        """
        self.frontier_us = max(self.frontier_us, frontier_us)
        told = [] if self._markers is None else list(self._cut_at_markers(self._markers))
        out = told + [
            Release(plan, late, partials, self._keys.table, self._nodes)
            for era in self._eras
            for plan, late, partials in era.close(self.frontier_us)
        ]
        for era in self._eras:
            if isinstance(era, MarkerEra):
                self.counters["outside"] += era.outside
                era.outside = 0
        self._forget()
        return out

    def flush(self) -> list[Release]:
        """Everything that is open, at the end of an epoch; readings may go on (each partial is a delta)."""
        return [
            Release(plan, late, partials, self._keys.table, self._nodes)
            for era in self._eras
            for plan, late, partials in era.close(FAR_US)
        ]

    def hints(self) -> Hints | None:
        """The earliest start still open of each key, of a group of sessions (docs/protocol.md 5.2); else None."""
        if not self.group.gap_us:
            return None
        if self._markers is not None:
            starts_open = np.array([us for us in (self._markers.open_us,) if us is not None], np.int64)
            return Hints(self._keys.table, np.full(len(starts_open), self._keys.code(MARKER_KEY)), starts_open)
        lows = [era.lows() for era in self._eras if isinstance(era, SessionEra)]
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
        after._keys = Keys(self.group.by, self._keys.table)
        after._hold(self._tenures)
        if self._markers is not None and after._markers is not None:  # the open window goes on, with what is to come
            after._markers.restore(self._markers.snapshot())
            after.counters["outside"] += sum(era.readings_open for era in self._eras if isinstance(era, MarkerEra))
        after._eras = [after._era(*cut) for cut in tenure.eras(self._tenures, NEVER_US)]
        for era in after._eras:
            era.gone_until(self.newest_us)
        return after

    def _forget(self) -> None:
        """Drop plans that are past the horizon; what is older still goes to the oldest plan kept."""
        while len(self._eras) > 1:
            oldest = self._eras[0]
            past = oldest.until_us < self.frontier_us - HORIZON_US
            if oldest.pending or oldest.until_us > self.frontier_us or not (past or len(self._eras) > MAX_ERAS):
                return
            del self._eras[0]
            self._eras[0].from_us = NEVER_US
            self._hold(tuple(t for t in self._tenures if t.fed_until_us > oldest.until_us))

    # --- the spool ----------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Plain values (machines.events.Commit) from which `restore` goes on: all of what a commit writes in parts."""
        return {**self.snapshot_open(), **self._settled(), "keys": list(self._keys.table)}

    def snapshot_open(self) -> dict[str, object]:
        """What any reading changes."""
        eras = [era.snapshot() for era in self._eras]
        for each in eras:
            del each["queries"]
        return {
            "frontier": self.frontier_us,
            "newest": self.newest_us,
            "arrivals": self._arrivals,
            "counters": dict(self.counters),
            "eras": eras,
            **({} if self._markers is None else {"markers": self._markers.snapshot()}),
        }

    def snapshot_settled(self) -> dict[str, object] | None:
        """What definitions made, of thousands of queries maybe; None while nothing changed since the last call."""
        new, self._resettled = self._resettled, False
        return self._settled() if new else None

    @property
    def keys(self) -> Sequence[str]:
        """The texts of the keys so far; more are only added."""
        return self._keys.table

    def _settled(self) -> dict[str, object]:
        return {
            "tenures": [tenure.to_plain(each) for each in self._tenures],
            "fed": [[[query.id, query.revision] for query in era.queries] for era in self._eras],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The twin of `snapshot`, on a slicer of the same group, scale and node."""
        self.frontier_us, self.newest_us = state["frontier"], state["newest"]
        self._arrivals = state["arrivals"]
        self._keys = Keys(self.group.by, state["keys"])
        self.counters = {**self.counters, **state["counters"]}
        self._hold(tuple(tenure.from_plain(each) for each in state["tenures"]))
        known = {(t.query.id, t.query.revision): t.query for t in self._tenures}
        eras = [{**era, "queries": fed} for era, fed in zip(state["eras"], state["fed"], strict=True)]
        if self._markers is not None:
            self._markers.restore(state["markers"])
            self._eras = [self._marker_era.resume(each, known, self.scale, self._markers) for each in eras]
            return
        kind: type[Era] = SessionEra if self.group.gap_us else RawEra if self.group.form == RAW else Era
        self._eras = [kind.restore(each, known, self.scale) for each in eras]

    def check(self) -> None:
        """Invariants, for tests."""
        assert self._eras[0].from_us == NEVER_US
        assert self._eras[-1].until_us == FAR_US
        for era, following in zip(self._eras, self._eras[1:], strict=False):
            assert era.from_us < era.until_us == following.from_us
        for era in self._eras:
            era.check()
