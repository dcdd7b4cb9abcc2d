"""weighted_avg: an average weighted by a label of each reading, for example by floor area.

Column `weight:area` is the sum of the weights, `weighted:area` the sum of reading times weight in the sensor's unit.
Both are floats.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import (
    Column,
    Component,
    ComponentTemplate,
    Family,
    Function,
    Param,
    Params,
    Readings,
    States,
)
from edge_agent.algebra.aggregates.lowered import Lowered, answered
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import out_of_reach, within_reach

LABEL: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
WEIGHTS: Final = ("weight", "weighted")  # templates; their argument is the label that contains the weight


def _summing(word: str) -> ComponentTemplate:
    """The template `weight` or `weighted`."""

    def make(label: str) -> tuple[Component, Column]:
        name = f"{word}:{label}"

        def lift(readings: Readings, groups: Segments, scale: int | None) -> Array:
            numbers = readings.numbers.get(label)
            weight = np.zeros(len(readings.value)) if numbers is None else np.nan_to_num(numbers, nan=0.0)
            if word == "weighted":
                value = readings.value
                # a sum over values in the sensor's unit, so that states of different scales combine without conversion
                with np.errstate(over="ignore"):
                    weight = weight * (value / 10.0**-scale if scale and scale < 0 else value * 10.0 ** (scale or 0))
                weight = within_reach(weight)
            return within_reach(groups.sum(weight))

        component = Component.of_column(name, lift, lambda groups, column: within_reach(groups.sum(column)))
        return replace(component, apart=True), Column(name, "real")

    return ComponentTemplate(word, LABEL, make)


def columns_of(params: Params) -> tuple[str, ...]:
    """Names of (the sum of weights, the sum of readings times weights)."""
    return tuple(f"{word}:{params['weight']}" for word in WEIGHTS)


def _lower(states: States, _scale: int | None, params: Params) -> Lowered:
    weight, total = (states[name] for name in columns_of(params))
    null = weight <= 0
    return answered(total / np.where(null, 1.0, weight), null | out_of_reach(weight, total))


@lru_cache(maxsize=1024)  # called for every batch
def labels_of(basis: tuple[str, ...]) -> tuple[str, ...]:
    """The labels whose values a basis needs as numbers."""
    pairs = (name.partition(":") for name in basis)
    return tuple(sorted({label for word, _, label in pairs if word in WEIGHTS}))


FAMILY = Family(
    columns=(),
    components=(),
    functions=(
        Function(
            "weighted_avg",
            ("count",),
            _lower,
            "sum of reading x weight over the sum of weights; a reading whose label is no number of 0 or more does not "
            "count in it; null if all weights are 0",
            (("weight", Param(("weight", "area"), None, text=LABEL)),),
            asks=columns_of,
        ),
    ),
    templates=(_summing("weight"), _summing("weighted")),
)
