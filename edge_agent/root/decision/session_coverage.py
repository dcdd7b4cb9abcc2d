"""The coverage of sessions as a grid over first reading and last + gap, one coverage per cell. Pure.

Rules (docs/protocol.md 4.7): a leaf is missing from a session row while its bound for the key is not past last + gap. A
gap record that touches the session removes its leaves. A leaf that serves the query only from a later time is not
expected in sessions before that time, and is missing from sessions that contain it.

The grid is fine only where there may be rows: with one gap record per gateway and week, a thousand gateways would make
half a million cells, nearly all without rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from edge_agent.algebra.coverage import session_coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.session_tracker import SessionBounds
from edge_agent.root.decision.window_ranges import CoverageRef, runs
from edge_agent.root.decision.work import CoverageCell


@dataclass(frozen=True, slots=True)
class CoverageSources:
    """The values that determine coverage. gaps: all known; those before floor_us, the horizon, touch no row.

    begins: leaf -> time of the first reading that it serves; ends: leaf -> time after the last such reading. registers:
    see session_tracker.behind.
    """

    group: Group
    view: GroupView
    gaps: Sequence[Gap]
    begins: Mapping[str, int]
    floor_us: int
    registers: Mapping[str, Mapping[str, int]]
    ends: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)


def grid(
    known: CoverageSources, first: SessionBounds | None, again: SessionBounds | None
) -> tuple[tuple[CoverageCell, ...], tuple[CoverageRef, ...]]:
    """The cells for all keys, then those for keys with registers; and the coverages of all cells.

    first, again: bounds of rows that are written first, and of rows that are computed again. Each has its own cells.
    """
    view, special = known.view, known.registers
    near = _runs(known)
    own_keys = {key for own in special.values() for key in own}
    found: list[tuple[CoverageCell, CoverageRef]] = []
    for where, revising in ((first, False), (again, True)):
        if where is None:
            continue
        made = [*_cells("", known, view.bounds, near, where)]
        for key in sorted(own_keys if where.keys is None else own_keys & where.keys):
            held = {leaf: own[key] for leaf, own in special.items() if key in own}
            mine = {leaf: min(us, held.get(leaf, us)) for leaf, us in view.bounds.items()}
            made += _cells(f"={key}", known, mine, near, where)
        found += [(replace(cell, revising=revising), cover) for cell, cover in made]
    return tuple(cell for cell, _ in found), tuple({cover.id: cover for _, cover in found}.values())


def _cells(
    key: str, known: CoverageSources, bounds: Mapping[str, int], gaps: Sequence[Gap], where: SessionBounds
) -> Iterator[tuple[CoverageCell, CoverageRef]]:
    """Yields cells so that every (first, last + gap) lies in exactly one. They are coarse where no row can be."""
    group, begins, over = known.group, known.begins, known.ends
    shares = {*begins.values(), *over.values(), *known.since.values()}
    (least_first, most_first), (least_end, most_end) = where.firsts, where.ends
    firsts = sorted({us + group.cut.gap_us for us in (*shares, *(gap.end_us for gap in gaps))})
    ends = sorted({*bounds.values(), *shares, *(gap.start_us for gap in gaps)})
    inner = (us for us in firsts if least_first < us <= most_first)
    for first_low, first_high in pairwise((NEVER_US, *inner, FAR_US)):
        low_us = max(first_low, least_first)
        end_us = max(least_end, low_us)
        high_us = min(most_end, min(first_high - 1, most_first) + where.longest_us, known.view.frontier_us - 1)
        near = [gap for gap in gaps if gap.end_us > low_us - group.cut.gap_us and gap.start_us <= high_us]
        within = (us for us in ends if end_us < us <= high_us)
        for end_low, end_high in pairwise((NEVER_US, *within, FAR_US)):
            last_us = max(end_low, end_us) - group.cut.gap_us
            coverage = session_coverage(
                bounds, near, group, low_us, last_us, begins=begins, ends=over, since=known.since
            )
            cover = CoverageRef.of(coverage)
            counts = (cover.id, len(coverage.expected), coverage.received, coverage.complete)
            yield CoverageCell(key, first_low, first_high, end_low, end_high, *counts), cover


def _runs(known: CoverageSources) -> list[Gap]:
    """The gap records of a group that touch a row within the horizon."""
    gap_us = known.group.cut.gap_us
    return runs((gap for gap in known.gaps if gap.end_us + gap_us > known.floor_us), known.group)
