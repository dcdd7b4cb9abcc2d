"""Families of aggregates that other packages bring: entry points of the group `headwater.aggregates` (docs/extend.md).

A package that is broken, or takes a name that is taken, is left out, with the reason for whoever asks for its
functions. A function of a package that raises costs its own answers and nothing else: its states travel with a count of
the readings it failed on, and a row with such readings has no answer, with the reason in `details`. Every call goes
through a watch (algebra/plugin_calls.py), which tells people and keeps what is slow within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Lowered, Readings
from edge_agent.algebra.aggregates.conformance import unlike
from edge_agent.algebra.aggregates.non_commutative import in_order, with_needs
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.plugin_calls import PLAIN, TRIAL, Call, FailedError, Watch, said

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

if TYPE_CHECKING:
    from edge_agent.algebra.aggregates.base import Params, States
    from edge_agent.algebra.partials.arrays import Array, Ints

GROUP: Final = "headwater.aggregates"
KINDS: Final = ("count", "time", "value", "wide", "real", "node", "order")  # of columns that a package may add
FAILED: Final = "_failed"  # suffix of the column that counts the readings a package's function failed on


@dataclass(frozen=True, slots=True)
class Brought:
    """Whose functions these are, and where calls of them go through."""

    point: str
    package: str
    watch: Watch

    def call(self, name: str, step: str, rows: int) -> Call:
        """A call of one of them."""
        return Call(self.point, self.package, name, step, rows)


def brought(point: EntryPoint, watch: Watch) -> Brought:
    """Of the entry point's distribution, where it is known."""
    return Brought(point.name, "" if point.dist is None else f"{point.dist.name} {point.dist.version}", watch)


@dataclass(frozen=True, slots=True)
class FoundFamilies:
    """What entry points brought: families that can be used, entry point -> why it cannot, function -> its trial.

    A trial says how the function breaks its promise, '' if it keeps it there (trial.py).
    """

    families: tuple[Family, ...]
    refused: Mapping[str, str]
    trials: Mapping[str, Callable[[], str]]


def families(built_in: Sequence[Family], points: Iterable[EntryPoint], watch: Watch = PLAIN) -> FoundFamilies:
    """What the entry points bring; nothing of it is called yet."""
    found: list[Family] = []
    refused: dict[str, str] = {}
    trials: dict[str, Callable[[], str]] = {}
    for point in points:
        try:
            family, by = point.load(), brought(point, watch)
            known = [*built_in, *found]
            why = _wrong(family, known)
        except Exception as err:
            why = said(err)
        if why:
            refused[point.name] = f"{point.value}: {why}"
            continue
        found.append(_guarded(in_order(family, known), by))
        every = {component.name: component for each in known for component in each.components}
        every |= {component.name: _watched(component, by) for component in family.components}
        for function in family.functions:
            trials[function.name] = _once(partial(_unlike, function, family, every), watch)
    return FoundFamilies(tuple(found), refused, trials)


def _once(trial: Callable[[], str], watch: Watch) -> Callable[[], str]:
    remembered = cache(trial)
    return lambda: remembered() if watch.ready else ""


def _unlike(function: Function, family: Family, every: Mapping[str, Component]) -> str:
    """How a component of the family that the function needs says that it commutes, and does not. '' if none does.

    One that raises is no such: it costs its own answers, whenever it is asked.
    """
    kinds = {column.name: column for column in family.columns}
    for component in with_needs((*function.needs, *(function.scaled or ())), every):
        own = [kinds[name] for name in component.columns if name in kinds]
        if not own or not component.commutative:
            continue
        *needed, _ = with_needs((component.name,), every)
        try:
            why = unlike(component, needed, own)
        except Exception:  # noqa: S112 - whatever it is, it is told when somebody asks for its functions
            continue
        if why:
            return why
    return ""


def _watched(component: Component, by: Brought) -> Component:
    """The same, each call within bounds: for a trial."""

    def lift(readings: Readings, groups: Segments, scale: int | None, lifted: States) -> dict[str, Array]:
        call = by.call(component.name, TRIAL, len(readings.time_us))
        return by.watch.call(call, partial(component.lift, readings, groups, scale, lifted))

    def combine(states: States, groups: Segments, combined: States, ranks: Ints | None) -> dict[str, Array]:
        call = by.call(component.name, TRIAL, groups.rows)
        return by.watch.call(call, partial(component.combine, states, groups, combined, ranks))

    return replace(component, lift=lift, combine=combine)


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
    asked = (*(f.needs for f in family.functions), *(component.needs for component in family.components))
    if any({"bag", "series"} & set(needs) and len(needs) > 1 for needs in asked):
        return "what needs 'bag' or 'series' needs nothing else: all readings are in it"
    there = {component.name for f in (*known, family) for component in f.components}
    needed = {name for component in family.components for name in component.needs}
    needed |= {name for f in family.functions for name in (*f.needs, *(f.scaled or ()))}
    return f"component {min(needed - there)!r} is needed and not there" if needed - there else ""


# --- what a package's functions may do wrong -----------------------------------------------------------------------


def _guarded(family: Family, by: Brought) -> Family:
    kinds = {column.name: column.kind for column in family.columns}
    own = {component.name for component in family.components}
    return replace(
        family,
        columns=(*family.columns, *(Column(c.name + FAILED, "count") for c in family.components)),
        components=tuple(_guarded_component(component, kinds, by) for component in family.components),
        functions=tuple(_guarded_function(function, own, by) for function in family.functions),
    )


