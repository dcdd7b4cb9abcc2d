"""Positions at the root: whatever the steps, the nodes and the order in which readings come, the oracle's windows."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import Lowered, Readings, basis_of
from edge_agent.algebra.frame import LATEST_US, NEVER_US, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import ORDERED, CountSliding, CountTumbling, State
from edge_agent.errors import ConfigError
from edge_agent.root import positions
from edge_agent.root.completeness import GroupView
from edge_agent.root.positions import KeyPositions, UnorderedReadings, advance, at_scale, decided_us, waits
from edge_agent.wire import snapshot
from tests.oracle import central_computer
from tests.oracle.central_computer import Reading
from tests.support import algebra_strategies
from tests.support.tolerance import close

KEYS = ["k=a", "k=b", "k=c"]
ASKED = tuple(Aggregate(fn, fn) for fn in ("count", "sum", "avg", "first", "last", "median", "stddev", "changes"))
CONDITIONS = ("value > 2", "value >= 0", "value < 0", "k = 'a'")
Specs = algebra_strategies.specs(ORDERED, longest=6, conditions=CONDITIONS)
Line = list[tuple[int, int, int, int]]  # time, key, node, value
lines = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(0, 2), st.integers(-5, 5)), max_size=60)
Table = dict[tuple[str, int, int], dict[str, float | None]]


def query_of(window: Any, revision: int = 1) -> Query:
    return Query("q", revision, "s", window, ASKED, by=("k",))


def raw_of(rows: list[tuple[int, tuple[int, int, int, int]]], scale: int | None) -> UnorderedReadings:
    """Rows with their arrival numbers."""
    columns = [[row[i] for _, row in rows] for i in range(4)]
    time, key, node, value = (np.array(column, np.int64) for column in columns)
    order = np.array([order for order, _ in rows], np.int64)
    return UnorderedReadings(key, time, value / 2 if scale is None else value, node, order, scale)


def table(made: positions.OrderedWindows) -> Table:
    out: Table = {}
    for i, (key, start, end) in enumerate(zip(made.key.tolist(), made.start.tolist(), made.end.tolist(), strict=True)):
        place = (KEYS[key], start, end)
        assert place not in out
        out[place] = {name: None if each.null[i] else float(each.value[i]) for name, each in made.answers.items()}
        assert out[place]["count"] == made.readings[i]
        assert made.first_us[i] <= made.last_us[i]
    return out


def naive(rows: Line, scale: int | None) -> dict[int, list[Reading]]:
    """The readings of each key in global order."""
    out: dict[int, list[Reading]] = {}
    for order, (time, key, node, value) in enumerate(rows):
        number = value / 2 if scale is None else central_computer.exact(value, scale)
        labels = {"k": KEYS[key].removeprefix("k=")}
        out.setdefault(key, []).append(Reading(time, number, f"n{node}", order, labels))
    return {key: sorted(mine, key=lambda r: (r.time_us, r.node, r.order)) for key, mine in out.items()}


def wanted(query: Query, by_key: dict[int, list[Reading]]) -> Table:
    return {
        (KEYS[key], *bounds): central_computer.answers(query, inside)
        for key, mine in by_key.items()
        for bounds, inside in central_computer.windows(query, mine).items()
    }


def assert_same(got: Table, want: Table) -> None:
    assert got.keys() == want.keys()
    for place, values in want.items():
        for name, value in values.items():
            assert close(got[place][name], value, 100), (place, name)


def stepped(
    query: Query, rows: Line, scale: int | None, random: Random, before: tuple[KeyPositions, list[int]]
) -> tuple[KeyPositions, Table]:
    """All readings in steps of event time, those of a step in any order; the state goes through its bytes.

    before: the state and the times at which steps begin.
    """
    out: Table = {}
    positions, cuts = before
    numbered = list(enumerate(rows))
    for low, high in zip([-1, *cuts], [*cuts, 31], strict=True):
        some = [row for row in numbered if low <= row[1][0] < high]
        random.shuffle(some)
        raw = raw_of(some, scale)
        concerned = np.isin(positions.key, raw.key)
        positions = KeyPositions.restore(snapshot.loads(snapshot.dumps(positions.snapshot())))
        now, made = advance(query, positions.take(concerned), raw, KEYS)
        positions = positions.take(~concerned).joined(now)
        rows_now = table(made)
        assert not rows_now.keys() & out.keys()
        out |= rows_now
    return positions, out


@given(
    Specs,
    lines,
    st.sampled_from([None, 0, -1]),
    st.lists(st.integers(0, 30), max_size=5),
    st.randoms(use_true_random=False),
)
def test_windows_are_those_of_one_list_of_all_readings_whatever_the_steps(
    window: Any, rows: Line, scale: int | None, cuts: list[int], random: Random
) -> None:
    """protocol 7.4"""
    query, by_key = query_of(window), naive(rows, scale)
    positions, got = stepped(query, rows, scale, random, (KeyPositions(), sorted(cuts)))
    assert_same(got, wanted(query, by_key))
    assert dict(zip(positions.key.tolist(), positions.position.tolist(), strict=True)) == {
        key: len(mine) for key, mine in by_key.items()
    }
    if isinstance(window, CountTumbling | CountSliding):
        assert (positions.held < window.length).all()


@given(Specs, Specs, lines, st.integers(0, 30), st.randoms(use_true_random=False))
def test_a_new_revision_goes_on_from_the_next_position(old: Any, new: Any, rows: Line, at: int, random: Random) -> None:
    """protocol 6.3, 7.4: windows that the older one left open give no row."""
    before, after = query_of(old), query_of(new, 2)
    early, late = ([row for row in rows if (row[0] < at) == first] for first in (True, False))
    positions, got = stepped(before, early, 0, random, (KeyPositions(), []))
    positions, more = stepped(after, late, 0, random, (positions, [at]))
    assert_same(got, wanted(before, naive(early, 0)))
    first = {key: len(mine) for key, mine in naive(early, 0).items()}
    want: Table = {}
    for key, mine in naive(late, 0).items():
        for (start, end), inside in central_computer.windows(after, mine).items():
            ahead = first.get(key, 0) if new.positions else 0
            want[KEYS[key], start + ahead, end + ahead] = central_computer.answers(after, inside)
    assert_same(more, want)
    again, nothing = advance(before, positions, raw_of(list(enumerate(late)), 0), KEYS)
    newer = positions.key[positions.revision == 2]
    assert not set(nothing.key.tolist()) & set(newer.tolist())
    assert (
        again.take(np.isin(again.key, newer)).position.tolist()
        == positions.take(positions.revision == 2).position.tolist()
    )


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize("aggregate", algebra_strategies.every_aggregate(), ids=lambda a: a.name)
def test_every_function_answers_for_a_count_window_as_for_a_slice(aggregate: Aggregate, scale: int | None) -> None:
    k, random = 12, np.random.default_rng(7)
    units = random.integers(-40, 90, 2 * k)
    value = units / 8 if scale is None else units
    time, order, zero = np.sort(random.integers(0, 30, 2 * k)), np.arange(2 * k), np.zeros(2 * k, np.int64)
    query = replace(query_of(CountTumbling(k)), by=("area", "weight"), aggregates=(aggregate,))
    _, made = advance(
        query, KeyPositions(), UnorderedReadings(zero, time, value, zero, order, scale), ["area=3,weight=2"]
    )
    basis = basis_of([aggregate], scale)
    numbers = {"area": np.full(2 * k, 3.0), "weight": np.full(2 * k, 2.0)}
    groups = Segments.runs(np.array([0, k]), 2 * k)
    want = aggregates.lower(
        aggregate, aggregates.lift(Readings(time, value, order, 0, numbers), groups, basis, scale), scale
    )
    got = made.answers[aggregate.name]
    assert got.null.tolist() == want.null.tolist()
    np.testing.assert_array_equal(got.value, want.value)
    assert got.details == want.details


def test_unequal_scales_meet_at_the_finer_one_and_at_floats() -> None:
    """protocol 7.1"""
    query = query_of(CountTumbling(3))
    for first, second, third in ((-1, -2, None), (None, -1, 0), (0, 0, -3)):
        positions, answers = KeyPositions(), []
        for at, scale in enumerate((first, second, third)):
            value = np.array([3.0]) if scale is None else np.array([3 * 10**-scale])
            one = np.array([at])
            raw = UnorderedReadings(0 * one, one, value, 0 * one, one, scale)
            positions, made = advance(query, positions, raw, KEYS)
            answers += made.answers["sum"].value.tolist()
        assert answers == [9.0]
    with pytest.raises(ValueError, match="cannot be converted to"):
        at_scale(np.ones(1), None, -1)
    with pytest.raises(ValueError, match="cannot be converted to"):
        at_scale(np.ones(1, np.int64), -1, 0)


def test_a_finer_scale_beyond_64_bits_makes_floats() -> None:
    query = query_of(CountTumbling(2))
    zero = np.zeros(1, np.int64)
    positions, _ = advance(query, KeyPositions(), UnorderedReadings(zero, zero, np.array([2**53]), zero, zero, 0), KEYS)
    fine = UnorderedReadings(zero, zero + 1, np.array([1]), zero, zero, -6)
    _, made = advance(query, positions, fine, KEYS)
    assert made.answers["sum"].value.tolist() == [2.0**53]


def test_many_overlapping_windows_are_lifted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    query = query_of(CountSliding(20, 3))
    rows: Line = [(at // 4, at % 2, at % 3, at % 7) for at in range(120)]
    want = table(advance(query, KeyPositions(), raw_of(list(enumerate(rows)), 0), KEYS)[1])
    monkeypatch.setattr(positions, "_BLOCK", 50)
    assert table(advance(query, KeyPositions(), raw_of(list(enumerate(rows)), 0), KEYS)[1]) == want
    assert len(want) > 20


def test_answers_in_details_stay_with_their_rows_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "_BLOCK", 1)
    query = replace(query_of(CountTumbling(2)), aggregates=(Aggregate("sequence", "s"),))
    rows: Line = [(at, 0, 0, at) for at in range(6)]
    made = advance(query, KeyPositions(), raw_of(list(enumerate(rows)), 0), KEYS)[1]
    lowered: Lowered = made.answers["s"]
    assert lowered.details is not None
    assert [json.loads(str(text)) for text in lowered.details] == [[0, 1], [2, 3], [4, 5]]


# --- which frontier decides ------------------------------------------------------------------------------------------


def view(frontier_us: int, leaves: dict[str, int], **serving: Any) -> GroupView:
    told = {QueryKey("q", int(name[1:])): each for name, each in serving.items()}
    return GroupView(frontier_us, LeafTimes.of(leaves), told, {})


def test_a_missing_node_holds_count_windows_unless_the_query_says_skip() -> None:
    """protocol 7.4"""
    query = query_of(CountTumbling(2))
    seen = view(50, {"a": 60, "gone": 10})
    assert decided_us(query, seen) == 10
    assert decided_us(replace(query, on_missing="skip"), seen) == 50
    assert decided_us(query, view(50, {})) == NEVER_US


def test_a_revision_waits_until_the_readings_of_the_older_one_have_their_places() -> None:
    """protocol 7.4: they may be of another group, with a frontier of its own."""
    old, new = query_of(CountTumbling(2)), query_of(CountTumbling(3), 2)
    later = view(90, {"a": 90}, r2=Serving("q", 2, 40))
    for reached, held in ((30, True), (40, False)):
        before = view(reached, {"a": reached}, r1=Serving("q", 1, None, 40))
        assert waits(new, [(old, before), (new, later)]) is held
    assert not waits(old, [(old, view(30, {"a": 30}, r1=Serving("q", 1, None, 40))), (new, later)])
    assert not waits(new, [(old, view(30, {}, r1=Serving("q", 1, None, 40))), (new, later)])
    removed = view(30, {"a": 30}, r1=Serving("q", 1, None, None, 40))
    assert waits(new, [(old, removed), (new, later)])


@pytest.mark.parametrize(
    ("serving", "mine"),
    [
        (Serving("q", 1), [1, 2, 3, 4]),
        (Serving("q", 1, 2), [2, 3, 4]),
        (Serving("q", 1, None, 3), [1, 2]),
        (Serving("q", 1, 2, None, 4), [2, 3]),
        (Serving("q", 1, LATEST_US), []),
    ],
)
def test_a_reading_is_of_the_revision_in_force_at_its_time(serving: Serving, mine: list[int]) -> None:
    """protocol 6.3"""
    times = np.arange(1, 5)
    low, high = serving.readings(0, 10)
    assert times[(times >= low) & (times < high)].tolist() == mine


def test_a_condition_on_a_label_that_is_not_of_the_key_is_refused() -> None:
    query = replace(query_of(State("site = 'x'")), by=("k",))
    with pytest.raises(ConfigError, match="'site': add it to `by`"):
        plan((query,), None)
    assert plan((replace(query, by=("site",)),), None)[0].kind == "raw"


def test_a_weight_is_a_label_of_the_key() -> None:
    heavy = Aggregate("weighted_avg", "w", (("weight", "k"),))
    query = replace(query_of(CountTumbling(2, keyed=True)), aggregates=(heavy,))
    one = np.zeros(2, np.int64)
    _, made = advance(
        query, KeyPositions(), UnorderedReadings(one, one, np.array([4.0, 8.0]), one, np.arange(2), None), ["k=3"]
    )
    assert made.answers["w"].value.tolist() == [6.0]
    with pytest.raises(ConfigError, match="'k': add it to `by`"):
        plan((replace(query, by=()),), None)
