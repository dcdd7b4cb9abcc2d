"""The plain root closes overlapping windows step by step: the same rows as from all slices at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.windows import Sliding
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.rolling_windows import RollingWindows
from edge_agent.root.numpy.rows import WindowStates
from edge_agent.root.numpy.time_windows import formed, rolled
from tests.support.laws.sliced_partials import RANKS, assert_same, largest, sliced, slid

ASKED = tuple(Aggregate(fn, fn) for fn in ("avg", "max", "stddev", "time_of_max"))


def closing(window: Sliding, after: int, upto: int) -> WindowRange:
    """All windows with an end in (after, upto]."""
    ends = (after, upto, window.length_us, window.slide_us, window.offset_us)
    return WindowRange(
        "q", 1, 0, *ends, max(after + 1 - window.length_us, 0), upto - window.length_us, (), "", 0, 0, False
    )


def finest(scales: Sequence[int | None]) -> int | None:
    """The scale at which plans meet."""
    return None if None in scales else min(scale for scale in scales if scale is not None)


def told(made: WindowStates) -> list[tuple[int, int, int]]:
    """(start, key, late readings) of each window."""
    return list(zip(made.rows.start.tolist(), made.rows.key.tolist(), made.late.tolist(), strict=True))


@given(data=st.data(), window=slid(), scales=st.sampled_from([(None,), (-1,), (-1, -1), (0, -1)]))
def test_windows_closed_step_by_step_are_those_of_all_rows_held(
    data: st.DataObject, window: Sliding, scales: tuple[int | None, ...]
) -> None:
    """protocol 4.2, 4.4, 6.1, 7.1: rows come in time, late for a window that has closed, or of a plan that is new."""
    held, rolling, after = list[PartialIndex](), RollingWindows(), -1
    plans = []
    for i, scale in enumerate(scales):
        basis = basis_of(ASKED, scale)
        rows = data.draw(sliced((window,), scale, basis))
        plans.append((Plan(bytes([i] * 8), "slice", basis, scale, 1, (("q", 1),)), rows))
    for upto in [*sorted(data.draw(st.lists(st.integers(0, 60), max_size=6))), 10**6]:
        for i, (plan, rows) in enumerate(plans):
            if not len(rows):
                continue
            late_too = data.draw(st.booleans())
            now = (rows.end <= upto) & (late_too | (rows.end > after))
            early = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
            now |= early
            if now.any():
                mine = next((holding for holding in held if holding.plan is plan), None)
                if mine is None:
                    mine = PartialIndex(plan)
                    held.append(mine)
                mine.add(rows.take(now), late=data.draw(st.booleans()))
            plans[i] = (plan, rows.take(~now))
        span, shape = (
            closing(window, after, upto),
            (ASKED, finest(scales)),
        )
        plain, stepped = formed(span, held, shape, RANKS), rolled(span, held, shape, RANKS, rolling)
        assert told(stepped) == told(plain)
        if len(plain.rows):
            assert_same(stepped.rows, plain.rows, largest(plain.rows))
        after = upto


def test_a_step_that_closes_nothing_leaves_what_the_next_one_needs() -> None:
    """The frontier moved, but no window ended."""
    window, shape = Sliding(4, 2), ((Aggregate("sum", "sum"),), None)
    plan = Plan(b"12345678", "slice", ("count", "sum"), None, 1, (("q", 1),))
    index, rolling = PartialIndex(plan), RollingWindows()
    one = np.ones(1, np.int64)
    index.add(Partials(one * 0, one * 2, one * 0, {"count": one, "sum": one * 1.5}), late=False)
    for after, upto, starts in ((-1, 2, []), (2, 3, []), (3, 4, [0]), (4, 5, [])):
        made = rolled(closing(window, after, upto), [index], shape, None, rolling)
        assert [start for start, _, _ in told(made)] == starts
