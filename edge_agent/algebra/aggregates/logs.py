"""geomean: exp of the mean logarithm; null as soon as one value is not positive."""

from __future__ import annotations

import math
from typing import Any

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
)
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments


def _lift(readings: Readings, groups: Segments, scale: int | None, _lifted: States) -> dict[str, Array]:
    value = readings.value
    positive = value > 0
    logs = np.log(np.where(positive, value, 1))
    if scale:
        # the state is of the value itself, not of its units: unequal scales need no conversion
        logs += scale * math.log(10.0)
    return {"log_sum": groups.sum(logs)}


def _lift_nonpos(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
    return {"nonpos": groups.sum((readings.value <= 0).astype(np.int64))}


def _sum_of(column: str) -> Any:
    """Combine by adding."""

    def combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
        return {column: groups.sum(states[column])}

    return combine


def _lower(states: States, _scale: int | None, _params: Params) -> Lowered:
    nonpos = states["nonpos"]
    log_sum = states["log_sum"]
    return answered(np.exp(log_sum / states["count"]), nonpos > 0)


FAMILY = Family(
    columns=(Column("log_sum", "real"), Column("nonpos", "count")),
    components=(
        Component("log", ("log_sum",), _lift, _sum_of("log_sum"), fold=np.add),
        Component("nonpos", ("nonpos",), _lift_nonpos, _sum_of("nonpos"), fold=np.add),
    ),
    functions=(
        Function("geomean", ("count", "log", "nonpos"), _lower, "geometric mean; null if a value is not positive"),
    ),
)
