"""What may close and what must be revised now: from the decision on frames to spans of windows. Pure.

Rules (docs/protocol.md): a window closes when its group's frontier has reached its end (4.4); a partial for windows
that have closed revises them, whether it came as a late one or from a member that was left out (4.2); so does a change
of their coverage (4.7); beyond the correction horizon nothing is revised (4.2); a window is revised at most once in
`revise_every` (8.3); a window belongs to the revision in force at its start (6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cloud_job.decision import orderings, told
from cloud_job.decision.makings import KINDS, Key, Makings, Place, Run, makings_of
from cloud_job.decision.marker_queries import Making, MarkerQueries, Marks
from cloud_job.decision.open_sessions import Moment
from cloud_job.decision.session_queries import SessionQueries
from cloud_job.decision.spans import Cover, coverage_rows, join
from cloud_job.decision.work import Beyond, Islands, Ordering, Over, Refused, Row, Span, Work, identity
from edge_agent.algebra.frame import NEVER_US, Gap, Plan
from edge_agent.algebra.markers import is_marked
from edge_agent.algebra.query import Group, Query
from edge_agent.algebra.windows import Punctuation, reach_us
from edge_agent.algebra.windows.central import RAW
from edge_agent.config.definitions import query_of
from edge_agent.errors import ConfigError
from edge_agent.machines.books import Book
from edge_agent.machines.decider import Decision, GroupView
from edge_agent.machines.inbox import Effect
from edge_agent.machines.marker_windows import reached_us
from edge_agent.wire.heads import Part

Line = tuple[str, int]  # node and epoch
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """revise_every_us, horizon_us: docs/protocol.md 8.3, 4.2. revise_every_us 0: at once."""

    revise_every_us: int = 60_000_000
    horizon_us: int = 7 * 86_400_000_000


@dataclass(slots=True)
class Ledger:
    """What is known beside the Decider's own state. All of it is plain values, kept in the decision's row.

    closed: windows that end up to there have had their rows. applied: seqs that took effect with content, as inclusive
    ranges. extent: lowest start and latest end of the rows applied. owners: (first batch, owner), in order. plans: by
    `identity`. pending: (after, upto] of window ends to be revised. needed_us: what gets its first row next starts
    there or later. covers_known: coverage_ids that stand in ops.coverage. met: (query, node) -> rows of older revisions
    may stand where windows start below that (docs/protocol.md 6.3).
    """

    limits: Limits
    number: int = -1
    decided_us: int = 0
    queries: dict[Key, str] = field(default_factory=dict)
    scales: dict[Key, set[int | None]] = field(default_factory=dict)
    plans: dict[bytes, tuple[Group, Plan]] = field(default_factory=dict)
    closed: dict[Place, int] = field(default_factory=dict)
    revised: dict[Place, int] = field(default_factory=dict)
    pending: dict[Place, Ranges] = field(default_factory=dict)
    applied: dict[Line, Ranges] = field(default_factory=dict)
    extent: dict[Line, tuple[int, int]] = field(default_factory=dict)
    owners: list[tuple[int, str]] = field(default_factory=list)
    covers_known: set[str] = field(default_factory=set)
    needed_us: int = NEVER_US
    sessions: SessionQueries = field(default_factory=SessionQueries)
    markers: MarkerQueries = field(default_factory=MarkerQueries)
    nodes: told.Nodes = field(default_factory=told.Nodes)
    met: dict[tuple[str, str], int] = field(default_factory=dict)
    _parsed: dict[Key, Query | None] = field(default_factory=dict)

    def step(
        self,
        decision: Decision,
        parts: Mapping[tuple[str, int, int], tuple[Part, ...]],
        books: Mapping[Line, Book],
        gaps: Iterable[tuple[str, Gap]],
        *,
        unread: int = 0,
        flush: bool = False,
    ) -> Work:
        """The next batch's work. parts: of the frames that took effect. gaps: all known.

        unread: messages of the batch that could not be read. flush: put nothing off.
        """
        self.number += 1
        self.decided_us = decision.now_us
        queries = self._learn(decision.queries)
        touched: dict[Place, Ranges] = {}
        beyond: list[Beyond] = []
        refused: list[Refused] = []
        for effect in decision.effects:
            if effect.frame is None:
                refused.append(Refused(effect.node, effect.epoch, effect.seq, effect.why))
                continue
            line = (effect.node, effect.epoch)
            _add(self.applied.setdefault(line, []), effect.seq)
            for part in parts.get((*line, effect.seq), ()):
                group, plan = books[line].plans[part.plan]
                self._note(line, part, group, plan)
                if is_marked(group):
                    self.markers.touch(part, group, plan)
                elif plan.kind not in ("session", "raw"):
                    self._touch(part, group, plan, touched)
                beyond += self._beyond(effect, part, (group, plan), decision.groups.get(group))
        self.sessions.join(decision, books, self.limits.horizon_us)
        self.markers.join(decision, books)
        self._recover(decision, touched)
        over = tuple(self._over(decision))
        served = {
            group: {key: query for key in view.serving if (query := self.query(key)) is not None}
            for group, view in decision.groups.items()
        }
        lowest_us = min((low for low, _ in self.extent.values()), default=decision.now_us)
        known = tuple(gap for _, gap in gaps)
        makings = makings_of(self.plans.items(), served, self.target, gaps=known, lowest_us=lowest_us)
        found: list[tuple[Islands, tuple[Cover, ...]]] = []
        closing: list[tuple[Span, Cover]] = []
        revising: list[tuple[Span, Cover]] = []
        ordered: list[tuple[Ordering, tuple[Cover, ...]]] = []
        revisions = orderings.revisions(decision.groups, self.query)
        for group, view in decision.groups.items():
            for key in view.serving:
                query = self.query(key)
                if query is None:
                    continue
                run = Run(key, query, group, view)
                if is_marked(group):
                    self.closed[run.place] = max(self.closed.get(run.place, NEVER_US), reached_us(group, view))
                    continue
                if group.gap_us:
                    found += () if group in decision.ended else self._islands(run, makings, decision, flush=flush)
                    continue
                if group.form == RAW:
                    ordered += self._ordering(run, makings, revisions)
                    continue
                for after, upto in self._due(run, touched.get(run.place, []), decision.now_us, flush=flush):
                    revising += makings.spans(run, after, upto)
                closed_us = self.closed.get(run.place, NEVER_US)
                if view.frontier_us > closed_us:
                    closing += makings.spans(run, closed_us, view.frontier_us)
                    self.closed[run.place] = view.frontier_us
        marks = self._marks(decision, makings, flush=flush)
        closing += marks.closing
        revising += marks.revising
        revising += [found for found in closing if self._meets(found[0].query, found[0].node, found[0].low_us)]
        closing = [found for found in closing if not self._meets(found[0].query, found[0].node, found[0].low_us)]
        self._forget(decision)
        self.needed_us = self._needed(decision)
        spans = [*closing, *revising]
        return Work(
            self.number,
            tuple(makings.shapes),
            tuple(makings.orders),
            tuple(span for span, _ in closing),
            tuple(span for span, _ in revising),
            tuple(beyond),
            tuple(refused),
            unread,
            self._new_covers(
                [cover for _, cover in spans] + [cover for _, covers in (*found, *ordered) for cover in covers]
            ),
            tuple(told.gaps(decision.gaps, self.number)),
            queries,
            tuple(told.sensors(decision.sensors, self.number)),
            nodes=self.nodes.rows(decision, self.number),
            islands=tuple(islands for islands, _ in found),
            ordering=tuple(ordering for ordering, _ in ordered),
            gone=tuple(marks.gone),
            over=over,
        )

    @property
    def put_off(self) -> bool:
        """Whether rows wait for revise_every."""
        return bool(self.pending) or self.sessions.waiting or self.markers.waiting

    def own(self, number: int, owner: str) -> None:
        """A batch is this run's."""
        if not self.owners or self.owners[-1][1] != owner:
            self.owners.append((number, owner))

    def owner_of(self, number: int) -> str:
        """The run that decided a batch."""
        return next(owner for first, owner in reversed(self.owners) if first <= number)

    def query(self, key: Key) -> Query | None:
        """The definition of a query's revision, None while it has not come or cannot be read."""
        if key not in self._parsed and key in self.queries:
            try:
                self._parsed[key] = query_of(self.queries[key])
            except ConfigError:  # of a newer version: its rows stay in bronze until this root knows it
                self._parsed[key] = None
        return self._parsed.get(key)

    def reach(self, key: Key) -> int | None:
        """How long after a reading a row of a query that holds it may end; None while it is not known."""
        query = self.query(key)
        return None if query is None else reach_us(query.window)

    def target(self, key: Key) -> int | None:
        """The scale at which a query's plans meet: the finest, or floats if one is of floats (docs/protocol.md 7.1)."""
        scales = self.scales.get(key, {None})
        return None if None in scales else min(scale for scale in scales if scale is not None)

    def _learn(self, texts: Iterable[str]) -> tuple[Row, ...]:
        rows = []
        for row, query in told.queries(texts, self.number):
            rows.append(row)
            if query is not None:
                self.queries.setdefault((query.id, query.revision), str(row["definition"]))
        return tuple(rows)

    def _note(self, line: Line, part: Part, group: Group, plan: Plan) -> None:
        low, high = self.extent.get(line, (part.first_start_us, part.latest_end_us))
        self.extent[line] = (min(low, part.first_start_us), max(high, part.latest_end_us))
        digest = identity(group, plan)
        if digest not in self.plans:
            self.plans[digest] = (group, plan)
            if plan.kind in KINDS:
                for key in plan.queries:
                    self.scales.setdefault(key, set()).add(plan.scale)

    def _touch(self, part: Part, group: Group, plan: Plan, touched: dict[Place, Ranges]) -> None:
        """Closed windows that may hold rows of the part: a superset, for what has not changed is not written."""
        for key in plan.queries:
            place = (*key, group.node)
            closed_us, query = self.closed.get(place, NEVER_US), self.query(key)
            if query is not None and part.earliest_end_us <= closed_us:
                last_us = part.last_start_us + query.time_window.longest_us
                touched.setdefault(place, []).append((part.earliest_end_us - 1, min(last_us, closed_us)))

    def _beyond(self, effect: Effect, part: Part, of: tuple[Group, Plan], view: GroupView | None) -> Iterable[Beyond]:
        """Rows all of whose windows have ended before the horizon: in no result, and in ops.late instead (4.2)."""
        group, plan = of
        if plan.kind == "marker":
            return
        if plan.kind == "raw" and not is_marked(group):
            yield from self._decided(effect, part, group, plan)
            return
        queries = [query for query in (self.query(key) for key in plan.queries) if query is not None]
        if view is None or not queries or view.frontier_us == NEVER_US:
            return
        closed_us = min(self.closed.get((q.id, q.revision, group.node), NEVER_US) for q in queries)
        longest_us = max(reach_us(query.window) for query in queries)
        before_us = min(closed_us, view.frontier_us - self.limits.horizon_us) - longest_us + 1
        lasting = plan.kind == "session" or is_marked(
            group
        )  # it may have begun long ago: its last reading says when it was
        if (part.earliest_end_us - 1 if lasting else part.first_start_us) < before_us:
            place = (effect.node, effect.epoch, effect.seq, part.number)
            yield Beyond(*place, queries[0].source, before_us, lasting=lasting)

    def _decided(self, effect: Effect, part: Part, group: Group, plan: Plan) -> Iterable[Beyond]:
        """Raw readings below the frontier that gave positions: in no window of the plan's queries (7.4)."""
        queries = [query for query in (self.query(key) for key in plan.queries) if query is not None]
        before_us = min((self.closed.get((q.id, q.revision, group.node), NEVER_US) for q in queries), default=NEVER_US)
        if part.first_start_us < before_us:
            yield Beyond(effect.node, effect.epoch, effect.seq, part.number, queries[0].source, before_us, decided=True)

    def _ordering(
        self, run: Run, makings: Makings, revisions: orderings.Revisions
    ) -> Iterable[tuple[Ordering, tuple[Cover, ...]]]:
        """What of a query's raw readings gets its position."""
        after_us = self.closed.get(run.place, NEVER_US)
        mine = orderings.Run(run.query, run.group, run.view, revisions[run.query.id, run.group.node])
        upto_us = orderings.decided(mine)
        if upto_us <= after_us:
            return
        self.closed[run.place] = upto_us
        found = orderings.ordering(
            mine, after_us, upto_us, target=self.target(run.key), orders=makings.of(run.place), gaps=makings.gaps
        )
        if found is not None:
            yield found

    def _islands(
        self, run: Run, makings: Makings, decision: Decision, *, flush: bool
    ) -> Iterable[tuple[Islands, tuple[Cover, ...]]]:
        """What of a query of sessions gets rows now."""
        query, view, key, place = run.query, run.view, run.key, run.place
        last_us, floor_us = self.revised.get(place), view.frontier_us - self.limits.horizon_us
        due = flush or last_us is None or decision.now_us - last_us >= self.limits.revise_every_us
        gaps = tuple(gap for _, gap in decision.gaps)
        now = Moment(run.group, view, view.serving[key], view.begins.get(key, {}), gaps, floor_us, due)
        ended = self.sessions.ended(place, now)
        self.closed[place] = max(self.closed.get(place, NEVER_US), view.frontier_us)
        if ended is None:
            return
        shape = makings.shape(query)
        islands, covers = self.sessions.islands(
            query, now, ended, shape=shape, orders=makings.of(place), gaps=makings.gaps
        )
        if islands.revises:
            self.revised[place] = decision.now_us
        meets = islands.low_us is not None and self._meets(query.id, run.group.node, islands.low_us)
        yield replace(islands, meets=meets), covers

    def _over(self, decision: Decision) -> Iterable[Over]:
        """What an older revision gave beyond its end, as it turns out."""
        for (group, (query, revision)), from_us in decision.narrowed.items():
            if group.form == RAW:  # positions once given are final (7.4)
                continue
            frontier_us, place = decision.groups[group].frontier_us, (query, group.node)
            self.met[place] = max(frontier_us, self.met.get(place, NEVER_US))
            if not is_marked(group):  # theirs are known one by one
                yield Over(query, revision, group.node, from_us, frontier_us - self.limits.horizon_us)

    def _meets(self, query: str, node: str, low_us: int) -> bool:
        return low_us < self.met.get((query, node), NEVER_US)

    def _forget(self, decision: Decision) -> None:
        """What was kept of groups that nobody serves any more and none of whose rows can change."""
        for group in decision.ended:
            for place in [(*key, group.node) for key in decision.groups[group].serving]:
                for known in (self.closed, self.revised, self.pending, self.sessions.tracks):
                    known.pop(place, None)
            for digest in [digest for digest, (of, _) in self.plans.items() if of == group]:
                del self.plans[digest]
        for group, view in decision.groups.items() if self.met else ():
            for query, _ in view.serving:
                if self.met.get((query, group.node), view.frontier_us) < view.frontier_us - self.limits.horizon_us:
                    del self.met[query, group.node]

    def _recover(self, decision: Decision, touched: dict[Place, Ranges]) -> None:
        """Rows whose coverage changed: a leaf caught up, or a gap record came."""
        for (group, _leaf), (old_us, new_us) in decision.caught_up.items():
            for key in self._keys(decision, group):
                place = (*key, group.node)
                touched.setdefault(place, []).append((old_us, min(new_us, self.closed.get(place, NEVER_US))))
        for _node, gap in decision.gaps:
            for group in gap.groups:
                for key in self._keys(decision, group):
                    query, place = self.query(key), (*key, group.node)
                    if query is not None:
                        upto_us = min(gap.end_us + query.time_window.longest_us - 1, self.closed.get(place, NEVER_US))
                        touched.setdefault(place, []).append((gap.start_us, upto_us))
        for place, ranges in touched.items():
            touched[place] = [(after, upto) for after, upto in ranges if upto > after]

    @staticmethod
    def _keys(decision: Decision, group: Group) -> tuple[Key, ...]:
        view = decision.groups.get(group)
        return tuple(view.serving) if view is not None and not group.gap_us and not group.form else ()

    def _needed(self, decision: Decision) -> int:
        served = [(*key, group.node) for group, view in decision.groups.items() for key in view.serving]
        return min((us for place in served if (us := self._needs(place)) is not None), default=NEVER_US)

    def _needs(self, place: Place) -> int | None:
        """Where the rows begin that a query still waits for: its open sessions; windows that have not closed."""
        query = self.query(place[:2])
        if query is None:
            return None
        closed_us, track = self.closed.get(place, NEVER_US), self.sessions.tracks.get(place)
        if track is not None:
            return min(closed_us, track.low_us)
        if is_marked(query.group):
            return self.markers.low_us(place[:2], closed_us)
        if query.group.form == RAW:
            return closed_us
        return closed_us - query.time_window.longest_us if query.window.type != "session" else closed_us

    def _marks(self, decision: Decision, makings: Makings, *, flush: bool) -> Marks:
        """What of the queries of windows between markers gets rows now."""

        def making(key: Key) -> Making | None:
            query = self.query(key)
            if query is None:
                return None
            shape = makings.shape(query)
            by_end = isinstance(query.window, Punctuation) and query.window.by_end
            return Making(shape, lambda node: makings.of((*key, node)), by_end)

        due_us = decision.now_us if flush else decision.now_us - self.limits.revise_every_us
        return self.markers.step(decision, making, makings.gaps, due_us=due_us, horizon_us=self.limits.horizon_us)

    def _due(self, run: Run, touched: Ranges, now_us: int, *, flush: bool) -> Ranges:
        """What of a query is revised now; the rest waits (docs/protocol.md 8.3)."""
        floor_us = run.view.frontier_us - self.limits.horizon_us
        ranges = join([*self.pending.pop(run.place, []), *touched])
        ranges = [(max(after, floor_us), upto) for after, upto in ranges if upto > floor_us]
        last_us = self.revised.get(run.place)
        if ranges and not flush and last_us is not None and now_us - last_us < self.limits.revise_every_us:
            self.pending[run.place] = ranges
            return []
        if ranges:
            self.revised[run.place] = now_us
        return ranges

    def _new_covers(self, used: Iterable[Cover]) -> tuple[Row, ...]:
        rows: list[Row] = []
        for cover in used:
            if cover.missing and cover.id not in self.covers_known:
                self.covers_known.add(cover.id)
                rows += coverage_rows(cover, self.number)
        return tuple(rows)


def _add(ranges: Ranges, seq: int) -> None:
    """One more seq to inclusive ranges in order; it mostly comes next."""
    if ranges and ranges[-1][1] == seq - 1:
        ranges[-1] = (ranges[-1][0], seq)
    elif not ranges or ranges[-1][1] < seq:
        ranges.append((seq, seq))
    else:
        ranges[:] = [(a + 1, b) for a, b in join([(a - 1, b) for a, b in [*ranges, (seq, seq)]])]
