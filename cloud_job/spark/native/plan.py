"""Combines states with native Spark expressions, without Python functions.

COMBINE, and LOWER in lower.py, have an entry for each component or function with a native expression. A test compares
every member of the registry with the numpy functions in edge_agent/algebra/aggregates. State columns of scaled integers
get the suffix `_units`, so that queries of floats and of integers share one set of rows, and a batch has one Spark
plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cloud_job.spark.native import in_numpy
from cloud_job.spark.native.column_types import form_of
from cloud_job.spark.native.in_numpy import Names
from edge_agent.algebra.aggregates import basis_of, components_of
from edge_agent.algebra.query.query import Aggregate

Named = dict[str, Column]

UNITS: Final = "_units"
WIDE_TYPE: Final = "decimal(38,0)"  # docs/protocol.md 7.1
POWERS: Final = (2, 3, 4, 5)  # m2 to m5: sums of powers of distances from the mean


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """How a query's results are computed: aggregates, and the scale (power of ten) of the integers; None: floats."""

    aggregates: tuple[Aggregate, ...]
    scale: int | None

    @property
    def basis(self) -> tuple[str, ...]:
        """The state columns that the aggregates need, including `count`."""
        return basis_of(self.aggregates, self.scale)


def spark_name(column: str, scale: int | None) -> str:
    """The Spark column for a state column of the registry. `count` is shared by all shapes."""
    return _safe(column) if scale is None else _suffixed(column)


def state_columns(shapes: Iterable[Shape]) -> dict[str, str]:
    """Spark columns for the states of all these shapes: name -> type, sorted by name."""
    found: dict[str, str] = {}
    for shape in shapes:
        for column in shape.basis:
            found[spark_name(column, shape.scale)] = form_of(column, shape.scale).spark
    return {name: found[name] for name in sorted(found)}


def combine(rows: DataFrame, keys: Sequence[str], shapes: Iterable[Shape], extra: Named | None = None) -> DataFrame:
    """One row per `keys`: states of disjoint readings combined.

    rows: `keys` and state_columns(shapes), null where a row's shape lacks a column. extra: further aggregates by name.
    Equal to algebra.aggregates.combine: integers exactly, floats within tests/support/tolerance.py.
    """
    shapes = tuple(shapes)
    parts = sorted({(c.name, s.scale is not None) for s in shapes for c in components_of(s.basis)})
    for units in (False, True):
        powers = [p for p in POWERS if (f"m{p}", units) in parts and f"m{p}" in COMBINE]
        if powers:
            rows = _about_the_mean(rows, keys, _suffixed if units else _safe, powers)
    aggregates: Named = dict(extra or {})
    unpacked: Named = {}
    for name, units in parts:
        aggregates.update(twin(name)(_suffixed if units else _safe))
        if name in UNPACK and name in COMBINE:
            unpacked.update(UNPACK[name](_suffixed if units else _safe))
    combined = rows.groupBy(*keys).agg(*(column.alias(name) for name, column in aggregates.items()))
    if not unpacked:
        return combined
    plain = [F.col(f"`{name}`") for name in combined.columns if not name.startswith(PACKED)]
    return combined.select(*plain, *(column.alias(name) for name, column in unpacked.items()))


def _suffixed(column: str) -> str:
    return column if column == "count" else _safe(column) + UNITS


def _safe(column: str) -> str:
    """A name that Spark accepts, also for columns of templates such as `below:-0.5`. Spark ignores case."""
    if ":" not in column:
        return column
    return re.sub("[^a-z0-9_]", lambda sign: f"_{ord(sign[0]):x}_", column)


PACKED: Final = "packed_"


def _about_the_mean(rows: DataFrame, keys: Sequence[str], name: Names, powers: Sequence[int]) -> DataFrame:
    """Add columns with each row's moments about the group's mean. These can be summed (docs/protocol.md 7.2)."""
    group = Window.partitionBy(*keys)
    total, count = F.col(name("sum")).cast("double"), F.col("count")
    away = total / count - F.sum(total).over(group) / F.sum(count).over(group)
    rows = rows.withColumn(PACKED + name("away"), away)
    made = {PACKED + name(f"m{power}"): _moved(power, F.col(PACKED + name("away")), name) for power in powers}
    return rows.withColumns(made)


