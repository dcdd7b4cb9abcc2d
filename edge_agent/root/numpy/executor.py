"""The numpy root: frames in, rows of results out. `replay`, `headwater simulate` and the simulation use it.

It makes the same decisions as the Spark job (root/decision) and executes the Work on rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from edge_agent.algebra.frame import HORIZON_US, MAX_HORIZON_US, Frame, Heartbeat, Receipt
from edge_agent.algebra.query.group_cut import PunctuationCut, SessionCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Query
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.transition import decided
from edge_agent.root.decision.work import Islands, WindowRange, Work
from edge_agent.root.numpy import time_windows
from edge_agent.root.numpy.kept_rows import KeptRows
from edge_agent.root.numpy.ordered_rows import PositionRows
from edge_agent.root.numpy.result_rows import NewRow, ResultRows
from edge_agent.root.numpy.rolling_windows import RollingWindows
from edge_agent.root.numpy.rows import Row, TooLateReadings, WindowStates
from edge_agent.root.numpy.session_rows import SessionRows, SessionSource
from edge_agent.wire.heads import Parts, parts_of


class NumpyRoot:
    """The root in memory: `take` adds messages of children, `step` returns the rows that follow."""

    def __init__(
        self,
        journal: int,
        *,
        grace_us: int,
        named: Iterable[str] = (),
        horizon_us: int = HORIZON_US,
        revise_every_us: int = 0,
    ) -> None:
        """journal: the journal id of this parent. grace_us, named: see Decider. Others: see RootLimits."""
        self.decider = Decider(journal, grace_us, named)
        self.state = RootState(RootLimits(revise_every_us, horizon_us))
        self.kept = KeptRows()
        self.results = ResultRows()
        self._sessions = SessionRows(self.results)
        self._ordered = PositionRows(self.kept.numbers)
        self._rolling: dict[QueryPlace, RollingWindows] = {}

    @property
    def beyond(self) -> list[TooLateReadings]:
        """Readings that are in no result, in the order of their arrival."""
        return self.kept.beyond

    def tick(self, now_us: int) -> None:
        """Take a tick of the lander; its clock may step."""
        self.decider.tick(now_us, self.state.decided_us or None, connected=True)

    def take(self, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> None:
        """Take one message of a child, in the order of arrival; received_us never falls."""
        self.decider.take(node, message, received_us)

    def receipt(self, node: str, epoch: int) -> Receipt:
        """The receipt for an epoch of a child, for callers that send receipts themselves."""
        receipt = self.decider.parent.inbox.receipt(node, epoch)
        return replace(receipt, horizon_us=min(self.state.limits.horizon_us, MAX_HORIZON_US))

    def step(self, now_us: int, *, flush: bool = False) -> list[Row]:
        """Decide. Returns rows that are new, revised or withdrawn. flush: make all revisions now, even if not due."""
        decision, work = decided(self.decider, self.state, now_us, _parts, flush=flush)
        dictionaries = self.decider.parent.dictionaries
        self.kept.lift_again(self.state)
        too_late = {(each.node, each.epoch, each.seq, each.part): each for each in work.beyond}
        for effect in decision.effects:
            if effect.frame is not None:
                self.kept.take(effect, dictionaries[EpochKey(effect.node, effect.epoch)], self.state, too_late)
        rows = [*self._carried_out(work)]
        self._free(decision)
        return rows

    # --- execute --------------------------------------------------------------------------------------------------

    def _carried_out(self, work: Work) -> Iterator[Row]:
        """The rows that a work asks for, in the order in which the Spark job writes them."""
        for over in work.over:
            yield from self.results.supersede(over)
        for span in work.closing:
            yield from self._windows(work, span, closes=True)
        for span in work.revising:
            yield from self._windows(work, span, closes=False)
        for gone in work.gone:
            yield from self.results.withdraw(gone)
        for found in work.islands:
            yield from self._islands(work, found)
        for ordering in sorted(work.ordering, key=lambda each: each.revision):  # an older revision's readings first
            raw = [self.kept.raw[plan] for plan in self._plans(work, ordering.orders) if plan in self.kept.raw]
            query = self._query(ordering.query, ordering.revision)
            yield from self._ordered.made(ordering, query, raw, work.coverages)

    def _windows(self, work: Work, span: WindowRange, *, closes: bool) -> Iterator[Row]:
        """The rows of a range of windows that differ from the current ones."""
        indexes = [
            (number, index)
            for number in span.orders
            if (index := self.kept.indexes.get(work.orders[number].plan)) is not None
        ]
        if not indexes:
            return
        every, shape, ranks = [index for _, index in indexes], work.shapes[span.shape], self.kept.numbers.ranks()
        if span.picks:
            made = time_windows.picked(span, indexes, shape, ranks)
        elif closes and RollingWindows.serves(span, every):
            rolling = self._rolling.setdefault(QueryPlace(span.query, span.revision, span.node), RollingWindows())
            made = time_windows.rolled(span, every, shape, ranks, rolling)
        else:
            made = time_windows.formed(span, every, shape, ranks)
        if len(made.rows):
            yield from self._put(work, span, made)

    def _put(self, work: Work, span: WindowRange, made: WindowStates) -> Iterator[Row]:
        answers = made.answers(self._query(span.query, span.revision))
        coverage, texts = work.coverages[span.coverage_id], self.kept.numbers.keys.texts
        columns = (column.tolist() for column in (made.rows.start, made.rows.end, made.rows.key))
        for at, (start_us, end_us, code) in enumerate(zip(*columns, strict=True)):
            new = NewRow(span.node, texts[code], start_us, end_us, answers, at, coverage, span.by_end)
            row = self.results.put(new)
            if row is not None:
                yield row

    def _islands(self, work: Work, found: Islands) -> Iterator[Row]:
        indexes = [self.kept.indexes[plan] for plan in self._plans(work, found.orders) if plan in self.kept.indexes]
        query, shape = self._query(found.query, found.revision), work.shapes[found.shape]
        source = SessionSource(query, indexes, shape, self.kept.numbers, work.coverages)
        yield from self._sessions.first(found, source)
        if found.revises:
            touched = self._sessions.touched(found)
            self.state.sessions.stretch(QueryPlace(found.query, found.revision, found.node), touched.longest_us)
            yield from self._sessions.again(found, source, touched)

    def _query(self, name: str, revision: int) -> Query:
        query = self.state.query(QueryKey(name, revision))
        assert query is not None, (name, revision)
        return query

    @staticmethod
    def _plans(work: Work, orders: Iterable[int]) -> list[bytes]:
        return [work.orders[number].plan for number in orders]

    # --- forget ---------------------------------------------------------------------------------------------------

    def _free(self, decision: Decision) -> None:
        """Forget rows that cannot be revised any more."""
        for group, view in decision.groups.items():
            for key in view.serving:
                place = QueryPlace(*key, group.node)
                floor_us = self.state.settled_us(place, view.frontier_us)
                if isinstance(group.cut, PunctuationCut):
                    windows = self.state.markers.windows.get(key)
                    floor_us = floor_us if windows is None else windows.floor_us(group.node)
                elif isinstance(group.cut, SessionCut):  # a piece within the horizon may join earlier rows
                    floor_us = min(floor_us, self.state.begun.get(group, floor_us))
                self._sessions.forget(self.results.free(place.query, place.node, floor_us))
        for group in decision.ended:
            for key in decision.groups[group].serving:
                self._rolling.pop(QueryPlace(*key, group.node), None)
        self.kept.free(self.state, decision, self._sessions)


def _parts(decision: Decision) -> Parts:
    return {
        (effect.node, effect.epoch, effect.seq): parts_of(effect.frame)
        for effect in decision.effects
        if effect.frame is not None and effect.frame.groups
    }
