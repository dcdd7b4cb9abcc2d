"""Stands in for Spark's rows and conditions on them: frames that are lists (no Spark)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[[dict[str, Any]], bool]


class Found(dict[str, Any]):
    """A row as Spark returns it."""

    def asDict(self) -> dict[str, Any]:
        return dict(self)


class Condition:
    """A condition on rows, as Spark's columns make them."""

    def __init__(self, test: Test) -> None:
        self.test = test

    def __and__(self, other: Condition) -> Condition:
        return Condition(lambda row: self.test(row) and other.test(row))


class Functions:
    """Stands in for pyspark.sql.functions."""

    class col:  # noqa: N801, PLW1641 - Spark's name; a column is no key
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> Condition:  # type: ignore[override]
            return Condition(lambda row: row[self.name] == other)

        def __ne__(self, other: object) -> Condition:  # type: ignore[override]
            return Condition(lambda row: row[self.name] != other)

        def isin(self, values: Iterable[Any]) -> Condition:
            known = set(values)
            return Condition(lambda row: row[self.name] in known)


class Frame(list[dict[str, Any]]):
    """Rows of a table, or rows that are to be written."""

    def where(self, condition: str | Condition) -> Frame:
        if isinstance(condition, str):
            name, _, value = condition.partition(" = ")
            return Frame(row for row in self if row[name] == int(value))
        return Frame(row for row in self if condition.test(row))

    def select(self, name: str) -> Frame:
        return Frame({name: row[name]} for row in self)

    def isEmpty(self) -> bool:
        return not self

    def collect(self) -> list[Found]:
        return [Found(row) for row in self]

    @property
    def write(self) -> Frame:
        return self

    def mode(self, _name: str) -> Frame:
        return self

    format = mode

    def save(self) -> None:
        """As Spark, which computes rows only here."""
        if any(row.get("bad") for row in self):
            raise ValueError("bad")

    def unionByName(self, other: Frame) -> Frame:
        return Frame([*self, *other])
