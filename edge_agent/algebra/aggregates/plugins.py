"""Families of aggregates that other packages bring: entry points of the group `headwater.aggregates` (docs/extend.md).

A package that is broken, or takes a name that is taken, is left out, with the reason for whoever asks for its
functions. A function of a package that raises costs its own answers and nothing else: its states travel with a count of
the readings it failed on, and a row with such readings has no answer, with the reason in `details`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Lowered, Readings
from edge_agent.algebra.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.aggregates.base import Params, States
    from edge_agent.algebra.partial import Column as Array
    from edge_agent.algebra.partial import Ints

GROUP: Final = "headwater.aggregates"
KINDS: Final = ("count", "time", "value", "wide", "real", "node", "order")  # of columns that a package may add
FAILED: Final = "_failed"  # suffix of the column that counts the readings a package's function failed on


def installed(group: str = GROUP) -> Sequence[EntryPoint]:
    """The entry points there are, in the order of their names: the same on every node."""
    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def families(built_in: Sequence[Family], points: Iterable[EntryPoint]) -> tuple[tuple[Family, ...], Mapping[str, str]]:
    """(families that can be used, name of an entry point -> why it cannot)."""
    found: list[Family] = []
    refused: dict[str, str] = {}
    for point in points:
        try:
            family = point.load()
            why = _wrong(family, [*built_in, *found])
        except Exception as err:
            why = f"{type(err).__name__}: {err}"
        if why:
            refused[point.name] = f"{point.value}: {why}"
        else:
            found.append(_guarded(family))
    return tuple(found), refused


def _wrong(family: object, known: Sequence[Family]) -> str:
    """Why a family cannot be used, '' if it can."""
    if not isinstance(family, Family):
        return f"wanted a Family (edge_agent.algebra.aggregates.base), got {type(family).__name__}"
    names: tuple[tuple[str, Callable[[Family], Iterable[str]]], ...] = (
        ("column", lambda f: (c.name for c in f.columns)),
        ("component", lambda f: (c.name for c in f.components)),
        ("function", lambda f: (c.name for c in f.functions)),
    )
    for what, of in names:
        twice = sorted({name for other in known for name in of(other)}.intersection(of(family)))
        if twice:
            return f"{what} {twice[0]!r} is there already; choose another name"
    kinds = sorted({column.kind for column in family.columns} - set(KINDS))
    if kinds:
        return f"column kind {kinds[0]!r} is not for packages; there are {', '.join(KINDS)}"
    if sorted(c for component in family.components for c in component.columns) != sorted(
        c.name for c in family.columns
    ):
        return "every column belongs to exactly one component"
    if any(not component.columns for component in family.components):
        return "a component has at least one column"
    if family.templates or any(function.asks is not None for function in family.functions):
        return "templates are not for packages"
    there = {component.name for f in (*known, family) for component in f.components}
    needed = {name for component in family.components for name in component.needs}
    needed |= {name for f in family.functions for name in (*f.needs, *(f.scaled or ()))}
    return f"component {min(needed - there)!r} is needed and not there" if needed - there else ""


# --- what a package's functions may do wrong -----------------------------------------------------------------------


def _guarded(family: Family) -> Family:
    kinds = {column.name: column.kind for column in family.columns}
    own = {component.name for component in family.components}
    return replace(
        family,
        columns=(*family.columns, *(Column(c.name + FAILED, "count") for c in family.components)),
        components=tuple(_guarded_component(component, kinds) for component in family.components),
        functions=tuple(_guarded_function(function, own) for function in family.functions),
    )


def _guarded_component(component: Component, kinds: Mapping[str, str]) -> Component:
    """The same, which never raises. Without its inverse: what failed cannot be taken away."""
    failed = component.name + FAILED

    def made(
        attempt: Callable[[], dict[str, Array]], groups: Segments, scale: int | None, readings: Array
    ) -> dict[str, Array]:
        try:
            columns = attempt()
            sound = {name: _sound(columns[name], len(groups), kinds[name], scale) for name in component.columns}
        except Exception:
            return {**{n: _nothing(len(groups), kinds[n], scale) for n in component.columns}, failed: readings}
        return {**sound, failed: np.zeros(len(groups), np.int64)}

    def lift(readings: Readings, groups: Segments, scale: int | None, lifted: States) -> dict[str, Array]:
        counted = groups.sum(np.ones(len(readings.time_us), np.int64))
        return made(lambda: component.lift(readings, groups, scale, lifted), groups, scale, counted)

    def combine(states: States, groups: Segments, combined: States, ranks: Ints | None) -> dict[str, Array]:
        scale = (
            0
            if any(kinds[n] in ("value", "wide") and states[n].dtype != np.float64 for n in component.columns)
            else None
        )
        before = groups.sum(states[failed])
        every = groups.sum(states["count"]) if "count" in states else np.maximum(before, 1)
        out = made(lambda: component.combine(states, groups, combined, ranks), groups, scale, every)
        return {**out, failed: np.maximum(out[failed], before)}

    return replace(component, columns=(*component.columns, failed), lift=lift, combine=combine, invert=None, fold=None)


def _sound(column: Array, rows: int, kind: str, scale: int | None) -> Array:
    """A column as its kind wants it. Raises: ValueError for anything else."""
    found = np.asarray(column)
    floats = kind == "real" or (kind in ("value", "wide") and scale is None)
    wanted = (np.float64,) if floats else (np.int64, np.object_) if kind == "wide" else (np.int64,)
    if found.shape != (rows,) or found.dtype.type not in wanted:
        raise ValueError(f"{found.dtype} of shape {found.shape}")
    if floats and not bool(np.isfinite(found).all()):
        raise ValueError("not finite")
    return found


def _nothing(rows: int, kind: str, scale: int | None) -> Array:
    floats = kind == "real" or (kind in ("value", "wide") and scale is None)
    return np.zeros(rows, np.float64 if floats else np.int64)


def _guarded_function(function: Function, own: set[str]) -> Function:
    """The same: rows on which a component failed, or all of them where it raises itself, have no answer."""

    def lower(states: States, scale: int | None, params: Params) -> Lowered:
        rows = len(states["count"])
        failed = np.zeros(rows, np.int64)
        for name in own.intersection(function.components(scale, params)):
            failed = np.maximum(failed, states[name + FAILED])
        try:
            found = function.lower(states, scale, params)
            value, null = np.array(found.value, np.float64), np.array(found.null, np.bool_)
            if value.shape != (rows,) or null.shape != (rows,):
                raise ValueError(f"answers of shape {value.shape}, wanted {(rows,)}")
            texts: list[str | None] = [None] * rows if found.details is None else list(found.details)
        except Exception as err:
            reason = json.dumps({"failed": f"{type(err).__name__}: {err}"[:200]})
            return Lowered(np.full(rows, np.nan), np.ones(rows, np.bool_), [reason] * rows)
        bad = (failed > 0) | ~(np.isfinite(value) | null)
        if bad.any():
            value, null = np.where(bad, np.nan, value), null | bad
            for row in np.flatnonzero(bad).tolist():
                texts[row] = json.dumps({"failed": f"on {int(failed[row])} readings" if failed[row] else "not finite"})
        return Lowered(value, null, texts if any(text is not None for text in texts) else None)

    return replace(function, lower=lower)
