"""Window types and the union of their edges."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.span import NO_EDGE, Lattice, union
from edge_agent.algebra.windows import TYPES, Sliding, Tumbling, Window
from edge_agent.algebra.windows.edges import Edges
from tests import strategies


def naive_edges(windows: list[Window], high: int) -> list[int]:
    out = set()
    for window in windows:
        for start in range(window.lattices[0].phase_us, high + 1, window.slide_us):
            out |= {start, start + window.length_us}
    return sorted(edge for edge in out if edge <= high)


@given(window=strategies.windows(), low=st.integers(-50, 100), span=st.integers(0, 100))
def test_edges_are_all_starts_and_ends_of_windows(window: Window, low: int, span: int) -> None:
    got = window.edges(low, low + span).tolist()
    assert got == [edge for edge in naive_edges([window], low + span) if edge >= low]
    assert all(edge % window.unit_us == 0 for edge in got)
    assert math.gcd(window.unit_us, window.length_us, window.slide_us) == window.unit_us


@given(lattices=st.lists(st.builds(Lattice, st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=5))
def test_a_union_of_lattices_keeps_every_edge_with_fewer_lattices(lattices: list[Lattice]) -> None:
    kept = union(lattices)
    assert set(kept) <= set(lattices)
    every = {int(e) for lattice in lattices for e in lattice.points(0, 300)}
    assert {int(e) for lattice in kept for e in lattice.points(0, 300)} == every


@given(
    windows=st.lists(strategies.windows(), min_size=1, max_size=4),
    times=st.lists(st.integers(0, 200), min_size=1, max_size=20),
    far=st.sampled_from([1, 10_000_000]),
)
def test_a_cut_gives_the_slices_between_neighbouring_edges(windows: list[Window], times: list[int], far: int) -> None:
    """far: readings so far apart that the edges between them are not looked at one by one."""
    edges = Edges(windows)
    for seen in (times, times[: len(times) // 2 + 1]):  # a second batch meets the cache, and may go back in time
        time_us = np.array(sorted(t * far for t in seen), np.int64)
        time_us = time_us[time_us >= edges.first_us]
        if not len(time_us):
            continue
        rows, start, end = edges.cut(time_us)
        assert rows[0] == 0
        assert (np.diff(rows) > 0).all()
        bounds = [*rows.tolist(), len(time_us)]
        for i, (low, high) in enumerate(pairwise(bounds)):
            inside = time_us[low:high]
            assert (start[i] <= inside).all()
            assert (inside < end[i]).all()
        before, after = edges.around(time_us[rows])
        assert before.tolist() == start.tolist()
        assert after.tolist() == end.tolist()
        if far == 1:
            known = np.array(naive_edges(windows, 1_000))
            assert start.tolist() == [int(known[known <= t].max()) for t in time_us[rows]]
            assert end.tolist() == [int(known[known > t].min()) for t in time_us[rows]]


def test_before_the_first_window_there_is_no_edge() -> None:
    start, end = Edges([Tumbling(10, 3)]).around(np.array([-5, 0, 2, 3]))
    assert start.tolist() == [NO_EDGE, NO_EDGE, NO_EDGE, 3]
    assert end.tolist() == [3, 3, 3, 13]


def test_a_thousand_windows_of_whole_seconds_are_one_lattice() -> None:
    windows: list[Window] = [Tumbling(1_000_000 * (1 + i % 20)) for i in range(1_000)]
    edges = Edges(windows)
    assert edges._lattices == (Lattice(1_000_000, 0),)


def test_scattered_readings_cost_no_memory_for_the_edges_between_them() -> None:
    """A sensor that jumps by years must not make a gateway list every millisecond."""
    edges = Edges([Tumbling(1_000)])
    time_us = np.array([0, 1, 10**15, 10**15 + 1_000])
    rows, start, _end = edges.cut(time_us)
    assert rows.tolist() == [0, 2, 3]
    assert start.tolist() == [0, 10**15, 10**15 + 1_000]


@pytest.mark.parametrize(
    ("window", "starts"),
    [(Tumbling(10), [0, 10]), (Sliding(10, 5), [0, 5, 10]), (Sliding(10, 10, 5), [5])],
)
def test_windows_begin_at_multiples_of_the_slide_from_0_on(window: Window, starts: list[int]) -> None:
    time = np.arange(15)
    _row, start = window.assign(time, time + 1)
    assert sorted(set(start.tolist())) == starts


def test_the_registry_knows_each_type_by_its_word() -> None:
    assert {word: cls.__name__ for word, cls in TYPES.items()} == {"tumbling": "Tumbling", "sliding": "Sliding"}
