"""Windows formed as time goes on are those formed at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, assign_windows, combine, concat, in_windows
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.sliding.incremental import Rolling, WindowStore
from edge_agent.algebra.windows import Sliding, Window
from tests.support import algebra_strategies
from tests.support.laws.sliced_partials import EVERY, RANKS, assert_same, largest, sliced, slid


@given(data=st.data(), window=slid(), other=algebra_strategies.windows(), scale=st.sampled_from([None, -1]))
def test_windows_formed_step_by_step_are_those_formed_at_once(
    data: st.DataObject, window: Sliding, other: Window, scale: int | None
) -> None:
    """protocol 4.1, 6.2: a slice comes before the frontier passes the end of its first window; steps of any size."""
    basis = basis_of(data.draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=4)), scale)
    rows = data.draw(sliced((window, other), scale, basis))
    want = assign_windows(rows, window, basis, RANKS)
    rolling, made, frontier = Rolling(window, basis), [], -1
    steps = sorted(data.draw(st.lists(st.integers(0, 60), max_size=8)))
    came = np.zeros(len(rows), np.bool_)
    for step in [*steps, 10**6]:
        due = ~came & (
            (rows.end <= step)
            | np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
        )
        rolling.add(rows.take(due))
        came |= due
        made.append(rolling.upto(step, RANKS))
        assert all(frontier < end <= step for end in made[-1].end.tolist())
        frontier = step
        if data.draw(st.booleans()):  # a restart in between
            held, formed = rolling.rows(), rolling.formed_us
            rolling = Rolling(window, basis)
            rolling.restore(held, formed)
    assert_same(concat([part for part in made if len(part)] or [NOTHING]), want, largest(rows))
    assert not len(rolling.rows())


@given(data=st.data(), windows=st.lists(algebra_strategies.windows(), min_size=1, max_size=3))
def test_a_store_of_windows_lets_each_go_once_and_whole(data: st.DataObject, windows: list[Window]) -> None:
    """protocol 6.1: windows of several specs that are one range leave once; a flush and what comes after it add up."""
    basis = ("count", "sum", "max")
    rows = data.draw(sliced(tuple(windows), 0, basis))
    want = combine(in_windows(rows, windows), basis)
    store, left = WindowStore(basis, windows), []
    came = np.zeros(len(rows), np.bool_)
    for step in [*sorted(data.draw(st.lists(st.integers(0, 60), max_size=5))), 10**6]:
        due = ~came & ((rows.end <= step) | (rows.start % 2 == 0))
        store.add(rows.take(due))
        came |= due
        closed = store.close(step)
        assert (closed.end <= step).all()
        left.append(closed)
        match data.draw(st.sampled_from(["on", "restart", "flush"])):
            case "restart":
                state = store.snapshot()
                store = WindowStore(basis, windows)
                store.restore(state)
            case "flush":
                open_ = store.view()
                left.append(store.flush())
                assert open_.start.tolist() == left[-1].start.tolist()
                assert not len(store)
    assert not len(store.view())
    whole = combine(concat([part for part in left if len(part)] or [NOTHING]), basis)
    assert_same(whole, want, 1.0)


@pytest.mark.parametrize("length", [10, 400])
def test_the_cost_of_a_step_does_not_grow_with_the_window(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go into a combination are counted: so many a slice, a slice a step, whatever the length."""
    n = 1_200
    start = np.arange(n, dtype=np.int64)
    zeros = np.zeros(n, np.int64)
    rows = Partials(start, start + 1, zeros, {"count": zeros + 1, "sum": zeros + 0.5, "max": zeros + 0.5})
    counted, real = [], aggregates.combine

    def counting(
        states: dict[str, Array], groups: Segments, basis: tuple[str, ...], ranks: Ints | None
    ) -> dict[str, Array]:
        counted.append(groups.rows)
        return real(states, groups, basis, ranks)

    monkeypatch.setattr(aggregates, "combine", counting)
    rolling = Rolling(Sliding(length, 1), ("count", "sum", "max"))
    for i in range(n):
        rolling.add(rows.take(slice(i, i + 1)))
        assert len(rolling.upto(i + 1)) == (i + 1 >= length)
    assert 0 < sum(counted) < 14 * n
