"""Decides which raw readings get their positions now. Pure.

Rules (docs/protocol.md 7.4): readings with event times below the deciding frontier are in their final order. The
deciding frontier is the least frontier of all expected leaves, including those left out, unless the query sets
on_missing = "skip". Readings below the deciding frontier that arrive later are in no window of that query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.window_ranges import CoverageRef, runs
from edge_agent.root.decision.work import CoverageCell, Ordering
from edge_agent.root.positions import decided_us, waits

MOST_TIMES: Final = 64  # before which readings of leaves may have been passed over: each makes further coverages


@dataclass(frozen=True, slots=True)
class OrderedQueryAtDecision:
    """A query's revision in its group, at a decision. others: all revisions of the query with their groups' views.

    passed: see RootState.
    """

    query: Query
    group: Group
    view: GroupView
    others: Sequence[tuple[Query, GroupView]]
    passed: Mapping[str, int]


Revisions = Mapping[tuple[str, str], Sequence[tuple[Query, GroupView]]]


def revisions(groups: Mapping[Group, GroupView], query_of: Callable[[QueryKey], Query | None]) -> Revisions:
    """The revisions of each query whose readings get positions, by (query, node). query_of: looks up definitions."""
    found: dict[tuple[str, str], list[tuple[Query, GroupView]]] = {}
    for group, view in groups.items():
        for key in view.serving if isinstance(group.cut, OrderedCut) else ():
            query = query_of(key)
            if query is not None:
                found.setdefault((query.id, group.node), []).append((query, view))
    return found


def decided(run: OrderedQueryAtDecision) -> int:
    """The time below which readings of the query get positions now; NEVER_US while an older revision comes first."""
    return NEVER_US if waits(run.query, run.others) else decided_us(run.query, run.view)


def passed(before: Mapping[str, int], view: GroupView, after_us: int, upto_us: int) -> dict[str, int]:
    """Returns leaf -> the time before which readings of it may have got no position, so that no window contains them.

    The leaf was not listed when the readings before `after_us` got their positions, or it is behind `upto_us`. before:
    the result at the last decision. At most MOST_TIMES different times: earlier ones are replaced by the least of them.
    """
    if after_us > NEVER_US:
        before = {**before, **dict.fromkeys(view.joined, after_us)}
    found = {**before, **dict.fromkeys(view.leaves.below(upto_us), upto_us)}
    found = {leaf: us for leaf, us in found.items() if leaf in view.leaves}
    times = sorted({*found.values()})
    least_us = times[max(len(times) - MOST_TIMES, 0)] if times else NEVER_US
    return {leaf: max(us, least_us) for leaf, us in found.items()}


def ordering(
    run: OrderedQueryAtDecision,
    after_us: int,
    upto_us: int,
    *,
    target: int | None,
    orders: tuple[int, ...],
    gaps: Iterable[Gap],
) -> tuple[Ordering, tuple[CoverageRef, ...]] | None:
    """The readings in [after, upto) of this revision, and the coverages of their windows; None if there are none.

    target, orders: see Ordering. gaps: all known.
    """
    query, view = run.query, run.view
    after_us, upto_us = view.serving[query.key].readings(after_us, upto_us)
    if upto_us <= after_us or not orders:  # no node has sent a reading for it yet
        return None
    shares = (view.begins.get(query.key, {}), view.ends.get(query.key, {}), view.since.get(query.key, {}))
    found = list(_cells(run, runs(gaps, run.group), shares, (after_us, upto_us)))
    covers = {cover.id: cover for _, cover in found}
    cells = tuple(cell for cell, _ in found)
    place = (query.id, query.revision, run.group.node)
    return Ordering(*place, target, orders, after_us, upto_us, cells), (*covers.values(),)


def _cells(
    run: OrderedQueryAtDecision,
    gaps: Sequence[Gap],
    shares: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]],
    decided: tuple[int, int],
) -> Iterator[tuple[CoverageCell, CoverageRef]]:
    """Yields the cells of equal coverage by first and last reading of a window (docs/protocol.md 4.7).

    The last reading lies in the range `decided`, the first anywhere. shares: begins, ends, since of window_coverage.
    """
    group, leaves, passed = run.group, run.view.leaves, run.passed
    (begins, ends, since), (after_us, upto_us) = shares, decided
    starts = {*begins.values(), *ends.values(), *since.values(), *passed.values()}
    firsts = sorted({*starts, *(gap.end_us for gap in gaps)})
    lasts = sorted({*leaves.distinct(), *begins.values(), *ends.values(), *(gap.start_us for gap in gaps)})
    inner = [us for us in lasts if after_us < us < upto_us]
    for last_low, last_high in pairwise((NEVER_US, *inner, FAR_US)):
        last_us = max(last_low, after_us)
        for first_low, first_high in pairwise((NEVER_US, *(us for us in firsts if us <= upto_us), FAR_US)):
            if first_low >= last_high:
                continue
            ends_us = max(first_low, last_us) + 1
            coverage = window_coverage(leaves, gaps, group, first_low, ends_us, begins=begins, ends=ends, since=since)
            coverage = coverage.also_behind(leaf for leaf, us in passed.items() if us > first_low)
            cover = CoverageRef.of(coverage)
            counts = (cover.id, len(coverage.expected), coverage.received, coverage.complete)
            yield CoverageCell("", first_low, first_high, last_low, last_high, *counts), cover
