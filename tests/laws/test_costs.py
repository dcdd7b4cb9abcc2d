"""What the planner weighs, and the reasons it gives."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.query.placement_reasons import placement_reasons
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.query.wire_costs import Cost, of_window, overlap, rates, speeds
from edge_agent.algebra.windows import CountTumbling, FixedBand, Punctuation, Session, Sliding, Tumbling, Window
from tests.support import algebra_strategies
from tests.support.algebra_strategies import every_aggregate

SECOND = 1_000_000


def asked(window: Window, fn: str = "avg", name: str = "q") -> Query:
    return Query(name, 1, "s", window, (Aggregate(fn, fn),), by=("unit",))


def test_whole_windows_travel_where_they_are_fewer_bytes() -> None:
    odd = asked(Sliding(65 * SECOND, 10 * SECOND))  # cut at starts and at ends: two slices a window
    (placed,) = plan((odd,), None)
    assert placed.kind == "window"
    assert "fewer bytes" in placed.reason
    per_s = placed.cost.per_s(100.0)
    assert per_s == placed.cost.row(6_500.0).times(0.1)


def test_readings_travel_once_even_if_slices_are_more_rows() -> None:
    """Values of exact quantiles would be in every window that holds them: six and a half times."""
    odd = asked(Sliding(65 * SECOND, 10 * SECOND), "median")
    (placed,) = plan((odd,), None)
    assert placed.kind == "slice"
    assert placed.cost.times == 1
    assert overlap([odd.time_window]) == Fraction(13, 2)


def test_a_sketch_holds_readings_until_it_is_full() -> None:
    """Windows of few readings would send each hash six and a half times."""
    (placed,) = plan((asked(Sliding(65 * SECOND, 10 * SECOND), "theta_distinct"),), None)
    assert placed.kind == "slice"


def test_the_group_as_a_whole_decides() -> None:
    """One odd query alone would send windows; with a second of the same edges its slices are there anyway."""
    odd, fine = asked(Sliding(65 * SECOND, 10 * SECOND)), asked(Tumbling(5 * SECOND), name="fine")
    assert plan((odd,), None)[0].kind == "window"
    assert plan((odd, fine), None)[0].kind == "slice"


@given(
    queries=algebra_strategies.queries(),
    scale=algebra_strategies.scales,
    readings=st.sampled_from([1, 10, 1_000, 100_000]),
)
def test_what_is_chosen_is_expected_to_be_fewer_bytes(
    queries: tuple[Query, ...], scale: int | None, readings: int
) -> None:
    """Whole windows only where they are so at every rate; what explain shows is what the planner compares."""
    windows = {query.time_window for query in queries}
    slices, whole = rates(windows)
    basis = basis_of((a for query in queries for a in query.aggregates), scale)
    (placed,) = plan(queries, scale)
    both = {"slice": Cost(basis, scale, slices), "window": Cost(basis, scale, whole, overlap(windows))}
    chosen = both.pop(placed.kind)
    assert chosen == placed.cost
    (other,) = both.values()
    assert not other.never_more_than(chosen)
    mine, others = chosen.per_s(float(slices * readings)), other.per_s(float(slices * readings))
    if placed.kind == "window":
        assert mine is not None
        assert others is not None
        assert mine.expected <= others.expected


def test_rates_have_the_unit_of_the_smallest() -> None:
    two_rows = Cost(("count", "max"), None, Fraction(2)).per_s(1.0)  # of two rows a second only one has a reading
    assert two_rows is not None
    assert speeds(two_rows.expected) == ["9 B/s"]
    assert speeds(0.0026388, 1.0) == ["228 B a day", "86,400 B a day"]


def test_what_comes_once_has_no_rate() -> None:
    """A fixed band is one row, not one every 146 000 years."""
    (placed,) = plan((asked(FixedBand(1_000 * SECOND, 3_600 * SECOND)),), None)
    assert placed.cost.rows_per_s == 0
    assert placed.cost.per_s(10.0) is None
    assert of_window(placed.cost, "slice", FixedBand(1_000 * SECOND, 3_600 * SECOND), 10.0) == placed.cost.row(36_000.0)
    beside = (asked(FixedBand(1_000 * SECOND, 3_600 * SECOND)), asked(Tumbling(60 * SECOND), name="m"))
    assert plan(beside, None)[0].cost.rows_per_s == Fraction(1, 60)


def test_every_decision_says_where_and_why() -> None:
    """Thesis figures 16 and 17: windows and functions are decided apart, and both must share for work to be shared."""
    told = {fn: placement_reasons(asked(Tumbling(SECOND), fn), None)[1] for fn in ("avg", "median", "rate", "top_k")}
    assert {fn: decision.where for fn, decision in told.items()} == {
        "avg": "every tier",
        "median": "every tier",
        "rate": "root",
        "top_k": "every tier",
    }
    assert "decomposable" in told["avg"].why
    assert "every value" in told["median"].why
    assert "order of readings" in told["rate"].why
    assert "approximate" in told["top_k"].why
    window, function = placement_reasons(Query("q", 1, "s", CountTumbling(5), (Aggregate("avg", "avg"),)), None)
    assert window.where == "root"
    assert function.where == "root"
    pieces, _ = placement_reasons(Query("q", 1, "s", Session(SECOND), (Aggregate("avg", "avg"),)), None)
    assert pieces.where == "every tier"
    local, _ = placement_reasons(Query("q", 1, "s", Tumbling(5), (Aggregate("avg", "avg"),), scope="local"), None)
    assert "no other node" in local.why


@pytest.mark.parametrize(
    ("interpretation", "where"),
    [
        ("local", "gateway"),
        ("order", "gateway"),
        ("bounds", "every tier"),
        ("overlap", "every tier"),
        ("central", "root"),
    ],
)
@pytest.mark.parametrize("scope", ["global", "local"])
def test_decisions_and_plan_agree_on_windows_between_markers(interpretation: str, where: str, scope: str) -> None:
    """Local ones, the default, said "at every tier" beside "formed at the gateway"."""
    window = Punctuation("local" if scope == "local" else interpretation)
    query = Query("q", 1, "s", window, (Aggregate("avg", "avg"),), scope=scope)
    about, function = placement_reasons(query, None)
    assert (about.where, function.where) == (("gateway",) * 2 if scope == "local" else (where,) * 2)
    if window.interpretation == "local":
        assert {placed.where for placed in plan((query,), None)} == {"gateway"}


def test_every_function_and_scale_has_a_decision() -> None:
    for aggregate in every_aggregate():
        for scale in (None, -1):
            query = Query("q", 1, "s", Tumbling(SECOND), (aggregate,))
            assert [decision.about for decision in placement_reasons(query, scale)] == [
                "window tumbling",
                f"function {aggregate.fn}",
            ]