def _moved(power: int, away: Column, name: Names) -> Column:
    """The row's sum of powers of distances from a mean that is `away` below its own mean, by the binomial theorem. The
    first-power sum about the row's own mean is 0.
    """
    moved = F.col("count") * _times(away, power)
    for lower in range(2, power + 1):
        moved = moved + comb(power, lower) * F.col(name(f"m{lower}")) * _times(away, power - lower)
    return moved


def _times(value: Column, power: int) -> Column:
    product = F.lit(1.0)
    for _ in range(power):
        product = product * value
    return product


def _added(*columns: str) -> Callable[[Names], Named]:
    """Combine by adding. try_sum: a sum beyond 38 digits becomes null instead of failing the job."""
    return lambda name: {name(c): F.try_sum(name(c)) for c in columns}


def _moments(power: int) -> Callable[[Names], Named]:
    return lambda name: {name(f"m{power}"): F.try_sum(PACKED + name(f"m{power}"))}


def _end(which: str) -> Callable[[Names], Named]:
    """first, last: the value with the least or greatest (time, node, order)."""
    pick = F.min if which == "first" else F.max

    def combined(name: Names) -> Named:
        fields = [name(f"{which}_{part}") for part in ("time", "node", "order", "value")]
        return {PACKED + name(which): pick(F.when(F.col(fields[0]).isNotNull(), F.struct(*fields)))}

    return combined


def _unpack_end(which: str) -> Callable[[Names], Named]:
    def unpacked(name: Names) -> Named:
        fields = [name(f"{which}_{part}") for part in ("time", "node", "order", "value")]
        return {field: F.col(PACKED + name(which))[field] for field in fields}

    return unpacked


def _extreme_time(which: str) -> Callable[[Names], Named]:
    """argmin, argmax: the extreme value and its time; for equal values the earliest time."""

    def combined(name: Names) -> Named:
        value, time = F.col(name(f"{which}_value")), F.col(name(f"{which}_time"))
        pick, earliest = (F.min, time) if which == "argmin" else (F.max, -time)
        pair = F.struct(value.alias("value"), earliest.alias("earliest"))
        return {PACKED + name(which): pick(F.when(value.isNotNull(), pair))}

    return combined


def _unpack_extreme_time(which: str) -> Callable[[Names], Named]:
    def unpacked(name: Names) -> Named:
        pair = F.col(PACKED + name(which))
        time = pair["earliest"] if which == "argmin" else -pair["earliest"]
        return {name(f"{which}_value"): pair["value"], name(f"{which}_time"): time}

    return unpacked


def _united(column: str, union: Callable[[str], Column]) -> Callable[[Names], Named]:
    """Combine sketches with Spark's own union; null if a group has none."""
    return lambda name: {name(column): F.when(F.count(name(column)) > 0, union(name(column)))}


def _listed(column: str) -> Callable[[Names], Named]:
    """Collect all cells of a group. They are merged when results are computed."""
    return lambda name: {name(column): F.collect_list(name(column))}


COMBINE: Final[dict[str, Callable[[Names], Named]]] = {  # component -> aggregate expressions
    "count": _added("count"),
    "sum": _added("sum"),
    "square": _added("sq"),
    **{f"m{power}": _moments(power) for power in POWERS},
    "min": lambda name: {name("min"): F.min(name("min"))},
    "max": lambda name: {name("max"): F.max(name("max"))},
    "log": _added("log_sum"),
    "nonpos": _added("nonpos"),
    "inverse": _added("inverse_sum"),
    "first": _end("first"),
    "last": _end("last"),
    "argmin": _extreme_time("argmin"),
    "argmax": _extreme_time("argmax"),
    "bag": _listed("bag"),
    "series": _listed("series"),
    "hll": _united("hll", F.hll_union_agg),
    "theta": _united("theta", F.theta_union_agg),
}


def twin(component: str) -> Callable[[Names], Named]:
    """How a component is combined: natively, or collected for numpy."""
    if ":" in component:  # components of templates are sums
        return _added(component)
    return COMBINE.get(component) or (
        lambda name: {name(in_numpy.ROWS + component): in_numpy.collected(component, name)}
    )


def is_native(component: str) -> bool:
    """Whether Spark combines a component natively."""
    return ":" in component or component in COMBINE


UNPACK: Final[
    dict[str, Callable[[Names], Named]]
] = {  # component -> its state columns, if it was aggregated as a struct
    "first": _unpack_end("first"),
    "last": _unpack_end("last"),
    "argmin": _unpack_extreme_time("argmin"),
    "argmax": _unpack_extreme_time("argmax"),
}
