"""Rows of sessions at the plain-Python root: made from the pieces it holds, and what becomes of rows that one joins.

Rules (docs/protocol.md): a session is complete when the bound of its key lies past last + gap (5.1); pieces and rows
within one gap form islands, each computed again from all its pieces; every other row an island touched is withdrawn
with the next revision (5.4); a leaf is missing from a row while its own bound of the key is not past last + gap (4.7).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.coverage import Coverage, session_coverage
from edge_agent.algebra.frame import NEVER_US, Gap, Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.partials.sessions import join
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.downlink.renumbering import Renumbering
from edge_agent.root.completeness import GroupView
from edge_agent.root.numpy.partial_index import Held, PartialIndex, common_scale
from edge_agent.root.numpy.rows import DecisionView, Row, WindowStates


class SessionRows:
    """All queries of sessions at the plain root. shown: by query and node."""

    def __init__(self, numbers: Renumbering) -> None:
        """numbers: the root's own, of keys and nodes."""
        self.shown: dict[tuple[str, str], ShownSessions] = {}
        self._numbers = numbers

    def step(self, now: DecisionView, query: Query, group: Group, held: Held) -> Iterator[Row]:
        """Rows of a query that are new, revised or withdrawn."""
        key, view = (query.id, query.revision), now.decision.groups[group]
        made = islands(query, held(group, key), self._numbers.ranks())
        if made is None:
            return
        cells = made.cells(query)
        shown = self.shown.setdefault((query.id, group.node), ShownSessions())
        whole_us, whole = whole_until(group, view, now.gaps, view.begins.get(key, {}))
        columns = (made.rows.start, made.rows.end, made.rows.key)
        for i, (start, end, code) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            text, last_us = self._numbers.keys.texts[code], end - 1
            end_us = last_us + group.cut.gap_us
            if end_us < whole_us and shown.stands(text, (start, end_us), cells.readings[i], whole):
                continue
            if view.bound_us(text) <= end_us or not belongs(view.serving[key], start, end_us):
                continue
            coverage = coverage_of(query, group, view, now.gaps, key=text, span=(start, last_us))
            row = cells.row(i, query, (group.node, text, start, end_us), coverage)
            yield from shown.put(row, group.cut.gap_us, group.cut.max_us)

    def free(self, query: str, node: str, floor_us: int) -> None:
        """Forget rows that end by then."""
        if (query, node) in self.shown:
            self.shown[query, node].free(floor_us)


def islands(query: Query, holdings: Sequence[PartialIndex], ranks: Ints | None) -> WindowStates | None:
    """Sessions, complete or not, from the pieces of all plans that serve the query; None for none.

    Rows are [first, last + 1 us), sorted by (key, start). Scales meet as for windows.
    """
    scale = common_scale(holdings)
    parts: list[Partials] = []
    late_parts: list[Partials] = []
    for holding in holdings:
        for rows, late in holding.within(NEVER_US, FAR_US):
            parts.append(holding.states(rows, query.aggregates, scale))
            late_parts += parts[-1:] if late else []
    if not parts:
        return None
    group = query.group
    sessions = join(concat(parts), basis_of(query.aggregates, scale), group.cut.gap_us, group.cut.max_us, ranks)
    counts = np.zeros(len(sessions), np.int64)
    for part in late_parts:
        np.add.at(counts, _islands_of(sessions, part), part.states["count"])
    return WindowStates(sessions, counts, scale)


def _islands_of(sessions: Partials, part: Partials) -> Ints:
    """The session of each piece; sessions are sorted by (key, start) and hold them all."""
    order = np.lexsort(
        (
            np.concatenate([np.zeros(len(sessions)), np.ones(len(part))]),
            np.concatenate([sessions.start, part.start]),
            np.concatenate([sessions.key, part.key]),
        )
    )
    own = np.cumsum(order < len(sessions)) - 1
    place = np.empty(len(order), np.int64)
    place[order] = own
    found: Ints = place[len(sessions) :]
    return found


