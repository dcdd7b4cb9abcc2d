"""What of raw readings gets its position at a decision. Pure.

Rules (docs/protocol.md 7.4): readings with event times below the frontier are in order for good; the frontier that
decides is the least of all expected leaves, of those left out too, unless the query says on_missing = "skip". What
comes below it later is in no window of that query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from cloud_job.spans import Cover
from cloud_job.work import Cell, Ordering
from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query import Group, Query
from edge_agent.algebra.span import FAR_US
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
    gaps: Iterable[Gap],
) -> tuple[Ordering, tuple[Cover, ...]] | None:
    """Readings from after_us on that are decided now, and the coverages of their windows; None: none.

    target, orders: see Ordering. gaps: all known.
    """
    upto_us = decided_us(query, view)
    if upto_us <= after_us:
        return None
    begins: Mapping[str, int] = view.begins.get((query.id, query.revision), {})
    found = list(_cells(group, view.leaves, [gap for gap in gaps if group in gap.groups], begins, (after_us, upto_us)))
    covers = {cover.id: cover for _, cover in found}
    cells = tuple(cell for cell, _ in found)
    return Ordering(query.id, query.revision, group.node, target, orders, after_us, upto_us, cells), (*covers.values(),)


def _cells(
    group: Group, leaves: Mapping[str, int], gaps: Sequence[Gap], begins: Mapping[str, int], decided: tuple[int, int]
) -> Iterator[tuple[Cell, Cover]]:
    """Coverages by first and last reading (docs/protocol.md 4.7): the last lies in `decided`, the first anywhere."""
    after_us, upto_us = decided
    firsts = sorted({*begins.values(), *(gap.end_us for gap in gaps)})
    lasts = sorted({*leaves.values(), *(gap.start_us for gap in gaps)})
    inner = [us for us in lasts if after_us < us < upto_us]
    for last_low, last_high in pairwise((NEVER_US, *inner, FAR_US)):
        last_us = max(last_low, after_us)
        for first_low, first_high in pairwise((NEVER_US, *(us for us in firsts if us <= upto_us), FAR_US)):
            if first_low >= last_high:
                continue
            coverage = window_coverage(leaves, gaps, group, first_low, max(first_low, last_us) + 1, begins=begins)
            cover = Cover.of(coverage)
            told = (cover.id, len(coverage.expected), coverage.received, coverage.complete)
            yield Cell("", first_low, first_high, last_low, last_high, *told), cover


def decided_us(query: Query, view: GroupView) -> int:
    """The frontier that decides: of all expected leaves, or of those that count."""
    if getattr(query, "on_missing", "") == "skip":
        return view.frontier_us
    return min(view.leaves.values(), default=NEVER_US)
