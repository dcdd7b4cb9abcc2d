"""Frames of raw readings, written by hand, for windows that the root forms; and a naive count window over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Query
from tests.support.cloud.child_frames import Child


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a node. order: its arrival there."""

    time_us: int
    key: str
    value: float
    node: str
    order: int


def raw_rows(child: Child, frontier_us: int, readings: Sequence[Reading], *, late: bool = False) -> bytes:
    """A frame with a row a key; without readings only a frontier."""
    ordered = sorted(readings, key=lambda r: (child.keys.index(r.key), r.time_us, r.order))
    sections: tuple[Section, ...] = ()
    if ordered:
        key = np.array([child.keys.index(r.key) for r in ordered])
        time = np.array([r.time_us for r in ordered])
        value = np.array([r.value for r in ordered]).astype(np.float64 if child.scale is None else np.int64)
        first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        taken = Readings(time, value, np.array([r.order for r in ordered]))
        states = lift(taken, Segments.runs(first, len(key)), child.plan.basis, child.scale)
        last = np.append(first[1:], len(key)) - 1
        rows = Partials(time[first], time[last] + 1, key[first], states)
        sections = (Section.of(0, child.plan, rows),)
    on_time, behind = ((), sections) if late else (sections, ())
    return child._next(groups=(GroupPart(0, frontier_us, on_time, behind),))


def naive(
    asked: Query, readings: Sequence[Reading], length: int, slide: int
) -> dict[tuple[str, str, int], tuple[int, dict[str, float | None]]]:
    """Sort, count, slice."""
    out: dict[tuple[str, str, int], tuple[int, dict[str, float | None]]] = {}
    for key in {reading.key for reading in readings}:
        line = sorted((r for r in readings if r.key == key), key=lambda r: (r.time_us, r.node.encode(), r.order))
        for start in range(0, len(line) - length + 1, slide):
            values = [reading.value for reading in line[start : start + length]]
            out[asked.id, key, start] = (
                start + length,
                {"sum": float(sum(values)), "first": values[0], "last": values[-1]},
            )
    return out
