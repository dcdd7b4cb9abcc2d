"""Partials cut at the edges of windows, and how two sets of them compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import COLUMNS, lift
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat
from edge_agent.algebra.partials.segments import Segments, narrow
from edge_agent.algebra.span import FAR_US, NO_EDGE
from edge_agent.algebra.windows import Sliding, Window
from edge_agent.algebra.windows.edges import Edges
from tests.support import algebra_strategies
from tests.support.algebra_strategies import every_aggregate
from tests.support.tolerance import assert_same_column

EVERY = every_aggregate()
RANKS = np.array([1, 0, 2], np.int64)


@st.composite
def slid(draw: st.DrawFn, longest: int = 24) -> Sliding:
    """Sliding windows; the slide need not divide the length."""
    length = draw(st.integers(1, longest))
    slide = draw(st.integers(1, length))
    return Sliding(length, slide, draw(st.integers(0, slide - 1)))


@st.composite
def sliced(draw: st.DrawFn, windows: tuple[Window, ...], scale: int | None, basis: tuple[str, ...]) -> Partials:
    """Partials of readings of a few keys and nodes, cut at the edges of all these windows; with late deltas."""
    edges = Edges(windows)
    parts: list[Partials] = []
    for node in range(draw(st.integers(1, 3))):
        for key in draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)):
            far = draw(st.sampled_from([1, 1, 7, 1_000]))
            readings = draw(algebra_strategies.readings(scale, node))
            time_us = readings.time_us * far
            before, after = edges.around(time_us)
            if not len(time_us) or before[0] == NO_EDGE or after[-1] == FAR_US:
                continue
            rows, start, end = edges.cut(time_us)
            groups = Segments.runs(rows, len(time_us))
            numbered = readings.order + 100 * len(parts)  # no two readings of a node have one arrival number
            states = lift(replace(readings, time_us=time_us, order=numbered), groups, basis, scale)
            if draw(st.booleans()):  # as late ones: the span of their own readings
                start, end = time_us[groups.first()], time_us[groups.last()] + 1
            parts.append(Partials(start, end, np.full(len(rows), key), states))
    rows_ = concat(parts) if parts else NOTHING
    order = draw(st.permutations(range(len(rows_))))
    return rows_.take(np.array(order, np.int64)) if len(rows_) else rows_


def assert_same(got: Partials, want: Partials, scale: float) -> None:
    """The same rows in the same order."""
    for name in ("start", "end", "key"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist()
    if len(want):
        assert set(got.states) == set(want.states)
        for name, column in want.states.items():
            if column.dtype == object and isinstance(column[0], bytes):
                continue  # sketches of one content may differ in bytes; laws of their own hold them
            mine, plain = got.states[name], column
            if COLUMNS[name].kind == "wide":  # a part of some rows may fit where the whole did not
                mine, plain = narrow(mine), narrow(plain)
            power = int(name[1]) if name in {"m3", "m4", "m5"} else 2
            assert_same_column(mine, plain, scale**power)


def largest(rows: Partials) -> float:
    """How large a term may be."""
    sums = rows.states.get("sum", np.zeros(0))
    return max([1.0, *(abs(float(v)) for v in sums.tolist())])
