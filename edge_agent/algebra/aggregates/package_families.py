"""Aggregates of other packages: refuses families that cannot work, checks the law of combine, guards every call.

Each component gets a further column: the number of readings for which its functions failed. The column is part of the
state, so the result of a row with such readings is null at every tier, with the reason in `details`. Source:
docs/extend.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Lowered, Params, Readings, States
from edge_agent.algebra.aggregates.non_commutative import with_needs
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import Form
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.plugin_calls import PluginGuard, disagreement

FAILED: Final = "_failed"  # suffix of the column that counts readings on which a component failed
UNITS: Final = np.arange(24) * 37 % 101 - 30  # readings for checking the law of combine
TIMES_US: Final = np.arange(24) * 1_000
NEAR: Final = 1e-6  # tolerance for floats that are summed in another order, and for approximate states


def inconsistency(family: Family, known: Sequence[Family], later: Sequence[Family] = ()) -> str:
    """The contradiction in a family, or between it and the known ones; '' for none. Built-in families have none.

    later: further families whose components it may need.
    """
    for part in ("column", "component", "function"):
        taken = {each.name for other in known for each in getattr(other, f"{part}s")}
        if clash := sorted(taken.intersection(each.name for each in getattr(family, f"{part}s"))):
            return f"{part} {clash[0]!r} exists already; choose another name"
    if unknown := sorted({column.kind for column in family.columns}.difference(KINDS)):
        return f"column kind {unknown[0]!r} is in no file that edge_agent/algebra/columns/__init__.py lists"
    columns = [name for component in family.components for name in component.columns]
    if sorted(columns) != sorted(c.name for c in family.columns) or not all(c.columns for c in family.components):
        return "every column must belong to exactly one component, and every component must have a column"
    there = {component.name for each in (*known, family, *later) for component in each.components}
    missing = {name for names in _needs(family) for name in names} - there
    return f"component {min(missing)!r} is needed and does not exist" if missing else ""


def _needs(family: Family) -> list[tuple[str, ...]]:
    """The names of components that each component and each function needs."""
    return [*(c.needs for c in family.components), *((*f.needs, *(f.scaled or ())) for f in family.functions)]


def refusal(family: Family, known: Sequence[Family]) -> str:
    """Why a family of a package cannot be added to the known ones, '' if it can."""
    allowed = [kind.name for kind in KINDS.values() if not kind.grows]
    if kinds := sorted({column.kind for column in family.columns}.difference(allowed)):
        return f"packages cannot use the column kind {kinds[0]!r}; use one of {', '.join(allowed)}"
    if family.templates or any(function.asks is not None for function in family.functions):
        return "packages cannot declare templates or `asks`"
    if any({"bag", "series"} & set(names) and len(set(names)) > 1 for names in _needs(family)):
        return "a function or component that needs 'bag' or 'series' must need no other: these contain all readings"
    return inconsistency(family, known)


def broken_law(function: Function, family: Family, every: Mapping[str, Component]) -> str:
    """How a component of the family that the function needs violates the law of combine; '' if none does.

    every: all components by name. An exception counts as no violation: the guard turns it into null results later.
    """
    needed = tuple(with_needs((*function.needs, *(function.scaled or ())), every))
    own = {component.name for component in family.components if component.commutative}
    try:
        return order_dependence(needed, [name for c in needed if c.name in own for name in c.columns])
    except Exception:
        return ""


def order_dependence(components: Sequence[Component], columns: Sequence[str]) -> str:
    """Lift and combine a few readings in several orders and groupings. Returns the first difference, '' for none.

    components: each after those that it needs. columns: names of the columns to compare. Raises: any exception of a
    component. Source: docs/protocol.md 6.1.
    """
    one = np.zeros(1, np.int64)

    def lift(rows: slice, value: Array, scale: int | None) -> dict[str, Array]:
        readings = Readings(TIMES_US[rows], value[rows], np.arange(len(value))[rows])
        states: dict[str, Array] = {}
        for component in components:
            states.update(component.lift(readings, Segments.runs(one, len(readings.value)), scale, states))
        return states

    def combine(*parts: States) -> dict[str, Array]:
        states = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        combined: dict[str, Array] = {}
        for component in components:
            combined.update(component.combine(states, Segments.runs(one, len(parts)), combined, None))
        return combined

    for scale, value in ((None, UNITS / 7), (-1, UNITS)):
        a, b, c = (lift(slice(n, None, 3), value, scale) for n in range(3))
        ways = {
            "parts a, b, c": combine(a, b, c),
            "parts c, b, a": combine(c, b, a),
            "parts b, c, a": combine(b, c, a),
            "a with b, then c": combine(combine(a, b), c),
            "all readings lifted at once": lift(slice(None), value, scale),
        }
        for name in columns:
            if why := disagreement({way: states[name].tolist() for way, states in ways.items()}, NEAR):
                return f"{name} depends on the order in which parts are combined: {why}"
    return ""


def guarded(family: Family, guard: PluginGuard) -> Family:
    """The family with its callables wrapped, so that they never raise."""
    kinds = {column.name: column.kind for column in family.columns}
    own = {component.name for component in family.components}
    return replace(
        family,
        columns=(*family.columns, *(Column(c.name + FAILED, "count") for c in family.components)),
        components=tuple(_guarded_component(component, kinds, guard) for component in family.components),
        functions=tuple(_guarded_function(function, own, guard) for function in family.functions),
    )


def _guarded_component(component: Component, kinds: Mapping[str, str], guard: PluginGuard) -> Component:
    failed = component.name + FAILED

    def checked(columns: Mapping[str, Array], rows: int, scale: int | None) -> dict[str, Array]:
        return {name: _checked(columns[name], rows, kinds[name], scale) for name in component.columns}

    def attempt(
        step: str, call: Callable[[], Mapping[str, Array]], rows: int, scale: int | None, readings: Ints
    ) -> dict[str, Array]:
        """The columns that the call returns. If it fails: zeros, and in `failed` the number of readings of each row."""
        found = guard.call(component.name, step, lambda: checked(call(), rows, scale))
        if found is None:
            zeros = {name: np.zeros(rows, _dtype(kinds[name], scale)) for name in component.columns}
            return {**zeros, failed: readings}
        return {**found, failed: np.zeros(rows, np.int64)}

    def lift(readings: Readings, groups: Segments, scale: int | None, lifted: States) -> dict[str, Array]:
        every = groups.sum(np.ones(len(readings.time_us), np.int64))
        return attempt("lift", lambda: component.lift(readings, groups, scale, lifted), len(groups), scale, every)

    def combine(states: States, groups: Segments, combined: States, ranks: Ints | None) -> dict[str, Array]:
        every = groups.sum(states["count"] if "count" in states else np.ones(groups.rows, np.int64))
        integers = any(kinds[n] in {"value", "wide"} and states[n].dtype != np.float64 for n in component.columns)
        scale = 0 if integers else None
        out = attempt("combine", lambda: component.combine(states, groups, combined, ranks), len(groups), scale, every)
        return {**out, failed: np.maximum(out[failed], groups.sum(states[failed]))}

    def invert(total: States, part: States) -> dict[str, Array] | None:
        def left() -> dict[str, Array] | None:
            columns = component.invert(total, part) if component.invert is not None else None
            return None if columns is None else {**checked(columns, len(none), 0), failed: none}

        none = np.zeros(len(total[failed]), np.int64)
        return None if total[failed].any() else guard.call(component.name, "invert", left)

    columns, inverse = (*component.columns, failed), component.invert and invert
    return replace(component, columns=columns, lift=lift, combine=combine, invert=inverse, fold=None, of_bag=None)


def _dtype(kind: str, scale: int | None) -> type[np.float64 | np.int64]:
    return np.float64 if KINDS[kind].form(scale) is Form.FLOAT else np.int64


def _checked(column: Array, rows: int, kind: str, scale: int | None) -> Array:
    """The column as an array. Raises: ValueError unless it has one finite value per row, in a dtype of its kind."""
    found, wanted = np.asarray(column), _dtype(kind, scale)
    big = KINDS[kind].form(scale) is Form.WIDE and found.dtype == np.object_  # integers beyond 64 bits
    if found.shape != (rows,) or not (found.dtype == wanted or big):
        shape = f"wanted a column of {wanted.__name__} and shape {(rows,)}"
        raise ValueError(f"{shape}, got {found.dtype} and {found.shape}")
    if wanted is np.float64 and not np.isfinite(found).all():
        raise ValueError("a column has values that are not finite: NaN or an infinity")
    return found


def _guarded_function(function: Function, own: set[str], guard: PluginGuard) -> Function:
    def lower(states: States, scale: int | None, params: Params) -> Lowered:
        rows = len(next(iter(states.values())))

        def checked() -> Lowered:
            found = function.lower(states, scale, params)
            details: list[str | None] = [None] * rows if found.details is None else list(found.details)
            answer = Lowered(np.array(found.value, np.float64), np.array(found.null, np.bool_), details)
            if not answer.value.shape == answer.null.shape == (rows,) == (len(details),):
                raise ValueError(f"wanted {rows} values, got shape {answer.value.shape}")
            return answer

        found = guard.call(function.name, "lower", checked)
        if found is None:
            reason = json.dumps({"failed": guard.why[function.name]})
            return Lowered(np.full(rows, np.nan), np.ones(rows, np.bool_), [reason] * rows)
        value, null, details = found.value, found.null, [*(found.details or ())]
        for name in sorted(own.intersection(function.components(scale, params))):
            why = guard.why.get(name, "see ops.gaps and the status of the nodes")
            for row in np.flatnonzero(states[name + FAILED]).tolist():
                value[row], null[row] = np.nan, True
                details[row] = json.dumps({"failed": f"on {int(states[name + FAILED][row])} readings: {why}"})
        return Lowered(value, null, details if any(text is not None for text in details) else None)

    return replace(function, lower=lower)
