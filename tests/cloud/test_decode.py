"""Rows of frames become windows in the task that decodes them: no Spark needed to say which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.partials.partial import assign_windows, combine, concat, in_windows
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.windows import Sliding
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.work_rows import windows_in
from tests.support.laws.sliced_partials import RANKS, assert_same, largest, sliced, slid

ASKED = tuple(Aggregate(fn, fn) for fn in ("avg", "max", "stddev", "median"))


def span(window: Sliding, low: int, high: int) -> WindowRange:
    """Windows that start from low to high."""
    bounds = {"after_us": low + window.length_us - 1, "upto_us": high + window.length_us}
    fixed = {"length_us": window.length_us, "slide_us": window.slide_us, "offset_us": window.offset_us}
    about = {"coverage_id": "", "expected": 1, "received": 1, "complete": True}
    return WindowRange("q", 1, 0, **bounds, **fixed, low_us=low, high_us=high, orders=(0,), **about)  # type: ignore[arg-type]


@given(
    data=st.data(), window=slid(), scale=st.sampled_from([None, -1]), low=st.integers(0, 40), many=st.integers(0, 30)
)
def test_a_task_forms_the_windows_of_a_span_from_slices_and_takes_whole_ones_as_they_are(
    data: st.DataObject, window: Sliding, scale: int | None, low: int, many: int
) -> None:
    """protocol 6.2: a slice counts in every window that contains it, a window in the one equal to it."""
    basis = basis_of(ASKED, scale)
    rows = data.draw(sliced((window,), scale, basis))
    low = window.offset_us + low // window.slide_us * window.slide_us
    wanted = span(window, low, low + many * window.slide_us)
    every = assign_windows(rows, window, basis, RANKS)
    some = every.take((every.start >= wanted.low_us) & (every.start <= wanted.high_us))
    assert_same(windows_in(rows, wanted, basis, RANKS, exact=False), some, largest(rows))
    whole = combine(in_windows(rows, [window]), basis, None, RANKS)
    longer = in_windows(rows, [Sliding(window.length_us + 1, window.slide_us, window.offset_us)])
    assert_same(windows_in(concat([longer, whole]), wanted, basis, RANKS, exact=True), some, largest(rows))
