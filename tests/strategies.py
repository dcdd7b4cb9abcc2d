"""Hypothesis strategies for the values of the algebra; small, so that counterexamples can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import FUNCTIONS, Readings
from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.windows import Sliding, Tumbling, Window

# sums of squares of these stay exact enough to compare variances by value
floats = st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 3))
units = st.one_of(st.integers(-1000, 1000), st.integers(-(2**53), 2**53))
LABELS = ("weight", "area")
WEIGHTS = (0.5, 3.0, float("nan"), 0.0)  # what labels say as numbers; NaN: they say none
scales = st.sampled_from([None, 0, -1, -3, 2])


def values(scale: int | None) -> st.SearchStrategy[float] | st.SearchStrategy[int]:
    """Values of a sensor of that scale."""
    return floats if scale is None else units


@st.composite
def readings(draw: st.DrawFn, scale: int | None, node: int = 0, max_size: int = 12) -> Readings:
    """Readings of one node, sorted as `lift` wants them; times collide often."""
    times = sorted(draw(st.lists(st.integers(0, 20), max_size=max_size)))
    value = draw(st.lists(values(scale), min_size=len(times), max_size=len(times)))
    dtype = np.float64 if scale is None else np.int64
    said = {label: np.array([WEIGHTS[(3 * node + i) % 4] for i in range(len(times))], np.float64) for label in LABELS}
    return Readings(np.array(times, np.int64), np.array(value, dtype), np.arange(len(times)), node, said)


@st.composite
def aggregates(draw: st.DrawFn) -> tuple[Aggregate, ...]:
    """A few different aggregates with parameters."""
    chosen = draw(st.lists(st.sampled_from(every_aggregate()), min_size=1, max_size=4, unique=True))
    return tuple(chosen)


def every_aggregate() -> list[Aggregate]:
    """Every registered function with every combination of its parameters."""
    out: list[Aggregate] = []
    for function in FUNCTIONS.values():
        choices: list[tuple[tuple[str, Any], ...]] = [()]
        for name, param in function.params:
            choices = [(*chosen, (name, value)) for chosen in choices for value in param.choices]
        out += [Aggregate(function.name, "_".join([function.name, *(str(v) for _, v in c)]), c) for c in choices]
    return out


@st.composite
def windows(draw: st.DrawFn, longest: int = 24) -> Window:
    """Tumbling and sliding windows of a few microseconds; slides need not divide lengths."""
    length = draw(st.integers(1, longest))
    if draw(st.booleans()):
        return Tumbling(length, draw(st.integers(0, length - 1)))
    slide = draw(st.integers(1, length))
    return Sliding(length, slide, draw(st.integers(0, slide - 1)))


@st.composite
def queries(draw: st.DrawFn, by: tuple[str, ...] = (), lateness_us: int = 3, late: str = "revise") -> tuple[Query, ...]:
    """Queries of one group."""
    specs = draw(st.lists(st.tuples(windows(), aggregates()), min_size=1, max_size=4))
    return tuple(
        Query(f"q{i}", 1, "s", window, wanted, by=by, lateness_us=lateness_us, late=late)
        for i, (window, wanted) in enumerate(specs)
    )
