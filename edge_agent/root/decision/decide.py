"""Turns a decision on frames into a Work: which windows close, which are revised, which readings are too late. Pure.

Rules (docs/protocol.md): a window closes when the frontier of its group has reached its end (4.4). A late partial, or
one from a member that was left out, revises the closed windows that it belongs to (4.2). So does a change of their
coverage (4.7). Windows beyond the correction horizon are not revised (4.2); others are revised at most once in
`revise_every` (8.3). A window belongs to the query revision in force at its start (6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import NEVER_US, Gap, Plan
from edge_agent.algebra.query.group_cut import OrderedCut, PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.root.completeness import Decision
from edge_agent.root.decision import ops_rows, ordered_queries, too_late
from edge_agent.root.decision.punctuation_queries import PunctuationRequests, RowRecipe
from edge_agent.root.decision.read_plan import QueryAtDecision, ReadPlan, read_plan_of
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.session_tracker import SessionDecisionView
from edge_agent.root.decision.window_ranges import CoverageRef, Ranges, join
from edge_agent.root.decision.withdrawals import SupersededRows
from edge_agent.root.decision.work import Islands, Ordering, RefusedFrame, TooLate, WindowRange, Work
from edge_agent.root.punctuation_windows import reached_us
from edge_agent.wire.heads import Part

Covers = tuple[CoverageRef, ...]


def step(
    state: RootState,
    decision: Decision,
    parts: Mapping[tuple[str, int, int], tuple[Part, ...]],
    dictionaries: Mapping[EpochKey, EpochDictionary],
    gaps: Iterable[tuple[str, Gap]],
    *,
    unread: int = 0,
    flush: bool = False,
) -> Work:
    """Make the Work of the next batch. parts: of the frames that took effect. gaps: all known.

    unread: number of messages of the batch that could not be read. flush: make all revisions now, even if not due.
    """
    state.number += 1
    state.at(decision.now_us)
    queries = state.learn(decision.queries, decision.corrected)
    state.regroup(queries, dictionaries.values())
    if decision.corrected:
        state.drop_corrected(decision)
    now = _Step(state, decision, flush)
    now.take(parts, dictionaries)
    now.recover()
    over = tuple(now.over())
    read_plan = now.read_plan(gaps)
    revisions = ordered_queries.revisions(decision.groups, state.query)
    for group, view in decision.groups.items():
        for key in view.serving:
            query = state.query(key)
            if query is not None:
                now.run(QueryAtDecision(key, query, group, view), read_plan, revisions)
    punctuation = now.punctuation(read_plan)
    spans = [*now.closing, *punctuation.closing]
    closing = [(span, cover) for span, cover in spans if not now.meets(span)]
    revising = [*now.revising, *punctuation.revising, *((span, cover) for span, cover in spans if now.meets(span))]
    state.settle(decision)
    state.forget(decision)
    state.need(decision)
    used = [cover for _, cover in (*closing, *revising)]
    used += [cover for _, covers in (*now.islands, *now.ordered) for cover in covers]
    return Work(
        state.number,
        tuple(read_plan.shapes),
        tuple(read_plan.orders),
        tuple(span for span, _ in closing),
        tuple(span for span, _ in revising),
        tuple(now.beyond),
        tuple(now.refused),
        unread,
        state.cover(used),
        tuple(ops_rows.gaps(decision.gaps, state.number)),
        queries,
        tuple(ops_rows.sensors(decision.sensors, state.number)),
        islands=tuple(islands for islands, _ in now.islands),
        ordering=tuple(ordering for ordering, _ in now.ordered),
        gone=tuple(punctuation.gone),
        over=over,
        coverages={cover.id: cover.coverage for cover in used},
    )


@dataclass(slots=True)
class _Step:
    """The results of one step so far. touched: ranges (after, upto] of window ends whose rows may have changed."""

    state: RootState
    decision: Decision
    flush: bool
    touched: dict[QueryPlace, Ranges] = field(default_factory=dict)
    beyond: list[TooLate] = field(default_factory=list)
    refused: list[RefusedFrame] = field(default_factory=list)
    closing: list[tuple[WindowRange, CoverageRef]] = field(default_factory=list)
    revising: list[tuple[WindowRange, CoverageRef]] = field(default_factory=list)
    islands: list[tuple[Islands, Covers]] = field(default_factory=list)
    ordered: list[tuple[Ordering, Covers]] = field(default_factory=list)

    def take(
        self, parts: Mapping[tuple[str, int, int], tuple[Part, ...]], dictionaries: Mapping[EpochKey, EpochDictionary]
    ) -> None:
        state, decision = self.state, self.decision
        for effect in decision.effects:
            line = EpochKey(effect.node, effect.epoch)
            found_parts = parts.get((*line, effect.seq), ())
            if effect.frame is None:
                self.refused.append(RefusedFrame(effect.node, effect.epoch, effect.seq, effect.why))
                if not found_parts:
                    state.pass_over(line, effect.seq)
                continue
            state.apply(effect)
            for part in found_parts:
                group, plan = dictionaries[line].plans[part.plan]
                state.note(line, part, group, plan)
                if state.readings is not None:
                    state.readings[line.node] = state.readings.get(line.node, 0) + part.readings
                view = decision.groups.get(group)
                if isinstance(group.cut, PunctuationCut):
                    state.markers.touch(part, plan, group, view, state.markers_past_us)
                elif plan.kind not in ("session", "raw"):
                    self._touch(part, group, plan)
                for found in too_late.beyond(state, effect, part, (group, plan), view):
                    self.beyond.append(found)
                    state.set_apart(found, group, plan, late=part.late)
        state.sessions.join(decision, dictionaries, state.floor_us, state.begun)
        state.markers.join(decision, dictionaries, state.markers_past_us)
        too_late.forget(state)

    def _touch(self, part: Part, group: Group, plan: Plan) -> None:
        """Note the closed windows that rows of the part may change."""
        for query in self.state.of(plan):
            place = QueryPlace(*query.key, group.node)
            closed_us = self.state.closed_us(place)
            if part.earliest_end_us <= closed_us:
                last_us = part.last_start_us + query.time_window.longest_us
                self.touched.setdefault(place, []).append((part.earliest_end_us - 1, min(last_us, closed_us)))

    def recover(self) -> None:
        """Note the windows whose coverage has changed because a leaf caught up or a gap record arrived."""
        for (group, _leaf), (old_us, new_us) in self.decision.caught_up.items():
            for place in self._places(group):
                self.touched.setdefault(place, []).append((old_us, min(new_us, self.state.closed_us(place))))
        for _node, gap in self.decision.gaps:
            for place in [place for group in gap.groups for place in self._places(group)]:
                query = self.state.query(place.key)
                if query is not None:
                    upto_us = min(gap.end_us + query.time_window.longest_us - 1, self.state.closed_us(place))
                    self.touched.setdefault(place, []).append((gap.start_us, upto_us))
        for place, ranges in self.touched.items():
            self.touched[place] = [(after, upto) for after, upto in ranges if upto > after]

    def _places(self, group: Group) -> tuple[QueryPlace, ...]:
        view = self.decision.groups.get(group)
        if view is None or not isinstance(group.cut, TimeCut):
            return ()
        return tuple(QueryPlace(*key, group.node) for key in view.serving)

    def over(self) -> Iterator[SupersededRows]:
        """Yields rows to withdraw: rows of an older revision beyond its end, which has become known since."""
        for (group, (query, revision)), from_us in self.decision.narrowed.items():
            if isinstance(group.cut, OrderedCut):  # positions once given are final (7.4)
                continue
            frontier_us, met = self.decision.groups[group].frontier_us, self.state.met
            met[query, group.node] = max(frontier_us, met.get((query, group.node), NEVER_US))
            if not isinstance(group.cut, PunctuationCut):  # windows between markers are withdrawn one by one
                yield SupersededRows(query, revision, group.node, from_us, frontier_us - self.state.limits.horizon_us)

    def meets(self, span: WindowRange) -> bool:
        """Whether rows of an older revision may exist in the range, so that first rows must replace them."""
        return self.state.meets(span.query, span.node, span.low_us)

    def read_plan(self, gaps: Iterable[tuple[str, Gap]]) -> ReadPlan:
        """The read plan for all served queries. gaps: all known."""
        state = self.state
        served = {
            group: {key: query for key in view.serving if (query := state.query(key)) is not None}
            for group, view in self.decision.groups.items()
        }
        keys = (key for queries in served.values() for key in queries)
        scales = sum(len(state.scales.get(key, ())) for key in keys)  # they only grow while a query is served
        of = (tuple(state.plans), {group: tuple(queries.items()) for group, queries in served.items()}, scales)
        if state.read_plan is None or state.read_plan[0] != of:  # most decisions reuse it
            state.read_plan = of, read_plan_of(state.plans.items(), served, state.target)
        known = tuple(gap for _, gap in gaps)
        return replace(state.read_plan[1], gaps=known, lowest_us=state.lowest_us, latest_us=state.latest_us)

    def run(self, run: QueryAtDecision, read_plan: ReadPlan, revisions: ordered_queries.Revisions) -> None:
        """Decide which windows of a query get rows. For windows between markers, only note up to where they close."""
        if isinstance(run.group.cut, PunctuationCut):
            self.state.close(run.place, reached_us(run.group, run.view))
        elif isinstance(run.group.cut, SessionCut):
            if run.group not in self.decision.ended:
                self.islands += self._islands(run, read_plan)
        elif isinstance(run.group.cut, OrderedCut):
            self.ordered += self._ordering(run, read_plan, revisions)
        else:
            for after, upto in self._due(run):
                self.revising += read_plan.ranges(run, after, upto)
            closed_us = self.state.closed_us(run.place)
            if run.view.frontier_us > closed_us:
                self.closing += read_plan.ranges(run, closed_us, run.view.frontier_us)
                self.state.close(run.place, run.view.frontier_us)

    def _due(self, run: QueryAtDecision) -> Ranges:
        """The ranges (after, upto] of window ends to revise now; empty until a revision is due (8.3)."""
        floor_us = self.state.floor_us(run.group, run.view.frontier_us)
        touched = [(max(after, floor_us), upto) for after, upto in self.touched.get(run.place, []) if upto > floor_us]
        ranges = join([*self.state.pending.pop(run.place, []), *touched])  # revisions that wait do not expire
        if ranges and not self._may_revise(run.place):
            self.state.pending[run.place] = ranges
            return []
        if ranges:
            self.state.revised[run.place] = self.decision.now_us
        return ranges

    def _may_revise(self, place: QueryPlace) -> bool:
        last_us = self.state.revised.get(place)
        return self.flush or last_us is None or self.decision.now_us - last_us >= self.state.limits.revise_every_us

    def _islands(self, run: QueryAtDecision, read_plan: ReadPlan) -> Iterator[tuple[Islands, Covers]]:
        """Decide which sessions of a query get rows now."""
        state, view, key = self.state, run.view, run.key
        gaps = tuple(gap for _, gap in self.decision.gaps)
        floor_us, due = state.floor_us(run.group, view.frontier_us), self._may_revise(run.place)
        shares = (view.begins.get(key, {}), view.ends.get(key, {}))
        now = SessionDecisionView(run.group, view, view.serving[key], *shares, gaps, floor_us, due)
        ended = state.sessions.ended(run.place, now)
        state.close(run.place, view.frontier_us)
        if ended is None:
            return
        shape, orders = read_plan.shape(run.query), read_plan.of(run.place)
        islands, covers = state.sessions.islands(run.query, now, ended, shape=shape, orders=orders, gaps=read_plan.gaps)
        if islands.revises:
            state.revised[run.place] = self.decision.now_us
        meets = islands.low_us is not None and state.meets(run.query.id, run.group.node, islands.low_us)
        yield replace(islands, meets=meets), covers

    def _ordering(
        self, run: QueryAtDecision, read_plan: ReadPlan, revisions: ordered_queries.Revisions
    ) -> Iterator[tuple[Ordering, Covers]]:
        """Decide which raw readings of a query get positions now."""
        state, after_us = self.state, self.state.closed_us(run.place)
        others, passed = revisions[run.query.id, run.group.node], state.passed.get(run.place, {})
        mine = ordered_queries.OrderedQueryAtDecision(run.query, run.group, run.view, others, passed)
        upto_us = max(ordered_queries.decided(mine), after_us)
        passed = ordered_queries.passed(passed, run.view, after_us, upto_us)
        state.passed.pop(run.place, None)
        if passed:
            state.passed[run.place] = passed
        if upto_us == after_us:
            return
        mine = replace(mine, passed=passed)
        state.close(run.place, upto_us)
        target, orders = state.target(run.key), read_plan.of(run.place)
        found = ordered_queries.ordering(mine, after_us, upto_us, target=target, orders=orders, gaps=read_plan.gaps)
        if found is not None:
            yield found

    def punctuation(self, read_plan: ReadPlan) -> PunctuationRequests:
        """Decide which windows between markers get rows now."""
        state, now_us = self.state, self.decision.now_us

        def recipe_of(key: QueryKey) -> RowRecipe | None:
            query = state.query(key)
            if query is None:
                return None
            by_end = isinstance(query.window, Punctuation) and query.window.by_end
            return RowRecipe(read_plan.shape(query), lambda node: read_plan.of(QueryPlace(*key, node)), by_end)

        due_us, horizon_us = now_us if self.flush else now_us - state.limits.revise_every_us, state.limits.horizon_us
        return state.markers.step(
            *(self.decision, recipe_of, read_plan.gaps),
            due_us=due_us,
            horizon_us=horizon_us,
            past_us=state.markers_past_us,
        )
