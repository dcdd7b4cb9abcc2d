"""combine, the store, and the assignment of slices to windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import NOTHING, Partials, assign_windows, combine, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.windows import Window
from tests.oracle import time_windows
from tests.support import algebra_strategies

BASIS = ("count", "sum", "min")
Rows = dict[tuple[int, int, int], list[int]]


@st.composite
def partials(draw: st.DrawFn, unit: int = 1, uneven: bool = True, keys: int = 4) -> Partials:
    """Rows with equal ranges among them. uneven: several ends a start."""
    n = draw(st.integers(0, 12))
    start = draw(st.lists(st.integers(-3, 6), min_size=n, max_size=n))
    length = draw(st.lists(st.integers(1, 3 if uneven else 1), min_size=n, max_size=n))
    key = draw(st.lists(st.integers(0, keys), min_size=n, max_size=n))
    value = draw(st.lists(st.one_of(st.integers(-9, 9), st.integers(-(2**62), 2**62)), min_size=n, max_size=n))
    begin = np.array(start, np.int64) * unit
    states: dict[str, Array] = {
        "count": np.ones(n, np.int64),
        "sum": np.array(value, np.int64),
        "min": np.array(value, np.int64),
    }
    return Partials(begin, begin + np.array(length, np.int64) * unit, np.array(key, np.int64), states)


def naive(*parts: Partials) -> Rows:
    out: Rows = {}
    for part in parts:
        for i in range(len(part)):
            row = (int(part.start[i]), int(part.end[i]), int(part.key[i]))
            count, total, least = (int(part.states[name][i]) for name in BASIS)
            if row in out:
                before = out[row]
                out[row] = [before[0] + count, before[1] + total, min(before[2], least)]
            else:
                out[row] = [count, total, least]
    return dict(sorted(out.items()))


def plain(part: Partials) -> Rows:
    """In the order of the rows; equal (range, key) would show as a lost row."""
    out: Rows = {}
    for i in range(len(part)):
        row = (int(part.start[i]), int(part.end[i]), int(part.key[i]))
        assert row not in out
        out[row] = [int(part.states[name][i]) for name in BASIS]
    return out


@given(uneven=partials(), even=partials(unit=5, uneven=False), unit=st.sampled_from([None, 1, 5]))
def test_combine_gives_one_row_a_range_and_key_in_order_with_exact_sums(
    uneven: Partials, even: Partials, unit: int | None
) -> None:
    """protocol 6.2, 7.1"""
    for rows in (uneven, even):
        got = combine(rows, BASIS, unit)
        assert list(plain(got).items()) == list(naive(rows).items())
        assert combine(got, BASIS, unit) is got


def test_sums_beyond_64_bits_stay_exact() -> None:
    """protocol 7.1: sums are integers of up to 128 bits."""
    start = np.zeros(3, np.int64)
    big = np.full(3, 2**62)
    states: dict[str, Array] = {"count": np.ones(3, np.int64), "sum": big, "min": big}
    rows = Partials(start, start + 1, start, states)
    once = combine(rows, BASIS)
    assert once.states["sum"].tolist() == [3 * 2**62]
    again = combine(concat([once, rows, once]), BASIS)
    assert again.states["sum"].tolist() == [9 * 2**62]
    less: dict[str, Array] = {**again.states, "sum": np.array([-9 * 2**62], object)}
    back = combine(concat([again, Partials(again.start, again.end, again.key, less)]), BASIS)
    assert back.states["sum"].dtype == np.int64
    assert back.states["sum"].tolist() == [0]


@given(value=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=20), codes=st.randoms(use_true_random=False))
def test_segments_sum_integers_and_their_squares_exactly(value: list[int], codes: object) -> None:
    group = [getattr(codes, "randrange")(3) for _ in value]  # noqa: B009
    groups = Segments.coded(np.array(group, np.int64), 3)
    column = np.array(value, np.int64)
    want = {g: [v for v, at in zip(value, group, strict=True) if at == g] for g in sorted(set(group))}
    assert groups.label.tolist() == list(want)
    assert groups.sum(column).tolist() == [sum(vs) for vs in want.values()]
    assert groups.sum_of_squares(column).tolist() == [sum(v * v for v in vs) for vs in want.values()]


def test_squares_of_many_of_the_widest_integers_are_exact() -> None:
    """The upper limbs alone would leave 64 bits."""
    column = np.full(1_000, 2**61 - 1, np.int64)
    groups = Segments.runs(np.zeros(1, np.int64), len(column))
    assert groups.sum_of_squares(column).tolist() == [1_000 * (2**61 - 1) ** 2]


@given(parts=st.lists(partials(), max_size=6), frontiers=st.lists(st.integers(-3, 10), max_size=6))
def test_a_store_lets_each_row_go_once_when_the_frontier_has_reached_its_end(
    parts: list[Partials], frontiers: list[int]
) -> None:
    """protocol 4.1, 6.1"""
    store = Store(BASIS)
    left = []
    highest = None
    for i, part in enumerate(parts):
        store.add(part)
        if i % 3 == 1:  # a restart in between
            rows = store.view()
            store = Store(BASIS)
            store.restore(rows)
        if i < len(frontiers):
            closed = store.close(frontiers[i])
            plain(closed)
            assert (closed.end <= frontiers[i]).all()
            left.append(closed)
            highest = frontiers[i]
            rest = store.view()
            assert (rest.end > highest).all()
            assert store.lowest_start == (min(rest.start) if len(rest) else None)
    left.append(store.flush())
    assert not len(store)
    assert naive(*left) == naive(*parts)


def test_a_store_combines_when_much_has_come_and_not_before() -> None:
    store = Store(BASIS, 1)
    n = 1_000
    zeros = np.zeros(n, np.int64)
    part = Partials(zeros, zeros + 1, np.arange(n), {"count": zeros + 1, "sum": zeros + 2, "min": zeros})
    most = 0
    for _ in range(300):
        store.add(part)
        most = max(most, len(store))
    assert 65_536 < most < 65_536 + 6 * n
    assert store.flush().states["sum"].tolist() == [600] * n


def test_a_store_orders_nodes_by_the_bytes_of_their_ids_not_by_their_numbers() -> None:
    """protocol 7.3"""
    basis = ("count", "first_time", "first_node", "first_order", "first_value")
    nodes = ["n-b"]
    store = Store(basis, None, nodes)
    assert store.ranks() is not None

    def row(node: int, value: float) -> Partials:
        one = np.zeros(1, np.int64)
        states: dict[str, Array] = {
            "count": one + 1, "first_time": one, "first_node": one + node, "first_order": one,
            "first_value": np.array([value]),
        }  # fmt: skip
        return Partials(one, one + 1, one, states)

    store.add(row(0, 2.0))
    nodes.append("n-a")  # the table grows while the store lives
    store.add(row(1, 1.0))
    assert store.flush().states["first_value"].tolist() == [1.0]


def test_an_empty_store_gives_nothing() -> None:
    store = Store(BASIS)
    store.add(NOTHING)
    assert not len(store.close(5))
    assert not len(store.flush())
    assert store.lowest_start is None
    store.restore(store.view())
    assert not len(store.view())


@given(rows=partials(), window=algebra_strategies.windows(longest=9))
def test_windows_take_exactly_the_ranges_they_contain(rows: Partials, window: Window) -> None:
    """protocol 6.2: a slice counts in every window that contains its range; none starts before 0."""
    want: list[Partials] = []
    for i in range(len(rows)):
        low, high = int(rows.start[i]), int(rows.end[i])
        for start, end in time_windows.holding(window, low):
            if high <= end:
                row = rows.take(slice(i, i + 1))
                want.append(Partials(np.array([start]), np.array([end]), row.key, row.states))
    assert plain(assign_windows(rows, window, BASIS)) == naive(*want)


def test_combine_is_quick_enough_for_a_merger() -> None:
    """No timing here: the dense path must be taken where slots of different lengths alternate, not the sort."""
    edges = np.array([0, 3, 5, 6, 9, 10, 12, 15])
    start = np.tile(edges[:-1], 50)
    end = np.tile(edges[1:], 50)
    ones = np.ones(len(start), np.int64)
    rows = Partials(start, end, ones * 7, {"count": ones, "sum": ones, "min": ones})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "lexsort", None)
        got = combine(rows, BASIS, 1)
    assert got.states["count"].tolist() == [50] * 7
