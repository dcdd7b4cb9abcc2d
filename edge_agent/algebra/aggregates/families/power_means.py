"""sum_of_squares, rms and harmonic mean.

The sum of squares of floats is computed from count, sum and m2, which needs no further column, and adds only positive
terms, so nothing cancels.
"""

from __future__ import annotations

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.families.moments import UPTO_M2, UPTO_SQUARES
from edge_agent.algebra.aggregates.lowered import Lowered, answered, decimals
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import out_of_reach, ratio, times, within_reach


def _lower_squares(states: States, scale: int | None, _params: Params) -> Lowered:
    if scale is None:
        return answered(_squares(states), out_of_reach(states["m2"]))
    null = out_of_reach(states["sq"])
    whole = decimals(np.where(null, 0, states["sq"]) if null.any() else states["sq"], 2 * scale)
    return answered(whole.value, null, whole.details)


def _squares(states: States) -> Array:
    with np.errstate(over="ignore"):
        return within_reach(states["m2"] + states["sum"] * (states["sum"] / states["count"]))


def _lower_rms(states: States, scale: int | None, _params: Params) -> Lowered:
    if scale is None:
        return answered(np.sqrt(_squares(states) / states["count"]), out_of_reach(states["m2"]))
    above = times(states["sq"], 10 ** (2 * max(scale, 0)))
    below = times(states["count"], 10 ** (2 * max(-scale, 0)))
    return answered(np.sqrt(ratio(above, below)), out_of_reach(states["sq"]))


def _inverse_sum(readings: Readings, groups: Segments, scale: int | None) -> Array:
    value = readings.value
    with np.errstate(over="ignore", divide="ignore"):
        inverse = 1.0 / np.where(value > 0, value, 1).astype(np.float64)
        if scale:
            inverse = inverse / 10.0**scale if scale > 0 else inverse * 10.0**-scale
        return within_reach(groups.sum(inverse))


def _summed(groups: Segments, column: Array) -> Array:
    with np.errstate(over="ignore"):
        return within_reach(groups.sum(column))


def _lower_harmonic(states: States, _scale: int | None, _params: Params) -> Lowered:
    inverse = states["inverse_sum"]
    return answered(states["count"] / inverse, (states["nonpos"] > 0) | out_of_reach(inverse))


FAMILY = Family(
    columns=(Column("inverse_sum", "real"),),
    components=(Component.of_column("inverse", _inverse_sum, _summed, "inverse_sum"),),
    functions=(
        Function(
            "sum_of_squares",
            UPTO_M2,
            _lower_squares,
            "the sum of the squares",
            scaled=UPTO_SQUARES,
            gives="value",
        ),
        Function("rms", UPTO_M2, _lower_rms, "root mean square", scaled=UPTO_SQUARES),
        Function(
            "harmonic",
            ("count", "inverse", "nonpos"),
            _lower_harmonic,
            "harmonic mean; null if a value is not positive",
        ),
    ),
)
