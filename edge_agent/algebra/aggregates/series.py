"""Functions of the order of readings: exact from all of them, kept in the global order by one shared series.

The order is (event time, node, arrival), also across nodes. Two more of them are a function and a line each.
"""

from __future__ import annotations

import json
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
    decimals,
)
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments


def _lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
    return {"series": series.lift(readings.time_us, readings.value, readings.node, readings.order, groups)}


def _combine(states: States, groups: Segments, _combined: States, ranks: Ints | None) -> dict[str, Array]:
    return {"series": series.combine(states["series"], groups, ranks)}


def _changes(states: States, _scale: int | None, _params: Params) -> Lowered:
    """How often a reading differs from the one before it in the window."""
    found = series.flat(states["series"])
    if not len(found.sizes):
        return answered(found.sizes)
    differs = found.inner()
    differs[1:] &= found.value[1:] != found.value[:-1]
    return answered(np.add.reduceat(differs.astype(np.int64), found.starts))


def _sequence(states: States, scale: int | None, _params: Params) -> Lowered:
    """Every value in the global order, as a JSON list in the details."""
    found = series.flat(states["series"])
    plain: list[Any] = found.value.tolist()
    if scale is not None and scale >= 0:
        plain = [value * 10**scale for value in plain]
    elif scale is not None:
        plain = decimals(found.value, scale).value.tolist()
    ends = np.cumsum(found.sizes).tolist()
    texts = [json.dumps(plain[first:end]) for first, end in zip([0, *ends], ends, strict=False)]
    return answered(np.zeros(len(texts)), np.ones(len(texts), np.bool_), list(texts))


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
