"""histogram, count_if and share_if: one count of readings for each edge.

`below:20` counts readings < 20, `upto:20` readings <= 20. A bin is the difference of two such columns, so functions
with a common edge share its column. Edges are exact decimals: a scaled-integer reading of 3 tenths is not below 0.3.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import (
    ANY,
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
from edge_agent.algebra.aggregates.lowered import Lowered, answered, in_details
from edge_agent.algebra.partials.arrays import Array, Mask
from edge_agent.algebra.partials.segments import Segments

MOST_EDGES: Final = 100
NUMBER: Final = r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[-+]?[0-9]{1,3})?"  # the format of `written`
BY_OP: Final = {  # comparison -> (1: true for the readings that the template counts, -1: for all others; template)
    "<": (1, "below"),
    "<=": (1, "upto"),
    ">": (-1, "upto"),
    ">=": (-1, "below"),
}
OPS: Final = (*BY_OP, "=", "!=")


def written(number: object) -> str:
    """A number as text for the argument of a template; equal floats give equal texts."""
    return repr(float(number) + 0.0)  # type: ignore[arg-type]


def _counting(word: str) -> ComponentTemplate:
    """The template `below` or `upto`."""

    def make(argument: str) -> tuple[Component, Column]:
        name, edge = f"{word}:{argument}", float(argument)

        def lift(readings: Readings, groups: Segments, scale: int | None) -> Array:
            value = readings.value
            limit = edge if scale is None else _units(argument, scale, below=word == "below")
            inside = value < limit if word == "below" else value <= limit
            return groups.sum(inside.astype(np.int64))

        return Component.of_column(name, lift, np.add), Column(name, "count")

    return ComponentTemplate(word, NUMBER, make)


def _units(argument: str, scale: int, *, below: bool) -> int:
    """The edge in units, rounded so that comparing units is exact: up for `<` (below), down for `<=`."""
    units = Fraction(argument) / Fraction(10) ** scale
    limit = -(-units.numerator // units.denominator) if below else units.numerator // units.denominator
    return max(-(2**62), min(limit, 2**62))  # fits int64 and is beyond all readings, which are within 2^61


def holding(value: Array, op: str, edge: object, scale: int | None) -> Mask:
    """Whether `value op edge` is true, for each value. value: shape (k,), float64, or units of 10**scale."""
    low: float | int = float(edge)  # type: ignore[arg-type]
    high = low
    if scale is not None:
        low, high = (_units(written(edge), scale, below=below) for below in (True, False))
    below, upto = np.less(value, low).astype(np.bool_), np.less_equal(value, high).astype(np.bool_)
    return {"<": below, "<=": upto, ">": ~upto, ">=": ~below, "=": upto & ~below, "!=": below | ~upto}[op]


def columns_of(params: Params) -> tuple[str, ...]:
    """The columns of a histogram, in the order of its edges."""
    edges = params["edges"]
    assert isinstance(edges, tuple)
    return tuple(f"below:{written(edge)}" for edge in edges)


def _lower_histogram(states: States, _scale: int | None, params: Params) -> Lowered:
    upto = np.stack([states[name] for name in columns_of(params)])
    counts, below, above = np.diff(upto, axis=0).T.tolist(), upto[0].tolist(), (states["count"] - upto[-1]).tolist()
    return in_details(
        json.dumps({"below": low, "counts": inside, "above": high})
        for low, inside, high in zip(below, counts, above, strict=True)
    )


def compared(params: Params) -> tuple[str, ...]:
    """The columns of a comparison: one for an inequality, both `below` and `upto` for = and !=."""
    edge, op = written(params["value"]), str(params["op"])
    return (f"{BY_OP[op][1]}:{edge}",) if op in BY_OP else (f"below:{edge}", f"upto:{edge}")


def _matching(states: States, params: Params) -> Array:
    """Number of readings for which the comparison is true."""
    op, columns = str(params["op"]), [states[name] for name in compared(params)]
    if op in BY_OP:
        return columns[0] if BY_OP[op][0] > 0 else states["count"] - columns[0]
    equal = columns[1] - columns[0]
    return equal if op == "=" else states["count"] - equal


EDGES: Final = Param(((0.0, 10.0), (-0.5, 0.5, 900.0)), None, ANY, most=MOST_EDGES)
COMPARISON: Final = (("op", Param(OPS, ">")), ("value", Param((0.3, 20.0), None, ANY)))

FAMILY = Family(
    columns=(),
    components=(),
    functions=(
        Function(
            "histogram",
            ("count",),
            _lower_histogram,
            "readings in [edge, next edge), as JSON in `details`: below the first edge, between, from the last on",
            (("edges", EDGES),),
            asks=columns_of,
            gives="details",
        ),
        Function(
            "count_if",
            ("count",),
            lambda states, _scale, params: answered(_matching(states, params)),
            "how many readings are above (op) a value",
            COMPARISON,
            asks=compared,
            gives="count",
        ),
        Function(
            "share_if",
            ("count",),
            lambda states, _scale, params: answered(_matching(states, params) / states["count"]),
            "which share of the readings, 0 to 1, is above (op) a value",
            COMPARISON,
            asks=compared,
        ),
    ),
    templates=(_counting("below"), _counting("upto")),
)
