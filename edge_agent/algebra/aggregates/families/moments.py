"""count, sum, avg, var and stddev. They share three numbers per group.

The state of the variance of floats is the sum of squared distances from the group's own mean (m2). It is merged in two
passes, with the mean of the whole, never as a difference of squares, which cancels (docs/protocol.md 7.2). For scaled
integers the state is the exact sum of squares, so results are bit-equal in whatever order states merge
(docs/protocol.md 7.1). Source: Chan, Golub & LeVeque (1983), "Algorithms for Computing the Sample Variance", equation
2.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Param, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered, decimals, plain
from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments, narrow
from edge_agent.algebra.partials.units import out_of_reach, ratio, times, within_reach

NEAR_WHOLE: Final = 1e-12  # relative distance from a whole number within which a mean of floats counts as whole


def _lift_m2(readings: Readings, groups: Segments, _scale: int | None, lifted: States) -> dict[str, Array]:
    distance = readings.value - groups.spread(mean(lifted))
    with np.errstate(over="ignore"):
        return {"m2": within_reach(groups.sum(distance * distance))}


def mean(states: States) -> Floats:
    """The mean, rounded once. In units if readings are scaled integers."""
    total = states["sum"]
    return total / states["count"] if total.dtype == np.float64 else ratio(total, states["count"])


def _combine_m2(states: States, groups: Segments, combined: States, _ranks: Ints | None) -> dict[str, Array]:
    away = mean(states) - groups.spread(mean(combined))
    with np.errstate(over="ignore"):
        return {"m2": within_reach(groups.sum(states["m2"] + states["count"] * away * away))}


def _lower_sum(states: States, scale: int | None, _params: Params) -> Lowered:
    whole = decimals(states["sum"], scale)
    return answered(whole.value, out_of_reach(states["sum"]), whole.details)


def _lower_avg(states: States, scale: int | None, params: Params) -> Lowered:
    truncate = params["rounding"] == "truncate"
    if scale is None:
        return answered(_truncated(mean(states)) if truncate else mean(states), out_of_reach(states["sum"]))
    above = times(states["sum"], 10 ** max(scale, 0))
    below = times(states["count"], 10 ** max(-scale, 0))
    if not truncate:
        return answered(ratio(above, below), out_of_reach(states["sum"]))
    size = np.abs(above)
    quotient = size // below
    whole = decimals(narrow(np.where(np.less(above, 0), -quotient, quotient)), 0)
    return answered(whole.value, out_of_reach(states["sum"]), whole.details)


def _truncated(value: Array) -> Array:
    """Without decimals, toward zero. A sum of floats may lie just below a whole number that is the exact mean."""
    whole = np.rint(value)
    out: Array = np.where(np.abs(value - whole) <= NEAR_WHOLE * np.abs(value), whole, np.trunc(value))
    return out


def _lower_var(states: States, scale: int | None, params: Params) -> Lowered:
    ddof = int(params["ddof"])
    free = states["count"] - np.int64(ddof)
    null = free <= 0
    free = np.where(null, 1, free)
    if scale is None:
        m2 = states["m2"]
        return answered(m2 / free, null | out_of_reach(m2))
    null |= out_of_reach(states["sum"], states["sq"])
    count = states["count"].astype(object)
    total = states["sum"].astype(object)
    above = times(count * states["sq"].astype(object) - total * total, 10 ** (2 * max(scale, 0)))
    below = times(count * free.astype(object), 10 ** (2 * max(-scale, 0)))
    return answered(ratio(above, below), null)


def _lower_stddev(states: States, scale: int | None, params: Params) -> Lowered:
    variance = _lower_var(states, scale, params)
    return Lowered(np.sqrt(variance.value), variance.null)


UPTO_M2: Final = ("count", "sum", "m2")
UPTO_SQUARES: Final = ("count", "sum", "square")  # replaces UPTO_M2 for scaled integers
DDOF: Final = (("ddof", Param((0, 1), 1)),)  # 1 (sample) is the default of statistics packages; 0: whole population
_ROUNDING: Final = (("rounding", Param(("exact", "truncate"), "exact")),)

FAMILY = Family(
    columns=(Column("count", "count"), Column("sum", "wide", 1), Column("sq", "wide", 2), Column("m2", "real", 2)),
    components=(
        Component.of_column("count", lambda _readings, groups, _scale: groups.count(), np.add),
        Component.of_column("sum", lambda readings, groups, _scale: groups.sum(readings.value), np.add),
        Component.of_column("square", lambda r, groups, _scale: groups.sum_of_squares(r.value), np.add, "sq"),
        Component("m2", ("m2",), _lift_m2, _combine_m2, needs=("count", "sum")),
    ),
    functions=(
        Function("count", ("count",), plain("count"), "how many readings", gives="count"),
        Function("sum", ("sum",), _lower_sum, "their sum", gives="value"),
        Function("avg", ("count", "sum"), _lower_avg, "sum / count; rounding = 'truncate': toward zero", _ROUNDING),
        Function("var", UPTO_M2, _lower_var, "variance; ddof 1 (sample) or 0 (population)", DDOF, UPTO_SQUARES),
        Function("stddev", UPTO_M2, _lower_stddev, "square root of the variance", DDOF, UPTO_SQUARES),
    ),
)
