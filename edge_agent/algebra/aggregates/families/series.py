"""Functions that depend on the order of readings. They are exact and share one series of all readings.

The order is (event time, node, arrival), across all nodes.
"""

from __future__ import annotations

import json

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered, by_row, in_details, plain_numbers
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments


def _lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
    return {"series": series.lift(readings.time_us, readings.value, readings.node, readings.order, groups)}


def _combine(states: States, groups: Segments, _combined: States, ranks: Ints | None) -> dict[str, Array]:
    return {"series": series.combine(states["series"], groups, ranks)}


def _changes(states: States, _scale: int | None, _params: Params) -> Lowered:
    """Number of readings that differ from the previous reading in the window."""
    found = series.flat(states["series"])
    if not len(found.sizes):
        return answered(found.sizes)
    differs = found.inner()
    differs[1:] &= found.value[1:] != found.value[:-1]
    return answered(np.add.reduceat(differs.astype(np.int64), found.starts))


def _sequence(states: States, scale: int | None, _params: Params) -> Lowered:
    """All values in the global order, as a JSON list in the details."""
    found = series.flat(states["series"])
    return in_details(map(json.dumps, by_row(plain_numbers(found.value, scale), found.sizes)))


FAMILY = Family(
    columns=(Column("series", "series", 1),),
    components=(Component("series", ("series",), _lift, _combine),),
    functions=(
        Function(
            "changes", ("series",), _changes, "how often the value differs from the reading before", gives="count"
        ),
        Function(
            "sequence",
            ("series",),
            _sequence,
            "every value in order of time, as a JSON list in `details`",
            gives="details",
        ),
    ),
)
