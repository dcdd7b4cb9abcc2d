"""Computes non-commutative components from all readings in their global order.

Parts of a window arrive in any order, so these states cannot be combined from parts. Instead nodes send the readings to
the root, which sorts them by (time, node, arrival) and lifts them at once. Source: docs/protocol.md 7.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Component, Family, Function, Lowered, Params, Readings, States
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments

SERIES: Final = ("series",)


def in_order(family: Family, known: Sequence[Family]) -> Family:
    """Remove the non-commutative components of a family; functions that need one of them then need `series` instead.

    known: other families, whose components these functions may need, too.
    """
    own = {component.name for component in family.components if not component.commutative}
    if not own:
        return family
    every = {component.name: component for each in (*known, family) for component in each.components}

    def touched(names: Sequence[str]) -> bool:
        return any(component.name in own for component in with_needs(names, every))

    functions = tuple(
        _from_series(function, every) if touched((*function.needs, *(function.scaled or ()))) else function
        for function in family.functions
    )
    left = tuple(component for component in family.components if not touched((component.name,)))
    names = {name for component in left for name in component.columns}
    return replace(
        family,
        columns=tuple(column for column in family.columns if column.name in names),
        components=left,
        functions=functions,
    )


def _from_series(function: Function, every: Mapping[str, Component]) -> Function:
    def lower(states: States, scale: int | None, params: Params) -> Lowered:
        found = series.flat(states["series"])
        readings = Readings(found.time_us, found.value, np.arange(len(found.time_us)))
        groups = Segments.runs(found.starts, len(found.time_us))
        lifted: dict[str, Array] = {}
        for component in with_needs(function.components(scale, params), every):
            lifted.update(component.lift(readings, groups, scale, lifted))
        return function.lower(lifted, scale, params)

    return replace(function, needs=SERIES, scaled=None, lower=lower)


def with_needs(names: Sequence[str], every: Mapping[str, Component]) -> Iterator[Component]:
    """The named components, each after the components that it needs. Unknown names are skipped."""
    for name in names:
        if name in every:
            yield from with_needs(every[name].needs, every)
            yield every[name]
