"""What a decision reads: the plans that feed each query, however many came one by one (docs/protocol.md 6.5)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.root.decision import read_plan
from edge_agent.root.decision.work import identity

FNS = ("sum", "max", "avg", "median")


def query(number: int) -> Query:
    fn = FNS[number % len(FNS)]
    return Query(f"q{number:02d}", 1, "s", Tumbling(10 + number), (Aggregate(fn, fn),))


def one_by_one(queries: Iterable[Query]) -> dict[bytes, tuple[Group, Plan]]:
    """The plans of a gateway to which each query comes alone."""
    known: dict[bytes, tuple[Group, Plan]] = {}
    served: tuple[Query, ...] = ()
    for each in queries:
        served = (*served, each)
        for placed in plan(served, None):
            known[identity(each.group, placed.plan)] = (each.group, placed.plan)
    return known


def test_what_queries_need_is_computed_once_and_not_for_each_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 queries that came one by one are in 80 000 places of plans."""
    asked: list[tuple[Aggregate, ...]] = []

    def counted(aggregates: tuple[Aggregate, ...], scale: int | None) -> tuple[str, ...]:
        asked.append(aggregates)
        return basis_of(aggregates, scale)

    monkeypatch.setattr(read_plan, "basis_of", counted, raising=False)
    monkeypatch.setattr("edge_agent.config.in_force.known_definitions.basis_of", counted)
    queries = [query(number) for number in range(40)]
    targets: list[str] = []

    def target(key: tuple[str, int]) -> None:
        targets.append(key[0])

    served = {queries[0].group: {each.key: each for each in queries}}
    found = read_plan.read_plan_of(one_by_one(queries).items(), served, target)
    assert all(found.of(QueryPlace(*each.key, "")) for each in queries)
    assert len(asked) <= len(FNS)
    assert len(targets) <= 2 * len(queries)
