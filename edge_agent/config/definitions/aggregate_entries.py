"""The `aggregates` of a query: the functions of algebra/aggregates with their parameters, as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from edge_agent.algebra.aggregates import BUILT_IN, FUNCTIONS, REFUSED, Param, broken_law
from edge_agent.algebra.query.query import Aggregate
from edge_agent.config.checking.checker import (
    BAD,
    REQUIRED,
    Key,
    Report,
    ValueType,
    complete,
    nearest,
    read_table,
    type_of,
)
from edge_agent.config.checking.composite_types import Rising, object_schema
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import BROUGHT, Choice, Number, Pick, Text, left_out
from edge_agent.config.definitions.sensors import LABEL

_OURS: Final = tuple(function.name for family in BUILT_IN for function in family.functions)
ALIASES: Final = {  # words of other tools that no spelling distance brings here
    "mean": "avg",
    "average": "avg",
    "variance": "var",
    "std": "stddev",
    "sd": "stddev",
    "minimum": "min",
    "maximum": "max",
    "total": "sum",
    "skew": "skewness",
    "kurt": "kurtosis",
    "root_mean_square": "rms",
    "harmonic_mean": "harmonic",
    "hmean": "harmonic",
    "geometric_mean": "geomean",
    "interval": "duration",
    "elapsed": "duration",
    "valuecounter": "value_counts",
    "diff": "delta",
    "difference": "delta",
    "spread": "range",
    "weighted_mean": "weighted_avg",
    "countif": "count_if",
    "hist": "histogram",
    "argmin": "time_of_min",
    "argmax": "time_of_max",
    "percentile": "quantile",
    "percentile_cont": "quantile",
    "percentile_disc": "quantile",
    "ema": "ewma",
    "exponential_moving_average": "ewma",
    "trend": "slope",
    "regr_slope": "slope",
    "linear_regression": "slope",
    "last_value": "last",
    "first_value": "first",
    "deduplicate": "value_counts",
    "stdev": "stddev",
    "s2": "var",
    "value_counter": "value_counts",
    "most_frequent": "mode",
    "unique": "distinct",
    "distinct_count": "distinct",
    "nunique": "distinct",
    "approx_count_distinct": "approx_distinct",
    "hyperloglog": "approx_distinct",
    "approx_percentile": "approx_quantile",
    "approx_top_k": "top_k",
}
PLACED: Final = "where it is computed follows from window and functions, and headwater explain says it: leave this out"
PLACES: Final = ("distributed", "decentralised", "decentralized", "central", "gateway", "edge", "root", "cloud")
_PLACING: Final = frozenset({*PLACES, "placement", "place", "compute", "computed", "execution"})  # keys of no table
COLUMNS: Final = frozenset(  # of a query's view: an aggregate cannot have the name of one
    {
        *("query", "definition_revision", "node", "key", "labels", "start", "end", "window_start", "window_end"),
        *("values", "details", "readings", "revision", "withdrawn", "late", "complete", "expected", "received"),
        *("coverage_id", "batch"),
    }
)
_PERCENT: Final = re.compile("p([1-9][0-9]?)")  # p95: the quantile 0.95
_NO_PERCENT: Final = re.compile("p[0-9][0-9._]*")
_NAME: Final = Text("a column name", "[A-Za-z_][A-Za-z0-9_]{0,63}", "letters, digits and _")


@dataclass(frozen=True, slots=True)
class AggregateEntry:
    """One of `aggregates`: a function's name, or a table with fn, as and the function's parameters."""

    suffix: ClassVar[str] = ""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if isinstance(value, str):
            value = {"fn": value}
        if not isinstance(value, Mapping):
            return report.wrong(
                at, value, f"wanted a function, got {type_of(value)}", '"avg" or {fn = "avg", as = "mean"}'
            )
        percent = _PERCENT.fullmatch(str(value.get("fn")))
        if percent is not None and "q" not in value:
            value = {"as": percent[0], **value, "fn": "quantile", "q": int(percent[1]) / 100}
        fn = value.get("fn")
        if percent is None and _NO_PERCENT.fullmatch(str(fn)):
            return report.wrong(
                at, fn, f'"{fn}" is no percentage', 'p1 to p99, or fn = "quantile" with any q from 0 to 1'
            )
        if fn is None:
            near = nearest("fn", value) if value else ""
            return report.wrong(at, value, '"fn" is missing', f"use fn instead of {near}" if near else "add fn = ...")
        spot = (*at, "fn") if "as" in value or len(value) > 1 else at
        brought = tuple(name for name in FUNCTIONS if name not in _OURS)
        if (
            Choice(_OURS, what="function", absent=left_out(REFUSED), others=BROUGHT, brought=brought).read(
                ALIASES.get(str(fn), fn), spot, report
            )
            is BAD
        ):
            return BAD
        if fn in ALIASES:
            return report.wrong(spot, fn, f'unknown function "{fn}"', ALIASES[fn])
        if why := broken_law(str(fn)):
            return report.wrong(spot, fn, why, "correct its package, or set commutative=False there (docs/extend.md)")
        own = unplaced({name: item for name, item in value.items() if name != "fn"}, at, report)
        values = read_table((Key("as", _NAME, fn), *params(fn)), own, at, report, whole=True)
        if not complete(values):
            return BAD
        name = values.pop("as")
        if name.lower() in COLUMNS:
            return report.wrong((*at, "as"), name, "is a column of every result already", f"{name}_value")
        ranged = {n for n, param in FUNCTIONS[fn].params if param.within is not None and not param.most}
        given = {n: float(v) if n in ranged else v for n, v in values.items() if v is not None}
        defaults = {key.name: key.default for key in params(fn)}
        return Aggregate(fn, name, tuple(sorted((n, v) for n, v in given.items() if v != defaults[n])))

    def write(self, value: Any) -> object:
        """Write the name alone where that says it all."""
        return write_aggregate(value)

    def schema(self) -> dict[str, object]:
        alone = [fn for fn in FUNCTIONS if all(key.default is not REQUIRED for key in params(fn))]
        branches: list[dict[str, object]] = [{"enum": alone}, {"type": "string", "pattern": f"^{_PERCENT.pattern}$"}]
        for fn in FUNCTIONS:
            table = object_schema((Key("as", _NAME), *params(fn)), {"fn": {"const": fn}})
            needed = [key.name for key in params(fn) if key.default is REQUIRED]
            branches.append({**table, "required": ["fn", *needed]})
        rest = tuple(key for key in params("quantile") if key.name != "q")
        fn_text = {"type": "string", "pattern": f"^{_PERCENT.pattern}$"}
        branches.append({**object_schema((Key("as", _NAME), *rest), {"fn": fn_text}), "required": ["fn"]})
        return {"oneOf": branches}


def unplaced(table: Mapping[str, object], at: Path, report: Report) -> Mapping[str, object]:
    """The table without keys that choose where to compute: the planner decides that. Adds a mistake for each.

    Recordings may contain them.
    """
    placing = sorted(_PLACING & table.keys())
    for name in [] if report.lenient else placing[:1]:
        report.unknown(at, name, (), PLACED)
    return {name: value for name, value in table.items() if name not in placing}


def params(fn: str) -> tuple[Key, ...]:
    """The keys a function has beside fn and as."""
    return tuple(
        Key(name, _kind(param), REQUIRED if param.default is None else param.default, param.wanted)
        for name, param in FUNCTIONS[fn].params
    )


def _kind(param: Param) -> ValueType:
    if param.text:
        return LABEL
    if param.within is None:
        return Pick(tuple(choice for choice in param.choices if not isinstance(choice, tuple)))
    if param.most:
        return Rising(Number(*param.within), param.most)
    return Number(*param.within, hint=param.wanted, share=param.within == (0, 1))


def write_aggregate(aggregate: Aggregate) -> object:
    """What reads back to the aggregate."""
    table: dict[str, object] = {"fn": aggregate.fn, **dict(aggregate.params)}
    if aggregate.name != aggregate.fn:
        table["as"] = aggregate.name
    return table if len(table) > 1 else aggregate.fn
