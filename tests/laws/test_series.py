"""Series: the global order, whoever numbers the nodes; cut for a frame they are still the same readings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import FUNCTIONS, Readings, basis_of
from edge_agent.algebra.frame import MAX_FRAME_BYTES, Frame
from edge_agent.algebra.partials import row_splitting, series
from edge_agent.algebra.partials.partial import Partials, combine, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire import frames
from tests.oracle import central_computer
from tests.support import algebra_strategies
from tests.support.tolerance import assert_same_column

ORDERED = [
    Aggregate(fn, fn) for fn, function in FUNCTIONS.items() if "series" in function.needs and not function.params
]

TOGETHER = ("avg", "stddev", "min", "time_of_max", "first", "last", "median", "changes")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 4), st.integers(-3, 3)), min_size=1),
    st.permutations(range(3)),
)
def test_a_series_is_in_the_order_of_time_then_node_id_then_arrival(
    rows: list[tuple[int, int, int, int]], ranks: list[int]
) -> None:
    """protocol 7.3"""
    cells = [
        series.Series(*(np.array([number]) for number in (time, value, node, n)))
        for n, (time, node, _group, value) in enumerate(rows)
    ]
    column = np.empty(len(cells), object)
    column[:] = cells
    groups = Segments.coded(np.array([group for _, _, group, _ in rows]), 5)
    place = np.array(ranks)
    made = series.combine(column, groups, place)
    for label, cell in zip(groups.label.tolist(), made, strict=True):
        mine = [(time, ranks[node], n, value) for n, (time, node, group, value) in enumerate(rows) if group == label]
        got = zip(cell.time_us, place[cell.node], cell.order, cell.value, strict=True)
        assert [tuple(map(int, each)) for each in got] == sorted(mine)
    other = series.renumbered(made, lambda codes: place[codes])  # numbers in the order of ids: sorted as it is
    assert series.combine(other, Segments.coded(np.arange(len(other)), len(other)), None).tolist() == other.tolist()


@given(algebra_strategies.readings(-1))
def test_sequence_tells_every_value_in_order(part: Readings) -> None:
    if not len(part.time_us):
        return
    groups = Segments.runs(np.zeros(1, np.int64), len(part.time_us))
    states = aggregates.lift(part, groups, ("count", "series"), -1)
    answer = aggregates.lower(Aggregate("sequence", "s"), states, -1)
    readings = [central_computer.Reading(0, central_computer.exact(value, -1)) for value in part.value.tolist()]
    assert answer.details is not None
    assert json.loads(str(answer.details[0])) == central_computer.sequence(readings)


def test_no_rows_give_no_answers() -> None:
    for aggregate in ORDERED:
        for scale in (None, -1):
            assert len(aggregates.lower(aggregate, {"series": np.empty(0, object)}, scale).value) == 0


@pytest.mark.parametrize("scale", [None, -1])
@given(st.lists(st.integers(-50, 50), min_size=1), st.integers(1, 4))
def test_the_pieces_of_a_row_are_the_row(scale: int | None, units: list[int], most: int) -> None:
    values = np.array(units) / 8 if scale is None else np.array(units)
    k, basis = len(values), basis_of([Aggregate(fn, fn) for fn in TOGETHER], scale)
    readings = Readings(np.arange(k), values, np.arange(k))
    states = aggregates.lift(readings, Segments.runs(np.zeros(1, np.int64), k), basis, scale)
    one = np.ones(1, np.int64)
    pieces = row_splitting.cut(Partials(0 * one, one, one, states), basis, scale, most)
    assert int(row_splitting.sizes(pieces).max()) <= most
    assert pieces.states["count"].tolist() == row_splitting.sizes(pieces).tolist()
    back = combine(pieces, basis)
    assert len(back) == 1
    for name in basis:
        assert_same_column(back.states[name], states[name], float((values.astype(np.float64) ** 2).sum()))


def test_a_series_larger_than_a_frame_travels_in_several_rows_of_its_range() -> None:
    """protocol 2.1: at most 128 kB by construction; 6.1: what is cut adds up."""
    random = np.random.default_rng(5)
    k = 60_000
    values, times = random.normal(20, 3, k), np.sort(random.integers(0, 10**9, k))
    query = Query("q", 1, "s", Tumbling(10**9), (Aggregate("changes", "c"), Aggregate("median", "m")))
    made = plan((query,), None)[0].plan
    states = aggregates.lift(
        Readings(times, values, np.arange(k)), Segments.runs(np.zeros(1, np.int64), k), made.basis, None
    )
    rows = Partials(np.zeros(1, np.int64), np.full(1, 10**9), np.zeros(1, np.int64), states)
    step = Step(groups=(GroupStep(query.group, 10**9, (StepRows(made, False, rows, [""], ["n"]),)),))
    sent = EpochEncoder().encode_step(7, 0, step)
    payloads = [frames.encode(frame) for frame in sent]
    assert len(sent) * MAX_FRAME_BYTES * 3 // 4 > k * 8
    heard = [frame for frame in map(frames.decode, payloads) if isinstance(frame, Frame)]
    got = [s.named(made).partials for frame in heard for g in frame.groups for s in g.sections]
    whole = combine(concat(got), made.basis)
    assert whole.states["series"].tolist() == states["series"].tolist()
    assert whole.states["bag"].tolist() == states["bag"].tolist()
    assert whole.states["count"].tolist() == [k]
