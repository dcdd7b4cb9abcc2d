"""The plain-Python root: frames in, rows of results out. What the Spark job must equal (cloud_job/).

Rules (docs/protocol.md): a window closes when its group's frontier has reached its end (4.4); a partial for a window
that has closed revises its row, so does a change of its coverage (4.2, 4.7); beyond the correction horizon nothing is
revised (4.2); a window belongs to the revision in force at its start (6.3); partials add up, of kind `window` in the
window equal to their range only (6.1, 6.2); a revision is a change of the set of frames or of coverage (7.2); a window
is revised at most once in `revise_every` (8.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Frame, GroupPart, Heartbeat, Receipt
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import OrderedCut, PunctuationCut, SessionCut
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import extent_us
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.errors import ConfigError
from edge_agent.machines.downlink.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.inbox import Effect
from edge_agent.machines.downlink.renumbering import Renumbering
from edge_agent.machines.events import BadFrame
from edge_agent.machines.region.partial_store import named as by_name
from edge_agent.root.completeness import Decider, Decision, GroupView
from edge_agent.root.instant_slices import sliced
from edge_agent.root.numpy.ordered import OrderedResults
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.punctuation_rows import PunctuationRows
from edge_agent.root.numpy.rows import DecisionView, Row, TooLateReadings
from edge_agent.root.numpy.sessions import SessionRows
from edge_agent.root.numpy.time_window_rows import TimeWindowRows
from edge_agent.root.punctuation_windows import reached_us

KINDS: Final = ("slice", "window", "session", "raw", "marker")  # kinds of rows that this root forms windows from
HORIZON_US: Final = 7 * 86_400_000_000  # how long results are revised (docs/operate.md)

Key = tuple[str, int]  # query and its revision
Place = tuple[str, int, str]  # the same in the group of one node, '' where it is not local


class NumpyRoot:
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
        self.beyond: list[TooLateReadings] = []
        self._parse = parse
        self._horizon_us, self._revise_every_us = horizon_us, revise_every_us
        self._numbers = Renumbering()
        self._central = OrderedResults(self._numbers)
        self._marked = PunctuationRows()
        self._holdings: dict[tuple[Group, bytes], PartialIndex] = {}
        self._windows = TimeWindowRows(self._numbers)
        self._sessions = SessionRows(self._numbers)
        self._closed: dict[Place, int] = {}  # windows that end up to there have had their rows

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
        touched: defaultdict[Place, list[Ints]] = defaultdict(list)
        for effect in decision.effects:
            for group, holding, rows in self._hold(effect, decision):
                self._touch(group, holding, rows, touched)
        for place, starts in self._windows.recovered(decision, self.queries):
            touched[place].append(starts)
        gaps = tuple(gap for _, gap in self.decider.gaps)
        now = DecisionView(decision, gaps, now_us if flush else now_us - self._revise_every_us, self._horizon_us)
        out: list[Row] = list(self._withdrawn(decision))
        raw: list[tuple[Query, Group, GroupView]] = []
        for group, view in decision.groups.items():
            for key in view.serving:
                if key not in self.queries:
                    continue
                query, place = self.queries[key], (*key, group.node)
                closed_us, reached = self._closed.get(place, NEVER_US), view.frontier_us
                if isinstance(group.cut, PunctuationCut):
                    reached = reached_us(group, view)
                elif isinstance(group.cut, SessionCut):
                    out += () if group in decision.ended else self._sessions.step(now, query, group, self._held)
                elif isinstance(group.cut, OrderedCut):
                    if isinstance(query.group.cut, OrderedCut):  # else not what the definition says
                        raw.append((query, group, view))
                    continue
                else:
                    its = touched.get(place, ())
                    out += self._windows.step(now, query, group, self._held, closed_us=closed_us, touched=its)
                self._closed[place] = max(closed_us, reached)
        for query, group, view in sorted(raw, key=lambda one: (one[0].id, one[0].revision)):  # the older one first
            older = [(other, its) for other, of, its in raw if (other.id, of.node) == (query.id, group.node)]
            out += self._central.step(query, group, view, gaps, older)
        out += self._marked.step(now, self.queries, self._held, self._numbers.keys.texts, self._numbers.ranks())
        self._free(decision)
        return out

    # --- what came ------------------------------------------------------------------------------------------------

    def _learn(self, text: str) -> None:
        try:
            query = self._parse(text)
        except ConfigError:  # of a newer version: its rows are held, no more
            return
        self.queries.setdefault((query.id, query.revision), query)

    def _held(self, group: Group, key: Key) -> list[PartialIndex]:
        """The rows of a query, by plan."""
        return [h for (of, _), h in self._holdings.items() if of == group and key in h.plan.queries]

    def _hold(self, effect: Effect, decision: Decision) -> Iterator[tuple[Group, PartialIndex, Partials]]:
        """Keep the rows of a frame that took effect; answers them by plan."""
        if effect.frame is None:
            return
        book = self.decider.parent.books[effect.node, effect.epoch]
        for part in effect.frame.groups:
            yield from self._hold_part(effect, part, book, decision)

    def _hold_part(
        self, effect: Effect, part: GroupPart, book: EpochDictionary, decision: Decision
    ) -> Iterator[tuple[Group, PartialIndex, Partials]]:
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
                if plan.kind == RAW and group.cut.central:
                    plan, rows = sliced(group, plan, rows, self.queries, self._numbers.keys.texts)
                elif plan.kind == RAW:
                    self.beyond += self._central.hold(effect.node, group, plan, rows, self.queries)
                    continue
                holding = self._holdings.setdefault((group, plan.hash), PartialIndex(plan))
                rows = self._set_aside(effect.node, group, holding, rows, decision)
                if len(rows):
                    holding.add(rows, late=late)
                    yield group, holding, rows

    def _set_aside(
        self, node: str, group: Group, holding: PartialIndex, rows: Partials, decision: Decision
    ) -> Partials:
        """The rows that some window may still show; the others are beyond the horizon."""
        keys = [key for key in holding.plan.queries if key in self.queries]
        view = decision.groups.get(group)
        if view is None or not keys or not len(rows):
            return rows
        longest_us = max(extent_us(self.queries[key].window) for key in keys)
        closed_us = min(self._closed.get((*key, group.node), NEVER_US) for key in keys)
        lasted = holding.plan.kind == "session" or isinstance(group.cut, PunctuationCut)  # nobody knows how long
        latest = rows.end - 1 if lasted else rows.start
        old = latest <= min(closed_us, view.frontier_us - self._horizon_us) - longest_us
        if not old.any():
            return rows
        gone = rows.take(old)
        texts, source = self._numbers.keys.texts, self.queries[keys[0]].source
        columns = (gone.key, gone.start, gone.end, gone.states["count"])
        for key, start, end, readings in zip(*(column.tolist() for column in columns), strict=True):
            self.beyond.append(TooLateReadings(node, source, texts[key], start, end, readings))
        return rows.take(~old)

    def _touch(self, group: Group, holding: PartialIndex, rows: Partials, touched: Mapping[Place, list[Ints]]) -> None:
        """Closed windows in which rows count. touched: takes the starts of time windows."""
        if holding.plan.kind == "session":
            return
        if isinstance(group.cut, PunctuationCut):
            self._marked.touch(group, holding.plan, rows)
            return
        for key in holding.plan.queries:
            if key in self.queries:
                place = (*key, group.node)
                closed_us = self._closed.get(place, NEVER_US)
                touched[place].append(self._windows.touched(self.queries[key], holding, rows, closed_us))

    # --- what goes ------------------------------------------------------------------------------------------------

    def _withdrawn(self, decision: Decision) -> Iterator[Row]:
        """Rows that a revision gave for windows which turn out to be a newer one's (docs/protocol.md 6.3)."""
        for (group, (query, revision)), from_us in decision.narrowed.items():
            floor_us = decision.groups[group].frontier_us - self._horizon_us
            place = (query, group.node)
            shown: list[MutableMapping[Any, Row]] = [*self._windows.shown.get(place, {}).values()]
            shown += self._sessions.shown[place].rows.values() if place in self._sessions.shown else ()
            for rows in shown:
                for at, row in rows.items():
                    mine = row.definition_revision == revision and not row.withdrawn
                    if mine and row.start >= from_us and row.end > floor_us:
                        rows[at] = replace(row, withdrawn=True, revision=row.revision + 1)
                        yield rows[at]

    def _reach(self, key: Key) -> int | None:
        """How long after a reading a row of a query that holds it may end."""
        return extent_us(self.queries[key].window) if key in self.queries else None

    def _free(self, decision: Decision) -> None:
        """Forget what nothing can revise any more."""
        for (group, _), holding in self._holdings.items():
            view = decision.groups.get(group)
            lengths = [extent_us(self.queries[key].window) for key in holding.plan.queries if key in self.queries]
            if view is not None and lengths:
                below_us = view.frontier_us - self._horizon_us - max(lengths)
                if group.cut.central:  # a window that is made again needs its slices from the first on
                    below_us = min([below_us, *self._marked.kept_us(holding.plan)])
                holding.free(below_us)
        self._central.free(decision.groups, self.queries, self._horizon_us)
        self.decider.release(decision, self._horizon_us, self._reach)
        for group, view in decision.groups.items():
            floor_us = view.frontier_us - self._horizon_us
            for query, _ in view.serving:
                self._sessions.free(query, group.node, floor_us)
                self._windows.free(query, group.node, floor_us)
        for group in decision.ended:
            for place in [(*key, group.node) for key in decision.groups[group].serving]:
                self._closed.pop(place, None)
                self._windows.end(place)
            for plan in [plan for of, plan in self._holdings if of == group]:
                del self._holdings[group, plan]
