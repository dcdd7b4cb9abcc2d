"""What the planner weighs, and the reasons it gives."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from edge_agent.algebra.aggregates import Readings, basis_of, lift
from edge_agent.algebra.costs import FRAME_BYTES, Cost, of_rows, overlap, rates
from edge_agent.algebra.decisions import decisions
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partial import Partials
from edge_agent.algebra.planner import plan
from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.segments import Segments
from edge_agent.algebra.windows import CountTumbling, Session, Sliding, Tumbling, Window
from edge_agent.machines.numbering import Numbering
from edge_agent.machines.release import GroupStep, Release, Step
from edge_agent.wire import frames
from tests import strategies
from tests.strategies import every_aggregate

SECOND = 1_000_000
KEYS = 200


def asked(window: Window, fn: str = "avg", name: str = "q") -> Query:
    return Query(name, 1, "s", window, (Aggregate(fn, fn),), by=("unit",))


def frame_bytes(basis: tuple[str, ...], scale: int | None, readings: int) -> int:
    """Of a frame with a row a key, whose names were said before."""
    n = KEYS * readings
    value = np.random.default_rng(1).normal(200, 30, n)
    value = value if scale is None else np.rint(value).astype(np.int64)
    time = np.sort(np.random.default_rng(2).integers(0, SECOND, (KEYS, readings))).ravel() + 1_000 * SECOND
    groups = Segments.runs(np.arange(0, n, readings), n)
    states = lift(Readings(time, value, np.arange(n)), groups, basis, scale)
    start = np.full(KEYS, 1_000 * SECOND)
    rows = Partials(start, start + SECOND, np.arange(KEYS), states)
    names = [f"unit={key}" for key in range(KEYS)]
    group, made = asked(Tumbling(SECOND)).group, Plan(b"12345678", "slice", basis, scale, SECOND, (("q", 1),))
    numbering, nodes = Numbering(), [""]
    step = Step(groups=(GroupStep(group, 1_001 * SECOND, (Release(made, False, rows, names, nodes),)),))
    first = len(numbering.compose(0xC0FFEE, 0, step))
    return sum(len(frames.encode(frame)) for frame in numbering.compose(0xC0FFEE, first, step))


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize("fn", ["avg", "max", "stddev", "first", "time_of_min", "geomean", "median"])
def test_estimates_are_at_most_a_few_times_what_frames_weigh(fn: str, scale: int | None) -> None:
    basis, readings = basis_of((Aggregate(fn, fn),), scale), 20
    cost = of_rows(basis, scale)
    estimate = FRAME_BYTES + KEYS * (cost.row_bytes + readings * cost.reading_bytes)
    assert 0.2 < frame_bytes(basis, scale, readings) / estimate <= 1.0


def test_no_function_weighs_more_in_frames_than_the_estimate() -> None:
    seen = {(basis_of((aggregate,), scale), scale) for aggregate in every_aggregate() for scale in (None, -1)}
    for basis, scale in seen:
        cost = of_rows(basis, scale)
        assert frame_bytes(basis, scale, 20) <= FRAME_BYTES + KEYS * (cost.row_bytes + 20 * cost.reading_bytes), basis


def test_whole_windows_travel_where_they_are_fewer_bytes() -> None:
    odd = asked(Sliding(65 * SECOND, 10 * SECOND))  # cut at starts and at ends: two slices a window
    (placed,) = plan((odd,), None)
    assert placed.kind == "window"
    assert "fewer bytes" in placed.reason
    assert placed.cost.bytes_per_s == pytest.approx(placed.cost.row_bytes / 10)


def test_readings_travel_once_even_if_slices_are_more_rows() -> None:
    """Values of exact quantiles would be in every window that holds them: six and a half times."""
    odd = asked(Sliding(65 * SECOND, 10 * SECOND), "median")
    (placed,) = plan((odd,), None)
    assert placed.kind == "slice"
    assert placed.cost.times == 1
    assert overlap([odd.time_window]) == Fraction(13, 2)


def test_the_group_as_a_whole_decides() -> None:
    """One odd query alone would send windows; with a second of the same edges its slices are there anyway."""
    odd, fine = asked(Sliding(65 * SECOND, 10 * SECOND)), asked(Tumbling(5 * SECOND), name="fine")
    assert plan((odd,), None)[0].kind == "window"
    assert plan((odd, fine), None)[0].kind == "slice"


@settings(deadline=None)  # on a machine that does other things too
@given(queries=strategies.queries(), scale=strategies.scales)
def test_what_is_chosen_is_never_more_bytes_whatever_the_readings(
    queries: tuple[Query, ...], scale: int | None
) -> None:
    windows = {query.time_window for query in queries}
    slices, whole = rates(windows)
    basis = basis_of((a for query in queries for a in query.aggregates), scale)
    (placed,) = plan(queries, scale)
    both = {"slice": of_rows(basis, scale, slices), "window": of_rows(basis, scale, whole, overlap(windows))}
    chosen = both.pop(placed.kind)
    assert chosen == placed.cost
    (other,) = both.values()
    assert not other.never_more_than(chosen)


def test_a_cost_says_what_it_is() -> None:
    assert Cost(Fraction(2), 13).text() == "26 B/s"
    assert Cost(None, 13, 8.0).text() == "rows of 13 B and 8 B a reading"
    assert Cost(Fraction(1), 12_345, 1.5, Fraction(4)).text() == "12,345 B/s and 6 B a reading"


def test_every_decision_says_where_and_why() -> None:
    """Thesis figures 16 and 17: windows and functions are decided apart, and both must share for work to be shared."""
    told = {fn: decisions(asked(Tumbling(SECOND), fn), None)[1] for fn in ("avg", "median", "rate", "top_k")}
    assert {fn: decision.distributed for fn, decision in told.items()} == {
        "avg": True,
        "median": True,
        "rate": False,
        "top_k": True,
    }
    assert "decomposable" in told["avg"].why
    assert "every value" in told["median"].why
    assert "order of readings" in told["rate"].why
    assert "approximate" in told["top_k"].why
    window, function = decisions(Query("q", 1, "s", CountTumbling(5), (Aggregate("avg", "avg"),)), None)
    assert not window.distributed
    assert not function.distributed
    pieces, _ = decisions(Query("q", 1, "s", Session(SECOND), (Aggregate("avg", "avg"),)), None)
    assert pieces.distributed
    local, _ = decisions(Query("q", 1, "s", Tumbling(5), (Aggregate("avg", "avg"),), scope="local"), None)
    assert "no other node" in local.why


def test_every_function_and_scale_has_a_decision() -> None:
    for aggregate in every_aggregate():
        for scale in (None, -1):
            query = Query("q", 1, "s", Tumbling(SECOND), (aggregate,))
            assert [decision.about for decision in decisions(query, scale)] == [
                "window tumbling",
                f"function {aggregate.fn}",
            ]
