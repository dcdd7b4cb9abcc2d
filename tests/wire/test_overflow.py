"""Sums that no longer fit: they travel as the largest that do, and there is no answer from them. Never an exception."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import Readings, basis_of
from edge_agent.algebra.frame import Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import Partials, combine, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from edge_agent.wire import frames

ASKED = tuple(Aggregate(fn, fn) for fn in ("var", "stddev", "rms", "sum_of_squares", "skewness", "sum", "avg", "max"))


def sent(rows: Partials, scale: int | None) -> Partials:
    """The rows as the next tier gets them."""
    plan = Plan(b"12345678", "slice", basis_of(ASKED, scale), scale, 1, (("q", 1),))
    frame = frames.decode(frames.encode(Frame(1, 0, groups=(GroupPart(0, 0, (Section.of(0, plan, rows),)),))))
    assert isinstance(frame, Frame)
    return frame.groups[0].sections[0].named(plan).partials


def row(states: dict[str, Array]) -> Partials:
    return Partials(np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64), states)


def answered(rows: Partials, scale: int | None) -> set[str]:
    """The functions that have an answer."""
    return {a.fn for a in ASKED if not aggregates.lower(a, rows.states, scale).null[0]}


def test_a_sum_of_squares_beyond_128_bits_has_no_answer_and_the_others_have() -> None:
    """protocol 7.1"""
    k = 1_700_000  # two slices of so many readings near 2^53 units fit, their sum does not
    value = np.full(k, 2**53 - 1)
    value[::2] -= 10**9
    groups = Segments.runs(np.zeros(1, np.int64), k)
    basis = basis_of(ASKED, 0)
    part = row(aggregates.lift(Readings(np.zeros(k, np.int64), value, np.arange(k)), groups, basis, 0))
    assert int(part.states["sq"][0]) < 2**127
    merged = sent(combine(concat([sent(part, 0), sent(part, 0)]), basis), 0)
    assert answered(merged, 0) == {"skewness", "sum", "avg", "max"}
    again = sent(combine(concat([merged, part]), basis), 0)
    assert answered(again, 0) == {"skewness", "sum", "avg", "max"}


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_another_node_made_too_large_stop_no_merger(sign: int) -> None:
    """protocol 7.1"""
    basis = basis_of(ASKED, 0)
    states: dict[str, Array] = {name: np.ones(1, np.int64) for name in basis}
    states |= {name: np.ones(1) for name in ("m2", "m3")}
    states["sum"] = np.array([sign * (2**127 - 1)], object)
    merged = sent(combine(concat([row(states), row(states)]), basis), 0)
    assert int(merged.states["sum"][0]) == (2**127 - 1 if sign > 0 else -(2**127))
    assert "max" in answered(merged, 0)
    assert not {"sum", "avg", "var"} & answered(merged, 0)


def test_sums_of_floats_beyond_the_floats_stop_no_merger() -> None:
    """protocol 7.1"""
    basis = basis_of(ASKED, None)
    states: dict[str, Array] = {name: np.full(1, 1.7e308) for name in basis}
    states["count"] = np.ones(1, np.int64)
    with np.errstate(over="ignore"):
        merged = sent(combine(concat([row(states), row(states)]), basis), None)
    assert all(np.isfinite(column).all() for column in merged.states.values())
    assert answered(merged, None) == {"max"}