@dataclass(slots=True)
class ShownSessions:
    """Rows of one query by key and start, withdrawn ones too: a start that comes back goes on with its revision."""

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)  # of the rows of each key, in order

    def stands(self, key: str, span: tuple[int, int], readings: int, coverage: Coverage) -> bool:
        """Whether that row, start and end in span, is shown already: nothing has to be made for it."""
        row = self.rows.get(key, {}).get(span[0])
        if row is None or row.withdrawn:
            return False
        return (row.end, row.readings) == (span[1], readings) and row.coverage == coverage

    def put(self, row: Row, gap_us: int, max_us: int) -> Iterator[Row]:
        """Show a row instead of all that it touches; answers what changed, nothing if it is shown already.

        Across a cut of the maximum duration or of a change of the definition nothing touches (5.5, 6.3).
        """
        rows, touched = self.rows.setdefault(row.key, {}), self._touched(row, max_us)
        before = rows.get(row.start)
        if len(touched) == 1 and before is touched[0] and _same(before, row):
            return
        if before is not None and before.definition_revision > row.definition_revision:
            return  # it stays: the window is the newer revision's (6.3)
        for other in touched:
            if other.start != row.start:
                rows[other.start] = replace(other, withdrawn=True, revision=other.revision + 1)
                yield rows[other.start]
        if before is None:
            insort(self.starts.setdefault(row.key, []), row.start)
        rows[row.start] = row if before is None else replace(row, revision=before.revision + 1)
        yield rows[row.start]

    def _touched(self, row: Row, max_us: int) -> list[Row]:
        """The rows that one of its key replaces, in order."""
        rows, starts = self.rows[row.key], self.starts.get(row.key, [])
        found: list[Row] = []
        for i in reversed(range(bisect_right(starts, row.end))):
            other = rows[starts[i]]
            if other.withdrawn:
                continue
            if other.end < row.start:
                break  # what stands does not overlap: rows before it end before it
            if other.definition_revision == row.definition_revision and not (
                max_us and other.start // max_us != row.start // max_us
            ):
                found.append(other)
        return found[::-1]

    def free(self, below_us: int) -> None:
        """Forget rows that end below."""
        for key in list(self.rows):
            kept = {start: row for start, row in self.rows[key].items() if row.end > below_us}
            if kept:
                self.rows[key], self.starts[key] = kept, sorted(kept)
            else:
                del self.rows[key], self.starts[key]


def _same(before: Row, row: Row) -> bool:
    return (before.end, before.readings, before.coverage) == (row.end, row.readings, row.coverage)


def belongs(serving: Serving, start_us: int, end_us: int) -> bool:
    """Whether a session may give a row of this revision (6.3)."""
    if serving.start_from_us is not None and start_us < serving.start_from_us:
        return False
    if serving.start_until_us is not None and start_us >= serving.start_until_us:
        return False
    return serving.end_until_us is None or end_us <= serving.end_until_us


def whole_until(group: Group, view: GroupView, gaps: Sequence[Gap], begins: Mapping[str, int]) -> tuple[int, Coverage]:
    """(time, coverage): a session that ends before, last + gap, lacks nothing; what that coverage is.

    begins: as for session_coverage; where a leaf joined later, or a loss is known, no time is that early.
    """
    whole = Coverage(tuple(sorted(view.leaves)), ())
    if begins or any(group in gap.groups for gap in gaps):
        return NEVER_US, whole
    registers = (us for own in view.registers.values() for us in own.values())
    return min(
        min((view.bounds[leaf] for leaf in view.leaves), default=NEVER_US), min(registers, default=FAR_US)
    ), whole


def coverage_of(
    query: Query, group: Group, view: GroupView, gaps: Sequence[Gap], *, key: str, span: tuple[int, int]
) -> Coverage:
    """Coverage of a session row of a key; span: first and last reading."""
    bounds = {leaf: view.leaf_bound_us(leaf, key) for leaf in view.leaves}
    begins = view.begins.get((query.id, query.revision), {})
    return session_coverage(bounds, gaps, group, *span, begins=begins)
