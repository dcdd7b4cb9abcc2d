"""Bags: whichever way they are counted, the same; cut for a frame they are still the same readings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, FUNCTIONS, Readings, basis_of
from edge_agent.algebra.frame import MAX_FRAME_BYTES, Frame
from edge_agent.algebra.partials import multisets, row_splitting
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import Partials, combine, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.errors import ConfigError
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire import frames
from tests.oracle import central_computer
from tests.support import algebra_strategies
from tests.support.tolerance import assert_same_column

KINDS = {
    "few": st.integers(-3, 3),
    "many": st.integers(-(10**6), 10**6),
    "far": st.integers(-(2**53), 2**53),
    "decimals": st.integers(-50, 50).map(lambda units: units / 10),
    "floats": st.floats(-1e9, 1e9),
    "zeros": st.sampled_from([0.0, -0.0, 1 / 3]),
}


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Any, Any]:
    """Values and the group of each."""
    pairs = draw(st.lists(st.tuples(KINDS[draw(st.sampled_from(sorted(KINDS)))], st.integers(0, 4)), min_size=1))
    values, codes = (np.array(column) for column in zip(*pairs, strict=True))
    return values, codes


def counted(bag: Multiset) -> dict[float, int]:
    return dict(zip(bag.values.tolist(), bag.counts.tolist(), strict=True))


@given(grouped(), st.integers(1, 600))
def test_a_bag_holds_each_value_once_in_order_with_its_count(case: tuple[Any, Any], times: int) -> None:
    values, codes = np.tile(case[0], times), np.tile(case[1], times)  # long groups are counted one by one
    order = np.argsort(codes, kind="stable")
    present = np.unique(codes)
    runs = Segments.runs(np.searchsorted(codes[order], present), len(codes))
    coded = multisets.lift(values, Segments.coded(codes, 5))
    for column in (coded, multisets.lift(values[order], runs)):
        for bag, code in zip(column.tolist(), present, strict=True):
            assert counted(bag) == {v + 0: n for v, n in Counter(values[codes == code].tolist()).items()}
            assert bool((np.diff(bag.values) > 0).all())
            assert not np.signbit(bag.values[bag.values == 0]).any()
        assert multisets.totals(column).tolist() == [np.count_nonzero(codes == code) for code in present]
    again = np.concatenate([coded, coded])
    for bag, twice in zip(coded, multisets.combine(again, Segments.coded(np.tile(present, 2), 5)), strict=True):
        assert counted(twice) == {value: 2 * n for value, n in counted(bag).items()}


def test_blocks_of_a_large_combine_give_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    codes = random.integers(0, 30, 200)
    column = multisets.lift(random.normal(0, 9, 4_000), Segments.coded(np.arange(4_000) % 200, 200))
    whole = multisets.combine(column, Segments.coded(codes, 30))
    monkeypatch.setattr(multisets, "_BLOCK", 100)
    assert multisets.combine(column, Segments.coded(codes, 30)).tolist() == whole.tolist()


def test_no_rows_give_no_answers() -> None:
    for name in ("median", "quantile", "mode", "distinct", "collect"):
        params = (("q", 0.5),) if name == "quantile" else ()
        for scale in (None, -1):
            assert len(aggregates.lower(Aggregate(name, name, params), {"bag": np.empty(0, object)}, scale).value) == 0


@given(algebra_strategies.readings(-1))
def test_collect_tells_every_value_in_order(part: Readings) -> None:
    if not len(part.time_us):
        return
    groups = Segments.runs(np.zeros(1, np.int64), len(part.time_us))
    states = aggregates.lift(part, groups, ("count", "bag"), -1)
    answer = aggregates.lower(Aggregate("collect", "c"), states, -1)
    readings = [central_computer.Reading(0, central_computer.exact(value, -1)) for value in part.value.tolist()]
    assert answer.details == [str(central_computer.collected(readings))]


@pytest.mark.parametrize(
    ("params", "says"),
    [((), "needs q"), ((("q", 1.5),), "0 to 1, not 1.5"), ((("q", True),), "not True"), ((("q", "a"),), "not 'a'")],
)
def test_a_quantile_outside_0_and_1_is_refused(params: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        aggregates.check(Aggregate("quantile", "q", params))


EVERY = [
    Aggregate(fn, fn, tuple((name, param.choices[-1]) for name, param in function.params if param.default is None))
    for fn, function in FUNCTIONS.items()
    if "series" not in function.needs  # a row with a series is cut by that
]


@pytest.mark.parametrize("scale", [None, -1])
@given(grouped(), st.integers(1, 4))
def test_the_pieces_of_a_row_are_the_row(scale: int | None, case: tuple[Any, Any], most: int) -> None:
    values = case[0].astype(np.float64) if scale is None else np.rint(case[0]).astype(np.int64)
    k, basis = len(values), basis_of(EVERY, scale)
    readings = Readings(np.arange(k), values, np.arange(k), numbers={"area": (np.arange(k) % 3).astype(np.float64)})
    states = aggregates.lift(readings, Segments.runs(np.zeros(1, np.int64), k), basis, scale)
    one = np.ones(1, np.int64)
    row = Partials(0 * one, one, one, states)
    pieces = row_splitting.cut(row, basis, scale, most)
    assert int(row_splitting.sizes(pieces).max()) <= most
    assert pieces.states["count"].tolist() == multisets.flat(pieces.states["bag"]).totals().tolist()
    back = combine(pieces, basis)
    assert len(back) == 1
    for name in basis:
        power = max(2, COLUMNS[name].degree)
        assert_same_column(back.states[name], states[name], float((np.abs(values.astype(np.float64)) ** power).sum()))


def test_a_bag_larger_than_a_frame_travels_in_several_rows_of_its_range() -> None:
    """protocol 2.1: at most 128 kB by construction; 6.1: what is cut adds up."""
    random = np.random.default_rng(5)
    values = random.normal(20, 3, 60_000)
    query = Query("q", 1, "s", Tumbling(10**6), (Aggregate("median", "m"), Aggregate("avg", "a")))
    made = plan((query,), None)[0].plan
    groups = Segments.runs(np.zeros(1, np.int64), len(values))
    states = aggregates.lift(Readings(np.arange(60_000), values, np.arange(60_000)), groups, made.basis, None)
    rows = Partials(np.zeros(1, np.int64), np.full(1, 10**6), np.zeros(1, np.int64), states)
    step = Step(groups=(GroupStep(query.group, 10**6, (StepRows(made, False, rows, [""], [""]),)),))
    sent = EpochEncoder().encode_step(7, 0, step)
    payloads = [frames.encode(frame) for frame in sent]
    assert len(sent) * MAX_FRAME_BYTES * 3 // 4 > 60_000 * 8
    heard = [frame for frame in map(frames.decode, payloads) if isinstance(frame, Frame)]
    got = [s.named(made).partials for frame in heard for g in frame.groups for s in g.sections]
    whole = combine(concat(got), made.basis)
    assert whole.states["bag"].tolist() == states["bag"].tolist()
    assert whole.states["count"].tolist() == [60_000]
    assert_same_column(whole.states["sum"], states["sum"], 1e6)
