"""The registry of aggregates: the files of `families` listed in `_FILES`. tests/laws checks every member.

`lift` turns readings into state columns, `combine` merges states of disjoint readings, and `lower` turns states into
results. The columns that a group of queries needs are its basis. Functions share columns: avg, sum, count and stddev
together need only count, sum and m2.

- base: the parts of a family; lowered: results, and helpers that make them
- non_commutative: computes components whose combine depends on the order of readings, at the root
- package_families: checks and guards the families of other packages
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeVar

import numpy as np

from edge_agent.algebra.aggregates import package_families
from edge_agent.algebra.aggregates.base import (
    Column,
    Component,
    ComponentTemplate,
    Family,
    Function,
    Lowered,
    Param,
    Readings,
    States,
)
from edge_agent.algebra.aggregates.non_commutative import in_order
from edge_agent.algebra.built_in import record, source
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.plugin_calls import Loaded, PluginGuard, usable
from edge_agent.algebra.query.query import Aggregate
from edge_agent.errors import ConfigError

__all__ = [
    "BUILT_IN", "COLUMNS", "COMPONENTS", "FUNCTIONS", "PLUGINS", "REFUSED", "TEMPLATES",
    "Column", "Component", "Family", "Function", "Lowered", "Param", "Readings", "add", "basis_of", "broken_law",
    "check", "columns_of", "combine", "components_of", "convert", "lift", "lower", "params_of", "renumbered",
]  # fmt: skip

_FILES: Final = (  # the registry: files of `families`, each with its FAMILY
    "moments",
    "extremes",
    "logs",
    "first_last",
    "holistic",
    "central_moments",
    "power_means",
    "histogram",
    "weighted",
    "counters_and_durations",
    "series",
    "trend",
    "approximate",
)


def _built_in() -> tuple[Family, ...]:
    """The families of all files. Raises: TypeError, one line with the file and its mistake."""
    folder, listed_in = f"{__name__}.families", f"_FILES of {source(__name__, '__init__')}"
    found = tuple(record(folder, name, "FAMILY", Family, listed_in) for name in _FILES)
    for i, family in enumerate(found):
        if why := package_families.inconsistency(family, found[:i], found[i + 1 :]):
            raise TypeError(f"{source(folder, _FILES[i])}: {why}")
    return found


BUILT_IN: Final[tuple[Family, ...]] = _built_in()
REFUSED: Final[dict[str, str]] = {}  # entry point -> why its family cannot be used
PLUGINS: Final[dict[str, Callable[[], str]]] = {}  # function of a package -> its law check, which runs once

Made = TypeVar("Made", Column, Component)


class AggregateRegistry(Mapping[str, Made]):
    """Columns or components by name. Those named `template:argument` are made on access, and iteration skips them.

    Raises: KeyError for an unknown name.
    """

    def __init__(self, fixed: Mapping[str, Made], make: Callable[[str], Made]) -> None:
        """make: returns the column or component named `template:argument`. Raises: KeyError."""
        self._fixed: dict[str, Made] = dict(fixed)
        self._make: Callable[[str], Made] = make

    def __getitem__(self, name: str) -> Made:
        found = self._fixed.get(name)
        return self._make(name) if found is None else found

    def add(self, found: Mapping[str, Made]) -> None:
        self._fixed.update(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fixed)

    def __len__(self) -> int:
        return len(self._fixed)


TEMPLATES: Final[Mapping[str, ComponentTemplate]] = {t.name: t for family in BUILT_IN for t in family.templates}


@lru_cache(maxsize=4096)
def _made(name: str) -> tuple[Component, Column]:
    """The component and column of a name `template:argument`. Raises: KeyError."""
    word, _, argument = name.partition(":")
    template = TEMPLATES[word]
    if not re.fullmatch(template.arguments, argument):
        raise KeyError(name)
    return template.make(argument)


COLUMNS: Final[AggregateRegistry[Column]] = AggregateRegistry(
    {c.name: c for family in BUILT_IN for c in family.columns}, lambda name: _made(name)[1]
)
COMPONENTS: Final[AggregateRegistry[Component]] = AggregateRegistry(
    {c.name: c for family in BUILT_IN for c in family.components}, lambda name: _made(name)[0]
)
FUNCTIONS: Final[dict[str, Function]] = {f.name: f for family in BUILT_IN for f in family.functions}


def add(loaded: Iterable[Loaded[Family]], refused: Mapping[str, str], guard: Callable[[str], PluginGuard]) -> None:
    """Add families of other packages; record in REFUSED why the others cannot be used (docs/extend.md).

    Called once per process, before the registry is used. refused: entry points that could not be loaded, with reasons.
    guard: makes the guard of a package.
    """
    REFUSED.update(refused)
    known = list(BUILT_IN)
    for each in usable(loaded, REFUSED, lambda family: package_families.refusal(family, known)):
        family = each.found
        every = {component.name: component for f in (*known, family) for component in f.components}
        PLUGINS.update(
            {f.name: cache(partial(package_families.broken_law, f, family, every)) for f in family.functions}
        )
        family = package_families.guarded(in_order(family, known), guard(each.package))
        known.append(family)
        COLUMNS.add({column.name: column for column in family.columns})
        COMPONENTS.add({component.name: component for component in family.components})
        FUNCTIONS.update({function.name: function for function in family.functions})


def broken_law(fn: str) -> str:
    """How a package's function violates the law of combine on a few readings; '' if it does not, or is built in."""
    return PLUGINS[fn]() if fn in PLUGINS else ""


