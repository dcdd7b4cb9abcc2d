"""Window types, every one of the registry, and the union of their edges."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.partials.partial import Partials, assign_windows, in_windows
from edge_agent.algebra.span import FAR_US, NO_EDGE, Lattice, Listed, Run, edge_sets, union
from edge_agent.algebra.windows import ALL, TYPES, Calendar, FixedBand, Sliding, Tumbling, Window
from edge_agent.algebra.windows.edges import Edges
from edge_agent.algebra.windows.package_types import contradiction
from tests.oracle import member_itself, time_windows
from tests.oracle.time_windows import Bounds
from tests.support import algebra_strategies

DAY = 86_400_000_000


@st.composite
def moments(draw: st.DrawFn) -> tuple[Window, list[int]]:
    """A window and instants in and around some of its windows: tiny ones, or such as people ask for."""
    if draw(st.booleans()):
        return draw(algebra_strategies.windows()), sorted(draw(st.lists(st.integers(0, 80), min_size=1, max_size=6)))
    window = draw(algebra_strategies.large_windows())
    change_us = draw(st.sampled_from(algebra_strategies.CHANGES_US))
    steps = st.one_of(st.integers(-(3 * 24 * 60), 3 * 24 * 60).map(lambda m: m * 60_000_000), st.integers(-2, 2))
    times = draw(st.lists(steps.map(lambda us: max(change_us + us, 0)), min_size=1, max_size=4))
    return window, sorted(times)


def windows_at(window: Window, times: Iterable[int]) -> list[Bounds]:
    """Every window that holds one of the instants."""
    return sorted({bounds for time in times for bounds in time_windows.holding(window, time)})


@given(moments())
def test_a_range_counts_in_the_windows_that_contain_it_and_their_ends_follow(of: tuple[Window, list[int]]) -> None:
    """protocol 6.2."""
    window, times = of
    ranges = [(low, high) for i, low in enumerate(times) for high in (low + 1, *(t + 1 for t in times[i:]))]
    low, high = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    row, start = window.assign(low, high)
    got = sorted(zip(row.tolist(), start.tolist(), window.ends(start).tolist(), strict=True))
    want = [
        (i, *bounds)
        for i, (first, last) in enumerate(ranges)
        for bounds in time_windows.holding(window, first)
        if last <= bounds[1]
    ]
    assert got == sorted(want)


@given(st.one_of(algebra_strategies.windows(), algebra_strategies.large_windows()))
def test_a_window_says_one_thing_of_its_windows_in_all_ways(window: Window) -> None:
    """The law that a definition checks for types of packages holds for the built-in ones."""
    assert not contradiction(window)


@given(moments())
def test_all_starts_with_their_ends_are_the_windows_of_the_oracle(of: tuple[Window, list[int]]) -> None:
    """What stands in for an oracle that is not written yet (tests/oracle/member_itself.py) says what a written one
    says."""
    window, times = of
    for time in times:
        assert member_itself.holding(window, time) == time_windows.holding(window, time)


@given(moments())
def test_edges_are_all_starts_and_ends_of_windows(of: tuple[Window, list[int]]) -> None:
    window, times = of
    known = {edge for bounds in windows_at(window, times) for edge in bounds}
    low, high = min([*known, times[0]]), max([*known, times[-1]])
    got = window.edges(low, high).tolist()
    assert got == sorted(set(got))
    assert known <= set(got)
    for edge in got:  # and nothing else is one: the windows on its two sides differ
        around = [time_windows.holding(window, edge - 1) if edge else [], time_windows.holding(window, edge)]
        assert around[0] != around[1], edge
        assert edge % window.unit_us == 0
    every = np.unique(np.concatenate([each.points(low, high) for each in window.edge_sets]))
    assert every.tolist() == got
    starts = window.edge_sets[0].points(low, high).tolist()
    assert {start for start, _ in windows_at(window, times)} <= set(starts)
    assert all(any(start == begin for begin, _ in time_windows.holding(window, start)) for start in starts)


@given(moments())
def test_lengths_and_order_are_as_the_type_says(of: tuple[Window, list[int]]) -> None:
    window, times = of
    found = windows_at(window, times)
    lengths = {end - start for start, end in found}
    assert all(0 < length <= window.longest_us for length in lengths)
    assert len(lengths) <= 1 or not window.one_length
    assert not window.one_length or lengths <= {window.longest_us}
    assert len({start for start, _ in found}) == len(found)
    assert sorted(end for _, end in found) == [end for _, end in found]
    assert window.spacing


@given(moments(), st.booleans())
def test_runs_of_even_windows_are_the_windows_that_end_there(of: tuple[Window, list[int]], whole: bool) -> None:
    window, times = of
    found = windows_at(window, times)
    after, upto = (found[0][1] - 1, found[-1][1]) if found and whole else (times[0] - 1, times[-1])
    runs = list(window.runs(after, upto))
    assert all(after <= comb.after_us < comb.upto_us <= upto or not spread(comb) for comb in runs)
    assert all(earlier.upto_us <= later.after_us for earlier, later in pairwise(runs))
    got = [bounds for comb in runs for bounds in spread(comb)]
    edges = window.edges(max(after + 1, 0), upto)
    wanted = {each for e in edges.tolist() if e for each in time_windows.holding(window, e - 1) if each[1] == e}
    assert got == sorted(wanted)


def spread(comb: Run) -> list[Bounds]:
    """The windows of a run, as Spark forms them: by the algebra of evenly spaced windows."""
    even = Sliding(comb.length_us, comb.slide_us, comb.offset_us)
    first = max(comb.after_us + 1 - comb.length_us, 0)
    starts = even.edge_sets[0].points(first, comb.upto_us - comb.length_us).tolist()
    return [(start, start + comb.length_us) for start in starts]


@given(moments())
def test_before_and_after_an_instant_lie_its_nearest_edges(of: tuple[Window, list[int]]) -> None:
    window, times = of
    for each in window.edge_sets:
        before, after = each.around(np.array(times))
        for time, low, high in zip(times, before.tolist(), after.tolist(), strict=True):
            assert low <= time < high
            inside = each.points(max(low, 0) + (low != NO_EDGE), min(high - 1, time + 2 * window.longest_us))
            assert not len(inside)
            assert low == NO_EDGE or each.points(low, low).tolist() == [low]
            assert high == FAR_US or each.points(high, high).tolist() == [high]
        assert each.points(0, each.first_us).tolist() == [each.first_us]


SETS = st.builds(Lattice, st.integers(1, 12), st.integers(0, 12)) | st.lists(
    st.integers(0, 40), min_size=1, max_size=3, unique=True
).map(lambda edges: Listed(tuple(sorted(edges))))


@given(sets=st.lists(SETS, min_size=1, max_size=5))
def test_a_union_of_edges_keeps_every_one_with_fewer_sets(sets: list[Lattice | Listed]) -> None:
    kept = union(sets)
    even = edge_sets(sets)
    assert set(even) <= set(sets)
    assert len(kept) <= len(even) + 1
    every = {int(e) for each in sets for e in each.points(0, 300)}
    assert {int(e) for each in kept for e in each.points(0, 300)} == every
    assert {int(e) for each in even for e in each.points(0, 300)} <= every


@given(
    windows=st.lists(algebra_strategies.windows(), min_size=1, max_size=4),
    times=st.lists(st.integers(0, 200), min_size=1, max_size=20),
    far=st.sampled_from([1, 10_000_000]),
)
def test_a_cut_gives_the_slices_between_neighbouring_edges(windows: list[Window], times: list[int], far: int) -> None:
    """far: readings so far apart that the edges between them are not looked at one by one."""
    edges = Edges(windows)
    for seen in (times, times[: len(times) // 2 + 1]):  # a second batch meets the cache, and may go back in time
        time_us = np.array(sorted(t * far for t in seen), np.int64)
        time_us = time_us[(time_us >= edges.first_us) & (time_us < edges.last_us)]
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
            reach = [window.edges(-window.longest_us, 1_000 + window.longest_us) for window in windows]
            known = np.unique(np.concatenate(reach))
            assert start.tolist() == [int(known[known <= t].max()) for t in time_us[rows]]
            assert end.tolist() == [int(known[known > t].min()) for t in time_us[rows]]


@given(
    windows=st.lists(algebra_strategies.large_windows(), min_size=1, max_size=3),
    change=st.sampled_from(algebra_strategies.CHANGES_US),
)
def test_slices_of_large_windows_lie_whole_in_their_windows(windows: list[Window], change: int) -> None:
    """Every reading of a slice is in the same windows: so a slice counts in all or none (protocol 6.2)."""
    edges = Edges(windows)
    time_us = np.array([change + minutes * 60_000_000 for minutes in range(-3 * 1440, 3 * 1440, 97)])
    time_us = time_us[(time_us >= edges.first_us) & (time_us < edges.last_us)]
    if not len(time_us):
        return
    rows, start, end = edges.cut(time_us)
    for window in windows:
        slices, whole = window.assign(start, end)
        alone, each = window.assign(time_us, time_us + 1)
        by_slice = np.repeat(np.arange(len(rows)), np.diff([*rows, len(time_us)]))
        want = {(int(by_slice[reading]), at) for reading, at in zip(alone.tolist(), each.tolist(), strict=True)}
        assert set(zip(slices.tolist(), whole.tolist(), strict=True)) == want


@given(windows=st.lists(algebra_strategies.windows(), min_size=1, max_size=4), time=st.integers(0, 60))
@example(windows=[Tumbling(3), Sliding(3, 2), FixedBand(0, 3)], time=0)
def test_a_range_that_is_a_window_of_several_is_there_once(windows: list[Window], time: int) -> None:
    ones = np.ones(1, np.int64)
    slices = Partials(np.array([time]), np.array([time + 1]), ones, {"count": ones})
    got = in_windows(slices, windows)
    bounds = sorted(zip(got.start.tolist(), got.end.tolist(), strict=True))
    assert bounds == sorted({each for window in windows for each in time_windows.holding(window, time)})


def test_a_day_is_there_once_as_a_date_and_as_24_hours() -> None:
    windows: list[Window] = [Calendar("day"), Tumbling(DAY), Calendar("day", "Europe/Berlin")]
    ones = np.ones(1, np.int64)
    got = in_windows(Partials(ones * DAY, ones * DAY + 1, ones, {"count": ones}), windows)
    assert sorted(got.start.tolist()) == [DAY - 3_600_000_000, DAY]
    assert assign_windows(got, Tumbling(DAY), ("count",)).states["count"].tolist() == [1]


@pytest.mark.parametrize(
    "window",
    [Calendar("day"), Calendar("day", "America/New_York", 20 * 3_600_000_000), Calendar("week", offset_us=6 * DAY)],
    ids=str,
)
def test_the_first_edge_of_a_calendar_is_that_of_its_edges(window: Calendar) -> None:
    """With an offset the last day or week of 1969 may begin in 1970."""
    (edges,) = window.edge_sets
    assert edges.first_us == int(edges.points(0, 40 * DAY)[0])


def test_before_the_first_window_there_is_no_edge() -> None:
    start, end = Edges([Tumbling(10, 3)]).around(np.array([-5, 0, 2, 3]))
    assert start.tolist() == [NO_EDGE, NO_EDGE, NO_EDGE, 3]
    assert end.tolist() == [3, 3, 3, 13]


def test_a_thousand_windows_of_whole_seconds_are_one_lattice() -> None:
    windows: list[Window] = [Tumbling(1_000_000 * (1 + i % 20)) for i in range(1_000)]
    edges = Edges(windows)
    assert edges._lattices == (Lattice(1_000_000, 0),)


def test_a_thousand_fixed_bands_are_one_list_of_edges() -> None:
    edges = Edges([FixedBand(i * 7, 5) for i in range(1_000)])
    assert edges._lattices == (Listed(tuple(sorted({e for i in range(1_000) for e in (i * 7, i * 7 + 5)}))),)


def test_scattered_readings_cost_no_memory_for_the_edges_between_them() -> None:
    """A sensor that jumps by years must not make a gateway list every millisecond."""
    edges = Edges([Tumbling(1_000)])
    time_us = np.array([0, 1, 10**15, 10**15 + 1_000])
    rows, start, _end = edges.cut(time_us)
    assert rows.tolist() == [0, 2, 3]
    assert start.tolist() == [0, 10**15, 10**15 + 1_000]


@pytest.mark.parametrize(
    ("window", "starts"),
    [(Tumbling(10), [0, 10]), (Sliding(10, 5), [0, 5, 10]), (Sliding(10, 10, 5), [5]), (FixedBand(3, 4), [3])],
)
def test_windows_begin_at_multiples_of_the_slide_from_0_on(window: Window, starts: list[int]) -> None:
    time = np.arange(15)
    _row, start = window.assign(time, time + 1)
    assert sorted(set(start.tolist())) == starts


def test_the_registry_knows_each_type_by_its_word() -> None:
    assert all(spec.type == word for word, spec in ALL.items())
    assert set(time_windows.TYPES) <= set(TYPES)
    assert set(TYPES) | {"session"} <= set(ALL)
