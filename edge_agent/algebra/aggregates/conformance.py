"""What a component of another package promises, tried on a few readings before anybody relies on it.

Parts of a window meet in any order and grouping (docs/protocol.md 6.1): a combine for which that makes a difference
would answer by the way its states travelled, a little wrong and never the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Readings
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import Form
from edge_agent.algebra.partials.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.aggregates.base import States
    from edge_agent.algebra.partials.arrays import Array

READINGS: Final = 24
PARTS: Final = 3
ORDERS: Final = ((0, 1, 2), (2, 1, 0), (1, 2, 0))
NEAR: Final = 1e-6  # of floats: sums in another order, and states that are approximate, may differ by so much
SCALES: Final = (None, -1)


def unlike(component: Component, needed: Sequence[Component], columns: Sequence[Column]) -> str:
    """How the component breaks its promise, '' if it keeps it here. Raises: whatever the component does.

    needed: what it needs, each after what that needs. columns: its own.
    """
    every = (*needed, component)
    exact = {column.name for column in columns if KINDS[column.kind].forms[0] is not Form.FLOAT}
    for scale in SCALES:
        value = np.arange(READINGS) * 37 % 101 - 30
        readings = _Parts(value.astype(np.float64) / 7 if scale is None else value)
        lifted = [_lifted(every, readings.part(n), scale) for n in range(PARTS)]
        found = [_combined(every, [lifted[n] for n in order]) for order in ORDERS]
        grouped = _combined(every, [_combined(every, lifted[:2]), lifted[2]])
        for name in component.columns:
            first = found[0][name]
            for other in (*found[1:], grouped):
                if not _alike(first, other[name], exact=name in exact):
                    which = f"{name} = {_said(first)} or {_said(other[name])}"
                    return f"combine of {component.name!r} gives {which}, by the order in which parts meet"
            whole = _lifted(every, readings.whole(), scale)[name]
            if not _alike(first, whole, exact=name in exact):
                which = f"{name} = {_said(whole)} lifted at once, {_said(first)} combined from parts"
                return f"{component.name!r} gives {which}"
    return ""


class _Parts:
    """Readings of one sensor, in turn on PARTS nodes."""

    def __init__(self, value: Array) -> None:
        self.time = np.arange(len(value)) * 1_000
        self.value = value

    def part(self, n: int) -> Readings:
        return Readings(self.time[n::PARTS], self.value[n::PARTS], np.arange(len(self.value))[n::PARTS], 0)

    def whole(self) -> Readings:
        return Readings(self.time, self.value, np.arange(len(self.value)), 0)


def _lifted(every: Sequence[Component], readings: Readings, scale: int | None) -> dict[str, Array]:
    groups = Segments.runs(np.zeros(1, np.int64), len(readings.time_us))
    states: dict[str, Array] = {}
    for component in every:
        states.update(component.lift(readings, groups, scale, states))
    return states


def _combined(every: Sequence[Component], parts: Sequence[States]) -> dict[str, Array]:
    states = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    groups = Segments.runs(np.zeros(1, np.int64), len(parts))
    combined: dict[str, Array] = {}
    for component in every:
        combined.update(component.combine(states, groups, combined, None))
    return combined


def _alike(one: Array, other: Array, *, exact: bool) -> bool:
    a, b = one.tolist(), other.tolist()
    if exact or one.dtype.kind != "f":
        return bool(a == b)
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=NEAR, atol=NEAR, equal_nan=True))


def _said(column: Array) -> str:
    return f"{column.tolist()[0]:.9g}" if column.dtype.kind == "f" else str(column.tolist()[0])
