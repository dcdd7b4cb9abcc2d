"""Parses the filter language of queries: `value > 0 and (site = 'a' or unit in ('3', '4'))`.

Operators are = != < <= > >=, `in (...)`, `not in (...)`, and, or, not and parentheses; keywords may be in upper or
lower case. The left side is `value` or a label; a label that is no plain word is written in double quotes. The right
side is a number, or a text in single quotes with '' for a quote.

A label that a series lacks is ''. A label that is compared with a number is read as a number; if its text is no number,
only != is true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.partials.units import fits_float
from edge_agent.algebra.query.where import KEYWORDS, SIGNS, VALUE, And, Compare, Expr, In, Not, Or
from edge_agent.errors import ConfigError

_DEPTH: Final = 32  # limits the recursion of the parser; nobody nests so deep by hand
_LENGTH: Final = 4_096  # most characters of a filter

_FLIPPED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><>|!=|<=|>=|[=<>(),])
)""",
    re.VERBOSE,
)


def parse(text: str) -> Expr:
    """Parse a filter. str() of the result is its canonical text. Raises: ConfigError with the character (from 1)."""
    if len(text) > _LENGTH:
        raise ConfigError(f"where: the filter has {len(text)} characters, at most {_LENGTH} are allowed")
    return _Parser(text).whole()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, text, name, sign, keyword, end
    text: str
    column: int


class _Parser:
    """A recursive-descent parser. Precedence, lowest first: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0

    def whole(self) -> Expr:
        expr = self.either()
        if self.here.kind != "end":
            raise self.wrong("'and', 'or' or the end")
        return expr

    @property
    def here(self) -> _Token:
        return self.tokens[self.at]

    def take(self, kind: str, *texts: str) -> _Token | None:
        token = self.here
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self.at += 1
        return token

    def wrong(self, wanted: str) -> ConfigError:
        got = "the end" if self.here.kind == "end" else repr(self.here.text)
        return ConfigError(f"where: at character {self.here.column}: wanted {wanted}, got {got}")

    def either(self) -> Expr:
        return self.joined("or", Or, self.both)

    def both(self) -> Expr:
        return self.joined("and", And, self.negated)

    def joined(self, word: str, cls: type[And] | type[Or], part: Callable[[], Expr]) -> Expr:
        parts: list[Expr] = []
        while True:
            found = part()
            parts += found.parts if isinstance(found, cls) else (found,)
            if not self.take("keyword", word):
                return parts[0] if len(parts) == 1 else cls(tuple(parts))

    def negated(self) -> Expr:
        self.depth += 1
        if self.depth > _DEPTH:
            raise ConfigError(f"where: at character {self.here.column}: nested deeper than {_DEPTH}")
        try:
            if self.take("keyword", "not"):
                return Not(self.negated())
            if self.take("sign", "("):
                expr = self.either()
                if not self.take("sign", ")"):
                    raise self.wrong("')'")
                return expr
            return self.comparison()
        finally:
            self.depth -= 1

    def comparison(self) -> Expr:
        literal = self.literal()
        if literal is not None:  # the literal may come first, as in `0 < value`
            sign = self.sign()
            if self.here.kind != "name":
                raise self.wrong("a label or 'value'")
            return Compare(self.name(literal), _FLIPPED[sign], literal)
        if self.here.kind != "name":
            raise self.wrong("a label, 'value', 'not' or '('")
        token = self.here
        self.at += 1
        negative = self.take("keyword", "not")
        if self.take("keyword", "in"):
            listed = In(token.text, self.options(token.text))
            return Not(listed) if negative else listed
        if negative:
            raise self.wrong("'in'")
        sign = self.sign()
        return Compare(token.text, sign, self.operand(token.text))

    def sign(self) -> str:
        token = self.take("sign", "<>", *SIGNS)
        if token is None:
            raise self.wrong("one of = != < <= > >= in")
        return "!=" if token.text == "<>" else token.text

    def name(self, literal: float | str) -> str:
        token = self.here
        self.at += 1
        if token.text == VALUE and isinstance(literal, str):
            raise ConfigError(f"where: at character {token.column}: value is compared with a number, not a text")
        return token.text

    def operand(self, name: str) -> float | str:
        column = self.here.column
        literal = self.literal()
        if literal is None:
            raise self.wrong("a number or a text in single quotes")
        if name == VALUE and isinstance(literal, str):
            raise ConfigError(f"where: at character {column}: value is compared with a number, not a text")
        return literal

    def options(self, name: str) -> tuple[float | str, ...]:
        if not self.take("sign", "("):
            raise self.wrong("'(' after in")
        found = [self.operand(name)]
        while self.take("sign", ","):
            found.append(self.operand(name))
        if not self.take("sign", ")"):
            raise self.wrong("',' or ')'")
        return tuple(found)

    def literal(self) -> float | str | None:
        token = self.take("number") or self.take("text")
        if token is None:
            return None
        return float(token.text) if token.kind == "number" else token.text


def _tokens(text: str) -> list[_Token]:
    out: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
            rest = text[column - 1 :]
            why = "a text has no closing quote" if rest[0] in "'\"" else f"cannot read {rest[:12]!r}"
            raise ConfigError(f"where: at character {column}: {why}")
        kind, found, column = match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1
        if kind == "number" and not math.isfinite(float(found)):
            raise ConfigError(f"where: at character {column}: {found} is too large for a number")
        if kind == "number" and not set(found) & set(".eE") and not fits_float(int(found)):
            near = f"the nearest one is {int(float(found))}"
            raise ConfigError(f"where: at character {column}: {found} is beyond 2^53 and no float; {near}")
        if kind == "text":
            out.append(_Token("text", found[1:-1].replace("''", "'"), column))
        elif kind == "quoted":
            out.append(_Token("name", found[1:-1].replace('""', '"'), column))
        elif kind == "word":
            keyword = found.lower() in KEYWORDS
            out.append(_Token("keyword" if keyword else "name", found.lower() if keyword else found, column))
        else:
            out.append(_Token(kind, found, column))
        at = match.end()
    out.append(_Token("end", "", len(text) + 1))
    return out
