"""geomean: exp of the mean logarithm; null as soon as one value is not positive."""

from __future__ import annotations

import math

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
    adding,
    answered,
)
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments


def _lift(readings: Readings, groups: Segments, scale: int | None, _lifted: States) -> dict[str, Array]:
    value = readings.value
    positive = value > 0
    logs = np.log(np.where(positive, value, 1))
    if scale:
        # a sum over values, not over scaled integers: states of unequal scales combine without conversion
        logs += scale * math.log(10.0)
    return {"log_sum": groups.sum(logs)}


def _lift_nonpos(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
    return {"nonpos": groups.sum((readings.value <= 0).astype(np.int64))}


def _lower(states: States, _scale: int | None, _params: Params) -> Lowered:
    nonpos = states["nonpos"]
    log_sum = states["log_sum"]
    return answered(np.exp(log_sum / states["count"]), nonpos > 0)


FAMILY = Family(
    columns=(Column("log_sum", "real"), Column("nonpos", "count")),
    components=(
        Component("log", ("log_sum",), _lift, adding("log_sum"), fold=np.add),
        Component("nonpos", ("nonpos",), _lift_nonpos, adding("nonpos"), fold=np.add),
    ),
    functions=(
        Function("geomean", ("count", "log", "nonpos"), _lower, "geometric mean; null if a value is not positive"),
    ),
)
