"""Readings split over nodes and parts, their partials, and the oracle's answer."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, Readings
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from tests.oracle import central_computer, member_itself
from tests.support import algebra_strategies
from tests.support.tolerance import assert_same_column

EVERY = algebra_strategies.every_aggregate()
# node numbers order differently from node ids, so that a combine that ignores ranks is found out
NODES = ["n-e", "n-d", "n-c", "n-b", "n-a"]
RANKS = np.array([4, 3, 2, 1, 0])


def lifted(parts: list[Readings], basis: tuple[str, ...], scale: int | None) -> list[Partials]:
    """Each part as the partial of one slice [0, 1) of key 0; parts without readings give no row."""
    out = []
    for part in parts:
        k = len(part.time_us)
        groups = Segments.runs(np.zeros(min(k, 1), np.int64), k)
        states = aggregates.lift(part, groups, basis, scale)
        n = len(groups)
        out.append(Partials(np.zeros(n, np.int64), np.ones(n, np.int64), np.zeros(n, np.int64), states))
    return out


def reach(parts: list[Readings], column: str) -> float:
    """How large the squares of the values are together, of moments their powers: the scale of floats made of them."""
    power = max(2, COLUMNS[column].degree)
    return float(sum((np.abs(part.value.astype(np.float64)) ** power).sum() for part in parts))


def assert_same(got: Partials, want: Partials, parts: list[Readings]) -> None:
    for name in ("start", "end", "key"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist()
    assert set(got.states) == set(want.states)
    for name, column in want.states.items():
        assert_same_column(got.states[name], column, reach(parts, name))


def naive(parts: list[Readings], scale: int | None, nodes: list[str]) -> list[central_computer.Reading]:
    out = []
    for part in parts:
        for i, (time_us, value, order) in enumerate(
            zip(part.time_us.tolist(), part.value.tolist(), part.order.tolist(), strict=True)
        ):
            number = value if scale is None else central_computer.exact(value, scale)
            labels = {label: str(said[i]) for label, said in part.numbers.items()}
            out.append(central_computer.Reading(time_us, number, nodes[part.node], order, labels))
    return sorted(out, key=lambda r: (r.time_us, r.node.encode(), r.order))


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[int | None, list[Readings]]:
    """Readings of several nodes, a part each, some empty."""
    scale = draw(algebra_strategies.scales)
    count = draw(st.integers(1, 5))
    return scale, [draw(algebra_strategies.readings(scale, node)) for node in range(count)]


def terms_of(aggregate: Aggregate, readings: list[central_computer.Reading]) -> float:
    """How large the terms were that made an answer: what its error is relative to."""
    values = [float(r.value) for r in readings]
    largest = max(map(abs, values))
    away = max(abs(v - sum(values) / len(values)) for v in values)
    condition = largest / away if away else 1.0  # how much larger than their distances: what these have lost
    params = dict(aggregate.params)
    match aggregate.fn, params.get("kind"):
        case ("time_of_min" | "time_of_max" | "time_of_first" | "time_of_last", _):
            return 0.0
        case ("count_if" | "share_if" | "resets" | "time_in_state" | "duration", _):
            return 0.0
        case ("rate" | "derivative" | "slope", _):
            return largest * len(values) * 1e6  # times are microseconds here
        case "increase", _:
            return largest * len(values)
        case ("var" | "stddev" | "sum_of_squares", _):
            return largest**2
        case "percent_change", _ if values[0]:
            return 100.0 * largest / abs(values[0])
        case "moment", "central":
            return float(largest ** int(str(params["order"])))
        case ("skewness" | "kurtosis" | "moment", _):
            return 100.0 * len(values) ** 2 * condition**2
    return (
        largest
        if aggregate.fn in central_computer.WRITTEN
        else member_itself.terms(aggregate.fn, largest) * len(values)
    )
