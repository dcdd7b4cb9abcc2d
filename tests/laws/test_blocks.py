"""Windows formed from blocks with sums are those formed from all the slices; what is not needed any more may go."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.partial import NOTHING, Partials
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.sliding.batch import in_windows_of
from edge_agent.algebra.sliding.prefix_blocks import PARTS, Blocks, kept_columns, kept_us, pays
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from tests.support.laws.sliced_partials import EVERY, RANKS, assert_same, largest, sliced, slid

NODES = ["gw-b", "gw-a", "gw-c"]  # by number; RANKS is their bytewise order


@given(data=st.data(), window=slid(), scale=st.sampled_from([None, 0, -1]), length=st.integers(1, 40))
def test_windows_from_blocks_equal_windows_from_all_slices(
    data: st.DataObject, window: Sliding, scale: int | None, length: int
) -> None:
    """protocol 8.6"""
    whole = basis_of(EVERY, scale)
    basis = kept_columns(whole)
    rows = data.draw(sliced((window,), scale, whole))
    cut = Partials(rows.start, rows.end, rows.key, {name: rows.states[name] for name in basis} if len(rows) else {})
    blocks = Blocks(basis, length * PARTS, NODES)  # blocks of `length`
    marks = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    for low, high in pairwise([0, *marks, len(rows)]):
        blocks.add(rows.take(slice(low, high)))
        asked = sorted(data.draw(st.lists(st.integers(-60, 400), min_size=2, max_size=2)))
        first, last = asked
        so_far = cut.take(slice(0, high))
        shared = (last, first + window.length_us)
        chosen = blocks.within(first, last + window.length_us, shared)
        got = in_windows_of(chosen, window, basis, (first, last), RANKS) if len(chosen) else NOTHING
        want = in_windows_of(so_far, window, basis, (first, last), RANKS) if high else NOTHING
        assert_same(got, want, largest(rows))


def slices(n: int, keys: int = 1) -> Partials:
    """n slices of 1 us, a row a key each."""
    start = np.repeat(np.arange(n, dtype=np.int64), keys)
    states = {"count": np.ones(len(start), np.int64), "sum": start.astype(np.float64)}
    return Partials(start, start + 1, np.tile(np.arange(keys), n), states)


def test_a_long_window_costs_a_few_rows_a_key() -> None:
    """protocol 8.6: the parts of two blocks, and a sum of each block between."""
    blocks = Blocks(("count", "sum"), 3_600)
    blocks.add(slices(4_000, keys=2))
    rows = blocks.within(100, 3_702, (102, 3_700))
    assert len(rows) <= 2 * (PARTS + 2 * 3_600 // PARTS)
    made = in_windows_of(rows, Sliding(3_600, 1), ("count", "sum"), (100, 102))
    assert made.states["count"].tolist() == [3_600] * 6
    assert made.states["sum"].tolist() == [float(sum(range(low, low + 3_600))) for low in (100, 101, 102) for _ in "ab"]


def test_a_late_delta_in_a_block_that_was_summed_counts() -> None:
    """protocol 6.1, 8.6"""
    blocks = Blocks(("count", "sum"), 640)
    blocks.add(slices(1_000))
    assert blocks.within(0, 700, (0, 700)).states["count"].sum() == 700
    blocks.add(slices(1))
    assert blocks.within(0, 700, (0, 700)).states["count"].sum() == 701


def test_blocks_are_forgotten_when_all_their_rows_start_before() -> None:
    blocks = Blocks(("count", "sum"), 640)
    blocks.add(slices(1_000))
    weight = blocks.bytes
    blocks.forget(505)
    rows = blocks.within(0, 1_000, (0, 0))
    assert rows.start.min() == 500
    assert 0 < blocks.bytes < weight
    blocks.forget(2_000)
    assert blocks.bytes == 0
    assert not len(blocks.within(0, 1_000, (0, 0)))


def asked(window: Window, *fns: str) -> Query:
    """A query for these functions."""
    return Query("q", 1, "s", window, tuple(Aggregate(fn, fn) for fn in fns))


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (asked(Sliding(5, 1), "avg", "max", "last"), True),
        (asked(Sliding(4, 1), "avg"), False),
        (asked(Tumbling(5), "avg"), False),
        (asked(Sliding(5, 1), "avg", "median"), False),
    ],
)
def test_slices_are_kept_for_long_windows_of_states_that_do_not_grow(query: Query, *, kept: bool) -> None:
    """protocol 8.6"""
    assert pays(query, None) is kept
    assert kept_us([query, asked(Sliding(3, 1), "sum")], None) == (5 if kept else 0)