def check(aggregate: Aggregate) -> None:
    """Refuse an aggregate that no node can compute. Raises: ConfigError, one line with the function or parameter."""
    function = FUNCTIONS.get(aggregate.fn)
    if function is None:
        raise ConfigError(
            f"unknown or not yet supported aggregate {aggregate.fn!r}; there are {', '.join(sorted(FUNCTIONS))}"
        )
    known = dict(function.params)
    for name, value in aggregate.params:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"{aggregate.fn} has no parameter {name!r}; {has}")
        if not known[name].allows(value):
            raise ConfigError(f"{aggregate.fn}: {name} is {known[name].wanted}, not {value!r}")
    given = {name for name, value in aggregate.params if value is not None}
    for name, param in known.items():
        if param.default is None and name not in given:
            raise ConfigError(f"{aggregate.fn} needs {name}: {param.wanted}")


def params_of(aggregate: Aggregate) -> dict[str, Any]:
    """All parameters of the function: name -> value, with defaults filled in."""
    given = {name: value for name, value in aggregate.params if value is not None}
    every = {name: given.get(name, param.default) for name, param in FUNCTIONS[aggregate.fn].params}
    return {name: value for name, value in every.items() if value is not None}


def basis_of(aggregates: Iterable[Aggregate], scale: int | None) -> tuple[str, ...]:
    """The state columns that these aggregates need, in the order of COLUMNS, then those of templates by name.

    `count` is always included, because every result row has its number of readings. scale: None for floats. Raises:
    ConfigError.
    """
    wanted = {"count"}
    for aggregate in aggregates:
        check(aggregate)
        for name in FUNCTIONS[aggregate.fn].components(scale, params_of(aggregate)):
            wanted.update(columns_of(COMPONENTS[name]))
    return (*(name for name in COLUMNS if name in wanted), *sorted(name for name in wanted if ":" in name))


def components_of(basis: Iterable[str]) -> tuple[Component, ...]:
    """The components of a basis, each after those that it needs. Raises: ValueError for an incomplete basis."""
    wanted = set(basis)
    made = (COMPONENTS[name] for name in sorted(wanted) if ":" in name and name in COMPONENTS)
    found = (*(c for c in COMPONENTS.values() if wanted.intersection(c.columns)), *made)
    covered = {column for component in found for column in component.columns}
    lacking = (covered | {column for c in found for column in columns_of(c)}) ^ wanted
    if lacking:
        raise ValueError(f"not a basis: {', '.join(sorted(lacking))} missing from, or unknown in, {', '.join(basis)}")
    return found


def lift(readings: Readings, groups: Segments, basis: tuple[str, ...], scale: int | None) -> dict[str, Array]:
    """Turn readings into states, one per group: column -> shape (len(groups),). groups: of the rows of `readings`.

    Law: combining the lifts of disjoint parts equals the lift of the whole: integers and picks exactly, floats within
    tests/support/tolerance.py, `kll` and `frequent` exactly until they drop values, then within their stated error.
    """
    states: dict[str, Array] = {}
    for component in _components(basis):
        states.update(component.lift(readings, groups, scale, states))
    return states


def combine(states: States, groups: Segments, basis: tuple[str, ...], ranks: Ints | None = None) -> dict[str, Array]:
    """Combine states of disjoint readings, one state per group: column -> shape (len(groups),).

    states: column -> shape (k,). ranks: shape (nodes,), int64, rank of each node code in the bytewise order of ids;
    None: the codes have that order. Laws: associative, commutative, and zero rows are the exact identity.
    """
    combined: dict[str, Array] = {}
    for component in _components(basis):
        combined.update(component.combine(states, groups, combined, ranks))
    return combined


def lower(aggregate: Aggregate, states: States, scale: int | None) -> Lowered:
    """Turn states into the results of one aggregate, one per row; null if the value is beyond the range of floats."""
    lowered = FUNCTIONS[aggregate.fn].lower(states, scale, params_of(aggregate))
    beyond = ~(np.isfinite(lowered.value) | lowered.null)
    if not beyond.any():
        return lowered
    return Lowered(np.where(beyond, np.nan, lowered.value), lowered.null | beyond, lowered.details)


def convert(states: States, scale: int | None, to: int | None) -> dict[str, Array]:
    """Convert states to a finer scale (to <= scale) or to floats (to None). The root does so if nodes differ in scale.

    With floats, `m2` about the mean replaces the exact sum of squares `sq`. Source: docs/protocol.md 7.1. Raises:
    ValueError for a coarser scale, and for floats to integers.
    """
    if scale == to:
        return dict(states)
    if scale is None or (to is not None and to > scale):
        raise ValueError(f"states of scale {scale} cannot be converted to {to} exactly")
    out: dict[str, Array] = {}
    for name, array in states.items():
        column = COLUMNS[name]
        if not column.degree:
            out[name] = array
        elif name != "sq" or to is not None:
            out[name] = KINDS[column.kind].rescale(array, column.degree, scale, to)
    if to is None and "sq" in states:
        spread = FUNCTIONS["var"].lower(states, scale, {"ddof": 0}).value
        out["m2"] = np.multiply(spread, states["count"])
    return out


def renumbered(states: States, basis: tuple[str, ...], change: Callable[[Ints], Ints]) -> dict[str, Array]:
    """The states with other node codes. change: maps an array of codes and keeps the order of node ids."""
    kinds = {name: KINDS[COLUMNS[name].kind] for name in basis}
    found = {name: kind.renumber(states[name], change) for name, kind in kinds.items() if kind.renumber is not None}
    return {**states, **found}


def columns_of(component: Component) -> set[str]:
    """The columns of a component and of all components that it needs."""
    columns = set(component.columns)
    for name in component.needs:
        columns |= columns_of(COMPONENTS[name])
    return columns


_components: Final = cache(components_of)  # called for every batch; there are few bases
