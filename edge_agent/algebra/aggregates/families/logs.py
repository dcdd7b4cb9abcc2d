"""geomean: the geometric mean, from the sum of logarithms; null if any value is not positive."""

from __future__ import annotations

import math

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments


def _log_sum(readings: Readings, groups: Segments, scale: int | None) -> Array:
    logs = np.log(np.where(readings.value > 0, readings.value, 1))
    if scale:
        # a sum over values in the sensor's unit, so that states of different scales combine without conversion
        logs += scale * math.log(10.0)
    return groups.sum(logs)


def _lower(states: States, _scale: int | None, _params: Params) -> Lowered:
    return answered(np.exp(states["log_sum"] / states["count"]), states["nonpos"] > 0)


FAMILY = Family(
    columns=(Column("log_sum", "real"), Column("nonpos", "count")),
    components=(
        Component.of_column("log", _log_sum, np.add, "log_sum"),
        Component.of_column("nonpos", lambda r, groups, _scale: groups.sum((r.value <= 0).astype(np.int64)), np.add),
    ),
    functions=(
        Function("geomean", ("count", "log", "nonpos"), _lower, "geometric mean; null if a value is not positive"),
    ),
)
