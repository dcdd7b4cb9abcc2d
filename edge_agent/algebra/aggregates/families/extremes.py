"""min, max, range, and the times of the extremes; the earliest time if a value occurs several times."""

from __future__ import annotations

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, decimals, plain, value_of
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import difference


def _extreme_time(name: str) -> Component:
    """The component `argmin` or `argmax`: the extreme value and the earliest time at which it was read."""
    value_column, time_column = f"{name}_value", f"{name}_time"

    def lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
        value = groups.min(readings.value) if name == "argmin" else groups.max(readings.value)
        row = groups.first_where(readings.value == groups.spread(value))  # the earliest: readings are sorted by time
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
    components=(
        Component.of_column("min", lambda readings, groups, _scale: groups.min(readings.value), np.minimum),
        Component.of_column("max", lambda readings, groups, _scale: groups.max(readings.value), np.maximum),
        _extreme_time("argmin"),
        _extreme_time("argmax"),
    ),
    functions=(
        Function("min", ("min",), value_of("min"), "the smallest value", gives="value"),
        Function("max", ("max",), value_of("max"), "the greatest value", gives="value"),
        Function("range", ("min", "max"), _lower_range, "greatest minus smallest", gives="value"),
        Function(
            "time_of_min",
            ("argmin",),
            plain("argmin_time"),
            "when the smallest was first read, in us",
            gives="time",
        ),
        Function(
            "time_of_max",
            ("argmax",),
            plain("argmax_time"),
            "when the greatest was first read, in us",
            gives="time",
        ),
    ),
)
