"""The plain root closes overlapping windows step by step: the same rows as from all slices at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.partials.arrays import NO_INTS
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Sliding
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.rolling_windows import RollingWindows
from edge_agent.root.numpy.rows import WindowStates
from edge_agent.root.numpy.time_windows import WantedWindows, windows
from tests.support.laws.sliced_partials import RANKS, assert_same, largest, sliced, slid

ASKED = tuple(Aggregate(fn, fn) for fn in ("avg", "max", "stddev", "time_of_max"))


def told(made: WindowStates | None) -> list[tuple[int, int, int]]:
    """(start, key, late readings) of each window."""
    if made is None:
        return []
    return list(zip(made.rows.start.tolist(), made.rows.key.tolist(), made.late.tolist(), strict=True))


@given(data=st.data(), window=slid(), scales=st.sampled_from([(None,), (-1,), (-1, -1), (0, -1)]))
def test_windows_closed_step_by_step_are_those_of_all_rows_held(
    data: st.DataObject, window: Sliding, scales: tuple[int | None, ...]
) -> None:
    """protocol 4.2, 4.4, 6.1, 7.1: rows come in time, late for a window that has closed, or of a plan that is new."""
    query = Query("q", 1, "s", window, ASKED)
    held, rolled, after = list[PartialIndex](), RollingWindows(), -1
    plans = []
    for i, scale in enumerate(scales):
        basis = basis_of(ASKED, scale)
        rows = data.draw(sliced((query.time_window,), scale, basis))
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
        wanted = WantedWindows(query, Serving("q", 1), after, upto, NO_INTS)
        plain, stepped = windows(wanted, held, RANKS), windows(wanted, held, RANKS, rolled)
        assert told(stepped) == told(plain)
        if plain is not None and stepped is not None:
            assert_same(stepped.rows, plain.rows, largest(plain.rows))
        after = upto


def test_a_step_that_closes_nothing_leaves_what_the_next_one_needs() -> None:
    """The frontier moved, but no window ended."""
    query = Query("q", 1, "s", Sliding(4, 2), (Aggregate("sum", "sum"),))
    plan = Plan(b"12345678", "slice", ("count", "sum"), None, 1, (("q", 1),))
    holding, rolled = PartialIndex(plan), RollingWindows()
    one = np.ones(1, np.int64)
    holding.add(Partials(one * 0, one * 2, one * 0, {"count": one, "sum": one * 1.5}), late=False)
    for after, upto, starts in ((-1, 2, []), (2, 3, []), (3, 4, [0]), (4, 5, [])):
        made = windows(WantedWindows(query, Serving("q", 1), after, upto, NO_INTS), [holding], None, rolled)
        assert [start for start, _, _ in told(made)] == starts
