"""Where sessions have which coverage: a grid over first reading and last + gap, with one coverage a cell. Pure.

Rules (docs/protocol.md 4.7): a leaf is missing from a session row while its bound of the key is not past last + gap; a
gap record that touches the session takes its leaves away; a leaf that serves the query from later is not expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from cloud_job.open_sessions import behind
from cloud_job.spans import Cover, join
from cloud_job.work import Cell
from edge_agent.algebra.coverage import session_coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.decider import GroupView


def grid(
    group: Group, view: GroupView, gaps: Iterable[Gap], begins: Mapping[str, int], floor_us: int
) -> tuple[tuple[Cell, ...], tuple[Cover, ...]]:
    """(cells of all keys, then of those keys that some leaf holds back; their coverages).

    gaps: all known; those before floor_us, the horizon, touch no row.
    """
    near, special = _runs(group, gaps, floor_us), behind(view)
    top_us = view.frontier_us  # no row ends there or later
    found = list(_cells("", group, {leaf: min(us, top_us) for leaf, us in view.bounds.items()}, near, begins))
    for key in sorted({key for own in special.values() for key in own}):
        held = {leaf: own[key] for leaf, own in special.items() if key in own}
        bounds = {leaf: min(us, top_us, held.get(leaf, us)) for leaf, us in view.bounds.items()}
        found += _cells(f"={key}", group, bounds, near, begins)
    return tuple(cell for cell, _ in found), tuple({cover.id: cover for _, cover in found}.values())


def _cells(
    key: str, group: Group, bounds: Mapping[str, int], gaps: Sequence[Gap], begins: Mapping[str, int]
) -> Iterator[tuple[Cell, Cover]]:
    firsts = sorted({*begins.values(), *(gap.end_us + group.gap_us for gap in gaps)})
    ends = sorted({*bounds.values(), *(gap.start_us for gap in gaps)})
    for first_low, first_high in pairwise((NEVER_US, *(us for us in firsts if us > NEVER_US), FAR_US)):
        for end_low, end_high in pairwise((NEVER_US, *(us for us in ends if us > NEVER_US), FAR_US)):
            if first_low >= end_high:
                continue
            coverage = session_coverage(bounds, gaps, group, first_low, end_low - group.gap_us, begins=begins)
            cover = Cover.of(coverage)
            told = (cover.id, len(coverage.expected), coverage.received, coverage.complete)
            yield Cell(key, first_low, first_high, end_low, end_high, *told), cover


def _runs(group: Group, gaps: Iterable[Gap], floor_us: int) -> list[Gap]:
    """The gap records of a group, those of the same leaves that touch as one."""
    by_nodes: dict[tuple[str, ...], list[Gap]] = {}
    for gap in gaps:
        if group in gap.groups and gap.end_us + group.gap_us > floor_us:
            by_nodes.setdefault(tuple(sorted(gap.nodes)), []).append(gap)
    out = []
    for found in by_nodes.values():
        for start_us, end_us in join([(gap.start_us, gap.end_us) for gap in found]):
            out.append(replace(found[0], start_us=start_us, end_us=end_us))
    return out
