"""The read plan of a decision: which rows to read, as which states, for which queries. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import NEVER_US, Gap, Plan
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.config.in_force.known_definitions import contradiction
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.window_ranges import CoverageRef, covers
from edge_agent.root.decision.work import ReadRequest, WindowRange
from edge_agent.root.instant_slices import basis_of_all, reaches

Target = Callable[[QueryKey], int | None]  # the common scale of the plans of a query
KINDS: Final = ("slice", "window", "session", "raw")  # kinds of rows that this root forms windows from


@dataclass(frozen=True, slots=True)
class QueryAtDecision:
    """A query's revision in its group, at a decision."""

    key: QueryKey
    query: Query
    group: Group
    view: GroupView

    @property
    def place(self) -> QueryPlace:
        """The key under which the state of the query is stored."""
        return QueryPlace(*self.key, self.group.node)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The shapes and read requests of a Work by number, and all known gap records.

    feeding: numbers of the read requests that feed a query. target: see Target. lowest_us: no row starts earlier.
    latest_us: no row ends later, so that later windows need no coverage.
    """

    shapes: Mapping[tuple[tuple[Aggregate, ...], int | None], int]
    orders: Sequence[ReadRequest]
    feeding: Mapping[QueryPlace, list[int]]
    target: Target
    gaps: tuple[Gap, ...] = ()
    lowest_us: int = NEVER_US
    latest_us: int = FAR_US

    def of(self, place: QueryPlace) -> tuple[int, ...]:
        """The numbers of the read requests that feed a query."""
        return tuple(self.feeding.get(place, ()))

    def shape(self, query: Query) -> int:
        """The number of a query's shape."""
        return self.shapes[query.aggregates, self.target(query.key)]

    def ranges(self, run: QueryAtDecision, after_us: int, upto_us: int) -> Iterator[tuple[WindowRange, CoverageRef]]:
        """Yields the windows of a query that end in (after, upto]: evenly spaced runs, cut where coverage changes."""
        query, serving, shape = run.query, run.view.serving[run.key], self.shape(run.query)
        after_us = max(after_us, self.lowest_us)
        for comb in query.time_window.runs(after_us, upto_us) if after_us < upto_us else ():
            least_us, most_us = serving.starts(comb.length_us)
            low_us = max(least_us, comb.after_us + 1 - comb.length_us, 0)
            high_us = min(most_us, comb.upto_us - comb.length_us, self.latest_us - 1)
            if low_us > high_us:
                continue
            whole = WindowRange(
                *(query.id, query.revision, shape, comb.after_us, comb.upto_us),
                *(comb.length_us, comb.slide_us, comb.offset_us, low_us, high_us),
                *(self.of(run.place), "", 0, 0, False),
                node=run.group.node,
            )
            begins, ends = run.view.begins.get(run.key, {}), run.view.ends.get(run.key, {})
            since = run.view.since.get(run.key, {})
            pieces = covers(whole, run.group, run.view.leaves, self.gaps, begins, ends=ends, since=since)
            yield from (piece for piece in pieces if piece[0].low_us <= piece[0].high_us)


def read_plan_of(
    plans: Iterable[tuple[bytes, tuple[Group, Plan]]],
    groups: Mapping[Group, Mapping[QueryKey, Query]],
    target: Target,
) -> ReadPlan:
    """The read plan for all served queries. Queries that do not close now are included to keep Spark's plans the same.

    plans: by `identity`. groups: the queries that each group serves. A plan that contradicts the definition of a query
    does not feed it: its rows came before the operator published that definition (docs/protocol.md 6.5).
    """
    served = {key: query for queries in groups.values() for key, query in queries.items()}
    found = {
        (query.aggregates, target(key))
        for group, queries in groups.items()
        for key, query in queries.items()
        if not isinstance(group.cut, OrderedCut)
    }
    shapes = {shape: number for number, shape in enumerate(sorted(found, key=repr))}
    known = dict(plans)
    wanted: dict[tuple[bytes, int | None], set[QueryPlace]] = {}
    # queries that came one by one are in as many plans: what follows from the query alone is computed once
    targets, basis = {key: target(key) for key in served}, cache(basis_of)
    for digest, (group, plan) in known.items():
        for key in plan.keys:
            if plan.kind in KINDS and key in served and not contradiction(served[key], group, plan, basis):
                wanted.setdefault((digest, targets[key]), set()).add(QueryPlace(*key, group.node))
    orders: list[ReadRequest] = []
    feeding: dict[QueryPlace, list[int]] = {}
    for number, ((digest, scale), places) in enumerate(sorted(wanted.items(), key=lambda item: repr(item[0]))):
        group, plan = known[digest]
        edges = (group.cut.gap_us, group.cut.max_us)
        lifted = basis_of_all(groups.get(group, {}).values(), plan.scale) if group.cut.central else ()
        order = ReadRequest(number, digest, plan.kind, plan.basis, plan.scale, scale, *edges, lifted, reaches(group))
        orders.append(order)
        for place in places:
            feeding.setdefault(place, []).append(number)
    return ReadPlan(shapes, orders, feeding, target)
