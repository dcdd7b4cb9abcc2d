"""first and last reading in the global order (event time, node, arrival); states contain these three.

Nodes sort by the bytes of their ids, not by their codes: `ranks` maps codes to that order (docs/protocol.md 7.3).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered, decimals, plain, value_of
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import difference, within_reach


def _end(name: str) -> Component:
    """The component `first` or `last`: (time, node, order, value) of that reading."""
    columns = tuple(f"{name}_{part}" for part in ("time", "node", "order", "value"))

    def lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
        row = groups.first() if name == "first" else groups.last()
        arrays = (
            readings.time_us[row],
            np.full(len(row), readings.node, np.int64),
            readings.order[row],
            readings.value[row],
        )
        return dict(zip(columns, arrays, strict=True))

    def combine(states: States, groups: Segments, _combined: States, ranks: Ints | None) -> dict[str, Array]:
        time, node, order, _value = (states[column] for column in columns)
        place = node if ranks is None else ranks[node]
        keys: Any = (time, place, order)
        row = groups.least(keys if name == "first" else tuple(-key for key in keys))
        return {column: states[column][row] for column in columns}

    return Component(name, columns, lift, combine)


def _lower_delta(states: States, scale: int | None, _params: Params) -> Lowered:
    return decimals(difference(states["last_value"], states["first_value"]), scale)


def _lower_percent(states: States, _scale: int | None, _params: Params) -> Lowered:
    """The change from first to last in percent. Scaled integers are not converted, because the scale cancels."""
    first = states["first_value"].astype(np.float64)
    null = first == 0
    change = difference(states["last_value"], states["first_value"]).astype(np.float64)
    with np.errstate(over="ignore"):
        return answered(within_reach(100.0 * (change / np.where(null, 1.0, np.abs(first)))), null)


def _length_s(states: States) -> Array:
    """Seconds from the first to the last reading."""
    length: Array = (states["last_time"] - states["first_time"]) / 1_000_000
    return length


def _lower_duration(states: States, _scale: int | None, _params: Params) -> Lowered:
    return answered(_length_s(states))


def _lower_derivative(states: States, scale: int | None, _params: Params) -> Lowered:
    rise, length = _lower_delta(states, scale, {}).value, _length_s(states)
    null = length == 0
    with np.errstate(over="ignore"):
        return answered(within_reach(rise / np.where(null, 1.0, length)), null)


def _columns(name: str) -> tuple[Column, ...]:
    kinds = (("time", "time", 0), ("node", "node", 0), ("order", "order", 0), ("value", "value", 1))
    return tuple(Column(f"{name}_{part}", kind, degree) for part, kind, degree in kinds)


FAMILY = Family(
    columns=(*_columns("first"), *_columns("last")),
    components=(_end("first"), _end("last")),
    functions=(
        Function(
            "first",
            ("first",),
            value_of("first_value"),
            "the earliest reading; ties: node, then arrival",
            gives="value",
        ),
        Function(
            "last", ("last",), value_of("last_value"), "the latest reading; ties: node, then arrival", gives="value"
        ),
        Function("delta", ("first", "last"), _lower_delta, "last minus first", gives="value"),
        Function(
            "percent_change",
            ("first", "last"),
            _lower_percent,
            "last minus first in percent of the size of the first; null if that is 0",
        ),
        Function("duration", ("first", "last"), _lower_duration, "seconds from the first to the last reading"),
        Function(
            "derivative",
            ("first", "last"),
            _lower_derivative,
            "delta a second, from the first to the last reading; null where no time passes (of counters: rate)",
        ),
        Function("time_of_first", ("first",), plain("first_time"), "when the earliest was read, in us", gives="time"),
        Function("time_of_last", ("last",), plain("last_time"), "when the latest was read, in us", gives="time"),
    ),
)
