"""Which windows a serving range covers (docs/protocol.md 6.3)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Serving

BOUND = st.none() | st.integers(0, 20)


@given(BOUND, BOUND, BOUND, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8))
def test_one_window_and_many_are_judged_alike(
    begin: int | None, until: int | None, end: int | None, windows: list[tuple[int, int]]
) -> None:
    serving = Serving("q", 1, begin, until, end)
    wanted = [
        (begin is None or start >= begin) and (until is None or start < until) and (end is None or start + size <= end)
        for start, size in windows
    ]
    assert [serving.covers(start, start + size) for start, size in windows] == wanted
    starts = np.array([start for start, _ in windows], np.int64)
    assert serving.covered(starts, starts + np.array([size for _, size in windows], np.int64)).tolist() == wanted
