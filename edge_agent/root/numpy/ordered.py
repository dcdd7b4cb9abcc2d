"""How the plain-Python root holds raw readings until they get their positions, and the rows that follow.

Rules: docs/protocol.md 7.4; the order itself and the windows are made by root/positions.py, which Spark runs too. A
row is final: positions do not move, so that neither late readings nor leaves that catch up revise it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import NEVER_US, Gap, Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import flat
from edge_agent.algebra.query.query import Group, Query
from edge_agent.machines.downlink.renumbering import Renumbering
from edge_agent.root.completeness import GroupView
from edge_agent.root.numpy.rows import Row, TooLateReadings, WindowAnswers
from edge_agent.root.positions import (
    KeyPositions,
    OrderedWindows,
    UnorderedReadings,
    advance,
    at_scale,
    belongs,
    decided_us,
    finer,
    waits,
)

Place = tuple[str, int, str]  # query, revision and, of groups of one node, that node

REASON = "its place among the readings was past"


@dataclass(slots=True)
class _Waiting:
    """Raw rows of one plan."""

    plan: Plan
    parts: list[Partials] = field(default_factory=list)

    def between(self, after_us: int, upto_us: int) -> Iterator[Partials]:
        """The rows that may hold a reading of [after, upto)."""
        for rows in self.parts:
            touched = (rows.start < upto_us) & (rows.end > after_us)
            if touched.any():
                yield rows if touched.all() else rows.take(touched)

    def free(self, below_us: int) -> None:
        """Let go rows that are below."""
        kept = [rows.take(rows.end > below_us) for rows in self.parts]
        self.parts = [rows for rows in kept if len(rows)]


class OrderedResults:
    """The part of the root that forms windows of raw readings."""

    def __init__(self, numbers: Renumbering) -> None:
        """numbers: the root's own, of keys and nodes."""
        self._numbers = numbers
        self._waiting: dict[tuple[Group, bytes], _Waiting] = {}
        self._decided: dict[Place, int] = {}  # readings below it have their positions
        self._positions: dict[tuple[str, str], KeyPositions] = {}  # by query and node: revisions go on from each other

    def hold(
        self, node: str, group: Group, plan: Plan, rows: Partials, queries: Mapping[tuple[str, int], Query]
    ) -> list[TooLateReadings]:
        """Keep the rows of a frame. Answers the readings whose place is past for every query of their plan."""
        waiting = self._waiting.setdefault((group, plan.hash), _Waiting(plan))
        waiting.parts.append(rows)
        known = [queries[key] for key in plan.queries if key in queries]
        past_us = min((self._decided.get((q.id, q.revision, group.node), NEVER_US) for q in known), default=NEVER_US)
        late = np.flatnonzero(rows.start < past_us).tolist()
        out = []
        for row in late:
            times = rows.states["series"][row].time_us
            many = int(np.searchsorted(times, past_us))
            text = self._numbers.keys.texts[int(rows.key[row])]
            out.append(
                TooLateReadings(node, known[0].source, text, int(times[0]), int(times[many - 1]) + 1, many, REASON)
            )
        return out

    def step(
        self, query: Query, group: Group, view: GroupView, gaps: Sequence[Gap], older: Sequence[tuple[Query, GroupView]]
    ) -> Iterator[Row]:
        """The rows of a query that are complete now. older: the revisions of it that are told, with their views."""
        place = (query.id, query.revision, group.node)
        after_us, upto_us = self._decided.get(place, NEVER_US), decided_us(query, view)
        if upto_us <= after_us or waits(query, older):
            return
        self._decided[place] = upto_us
        raw = self._raw(query, group, view, after_us, upto_us)
        if not len(raw.key):
            return
        before = self._positions.get((query.id, group.node), KeyPositions())
        concerned = np.isin(before.key, raw.key)
        now, made = advance(query, before.take(concerned), raw, self._numbers.keys.texts)
        self._positions[query.id, group.node] = before.take(~concerned).joined(now)
        yield from self._rows(query, group, view, gaps, made)

    def _raw(self, query: Query, group: Group, view: GroupView, after_us: int, upto_us: int) -> UnorderedReadings:
        """The readings of a query in [after, upto), at one scale."""
        serving = view.serving[query.id, query.revision]
        ranks = self._numbers.ranks()
        columns: list[tuple[Ints, Ints, Array, Ints, Ints, int | None]] = []
        for (of, _), waiting in self._waiting.items():
            if of != group or (query.id, query.revision) not in waiting.plan.queries:
                continue
            for rows in waiting.between(after_us, upto_us):
                found = flat(rows.states["series"])
                mine = (found.time_us >= after_us) & (found.time_us < upto_us) & belongs(found.time_us, serving)
                key = np.repeat(rows.key, found.sizes)
                node = found.node if ranks is None else ranks[found.node]
                taken = (key, found.time_us, found.value, node, found.order)
                key, time_us, value, node, order = (column[mine] for column in taken)
                columns.append((key, time_us, value, node, order, waiting.plan.scale))
        if not columns:
            return UnorderedReadings(NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, 0)
        scale = columns[0][5]
        for column in columns:
            scale = finer(scale, column[5])
        value = np.concatenate([at_scale(column[2], column[5], scale) for column in columns])
        own = [np.concatenate([column[i] for column in columns]) for i in (0, 1, 3, 4)]
        return UnorderedReadings(own[0], own[1], value, own[2], own[3], scale)

    def _rows(
        self, query: Query, group: Group, view: GroupView, gaps: Sequence[Gap], made: OrderedWindows
    ) -> Iterator[Row]:
        begins = view.begins.get((query.id, query.revision), {})
        cells = WindowAnswers.of(made.answers, made.readings, np.zeros_like(made.readings))
        columns = (made.key, made.start, made.end, made.first_us, made.last_us)
        for i, (code, start, end, first_us, last_us) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            coverage = window_coverage(view.leaves, gaps, group, first_us, last_us + 1, begins=begins)
            yield cells.row(i, query, (group.node, self._numbers.keys.texts[code], start, end), coverage)

    def free(self, views: Mapping[Group, GroupView], queries: Mapping[tuple[str, int], Query], horizon_us: int) -> None:
        """Let go what every query of its plan has had; what no known query asks for, beyond the horizon."""
        for (group, _), waiting in self._waiting.items():
            view = views.get(group)
            if view is None:
                continue
            known = [key for key in waiting.plan.queries if key in queries]
            if not known:
                waiting.free(view.frontier_us - horizon_us)
            elif all(key in view.serving for key in known):
                waiting.free(min(self._decided.get((*key, group.node), NEVER_US) for key in known))
