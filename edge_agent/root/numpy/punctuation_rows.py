"""Rows of windows between markers, as the plain-Python root makes them from the rows it holds.

Which windows those are is decided in root/punctuation.py, for both roots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials, combine, concat
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.root.numpy.partial_index import Held, PartialIndex, common_scale
from edge_agent.root.numpy.rows import DecisionView, Row, WindowStates
from edge_agent.root.punctuation import PunctuationWindows
from edge_agent.root.punctuation_windows import JointWindow, Key, Place, members_of

Ident = tuple[str, int, int]  # node, start, and end where rows of one start may have several


class PunctuationRows:
    """All queries of windows between markers at the plain root."""

    def __init__(self) -> None:
        self.marked: dict[Key, PunctuationWindows] = {}
        self._shown: dict[Key, dict[Ident, dict[str, Row]]] = {}

    def tell(self, group: Group, plan: Plan, texts: Sequence[str], rows: Partials) -> None:
        """Rows of markers. texts: of their keys."""
        for key in plan.queries:
            told = [texts[code] for code in rows.key.tolist()]
            self.marked.setdefault(key, PunctuationWindows()).tell(
                group.node, told, rows.start.tolist(), rows.end.tolist()
            )

    def touch(self, group: Group, plan: Plan, rows: Partials) -> None:
        """Rows of readings: windows that have rows may hold more now."""
        for key in plan.queries:
            self.marked.setdefault(key, PunctuationWindows()).touch(group.node, rows.start, rows.end)

    def kept_us(self, plan: Plan) -> list[int]:
        """Where the rows begin that windows of the plan's queries may be made of again."""
        found = [self.marked[key].kept_us for key in plan.queries if key in self.marked]
        return [us for us in found if us is not None]

    def step(
        self, now: DecisionView, queries: Mapping[Key, Query], held: Held, texts: Sequence[str], ranks: Ints | None
    ) -> Iterator[Row]:
        """Rows that are new, revised or withdrawn. texts, ranks: of the root's numbers of keys and nodes."""
        for key, members in members_of(now.decision).items():
            if key not in queries:
                continue
            marked = self.marked.setdefault(key, PunctuationWindows())
            found = marked.step(key, members, now.decision, now.gaps, due_us=now.due_us, horizon_us=now.horizon_us)
            groups = {node: group for node, (group, _) in members.items()}
            window = queries[key].window
            by_end = isinstance(window, Punctuation) and window.by_end
            for place in found.gone:
                yield from self._withdrawn(key, place, by_end=by_end)
            for joint in (*found.closing, *found.revising):
                holdings = [(pick, held(groups[pick[0]], key)) for pick in joint.picks if pick[0] in groups]
                made = window_of(queries[key], joint, holdings, ranks)
                if made is not None:
                    yield from self._changed(queries[key], joint, made, texts, by_end=by_end)
            self._free(key, marked.floor_us)

    def _withdrawn(self, key: Key, place: Place, *, by_end: bool) -> Iterator[Row]:
        rows = self._shown.setdefault(key, {}).get(_ident(place, by_end=by_end), {})
        for text, row in rows.items():
            rows[text] = replace(row, withdrawn=True, revision=row.revision + 1)
            yield rows[text]

    def _changed(
        self, query: Query, joint: JointWindow, made: WindowStates, texts: Sequence[str], *, by_end: bool
    ) -> Iterator[Row]:
        """The rows that differ from what is shown: in their bounds, readings or coverage."""
        node, start_us, end_us = joint.place
        cells = made.cells(query)
        shown = self._shown.setdefault((query.id, query.revision), {}).setdefault(
            _ident(joint.place, by_end=by_end), {}
        )
        for i, code in enumerate(made.rows.key.tolist()):
            text = texts[code]
            before = shown.get(text)
            like = (end_us, cells.readings[i], joint.coverage, False)
            if before is not None and (before.end, before.readings, before.coverage, before.withdrawn) == like:
                continue
            revision = 0 if before is None else before.revision + 1
            shown[text] = cells.row(i, query, (node, text, start_us, end_us), joint.coverage, revision=revision)
            yield shown[text]

    def _free(self, key: Key, floor_us: int) -> None:
        """Forget rows that nothing can revise any more."""
        shown = self._shown.get(key, {})
        for ident in [ident for ident, rows in shown.items() if all(row.end <= floor_us for row in rows.values())]:
            del shown[ident]


def window_of(
    query: Query,
    joint: JointWindow,
    holdings: Sequence[tuple[tuple[str, int, int], list[PartialIndex]]],
    ranks: Ints | None,
) -> WindowStates | None:
    """One window, a row a key, from the rows of all plans that serve the query; None where it holds no reading."""
    scale = common_scale([holding for _, of in holdings for holding in of])
    parts: list[Partials] = []
    late_parts: list[Partials] = []
    _, start_us, end_us = joint.place
    for (_, low_us, high_us), of in holdings:
        for holding in of:
            for rows, late in holding.within(low_us, high_us):
                equal = (rows.start == low_us) & (rows.end == high_us)
                chosen = rows if joint.within or equal.all() else rows.take(equal)
                if len(chosen):
                    states = holding.states(chosen, query.aggregates, scale)
                    start, end = np.full(len(chosen), start_us), np.full(len(chosen), end_us)
                    parts.append(Partials(start, end, states.key, states.states))
                    late_parts += parts[-1:] if late else []
    if not parts:
        return None
    whole = combine(concat(parts), basis_of(query.aggregates, scale), None, ranks)
    counts = np.zeros(len(whole), np.int64)
    for part in late_parts:
        np.add.at(counts, np.searchsorted(whole.key, part.key), part.states["count"])
    return WindowStates(whole, counts, scale)


def _ident(place: Place, *, by_end: bool) -> Ident:
    node, start_us, end_us = place
    return node, start_us, end_us if by_end else 0
