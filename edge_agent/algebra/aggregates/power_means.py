"""sum_of_squares, rms and harmonic mean: further means of the readings themselves.

The sum of squares of floats follows from count, sum and m2 by adding, so that nothing cancels and nothing more travels.
"""

from __future__ import annotations

import numpy as np

from edge_agent.algebra.aggregates.base import (
    Column,
    Component,
    Family,
    Function,
    Lowered,
    Params,
    Readings,
    States,
    answered,
    decimals,
    out_of_reach,
    ratio,
    within_reach,
)
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import times


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


def _lift_inverse(readings: Readings, groups: Segments, scale: int | None, _lifted: States) -> dict[str, Array]:
    value = readings.value
    with np.errstate(over="ignore", divide="ignore"):
        inverse = 1.0 / np.where(value > 0, value, 1).astype(np.float64)
        if scale:
            inverse = inverse / 10.0**scale if scale > 0 else inverse * 10.0**-scale
        return {"inverse_sum": within_reach(groups.sum(inverse))}


def _combine_inverse(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
    with np.errstate(over="ignore"):
        return {"inverse_sum": within_reach(groups.sum(states["inverse_sum"]))}


def _lower_harmonic(states: States, _scale: int | None, _params: Params) -> Lowered:
    inverse = states["inverse_sum"]
    return answered(states["count"] / inverse, (states["nonpos"] > 0) | out_of_reach(inverse))


FAMILY = Family(
    columns=(Column("inverse_sum", "real"),),
    components=(Component("inverse", ("inverse_sum",), _lift_inverse, _combine_inverse),),
    functions=(
        Function(
            "sum_of_squares",
            ("count", "sum", "m2"),
            _lower_squares,
            "the sum of the squares",
            scaled=("count", "sum", "square"),
            gives="value",
        ),
        Function(
            "rms",
            ("count", "sum", "m2"),
            _lower_rms,
            "root mean square",
            scaled=("count", "sum", "square"),
        ),
        Function(
            "harmonic",
            ("count", "inverse", "nonpos"),
            _lower_harmonic,
            "harmonic mean; null if a value is not positive",
        ),
    ),
)
