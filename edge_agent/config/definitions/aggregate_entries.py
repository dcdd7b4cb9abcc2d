"""Reads and writes the `aggregates` of a query: functions of algebra/aggregates with their parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.algebra.aggregates import BUILT_IN, FUNCTIONS, REFUSED, Param, broken_law
from edge_agent.algebra.partials.units import fits_float
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
from edge_agent.config.checking.composite_types import Rising
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import BROUGHT, AsWritten, Choice, Number, Pick, Text, left_out, no_float
from edge_agent.config.definitions.sensors import LABEL

_OURS: Final = tuple(function.name for family in BUILT_IN for function in family.functions)
_MEANT: Final = {  # function -> its names in other tools, where the spelling is not similar
    "avg": "mean average",
    "var": "variance s2",
    "stddev": "std sd stdev",
    "min": "minimum",
    "max": "maximum",
    "sum": "total",
    "skewness": "skew",
    "kurtosis": "kurt",
    "rms": "root_mean_square",
    "harmonic": "harmonic_mean hmean",
    "geomean": "geometric_mean",
    "duration": "interval elapsed",
    "value_counts": "valuecounter deduplicate value_counter",
    "delta": "diff difference",
    "range": "spread",
    "weighted_avg": "weighted_mean",
    "count_if": "countif",
    "histogram": "hist",
    "time_of_min": "argmin",
    "time_of_max": "argmax",
    "quantile": "percentile percentile_cont percentile_disc",
    "ewma": "ema exponential_moving_average",
    "slope": "trend regr_slope linear_regression",
    "last": "last_value",
    "first": "first_value",
    "mode": "most_frequent",
    "distinct": "unique distinct_count nunique",
    "approx_distinct": "approx_count_distinct hyperloglog",
    "approx_quantile": "approx_percentile",
    "top_k": "approx_top_k",
}
ALIASES: Final = {word: fn for fn, words in _MEANT.items() for word in words.split()}
PLACED: Final = "leave it out: the planner decides where to compute, and headwater explain shows it"
PLACES: Final = ("distributed", "decentralised", "decentralized", "central", "gateway", "edge", "root", "cloud")
_PLACING: Final = frozenset({*PLACES, "placement", "place", "compute", "computed", "execution"})  # keys of no table
COLUMNS: Final = frozenset(  # columns of every query's view: names not allowed for aggregates
    {
        *("query", "definition_revision", "node", "key", "labels", "start", "end", "window_start", "window_end"),
        *("values", "details", "readings", "revision", "withdrawn", "late", "complete", "expected", "received"),
        *("coverage_id", "batch"),
    }
)
PERCENT: Final = re.compile("p([1-9][0-9]?)")  # p95: the quantile 0.95
_NO_PERCENT: Final = re.compile("p[0-9][0-9._]*")
COLUMN_NAME: Final = Text("a column name", "[A-Za-z_][A-Za-z0-9_]{0,63}", "letters, digits and _")


@dataclass(frozen=True, slots=True)
class AggregateEntry(AsWritten):
    """An entry of `aggregates`: the name of a function, or a table with `fn`, `as` and the function's parameters."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if isinstance(value, str):
            value = {"fn": value}
        if not isinstance(value, Mapping):
            return report.wrong(
                at, value, f"wanted a function, got {type_of(value)}", '"avg" or {fn = "avg", as = "mean"}'
            )
        percent = PERCENT.fullmatch(str(value.get("fn")))
        if percent is not None and "q" not in value:
            value = {"as": percent[0], **value, "fn": "quantile", "q": int(percent[1]) / 100}
        fn = value.get("fn")
        if percent is None and _NO_PERCENT.fullmatch(str(fn)):
            return report.wrong(
                at, fn, f'"{fn}" is not a percentile', 'p1 to p99, or fn = "quantile" with any q from 0 to 1'
            )
        if fn is None:
            near = nearest("fn", value) if value else ""
            return report.wrong(at, value, '"fn" is missing', f"use fn instead of {near}" if near else "add fn = ...")
        spot = (*at, "fn") if "as" in value or len(value) > 1 else at
        of_packages = tuple(name for name in FUNCTIONS if name not in _OURS)
        known = Choice(_OURS, what="function", absent=left_out(REFUSED), others=BROUGHT, of_packages=of_packages)
        if known.read(ALIASES.get(str(fn), fn), spot, report) is BAD:
            return BAD
        if fn in ALIASES:
            return report.wrong(spot, fn, f'unknown function "{fn}"', ALIASES[fn])
        if why := broken_law(str(fn)):
            return report.wrong(spot, fn, why, "correct its package, or set commutative=False there (docs/extend.md)")
        own = unplaced({name: item for name, item in value.items() if name != "fn"}, at, report)
        values = read_table((Key("as", COLUMN_NAME, fn), *params(fn)), own, at, report, whole=True)
        if not complete(values):
            return BAD
        name = values.pop("as")
        if name.lower() in COLUMNS:
            return report.wrong((*at, "as"), name, "is a column of every result already", f"{name}_value")
        ranged = {n for n, param in FUNCTIONS[fn].params if param.within is not None and not param.most}
        for n in sorted(ranged):
            if not fits_float(values[n]):
                return no_float(values[n], (*at, n), report)
        given = {n: float(v) if n in ranged else v for n, v in values.items() if v is not None}
        defaults = {key.name: key.default for key in params(fn)}
        return Aggregate(fn, name, tuple(sorted((n, v) for n, v in given.items() if v != defaults[n])))

    def write(self, value: Any) -> object:
        """Write only the name of the function if there is nothing else."""
        table: dict[str, object] = {"fn": value.fn, **dict(value.params)}
        if value.name != value.fn:
            table["as"] = value.name
        return table if len(table) > 1 else value.fn


def unplaced(table: Mapping[str, object], at: Path, report: Report) -> Mapping[str, object]:
    """The table without keys like `placement`, because the planner decides where to compute. Reports the first one.

    Recordings may contain such keys; there they are not reported.
    """
    placing = sorted(_PLACING & table.keys())
    for name in [] if report.lenient else placing[:1]:
        report.unknown(at, name, (), PLACED)
    return {name: value for name, value in table.items() if name not in placing}


def params(fn: str) -> tuple[Key, ...]:
    """The keys of a function's parameters."""
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
