"""Filters of queries as expression trees, and their evaluation. where_parser.py parses them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Array, Ints, Mask
from edge_agent.algebra.query.key import Labels

VALUE: Final = "value"
SIGNS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
BEYOND: Final = 2**62  # no reading is so large (machines/slicing/reading_filter.py)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*\Z")
KEYWORDS: Final = frozenset({"and", "or", "not", "in"})


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison. name: a label or 'value'. sign: one of SIGNS."""

    name: str
    sign: str
    literal: float | str

    def __str__(self) -> str:
        return f"{_name(self.name)} {self.sign} {_literal(self.literal)}"


@dataclass(frozen=True, slots=True)
class In:
    """True where the name equals one of the options."""

    name: str
    options: tuple[float | str, ...]

    def __str__(self) -> str:
        return f"{_name(self.name)} in ({', '.join(map(_literal, self.options))})"


@dataclass(frozen=True, slots=True)
class Not:
    """True where the part is false."""

    part: Expr

    def __str__(self) -> str:
        return f"not ({self.part})"


@dataclass(frozen=True, slots=True)
class And:
    """True where all parts are true. parts: at least two, none of them an And."""

    parts: tuple[Expr, ...]

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """True where any part is true. parts: at least two, none of them an Or."""

    parts: tuple[Expr, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


Expr = Compare | In | Not | And | Or
Scaled = tuple[Array, int | None]  # values and their scale


def names(expr: Expr) -> frozenset[str]:
    """The names in an expression: labels, and 'value' if it occurs."""
    match expr:
        case Compare() | In():
            return frozenset({expr.name})
        case Not():
            return names(expr.part)
        case And() | Or():
            return frozenset[str]().union(*map(names, expr.parts))


def evaluate(
    expr: Expr,
    value: Array,
    series: Ints,
    labels: Sequence[Labels],
    cache: dict[Expr, Mask] | None = None,
    *,
    scale: int | None = None,
) -> Mask:
    """Whether each reading passes: shape (k,), bool.

    value: shape (k,), float64 in the sensor's unit if scale is None, else int64 in units of 10**scale: these are
    compared exactly. series: shape (k,), int64, index into labels, which is an append-only table. cache: results of
    conditions on labels alone, per series; the caller keeps it for the same table.
    """
    passed = _evaluate(expr, (value, scale), series, labels, {} if cache is None else cache)
    return np.broadcast_to(passed, np.shape(value)) if np.ndim(passed) == 0 else passed


def _evaluate(expr: Expr, of: Scaled, series: Ints, labels: Sequence[Labels], cache: dict[Expr, Any]) -> Any:
    if VALUE not in names(expr):
        known = cache.get(expr)
        if known is None or len(known) < len(labels):
            seen = 0 if known is None else len(known)
            more = np.array([_holds(expr, dict(labels[i])) for i in range(seen, len(labels))], np.bool_)
            known = cache[expr] = more if known is None else np.concatenate([known, more])
        return known[series[0]] if len(series) and series.strides == (0,) else known[series]
    value, scale = of
    match expr:
        case Compare():
            literal = expr.literal if scale is None else _bound(expr.sign, float(expr.literal), scale)
            return np.full(len(value), expr.sign == "!=") if literal is None else SIGNS[expr.sign](value, literal)
        case In():
            if scale is None:
                return np.isin(value, np.array(expr.options, np.float64))
            bounds = [_bound("=", float(option), scale) for option in expr.options]
            return np.isin(value, np.array([bound for bound in bounds if bound is not None], np.int64))
        case Not():
            return np.logical_not(_evaluate(expr.part, of, series, labels, cache))
        case And() | Or():
            join = np.logical_and if isinstance(expr, And) else np.logical_or
            return join.reduce(
                [np.broadcast_to(_evaluate(part, of, series, labels, cache), np.shape(value)) for part in expr.parts]
            )


@lru_cache(1_024)
def _bound(sign: str, literal: float, scale: int) -> int | None:
    """The int64 with which units of 10**scale compare as their values do with a literal; None: equal to no unit."""
    exact = Fraction(int(literal)) if literal.is_integer() else Fraction(repr(literal))  # as it was written
    units = exact / Fraction(10) ** scale
    if sign in ("=", "!="):
        return int(units) if units.denominator == 1 and abs(units) < BEYOND else None
    return max(-BEYOND, min(BEYOND, math.ceil(units) if sign in ("<", ">=") else math.floor(units)))


def _holds(expr: Expr, labels: dict[str, str]) -> bool:
    """Whether an expression without `value` is true for a series with these labels."""
    match expr:
        case Compare():
            return _compare(labels.get(expr.name, ""), expr.sign, expr.literal)
        case In():
            return any(_compare(labels.get(expr.name, ""), "=", option) for option in expr.options)
        case Not():
            return not _holds(expr.part, labels)
        case And():
            return all(_holds(part, labels) for part in expr.parts)
        case Or():
            return any(_holds(part, labels) for part in expr.parts)


def _compare(label: str, sign: str, literal: float | str) -> bool:
    if isinstance(literal, str):
        return bool(SIGNS[sign](label, literal))
    if not _NUMBER.match(label):
        return sign == "!="
    return bool(SIGNS[sign](float(label), literal))


def _name(name: str) -> str:
    if _PLAIN.match(name) and name.lower() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def _literal(literal: float | str) -> str:
    if isinstance(literal, str):
        return "'" + literal.replace("'", "''") + "'"
    return str(int(literal)) if literal.is_integer() and abs(literal) < 2**53 else repr(literal)
