"""What of raw readings gets its position at a decision. Pure.

Rules (docs/protocol.md 7.4): readings with event times below the frontier are in order for good; the frontier that
decides is the least of all expected leaves, of those left out too, unless the query says on_missing = "skip". What
comes below it later is in no window of that query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cloud_job.cells import grid
from cloud_job.spans import Cover
from cloud_job.work import Ordering
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query import Group, Query
from edge_agent.machines.decider import GroupView

RAW: Final = "raw"  # Group.form of queries whose windows the root cuts


def ordering(
    query: Query,
    group: Group,
    view: GroupView,
    *,
    target: int | None,
    orders: tuple[int, ...],
    after_us: int,
    gaps: tuple[Gap, ...],
    floor_us: int,
) -> tuple[Ordering, tuple[Cover, ...]] | None:
    """Readings from after_us on that are decided now, and the coverages of their windows; None: none.

    target, orders: see Ordering. gaps: all known; those before floor_us, the horizon, touch no row.
    """
    upto_us = decided_us(query, view)
    if upto_us <= after_us:
        return None
    begins: Mapping[str, int] = view.begins.get((query.id, query.revision), {})
    reached = replace(view, frontier_us=upto_us, bounds=view.leaves, hints={}, registers={})
    cells, covers = grid(group, reached, gaps, begins, floor_us)
    return Ordering(query.id, query.revision, group.node, target, orders, after_us, upto_us, cells), covers


def decided_us(query: Query, view: GroupView) -> int:
    """The frontier that decides: of all expected leaves, or of those that count."""
    if getattr(query, "on_missing", "") == "skip":
        return view.frontier_us
    return min(view.leaves.values(), default=NEVER_US)
