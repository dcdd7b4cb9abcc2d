"""The plain-Python root: frames in, rows of results out. What the Spark job must equal (cloud_job/).

Rules (docs/protocol.md): a window closes when its group's frontier has reached its end (4.4); a partial for a window
that has closed revises its row, so does a change of its coverage (4.2, 4.7); beyond the correction horizon nothing is
revised (4.2); a window belongs to the revision in force at its start (6.3); partials add up, of kind `window` in the
window equal to their range only (6.1, 6.2); a revision is a change of the set of frames or of coverage (7.2); a window
is revised at most once in `revise_every` (8.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from edge_agent.algebra.coverage import Coverage, window_coverage
from edge_agent.algebra.frame import NEVER_US, Frame, GroupPart, Heartbeat, Receipt
from edge_agent.algebra.key import key_labels
from edge_agent.algebra.markers import is_central, is_marked
from edge_agent.algebra.partial import NO_INTS, Ints, Partials
from edge_agent.algebra.query import Group, Query
from edge_agent.algebra.windows import reach_us
from edge_agent.algebra.windows.central import RAW
from edge_agent.errors import ConfigError
from edge_agent.machines.books import Book
from edge_agent.machines.central_results import CentralResults
from edge_agent.machines.decider import Decider, Decision, GroupView
from edge_agent.machines.events import BadFrame
from edge_agent.machines.holding import Holding
from edge_agent.machines.inbox import Effect
from edge_agent.machines.instants import sliced
from edge_agent.machines.marker_results import MarkedRows, Moment
from edge_agent.machines.marker_windows import reached_us
from edge_agent.machines.names import Renumbering
from edge_agent.machines.pool import named as by_name
from edge_agent.machines.results import Beyond, Row, Wanted, Windows, details_of, windows
from edge_agent.machines.rolled import Rolled
from edge_agent.machines.session_results import Shown, belongs, coverage_of, islands, whole_until

KINDS: Final = ("slice", "window", "session", "raw", "marker")  # kinds of rows that this root forms windows from
HORIZON_US: Final = 7 * 86_400_000_000  # how long results are revised (docs/operate.md)

Key = tuple[str, int]  # query and its revision
Place = tuple[str, int, str]  # the same in the group of one node, '' where it is not local


class Root:
    """The top of the tree: `take` what the children sent, `step` for the rows that follow."""

    def __init__(
        self,
        journal: int,
        *,
        grace_us: int,
        parse: Callable[[str], Query],
        named: Iterable[str] = (),
        horizon_us: int = HORIZON_US,
        revise_every_us: int = 0,
    ) -> None:
        """journal: as children know this parent. parse: a definition's text to a Query, or ConfigError.

        grace_us, named: see Household. revise_every_us: rows of a query are revised no more often; 0: at once.
        """
        self.decider = Decider(journal, grace_us, named)
        self.queries: dict[Key, Query] = {}
        self.beyond: list[Beyond] = []
        self._parse = parse
        self._horizon_us, self._revise_every_us = horizon_us, revise_every_us
        self._numbers = Renumbering()
        self._central = CentralResults(self._numbers)
        self._marked = MarkedRows()
        self._holdings: dict[tuple[Group, bytes], Holding] = {}
        self._closed: dict[Place, int] = {}  # windows that end up to there have had their rows
        self._revised: dict[Place, int] = {}
        self._pending: dict[Place, Ints] = {}  # starts of windows to be revised once revise_every allows
        self._rolled: dict[Place, Rolled] = {}
        self._sessions: dict[tuple[str, str], Shown] = {}  # by query and node
        # (query, node) -> start -> key -> its row now
        self._shown: dict[tuple[str, str], dict[int, dict[str, Row]]] = {}

    def take(self, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> None:
        """One message of a child, in the order of arrival; received_us never falls."""
        self.decider.take(node, message, received_us)

    def receipt(self, node: str, epoch: int) -> Receipt:
        """What is here of an epoch, for a holder that gives receipts itself."""
        return self.decider.parent.inbox.receipt(node, epoch)

    def step(self, now_us: int, *, flush: bool = False) -> list[Row]:
        """Rows that are new or revised since the last step, by query, start and key. flush: put nothing off."""
        decision = self.decider.decide(now_us)
        for text in decision.queries:
            self._learn(text)
        touched: dict[Place, list[Ints]] = {}
        for effect in decision.effects:
            for group, holding, rows in self._hold(effect, decision):
                self._touch(group, holding, rows, touched)
        self._recover(decision, touched)
        out: list[Row] = list(self._withdrawn(decision))
        raw: list[tuple[Query, Group, GroupView]] = []
        for group, view in decision.groups.items():
            for key, serving in view.serving.items():
                if key not in self.queries:
                    continue
                query, place = self.queries[key], (*key, group.node)
                closed_us = self._closed.get(place, NEVER_US)
                if is_marked(group):
                    self._closed[place] = max(closed_us, reached_us(group, view))
                    continue
                if group.gap_us:
                    out += () if group in decision.ended else self._session_rows(query, group, view)
                    self._closed[place] = max(closed_us, view.frontier_us)
                    continue
                if group.form == RAW:
                    if query.group.form == RAW:  # else not what the definition says
                        raw.append((query, group, view))
                    continue
                starts = self._due(place, view.frontier_us, touched, now_us, flush=flush)
                wanted = Wanted(query, serving, closed_us, view.frontier_us, starts)
                rolled = self._rolled.setdefault(place, Rolled())
                made = windows(wanted, self._held(group, key), self._numbers.ranks(), rolled)
                if made is not None:
                    out += self._changed(query, group, view, made)
                self._closed[place] = max(closed_us, view.frontier_us)
        gaps = tuple(gap for _, gap in self.decider.gaps)
        for query, group, view in sorted(raw, key=lambda one: (one[0].id, one[0].revision)):  # the older one first
            older = [(other, its) for other, of, its in raw if (other.id, of.node) == (query.id, group.node)]
            out += self._central.step(query, group, view, gaps, older)
        due_us = now_us if flush else now_us - self._revise_every_us
        moment = Moment(decision, gaps, due_us, self._horizon_us)
        out += self._marked.step(moment, self.queries, self._held, self._numbers.keys.texts, self._numbers.ranks())
        self._free(decision)
        return out

    # --- what came ------------------------------------------------------------------------------------------------

    def _learn(self, text: str) -> None:
        try:
            query = self._parse(text)
        except ConfigError:  # of a newer version: its rows are held, no more
            return
        self.queries.setdefault((query.id, query.revision), query)

    def _held(self, group: Group, key: Key) -> list[Holding]:
        """The rows of a query, by plan."""
        return [h for (of, _), h in self._holdings.items() if of == group and key in h.plan.queries]

    def _hold(self, effect: Effect, decision: Decision) -> Iterator[tuple[Group, Holding, Partials]]:
        """Keep the rows of a frame that took effect; answers them by plan."""
        if effect.frame is None:
            return
        book = self.decider.parent.books[effect.node, effect.epoch]
        for part in effect.frame.groups:
            yield from self._hold_part(effect, part, book, decision)

    def _hold_part(
        self, effect: Effect, part: GroupPart, book: Book, decision: Decision
    ) -> Iterator[tuple[Group, Holding, Partials]]:
        for late, sections in ((False, part.sections), (True, part.late)):
            for section in sections:
                group, plan = book.plans[section.plan]
                if plan.kind not in KINDS:
                    continue
                rows = by_name(section, plan.basis)
                rows = self._numbers.rows(effect.node, effect.epoch, book, plan, rows)
                if plan.kind == "marker":
                    self._marked.tell(group, plan, self._numbers.keys.texts, rows)
                    continue
                if plan.kind == RAW and is_central(group):
                    plan, rows = sliced(group, plan, rows, self.queries, self._numbers.keys.texts)
                elif plan.kind == RAW:
                    self.beyond += self._central.hold(effect.node, group, plan, rows, self.queries)
                    continue
                holding = self._holdings.setdefault((group, plan.hash), Holding(plan))
                rows = self._set_aside(effect.node, group, holding, rows, decision)
                if len(rows):
                    holding.add(rows, late=late)
                    yield group, holding, rows

    def _set_aside(self, node: str, group: Group, holding: Holding, rows: Partials, decision: Decision) -> Partials:
        """The rows that some window may still show; the others are beyond the horizon."""
        keys = [key for key in holding.plan.queries if key in self.queries]
        view = decision.groups.get(group)
        if view is None or not keys or not len(rows):
            return rows
        longest_us = max(reach_us(self.queries[key].window) for key in keys)
        closed_us = min(self._closed.get((*key, group.node), NEVER_US) for key in keys)
        lasted = holding.plan.kind == "session" or is_marked(group)  # nobody knows how long
        latest = rows.end - 1 if lasted else rows.start
        old = latest <= min(closed_us, view.frontier_us - self._horizon_us) - longest_us
        if not old.any():
            return rows
        gone = rows.take(old)
        texts, source = self._numbers.keys.texts, self.queries[keys[0]].source
        columns = (gone.key, gone.start, gone.end, gone.states["count"])
        for key, start, end, readings in zip(*(column.tolist() for column in columns), strict=True):
            self.beyond.append(Beyond(node, source, texts[key], start, end, readings))
        return rows.take(~old)

    # --- which windows --------------------------------------------------------------------------------------------

    def _touch(self, group: Group, holding: Holding, rows: Partials, touched: dict[Place, list[Ints]]) -> None:
        """Closed windows in which rows count."""
        if holding.plan.kind == "session":
            return
        if is_marked(group):
            self._marked.touch(group, holding.plan, rows)
            return
        for key in holding.plan.queries:
            place = (*key, group.node)
            closed_us = self._closed.get(place, NEVER_US)
            behind = rows.end <= closed_us
            if key in self.queries and behind.any():
                window = self.queries[key].time_window
                _, start = holding.windows(rows.take(behind), window)
                touched.setdefault(place, []).append(start[window.ends(start) <= closed_us])

    def _recover(self, decision: Decision, touched: dict[Place, list[Ints]]) -> None:
        """Rows whose coverage changed: a leaf caught up, or a gap record came (docs/protocol.md 4.7)."""
        for (group, _leaf), (old_us, new_us) in decision.caught_up.items():
            for place in self._served(decision, group):
                touched.setdefault(place, []).append(self._ends_in(place, old_us, new_us))
        for _node, gap in decision.gaps:
            for group in gap.groups:
                for place in self._served(decision, group):
                    last_us = gap.end_us - 1 + self.queries[place[:2]].time_window.longest_us
                    touched.setdefault(place, []).append(self._ends_in(place, gap.start_us, last_us))

    def _served(self, decision: Decision, group: Group) -> list[Place]:
        view = decision.groups.get(group)
        if view is None or group.gap_us or group.form:
            return []
        return [(*key, group.node) for key in view.serving if key in self.queries]

    def _ends_in(self, place: Place, after_us: int, upto_us: int) -> Ints:
        """Starts of the windows that have rows and end in (after, upto]."""
        query, revision, node = place
        window = self.queries[query, revision].time_window
        starts = np.fromiter(self._shown.get((query, node), ()), np.int64)
        ends = window.ends(starts)
        return starts[(ends > after_us) & (ends <= upto_us)]

    def _due(
        self, place: Place, frontier_us: int, touched: Mapping[Place, list[Ints]], now_us: int, *, flush: bool
    ) -> Ints:
        """Starts of the windows to be revised now; the others wait in `_pending` (docs/protocol.md 8.3)."""
        starts = np.unique(np.concatenate([NO_INTS, *touched.get(place, ()), self._pending.pop(place, NO_INTS)]))
        starts = starts[self.queries[place[:2]].time_window.ends(starts) > frontier_us - self._horizon_us]
        if not len(starts):
            return starts
        last_us = self._revised.get(place)
        if not flush and last_us is not None and now_us - last_us < self._revise_every_us:
            self._pending[place] = starts
            return NO_INTS
        self._revised[place] = now_us
        return starts

    # --- rows -----------------------------------------------------------------------------------------------------

    def _withdrawn(self, decision: Decision) -> Iterator[Row]:
        """Rows that a revision gave for windows which turn out to be a newer one's (docs/protocol.md 6.3)."""
        for (group, (query, revision)), from_us in decision.narrowed.items():
            floor_us = decision.groups[group].frontier_us - self._horizon_us
            place = (query, group.node)
            shown: list[MutableMapping[Any, Row]] = [*self._shown.get(place, {}).values()]
            shown += self._sessions[place].rows.values() if place in self._sessions else ()
            for rows in shown:
                for at, row in rows.items():
                    mine = row.definition_revision == revision and not row.withdrawn
                    if mine and row.start >= from_us and row.end > floor_us:
                        rows[at] = replace(row, withdrawn=True, revision=row.revision + 1)
                        yield rows[at]

    def _changed(self, query: Query, group: Group, view: GroupView, made: Windows) -> Iterator[Row]:
        """The rows that differ from what is shown: in their readings, or in their coverage."""
        answers = {a.name: made.answers(a) for a in query.aggregates}
        shown = self._shown.setdefault((query.id, group.node), {})
        gaps = tuple(gap for _, gap in self.decider.gaps)
        begins = view.begins.get((query.id, query.revision), {})
        covers = {
            start: window_coverage(view.leaves, gaps, group, start, end, begins=begins)
            for start, end in zip(*(column.tolist() for column in _windows_of(made.rows)), strict=True)
        }
        columns = (made.rows.start, made.rows.end, made.rows.key, made.rows.states["count"], made.late)
        for i, (start, end, key, readings, late) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            text = self._numbers.keys.texts[key]
            before = shown.get(start, {}).get(text)
            if before is not None and not _differs(before, query, readings, covers[start]):
                continue
            row = Row(
                query.id,
                query.revision,
                group.node,
                text,
                key_labels(text),
                start,
                end,
                {name: values[i] for name, (values, _) in answers.items()},
                details_of({name: details[i] for name, (_, details) in answers.items() if details is not None}),
                readings,
                0 if before is None else before.revision + 1,
                withdrawn=False,
                late=late,
                coverage=covers[start],
            )
            shown.setdefault(start, {})[text] = row
            yield row

    def _session_rows(self, query: Query, group: Group, view: GroupView) -> Iterator[Row]:
        """The session rows of a query that are new, revised or withdrawn."""
        key = (query.id, query.revision)
        made = islands(query, self._held(group, key), self._numbers.ranks())
        if made is None:
            return
        answers = {a.name: made.answers(a) for a in query.aggregates}
        shown = self._sessions.setdefault((query.id, group.node), Shown())
        gaps = tuple(gap for _, gap in self.decider.gaps)
        whole_us, whole = whole_until(group, view, gaps, view.begins.get(key, {}))
        columns = (made.rows.start, made.rows.end, made.rows.key, made.rows.states["count"], made.late)
        for i, (start, end, code, readings, late) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            text, last_us = self._numbers.keys.texts[code], end - 1
            end_us = last_us + group.gap_us
            if end_us < whole_us and shown.stands(text, (start, end_us), readings, whole):
                continue
            if view.bound_us(text) <= end_us or not belongs(view.serving[key], start, end_us):
                continue
            row = Row(
                query.id,
                query.revision,
                group.node,
                text,
                key_labels(text),
                start,
                end_us,
                {name: values[i] for name, (values, _) in answers.items()},
                details_of({name: details[i] for name, (_, details) in answers.items() if details is not None}),
                readings,
                0,
                withdrawn=False,
                late=late,
                coverage=coverage_of(query, group, view, gaps, key=text, span=(start, last_us)),
            )
            yield from shown.put(row, group.gap_us, group.max_us)

    def _reach(self, key: Key) -> int | None:
        """How long after a reading a row of a query that holds it may end."""
        return reach_us(self.queries[key].window) if key in self.queries else None

    def _free(self, decision: Decision) -> None:
        """Forget what nothing can revise any more."""
        for (group, _), holding in self._holdings.items():
            view = decision.groups.get(group)
            lengths = [reach_us(self.queries[key].window) for key in holding.plan.queries if key in self.queries]
            if view is not None and lengths:
                below_us = view.frontier_us - self._horizon_us - max(lengths)
                if is_central(group):  # a window that is made again needs its slices from the first on
                    below_us = min([below_us, *self._marked.kept_us(holding.plan)])
                holding.free(below_us)
        self._central.free(decision.groups, self.queries, self._horizon_us)
        self.decider.release(decision, self._horizon_us, self._reach)
        for group, view in decision.groups.items():
            floor_us = view.frontier_us - self._horizon_us
            for query, _ in view.serving:
                if (query, group.node) in self._sessions:
                    self._sessions[query, group.node].free(floor_us)
                shown = self._shown.get((query, group.node), {})
                for start in _before(shown, floor_us):
                    del shown[start]
        for group in decision.ended:
            for place in [(*key, group.node) for key in decision.groups[group].serving]:
                for known in (self._closed, self._revised, self._pending):
                    known.pop(place, None)
                self._rolled.pop(place, None)
            for plan in [plan for of, plan in self._holdings if of == group]:
                del self._holdings[group, plan]


def _differs(before: Row, query: Query, readings: int, coverage: Coverage) -> bool:
    """Whether a row of a query stands for another one than is shown; a newer revision's stays."""
    if before.definition_revision != query.revision:
        return before.definition_revision < query.revision
    return before.withdrawn or (before.readings, before.coverage) != (readings, coverage)


def _before(shown: Mapping[int, Mapping[str, Row]], floor_us: int) -> list[int]:
    """Starts of the windows that end by then, up to the first that does not: they mostly came in the order of time."""
    out = []
    for start, rows in shown.items():
        if next(iter(rows.values())).end > floor_us:
            break
        out.append(start)
    return out


def _windows_of(rows: Partials) -> tuple[Ints, Ints]:
    """Start and end of every window that has a row."""
    start, first = np.unique(rows.start, return_index=True)
    return start, rows.end[first]
