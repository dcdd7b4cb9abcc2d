"""The filter language."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.where import And, Compare, Expr, In, Not, Or, evaluate, names
from edge_agent.algebra.query.where_parser import parse
from edge_agent.errors import ConfigError

NAMES = st.sampled_from(["value", "site", "unit", "not", "two words", 'a"b', "in"])
TEXTS = st.sampled_from(["a", "b", "", "it's", "3", "-1.5", "x,y=%"])
NUMBERS = st.one_of(st.integers(-5, 5).map(float), st.floats(allow_nan=False, allow_infinity=False))
SIGNS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@st.composite
def leaves(draw: st.DrawFn) -> Expr:
    name = draw(NAMES)
    literal: Any = NUMBERS if name == "value" else st.one_of(TEXTS, NUMBERS)
    if draw(st.booleans()):
        return Compare(name, draw(st.sampled_from(sorted(SIGNS))), draw(literal))
    return In(name, tuple(draw(st.lists(literal, min_size=1, max_size=3))))


def joined(cls: type[And] | type[Or]) -> Any:
    def build(parts: list[Expr]) -> Expr:
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, cls) else (part,))]
        return cls(tuple(flat))

    return build


def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(inner.map(Not), several.map(joined(And)), several.map(joined(Or)))


expressions: st.SearchStrategy[Expr] = st.recursive(leaves(), grown, max_leaves=6)


@given(expr=expressions)
def test_the_canonical_text_reads_back_as_the_same_expression(expr: Expr) -> None:
    assert parse(str(expr)) == expr
    assert str(parse(str(expr))) == str(expr)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def naive(expr: Expr, value: float, labels: dict[str, str]) -> bool:
    match expr:
        case Compare(name, sign, literal):
            if name == "value":
                return bool(SIGNS[sign](value, literal))
            label = labels.get(name, "")
            if isinstance(literal, str):
                return bool(SIGNS[sign](label, literal))
            spelled = number(label)
            return sign == "!=" if spelled is None else bool(SIGNS[sign](spelled, literal))
        case In(name, options):
            return any(naive(Compare(name, "=", option), value, labels) for option in options)
        case Not(part):
            return not naive(part, value, labels)
        case And(parts):
            return all(naive(part, value, labels) for part in parts)
        case Or(parts):
            return any(naive(part, value, labels) for part in parts)


SERIES = [
    (("site", "a"), ("unit", "3")),
    (("site", "b"), ("unit", "-1.5")),
    (("in", "it's"), ("two words", "x,y=%")),
    (),
]


LARGE = st.sampled_from([2.0**53, 2.0**61, -(2.0**61), 2.0**62, 1e300, -1e300, 0.1, 0.3, 900719925474099.25])


@given(
    sign=st.sampled_from(sorted(SIGNS)),
    literals=st.lists(NUMBERS | LARGE, min_size=1, max_size=3),
    near=st.lists(st.integers(-3, 3), max_size=6),
    scale=st.integers(-3, 2),
)
def test_integers_of_any_size_and_scale_are_compared_exactly(
    sign: str, literals: list[float], near: list[int], scale: int
) -> None:
    """A literal is the number that was written: a whole number, or the decimals that it prints as."""
    exact = [Fraction(int(one)) if one.is_integer() else Fraction(repr(one)) for one in literals]
    most, step = 2**61 - 1, Fraction(10) ** scale
    units = [max(-most, min(most, round(exact[0] / step) + by)) for by in near]
    value, series = np.array(units, np.int64), np.zeros(len(units), np.int64)
    found = evaluate(Compare("value", sign, literals[0]), value, series, [()], scale=scale)
    assert found.tolist() == [bool(SIGNS[sign](unit * step, exact[0])) for unit in units]
    found = evaluate(Not(In("value", tuple(literals))), value, series, [()], scale=scale)
    assert found.tolist() == [unit * step not in exact for unit in units]


@given(
    expr=expressions,
    values=st.lists(st.one_of(st.integers(-5, 5).map(float), st.floats(allow_nan=False)), max_size=6),
    first=st.integers(0, 3),
)
def test_a_mask_says_of_each_reading_what_the_expression_says_of_it_alone(
    expr: Expr, values: list[float], first: int
) -> None:
    value = np.array(values, np.float64)
    series = (np.arange(len(values)) + first) % 4
    want = [naive(expr, v, dict(SERIES[s])) for v, s in zip(values, series.tolist(), strict=True)]
    cache: dict[Expr, Any] = {}
    table = SERIES[:2]
    evaluate(expr, value[:1], np.zeros(min(1, len(values)), np.int64), table, cache)  # a table that grows later
    assert evaluate(expr, value, series, SERIES, cache).tolist() == want
    assert evaluate(expr, value, series, SERIES).tolist() == want
    one = np.broadcast_to(np.int64(first), (len(values),))
    assert evaluate(expr, value, one, SERIES).tolist() == [naive(expr, v, dict(SERIES[first])) for v in values]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("value > 0 and site = 'a'", "value > 0 and site = 'a'"),
        ("  VALUE<>1.50  ", "VALUE != 1.5"),
        ("0 < value", "value > 0"),
        ("'a' = site", "site = 'a'"),
        ("not site in ('a','b')", "not (site in ('a', 'b'))"),
        ("site NOT IN ('a')", "not (site in ('a'))"),
        ("(value>1 or value<-1e3) and (a='x' and b='y')", "(value > 1 or value < -1000) and a = 'x' and b = 'y'"),
        ("a = 1 or b = 2 and c = 3", "a = 1 or b = 2 and c = 3"),
        ("((value = .5))", "value = 0.5"),
        ('"order by" = \'it\'\'s\'', '"order by" = \'it\'\'s\''),
    ],
)  # fmt: skip
def test_text_becomes_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "got the end"),
        ("value >", 8, "wanted a number"),
        ("value > 'a'", 9, "compared with a number"),
        ("'a' < value", 7, "compared with a number"),
        ("value in (1, 'a')", 14, "compared with a number"),
        ("site = a", 8, "text in single quotes"),
        ("site = 'a", 8, "closing quote"),
        ("value > 0 and", 14, "got the end"),
        ("value > 0 site = 'a'", 11, "wanted 'and', 'or' or the end"),
        ("(value > 0", 11, "wanted ')'"),
        ("value = 1 = 2", 11, "wanted 'and'"),
        ("value not 3", 11, "wanted 'in'"),
        ("site in 'a'", 9, "wanted '(' after in"),
        ("site in ()", 10, "wanted a number"),
        ("site in ('a' 'b')", 14, "wanted ','"),
        ("1 < 2", 5, "a label or 'value'"),
        ("value ; 1", 7, "cannot read ';"),
        ("value == 1", 8, "got '='"),
        ("value > 1e999", 9, "too large"),
        ("value > 12abc", 9, "cannot read"),
        ("and = 1", 1, "got 'and'"),
        ("(" * 40 + "value = 1" + ")" * 40, 33, "nested deeper"),
        ("not " * 40 + "value = 1", 129, "nested deeper"),
    ],
)
def test_a_mistake_is_refused_with_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert f"at character {column}:" in str(caught.value)
    assert says in str(caught.value)


def test_a_text_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4096"):
        parse("value = 1" + " or value = 1" * 1_000)


@given(text=st.text(alphabet="va lue<>='()0.1e-anoridt,\"é\n", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expr = parse(text)
    except ConfigError as err:
        assert "where: at character" in str(err)  # noqa: PT017 - either outcome is right, an unclear one is not
    else:
        assert parse(str(expr)) == expr


def test_the_names_used_are_known() -> None:
    assert names(parse("value > 0 and not (site = 'a' or unit in ('b'))")) == {"value", "site", "unit"}
