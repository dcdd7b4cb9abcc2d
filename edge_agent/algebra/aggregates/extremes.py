"""min, max, range, and when the extremes were: the value, and of equal ones the earliest time."""

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
    decimals,
    difference,
    time_of,
    value_of,
)
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments


def _extreme(name: str) -> Component:
    """The component `min` or `max`: one column of that name."""

    def lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
        return {name: groups.min(readings.value) if name == "min" else groups.max(readings.value)}

    def combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
        return {name: groups.min(states[name]) if name == "min" else groups.max(states[name])}

    return Component(name, (name,), lift, combine, fold=np.minimum if name == "min" else np.maximum)


def _extreme_time(name: str) -> Component:
    """The component `argmin` or `argmax`: the extreme value and the earliest time at which it was read."""
    value_column, time_column = f"{name}_value", f"{name}_time"

    def lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
        value = groups.min(readings.value) if name == "argmin" else groups.max(readings.value)
        row = groups.first_where(readings.value == groups.spread(value))  # readings are in the order of time
        return {value_column: value, time_column: readings.time_us[row]}

    def combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
        value = states[value_column]
        row = groups.least((value if name == "argmin" else -value, states[time_column]))
        return {value_column: value[row], time_column: states[time_column][row]}

    return Component(name, (value_column, time_column), lift, combine)


def _lower_range(states: States, scale: int | None, _params: Params) -> Lowered:
    return decimals(difference(states["max"], states["min"]), scale)


FAMILY = Family(
    columns=(
        Column("min", "value", 1),
        Column("max", "value", 1),
        Column("argmin_value", "value", 1),
        Column("argmin_time", "time"),
        Column("argmax_value", "value", 1),
        Column("argmax_time", "time"),
    ),
    components=(_extreme("min"), _extreme("max"), _extreme_time("argmin"), _extreme_time("argmax")),
    functions=(
        Function("min", ("min",), value_of("min"), "the smallest value", gives="value"),
        Function("max", ("max",), value_of("max"), "the greatest value", gives="value"),
        Function("range", ("min", "max"), _lower_range, "greatest minus smallest", gives="value"),
        Function(
            "time_of_min",
            ("argmin",),
            time_of("argmin_time"),
            "when the smallest was first read, in us",
            gives="time",
        ),
        Function(
            "time_of_max",
            ("argmax",),
            time_of("argmax_time"),
            "when the greatest was first read, in us",
            gives="time",
        ),
    ),
)
