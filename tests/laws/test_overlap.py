"""Overlapping windows formed at a constant cost a slice are the windows that assigning every slice would give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, COMPONENTS, basis_of
from edge_agent.algebra.aggregates.base import Column as Described
from edge_agent.algebra.aggregates.base import Component
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials, assign_windows
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.sliding.batch import in_windows_of, over
from edge_agent.algebra.sliding.incremental import Rolling, WindowStore
from edge_agent.algebra.windows import TYPES, Sliding, Window
from tests.support import algebra_strategies
from tests.support.laws.sliced_partials import EVERY, RANKS, assert_same, largest, sliced, slid

if TYPE_CHECKING:
    from edge_agent.algebra.aggregates.base import States


@given(data=st.data(), window=slid(), other=algebra_strategies.windows(), scale=st.sampled_from([None, 0, -1]))
def test_windows_at_constant_cost_equal_slices_assigned_one_by_one_for_every_component(
    data: st.DataObject, window: Sliding, other: Window, scale: int | None
) -> None:
    """protocol 6.2, 7.1, 7.2: integers bit-equal, floats within tolerance; whatever the cut, gaps and late deltas."""
    asked = data.draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=6))
    basis = basis_of(asked, scale)
    rows = data.draw(sliced((window, other), scale, basis))
    want = assign_windows(rows, window, basis, RANKS)
    assert_same(in_windows_of(rows, window, basis, None, RANKS), want, largest(rows))
    low = data.draw(st.integers(-5, 60))
    high = low + data.draw(st.integers(-2, 30))
    some = want.take((want.start >= low) & (want.start <= high))
    assert_same(in_windows_of(rows, window, basis, (low, high), RANKS), some, largest(rows))


@given(window=algebra_strategies.windows(), data=st.data())
def test_windows_that_do_not_overlap_are_formed_too(window: Window, data: st.DataObject) -> None:
    basis = ("count", "sum", "max")
    rows = data.draw(sliced((window,), 0, basis))
    assert_same(in_windows_of(rows, window, basis), assign_windows(rows, window, basis), 1.0)


class Mine:
    """All that Window asks for, and none of our types: of another package."""

    type = "mine"

    def __init__(self, window: Sliding) -> None:
        self._window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)

    def assign(self, _start: Ints, _end: Ints) -> tuple[Ints, Ints]:
        raise AssertionError("every slice would be looked at for each of its windows")


def test_overlapping_windows_of_a_package_cost_as_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TYPES, "mine", Mine)
    window, start = Sliding(60, 7, 3), np.arange(0, 400, 1)
    rows = Partials(start, start + 1, start % 2, {"count": start % 5 + 1, "max": start % 11})
    mine: Any = Mine(window)
    got = in_windows_of(rows, mine, ("count", "max"))
    assert_same(got, assign_windows(rows, window, ("count", "max")), 1.0)
    roll, store = Rolling(window, ("count", "max")), WindowStore(("count", "max"), [mine])
    for each in (roll, store):
        each.add(rows)
    assert_same(store.close(300), roll.upto(300), 1.0)


def asks_an_inverse(window: Sliding, time_us: Ints, key: Ints) -> bool:
    """Whether some reading is in two windows and some window has rows of a key, but not the first row of that key."""
    begins = [window.offset_us + n * window.slide_us for n in range(int(time_us.max()) // window.slide_us + 1)]
    windows = [{begin for begin in begins if begin <= at < begin + window.length_us} for at in time_us.tolist()]
    keys = [[those for those, k in zip(windows, key.tolist(), strict=True) if those and k == each] for each in set(key)]
    return max(map(len, windows)) > 1 and any(set().union(*those) > those[0] for those in keys if those)


@pytest.mark.parametrize("exact", [True, False])
@given(times=st.sets(st.integers(0, 90), min_size=1), window=slid())
@example(times={0, 2}, window=Sliding(4, 2, 1))  # 0 is in no window: every window begins with the first row in any
@example(times={0, 2, 4}, window=Sliding(4, 2))
@example(times={1, 3}, window=Sliding(3, 2))  # in two windows and in one
@example(times={0, 4}, window=Sliding(3, 2, 1))  # overlapping windows, each reading in one
def test_what_can_be_taken_away_again_is_and_gives_the_same(exact: bool, times: set[int], window: Sliding) -> None:
    """A component with an inverse beside one that is only combined. exact False: the inverse declines every time."""
    asked: list[int] = []

    def invert(total: States, part: States) -> dict[str, Array] | None:
        asked.append(len(total["own_sum"]))
        return {"own_sum": total["own_sum"] - part["own_sum"]} if exact else None

    def combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
        return {"own_sum": groups.sum(states["own_sum"])}

    plain = COMPONENTS["sum"]
    own = Component("own_sum", ("own_sum",), plain.lift, combine, invert=invert)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPONENTS._fixed, "own_sum", own)
        patch.setitem(COLUMNS._fixed, "own_sum", Described("own_sum", "count"))
        basis = ("count", "max", "own_sum")
        time_us = np.array(sorted(times), np.int64)
        states: dict[str, Array] = {"count": time_us % 3 + 1, "max": -time_us, "own_sum": time_us * 7 % 31 - 9}
        rows = Partials(time_us, time_us + 1, time_us % 2, states)
        assert_same(in_windows_of(rows, window, basis), assign_windows(rows, window, basis), 1.0)
    assert bool(asked) == asks_an_inverse(window, time_us, rows.key)


@st.composite
def counted(draw: st.DrawFn) -> tuple[Partials, list[int], list[int]]:
    """Rows of integers in any runs of windows: nested, overlapping, none."""
    n = draw(st.integers(0, 12))
    key, first = ([draw(st.integers(0, high)) for _ in range(n)] for high in (2, 30))
    last = [low + draw(st.integers(-1, 9)) for low in first]
    value = np.array([draw(st.one_of(st.integers(-9, 9), st.integers(-(2**62), 2**62))) for _ in range(n)], np.int64)
    none = np.zeros(n, np.int64)
    states: dict[str, Array] = {"count": np.ones(n, np.int64), "sum": value, "min": value}
    return Partials(none, none, np.array(key, np.int64), states), first, last


HUGE = Partials(
    np.zeros(3, np.int64),
    np.zeros(3, np.int64),
    np.array([0, 2**40, 2**40]),
    {"count": np.ones(3, np.int64), "sum": np.full(3, 2**62), "min": np.arange(3)},
)


@given(case=counted())
@example(case=(HUGE, [0, 2**60, 2**60 + 1], [3, 2**60 + 2, 2**60 + 1]))  # years apart, sums beyond 64 bits
def test_rows_count_in_every_window_of_their_run_and_in_no_other(case: tuple[Partials, list[int], list[int]]) -> None:
    """protocol 6.1, 7.1: sums are exact also where running totals leave 64 bits."""
    rows, first, last = case
    want: dict[tuple[int, int], list[int]] = {}
    for i, (low, high) in enumerate(zip(first, last, strict=True)):
        for number in range(low, high + 1):
            count, total, least = (int(rows.states[name][i]) for name in ("count", "sum", "min"))
            before = want.get((number, int(rows.key[i])), [0, 0, least])
            want[number, int(rows.key[i])] = [before[0] + count, before[1] + total, min(before[2], least)]
    found, made = over(rows, np.array(first, np.int64), np.array(last, np.int64), ("count", "sum", "min"))
    assert list(zip(found.tolist(), made.key.tolist(), strict=True)) == sorted(want)
    if len(made):
        columns = [made.states[name].tolist() for name in ("count", "sum", "min")]
        assert [list(row) for row in zip(*columns, strict=True)] == [want[row] for row in sorted(want)]


def test_sums_of_floats_do_not_drift() -> None:
    """Nothing is taken away again: a large value that has left a window has left no error behind."""
    value = np.array([1e16, 1.0, -1e16, 1.0, 1.0, 1.0, 1.0, 1.0])
    n = len(value)
    start = np.arange(n, dtype=np.int64)
    rows = Partials(start, start + 1, np.zeros(n, np.int64), {"count": np.ones(n, np.int64), "sum": value})
    made = in_windows_of(rows, Sliding(2, 1), ("count", "sum"))
    assert made.states["sum"].tolist()[3:] == [2.0, 2.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize("length", [2, 7, 4_000])
def test_the_cost_a_slice_does_not_grow_with_the_windows_that_hold_it(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that go into a combination are counted, not seconds: at most ten a slice."""
    n = 20_000
    start = np.arange(n, dtype=np.int64)
    zeros = np.zeros(n, np.int64)
    states: dict[str, Array] = {"count": zeros + 1, "sum": zeros + 0.5, "m2": zeros + 0.25}
    rows, real = [], aggregates.combine

    def counting(states: States, groups: Segments, basis: tuple[str, ...], ranks: Ints | None) -> dict[str, Array]:
        rows.append(groups.rows)
        return real(states, groups, basis, ranks)

    monkeypatch.setattr(aggregates, "combine", counting)
    made = in_windows_of(Partials(start, start + 1, zeros, states), Sliding(length, 1), ("count", "sum", "m2"))
    assert len(made) == n
    assert 0 < sum(rows) <= 10 * n
