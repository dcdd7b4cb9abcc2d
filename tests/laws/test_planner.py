"""What travels, and that it is the same on every node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.planner import plan, plan_hash
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.query.wire_costs import rates
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from edge_agent.errors import ConfigError
from tests.support import algebra_strategies

AVG = (Aggregate("avg", "avg"),)


def query(window: Window, name: str = "q", late: str = "revise") -> Query:
    return Query(name, 1, "s", window, AVG, late=late)


@given(queries=algebra_strategies.queries(), scale=algebra_strategies.scales, random=st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_queries(
    queries: tuple[Query, ...], scale: int | None, random: Random
) -> None:
    """protocol 6.2"""
    shuffled = list(queries)
    random.shuffle(shuffled)
    assert plan(tuple(shuffled), scale) == plan(queries, scale)
    (placement,) = plan(queries, scale)
    assert placement.feeds == "all"
    assert len(placement.plan.hash) == 8
    assert all(q.time_window.unit_us % placement.plan.unit_us == 0 for q in queries)


def test_slices_travel_where_windows_overlap_and_windows_where_they_are_fewer() -> None:
    assert plan((query(Sliding(60, 10)),), None)[0].kind == "slice"
    assert plan((query(Tumbling(60)),), None)[0].kind == "slice"
    odd = plan((query(Sliding(65, 10)),), None)[0]  # cut at starts and at ends: two slices a window
    assert odd.kind == "window"
    assert "fewer" in odd.reason
    assert rates([Sliding(65, 10)]) == (Fraction(200_000), Fraction(100_000))
    assert rates([Tumbling(10), Sliding(10, 10), Tumbling(15)]) == (Fraction(400_000, 3), Fraction(500_000, 3))


def test_readings_that_count_per_window_need_windows_beside_the_slices() -> None:
    on_time, late = plan((query(Tumbling(60), late="per_window"),), None)
    assert (on_time.kind, on_time.feeds) == ("slice", "on_time")
    assert (late.kind, late.feeds) == ("window", "late")
    assert on_time.plan.hash != late.plan.hash


def test_a_plan_is_another_when_kind_basis_scale_or_queries_are() -> None:
    """protocol 6.2, 7.1"""
    same = ("slice", ("count", "sum"), None, (("q", 1),))
    others = [
        ("window", ("count", "sum"), None, (("q", 1),)),
        ("slice", ("count",), None, (("q", 1),)),
        ("slice", ("count", "sum"), -1, (("q", 1),)),
        ("slice", ("count", "sum"), None, (("q", 2),)),
    ]
    hashes = {plan_hash(*each) for each in (same, *others)}
    assert len(hashes) == 5
    assert plan_hash(*same).hex() == "4ff92426bb618d24"  # nodes of all versions must agree


@dataclass(frozen=True, slots=True)
class Session:
    """A window type of a later version."""

    type: str = "session"


def test_what_is_not_supported_is_refused_in_one_line_that_names_the_query() -> None:
    asked = query(Tumbling(60), "boiler")
    for wrong, says in (
        (replace(asked, window=Session()), "'session' is not supported yet"),  # type: ignore[arg-type]
        (replace(asked, scope="region"), "scope 'region'"),
        (replace(asked, aggregates=(Aggregate("averge", "m"),)), "averge"),
        (replace(asked, aggregates=(Aggregate("var", "v", (("ddof", 3),)),)), "ddof"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            plan((wrong,), None)
        assert str(caught.value).startswith("query boiler: ")
        assert "\n" not in str(caught.value)


def test_no_queries_need_no_plan() -> None:
    assert plan((), None) == ()


def test_windows_without_a_common_period_are_counted_over_a_sample() -> None:
    chance = Random(1)
    lengths = [chance.randrange(10**6, 10**8) for _ in range(200)]
    slices, whole = rates([Sliding(length, chance.randrange(10**5, 10**6)) for length in lengths])
    assert slices > whole  # nothing coincides: every window has two edges of its own


def test_more_state_than_fits_a_plan_is_refused_with_a_way_out() -> None:
    bins = [(("edges", tuple(100.0 * i + j for j in range(100))),) for i in range(3)]
    many = tuple(Aggregate("histogram", f"h{i}", params) for i, params in enumerate(bins))
    with pytest.raises(ConfigError, match=r"boiler.* 301 state columns, at most 256 are possible: use fewer"):
        plan((replace(query(Tumbling(60), "boiler"), aggregates=many),), None)
