"""The state of the root between decisions, except that of the Decider: plain values. Pure.

edge_agent/root/decision/decide.py decides which windows close and which are revised;
cloud_job/spark/decision_checkpoint.py encodes the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from edge_agent.algebra.frame import HORIZON_US, NEVER_US, Plan
from edge_agent.algebra.query.group_cut import OrderedCut, PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import extent_us
from edge_agent.config.definitions.definitions import query_of
from edge_agent.config.in_force.known_definitions import contradiction
from edge_agent.errors import ConfigError
from edge_agent.machines.downlink.epochs.counting import Repeats
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision import ops_rows
from edge_agent.root.decision.punctuation_queries import PunctuationQueries
from edge_agent.root.decision.read_plan import KINDS, ReadPlan
from edge_agent.root.decision.session_queries import SessionQueries
from edge_agent.root.decision.window_ranges import CoverageRef, Ranges, coverage_rows, join
from edge_agent.root.decision.work import TableRow, TooLate, identity
from edge_agent.root.punctuation_windows import reached_us
from edge_agent.wire.heads import Part

LateRows = tuple[int, bytes, bool]  # seq, identity of the plan, whether they came late: a bound of their own each
UNPUBLISHED_OVERLAP: Final = 3_600  # most windows of a reading that a root makes unasked: an hour slides by a second
MOST_COVERS: Final = 1_000  # coverages remembered; each batch writes them


@dataclass(frozen=True, slots=True)
class RootLimits:
    """revise_every_us: docs/protocol.md 8.3; 0: revise at once. horizon_us: docs/protocol.md 4.2.

    overlap: see KnownDefinitions; None in recordings, whose reader is also who asks.
    """

    revise_every_us: int = 60_000_000
    horizon_us: int = HORIZON_US
    overlap: int | None = None


@dataclass(slots=True)
class RootState:
    """All state of the root except the Decider's. It is stored in the decision's row. Times in us.

    closed: query -> windows that end by this time have had their rows. applied: seqs that took effect with content, as
    inclusive ranges, in which there may be others of frames without rows. extent: lowest start and latest end of the
    rows applied. owners: (first batch, owner), in order. plans: by `identity`. pending: (after, upto] of window ends to
    be revised. needed_us: start of the rows that queries still wait for. covers_known: the newest coverage_ids in
    ops.coverage, the latest last. met: (query, node) -> rows of older revisions may exist for windows that start before
    this time (docs/protocol.md 6.3). repeats: plan number of an epoch -> which rows count, for plans some of whose rows
    are repeats. readings: child -> readings in its rows that took effect; None: not counted from the beginning. floors:
    group -> rows that end by this time never change, even if a longer horizon is configured (docs/protocol.md 8.4).
    too_late: (seq, `identity` of the plan, whether they came late) of an epoch -> its readings in no result, kept while
    a row that would contain them may still be written (root/decision/too_late.py). ends: plan -> latest end of its
    rows. begun: group of sessions -> pieces that begin before this time are in no future row (8.4). passed:
    query with count or state windows -> see ordered_queries.passed. read_plan: the last read plan and its inputs.

    root/decision/transition.py deletes unused entries of queries, scales, plans, ends, floors and begun.
    """

    limits: RootLimits
    number: int = -1
    decided_us: int = 0
    queries: dict[QueryKey, str] = field(default_factory=dict)
    scales: dict[QueryKey, set[int | None]] = field(default_factory=dict)
    plans: dict[bytes, tuple[Group, Plan]] = field(default_factory=dict)
    closed: dict[QueryPlace, int] = field(default_factory=dict)
    revised: dict[QueryPlace, int] = field(default_factory=dict)
    pending: dict[QueryPlace, Ranges] = field(default_factory=dict)
    applied: dict[EpochKey, Ranges] = field(default_factory=dict)
    extent: dict[EpochKey, tuple[int, int]] = field(default_factory=dict)
    owners: list[tuple[int, str]] = field(default_factory=list)
    covers_known: dict[str, None] = field(default_factory=dict)
    needed_us: int = NEVER_US
    sessions: SessionQueries = field(default_factory=SessionQueries)
    markers: PunctuationQueries = field(default_factory=PunctuationQueries)
    met: dict[tuple[str, str], int] = field(default_factory=dict)
    repeats: dict[EpochKey, dict[int, Repeats]] = field(default_factory=dict)
    readings: dict[str, int] | None = field(default_factory=dict)
    floors: dict[Group, int] = field(default_factory=dict)
    too_late: dict[EpochKey, dict[LateRows, TooLate]] = field(default_factory=dict)
    ends: dict[bytes, int] = field(default_factory=dict)
    begun: dict[Group, int] = field(default_factory=dict)
    passed: dict[QueryPlace, dict[str, int]] = field(default_factory=dict)
    read_plan: tuple[object, ReadPlan] | None = None
    _parsed: dict[QueryKey, Query | None] = field(default_factory=dict)

    @property
    def put_off(self) -> bool:
        """Whether revisions wait for revise_every."""
        return bool(self.pending) or self.sessions.waiting or self.markers.waiting

    @property
    def lowest_us(self) -> int:
        """The lowest start of all applied rows."""
        return min((low for low, _ in self.extent.values()), default=self.decided_us)

    @property
    def latest_us(self) -> int:
        """The latest end of all applied rows."""
        return max((high for _, high in self.extent.values()), default=NEVER_US)

    def at(self, now_us: int) -> None:
        """Note the time of a decision. If the lander's clock went back, treat no row as revised after now."""
        if now_us < self.decided_us:
            self.revised = {place: min(us, now_us) for place, us in self.revised.items()}
            self.markers.stepped_back(now_us)
        self.decided_us = now_us

    def waits(self, place: QueryPlace, end_us: int) -> bool:
        """Whether rows of a query are still to be written. end_us: its serving ended at that time.

        Readings get their positions only once every gateway has sent its own, however long one is away (7.4).
        """
        query = self.query(place.key)
        if query is not None and isinstance(query.group.cut, OrderedCut) and self.closed_us(place) < end_us:
            return True
        track, windows = self.sessions.tracks.get(place), self.markers.windows.get(place.key)
        return place in self.pending or any(each is not None and each.waiting for each in (track, windows))

    def own(self, number: int, owner: str) -> None:
        if not self.owners or self.owners[-1][1] != owner:
            self.owners.append((number, owner))

    def disown(self, first: int) -> None:
        """Forget runs all of whose batches are before batch `first`: no table has rows of them."""
        while len(self.owners) > 1 and self.owners[1][0] <= first:
            del self.owners[0]

    def owner_of(self, number: int) -> str:
        """The run that decided a batch."""
        return next(owner for first, owner in reversed(self.owners) if first <= number)

    def query(self, key: QueryKey) -> Query | None:
        """The definition of a query's revision; None if it has not arrived or cannot be read."""
        if key not in self._parsed and key in self.queries:
            try:
                self._parsed[key] = query_of(self.queries[key])
            except ConfigError:  # from a newer version: rows of the query stay in bronze until the root is updated
                self._parsed[key] = None
        return self._parsed.get(key)

    def of(self, plan: Plan) -> list[Query]:
        """The queries of a plan whose definitions are known."""
        return [query for query in map(self.query, plan.keys) if query is not None]

    def reach(self, key: QueryKey) -> int | None:
        """The longest time [us] from a reading to the end of a row that contains it; None: not known."""
        query = self.query(key)
        return None if query is None else extent_us(query.window)

    def target(self, key: QueryKey) -> int | None:
        """The common scale of a query's plans: the finest; None (floats) if a plan has floats (7.1)."""
        scales = self.scales.get(key, {None})
        return None if None in scales else min(scale for scale in scales if scale is not None)

    def floor_us(self, group: Group, frontier_us: int) -> int:
        """The time by which rows of a group end to be beyond the horizon. It never falls, even for a longer horizon."""
        return max(frontier_us - self.limits.horizon_us, self.floors.get(group, NEVER_US))

    def markers_past_us(self, key: QueryKey, group: Group, view: GroupView | None) -> int:
        """Windows between markers of a query that end by this time had their rows, and left the horizon since.

        NEVER_US: there are none. The horizon is counted from the time up to which windows close. Groups of single nodes
        have none, because their windows close with that node.
        """
        if view is None or group.node or view.frontier_us == NEVER_US:
            return NEVER_US
        held_back_us = view.frontier_us - reached_us(group, view)
        past_us = min(self.floor_us(group, view.frontier_us) - held_back_us, self.closed_us(QueryPlace(*key, "")))
        return max(past_us, NEVER_US)

    def settle(self, decision: Decision) -> None:
        """Note the horizon of each group. It must not fall: rows needed only beyond it may be deleted already."""
        joined: dict[Group, set[QueryKey]] = {}  # queries whose pieces have come; some are not served yet
        for group, plan in self.plans.values():
            if plan.kind == "session":
                joined.setdefault(group, set()).update(plan.keys)
        for group, view in decision.groups.items():
            if view.frontier_us > NEVER_US:
                self.floors[group] = self.floor_us(group, view.frontier_us)
                if isinstance(group.cut, SessionCut):
                    begun_us = self._begun_us(group, view, joined.get(group, ()))
                    self.begun[group] = max(begun_us, self.begun.get(group, NEVER_US))

    def _begun_us(self, group: Group, view: GroupView, joined: Iterable[QueryKey]) -> int:
        """The time before which no piece begins any more, except from gateways that were away for a horizon or longer.

        It is at or before the starts of all sessions open here or at a gateway, and of rows to be computed again.
        """
        places = (QueryPlace(*key, group.node) for key in {*joined, *view.serving})
        lows = [view.frontier_us - 2 * self.limits.horizon_us]
        for track in filter(None, map(self.sessions.tracks.get, places)):
            lows += [track.low_us, *(track.touched or ())[:1]]
        away = view.leaves.below(view.frontier_us - self.limits.horizon_us)
        held = {id(own): own for leaf, own in view.registers.items() if leaf not in away}  # leaves of a member share it
        lows += [us for own in (view.hints, *held.values()) for us in own.values()]
        return max(min(lows), NEVER_US)

    def closed_us(self, place: QueryPlace) -> int:
        """Windows of a query that end by this time have had their rows."""
        return self.closed.get(place, NEVER_US)

    def close(self, place: QueryPlace, upto_us: int) -> None:
        """Note that windows of a query that end by upto_us get their rows now."""
        self.closed[place] = max(self.closed_us(place), upto_us)

    def meets(self, query: str, node: str, low_us: int) -> bool:
        """Whether rows of an older revision may exist for windows that start at low_us or later."""
        return low_us < self.met.get((query, node), NEVER_US)

    def learn(self, texts: Iterable[str], corrected: Iterable[str] = ()) -> tuple[TableRow, ...]:
        """Take definitions. Returns their rows of ops.queries. corrected: definitions that replace earlier texts
        (6.5).
        """
        rows = []
        for row, query in ops_rows.queries(texts, self.number):
            rows.append(row)
            if query is not None:
                self.queries.setdefault(query.key, str(row["definition"]))
        for row, query in ops_rows.queries(corrected, self.number):
            rows.append(row)
            if query is not None:
                self.queries[query.key] = str(row["definition"])
                self._parsed.pop(query.key, None)
        return tuple(rows)

    def regroup(self, learnt: Iterable[TableRow], dictionaries: Iterable[EpochDictionary]) -> None:
        """Let plans belong to the groups that new definitions say. learnt: their rows of ops.queries.

        The identity of a plan does not include the group. So whoever sent it before its definition was known, in a
        group of another filter, key or lateness, must not keep the rows of all others from being read (6.5).
        """
        found = (self.query(QueryKey(str(row["query"]), int(str(row["revision"])))) for row in learnt)
        new = {query.key: query for query in found if query is not None}

        def wrong(group: Group, plan: Plan) -> bool:
            return any(contradiction(new[key], group, plan) for key in plan.keys if key in new)

        over = {digest for digest, of in self.plans.items() if wrong(*of)} if new else set[bytes]()
        right = {identity(*of): of for each in dictionaries if over for of in each.plans.values() if not wrong(*of)}
        for digest in over:
            if digest in right:
                self.plans[digest] = right[digest]
            else:
                self.forget_plan(digest)

    def drop_corrected(self, decision: Decision) -> None:
        """Forget what waits for windows that no group serves any more, or of another type than the definition's (6.5).

        Call it after `learn`, if a definition was corrected.
        """
        timed = ((group, view) for group, view in decision.groups.items() if isinstance(group.cut, TimeCut))
        served = {QueryPlace(*key, group.node) for group, view in timed for key in view.serving}
        cuts = {key: type(query.group.cut) for key in self.queries if (query := self.query(key)) is not None}
        for place in [place for place in self.pending if place not in served]:
            del self.pending[place]
        for place in [place for place in self.sessions.tracks if cuts.get(place.key, SessionCut) is not SessionCut]:
            del self.sessions.tracks[place]
        for key in [key for key in self.markers.windows if cuts.get(key, PunctuationCut) is not PunctuationCut]:
            del self.markers.windows[key]

    def apply(self, effect: Effect) -> None:
        epoch = EpochKey(effect.node, effect.epoch)
        _add(self.applied.setdefault(epoch, []), effect.seq)
        for plan, found in effect.counting.items():
            known = self.repeats.setdefault(epoch, {})
            known[plan] = known.get(plan, Repeats()).joined(found, effect.seq)

    def pass_over(self, line: EpochKey, seq: int) -> None:
        """Note a frame that was settled without content and has no rows. It cuts no range, for a child decides how many
        there are.
        """
        ranges = self.applied.get(line)
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)

    def note(self, line: EpochKey, part: Part, group: Group, plan: Plan) -> None:
        """Note the time range and the plan of the rows of a part that took effect."""
        low, high = self.extent.get(line, (part.first_start_us, part.latest_end_us))
        self.extent[line] = (min(low, part.first_start_us), max(high, part.latest_end_us))
        digest = identity(group, plan)
        self.ends[digest] = max(part.latest_end_us, self.ends.get(digest, NEVER_US))
        if digest not in self.plans:
            self.plans[digest] = (group, plan)
            if plan.kind in KINDS:
                for key in plan.keys:
                    self.scales.setdefault(key, set()).add(plan.scale)

    def set_apart(self, found: TooLate, group: Group, plan: Plan, *, late: bool) -> None:
        """Note readings that came too late and count in no row. late: the part has late readings.

        Late parts of a frame have one bound, the highest found: a part with a lower one has no rows between the two.
        """
        if not found.decided:  # for the others the positions given suffice (7.4)
            rows = self.too_late.setdefault(EpochKey(found.node, found.epoch), {})
            place = (found.seq, identity(group, plan), late)
            known = rows.get(place, found)  # noted for another part of the frame
            before_us, until_us = max(found.before_us, known.before_us), max(found.until_us, known.until_us)
            rows[place] = replace(found, before_us=before_us, until_us=until_us)

    def cover(self, used: Iterable[CoverageRef]) -> tuple[TableRow, ...]:
        """The rows to add to ops.coverage for these coverages. Some may exist already: see `covers_full`."""
        rows: list[TableRow] = []
        for cover in used:
            if cover.missing:
                if cover.id not in self.covers_known:
                    rows += coverage_rows(cover, self.number)
                self.covers_known.pop(cover.id, None)
                self.covers_known[cover.id] = None
        for old in [*self.covers_known][:-MOST_COVERS]:
            del self.covers_known[old]
        return tuple(rows)

    @property
    def covers_full(self) -> bool:
        """Whether ops.coverage may contain ids that the state no longer knows."""
        return len(self.covers_known) >= MOST_COVERS

    def forget(self, decision: Decision) -> None:
        """Forget groups without members whose rows cannot change any more."""
        for group in decision.ended:
            self.let_go(((group, key) for key in decision.groups[group].serving), decision, decision.ended)
            for digest in [digest for digest, (of, _) in self.plans.items() if of == group]:
                self.forget_plan(digest)

    def let_go(self, over: Iterable[tuple[Group, QueryKey]], decision: Decision, ended: Collection[Group] = ()) -> None:
        """Forget the state of queries that a group no longer serves. ended: groups that are forgotten as a whole."""
        gone = [*over]
        for group, key in gone:
            for known in (self.closed, self.revised, self.pending, self.passed, self.sessions.tracks):
                known.pop(QueryPlace(*key, group.node), None)
        left = {*gone}
        for key in {key for _, key in gone}:  # a query may have one group per gateway
            groups = (of for of, view in decision.groups.items() if of not in ended and key in view.serving)
            if all((of, key) in left for of in groups):
                self.markers.windows.pop(key, None)
        for group, key in gone:
            if group in ended and key in self.markers.windows:
                self.markers.windows[key].leave(group.node)

    def forget_query(self, key: QueryKey) -> None:
        """Forget a definition that nothing refers to any more."""
        for known in (self.queries, self.scales, self._parsed):
            known.pop(key, None)
        if not any(each.query == key.query for each in self.queries):
            self.met = {place: us for place, us in self.met.items() if place[0] != key.query}

    def forget_plan(self, digest: bytes) -> None:
        """Forget a plan whose rows are no longer needed."""
        del self.plans[digest]
        self.ends.pop(digest, None)

    def need(self, decision: Decision) -> None:
        """Update `needed_us`."""
        served = [QueryPlace(*key, group.node) for group, view in decision.groups.items() for key in view.serving]
        self.needed_us = min((us for place in served if (us := self.needs(place)) is not None), default=NEVER_US)

    def settled_us(self, place: QueryPlace, frontier_us: int) -> int:
        """Rows of a query that end by this time cannot change any more."""
        track = self.sessions.tracks.get(place)
        times = [frontier_us - self.limits.horizon_us, *(after_us for after_us, _ in self.pending.get(place, ()))]
        if track is not None and track.touched is not None:
            times.append(track.touched[0])
        return min(times)

    def needs(self, place: QueryPlace) -> int | None:
        """The start of the rows that a query waits for: of its open sessions, or of windows that have not closed."""
        query = self.query(place.key)
        if query is None:
            return None
        closed_us, track = self.closed_us(place), self.sessions.tracks.get(place)
        if track is not None:
            return min(closed_us, track.low_us)
        cut = query.cut
        if isinstance(cut, PunctuationCut):
            return self.markers.low_us(place, closed_us)
        return closed_us - extent_us(query.window) if isinstance(cut, TimeCut) else closed_us


def _add(ranges: Ranges, seq: int) -> None:
    """Add a seq to sorted inclusive ranges. Usually it follows the last range."""
    if ranges and ranges[-1][1] == seq - 1:
        ranges[-1] = (ranges[-1][0], seq)
    elif not ranges or ranges[-1][1] < seq:
        ranges.append((seq, seq))
    else:
        ranges[:] = [(a + 1, b) for a, b in join([(a - 1, b) for a, b in [*ranges, (seq, seq)]])]