def _guarded_component(component: Component, kinds: Mapping[str, str], by: Brought) -> Component:
    """The same, which never raises."""
    failed = component.name + FAILED

    def made(
        what: Call, attempt: Callable[[], dict[str, Array]], groups: Segments, scale: int | None, readings: Array
    ) -> dict[str, Array]:
        def sound() -> dict[str, Array]:
            columns = attempt()
            return {name: _sound(columns[name], len(groups), kinds[name], scale) for name in component.columns}

        try:
            return {**by.watch.call(what, sound), failed: np.zeros(len(groups), np.int64)}
        except FailedError:
            return {**{n: _nothing(len(groups), kinds[n], scale) for n in component.columns}, failed: readings}

    def lift(readings: Readings, groups: Segments, scale: int | None, lifted: States) -> dict[str, Array]:
        what = by.call(component.name, "lift", len(readings.time_us))
        counted = groups.sum(np.ones(len(readings.time_us), np.int64))
        return made(what, lambda: component.lift(readings, groups, scale, lifted), groups, scale, counted)

    def combine(states: States, groups: Segments, combined: States, ranks: Ints | None) -> dict[str, Array]:
        scale = (
            0
            if any(kinds[n] in ("value", "wide") and states[n].dtype != np.float64 for n in component.columns)
            else None
        )
        what = by.call(component.name, "combine", groups.rows)
        before = groups.sum(states[failed])
        every = groups.sum(states["count"]) if "count" in states else np.maximum(before, 1)
        out = made(what, lambda: component.combine(states, groups, combined, ranks), groups, scale, every)
        return {**out, failed: np.maximum(out[failed], before)}

    def invert(total: States, part: States) -> dict[str, Array] | None:
        if total[failed].any():  # what failed cannot be taken away
            return None
        rows, taken = len(total[failed]), component.invert
        assert taken is not None

        def sound() -> dict[str, Array] | None:
            columns = taken(total, part)
            if columns is None:
                return None
            return {name: _sound(columns[name], rows, kinds[name], 0) for name in component.columns}

        try:
            columns = by.watch.call(by.call(component.name, "invert", rows), sound)
        except FailedError:
            return None
        return None if columns is None else {**columns, failed: np.zeros(rows, np.int64)}

    return replace(
        component,
        columns=(*component.columns, failed),
        lift=lift,
        combine=combine,
        invert=None if component.invert is None else invert,
        fold=None,
    )


def _sound(column: Array, rows: int, kind: str, scale: int | None) -> Array:
    """A column as its kind wants it. Raises: ValueError for anything else."""
    found = np.asarray(column)
    floats = kind == "real" or (kind in ("value", "wide") and scale is None)
    wanted = (np.float64,) if floats else (np.int64, np.object_) if kind == "wide" else (np.int64,)
    if found.shape != (rows,) or found.dtype.type not in wanted:
        names = " or ".join(np.dtype(one).name for one in wanted)
        raise ValueError(f"a column of {found.dtype} and shape {found.shape}, wanted {names} and {(rows,)}")
    if floats and not bool(np.isfinite(found).all()):
        raise ValueError("a column with values that are not finite")
    return found


def _nothing(rows: int, kind: str, scale: int | None) -> Array:
    floats = kind == "real" or (kind in ("value", "wide") and scale is None)
    return np.zeros(rows, np.float64 if floats else np.int64)


def _guarded_function(function: Function, own: set[str], by: Brought) -> Function:
    """The same: rows on which a component failed, or all of them where it raises itself, have no answer."""

    def lower(states: States, scale: int | None, params: Params) -> Lowered:
        rows = len(next(iter(states.values())))
        failed, by_component = np.zeros(rows, np.int64), ""
        for name in sorted(own.intersection(function.components(scale, params))):
            if states[name + FAILED].any():
                failed, by_component = np.maximum(failed, states[name + FAILED]), by_component or name

        def sound() -> tuple[Array, Array, list[str | None]]:
            found = function.lower(states, scale, params)
            value, null = np.array(found.value, np.float64), np.array(found.null, np.bool_)
            if value.shape != (rows,) or null.shape != (rows,):
                raise ValueError(f"answers of shape {value.shape}, wanted {(rows,)}")
            return value, null, [None] * rows if found.details is None else list(found.details)

        try:
            value, null, texts = by.watch.call(by.call(function.name, "lower", rows), sound)
        except FailedError as err:
            reason = json.dumps({"failed": str(err)})
            return Lowered(np.full(rows, np.nan), np.ones(rows, np.bool_), [reason] * rows)
        bad = (failed > 0) | ~(np.isfinite(value) | null)
        if bad.any():
            why = by.watch.why(by.point, by_component) or "ops.gaps and the status of the nodes say why"
            value, null = np.where(bad, np.nan, value), null | bad
            for row in np.flatnonzero(bad).tolist():
                many = int(failed[row])
                texts[row] = json.dumps({"failed": f"on {many} readings: {why}" if many else "not finite"})
        return Lowered(value, null, texts if any(text is not None for text in texts) else None)

    return replace(function, lower=lower)
