"""Rows of results as in gold.results, made from the combined states of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_agent.algebra.aggregates import Lowered, lower
from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.key import key_labels
from edge_agent.algebra.query.query import Aggregate, Query


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """The fields of a row of results (docs/query.md) that `headwater replay` prints, from either root.

    start, end in us. values: by aggregate name; None: no result. details: a JSON object of results that no double can
    represent, or None. readings: number of readings in the row. revision: 0 for the first row of its identity (query,
    node, key, start).
    """

    query: str
    node: str
    labels: Mapping[str, str]
    start: int
    end: int
    values: Mapping[str, float | None]
    details: str | None
    readings: int
    revision: int
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class Row(ReplayedRow):
    """One row of results. late: how many of its readings were late."""

    definition_revision: int
    key: str
    late: int
    coverage: Coverage

    @property
    def complete(self) -> bool:
        """Whether every expected gateway is in the row and no reading was lost."""
        return self.coverage.complete

    @property
    def expected(self) -> int:
        """The number of gateways expected."""
        return len(self.coverage.expected)

    @property
    def received(self) -> int:
        """The number of gateways in the row."""
        return self.coverage.received


@dataclass(frozen=True, slots=True)
class TooLateReadings:
    """Readings that are in no result. reason: as in ops.late."""

    node: str
    source: str
    key: str
    start: int
    end: int
    readings: int
    reason: str


@dataclass(frozen=True, slots=True)
class WindowAnswers:
    """Results of windows of one query. values, details: by aggregate name. readings, late: counts of readings."""

    query: Query
    values: Mapping[str, Sequence[float | None]]
    details: Mapping[str, Sequence[str | None]]
    readings: Sequence[int]
    late: Sequence[int]

    @classmethod
    def of(cls, query: Query, answers: Mapping[str, Lowered], readings: Ints, late: Ints) -> WindowAnswers:
        """From columns, all of the same length."""
        values = {
            name: [None if null else value for value, null in zip(each.value.tolist(), each.null.tolist(), strict=True)]
            for name, each in answers.items()
        }
        details = {name: each.details for name, each in answers.items() if each.details is not None}
        return cls(query, values, details, readings.tolist(), late.tolist())

    def row(self, at: int, place: tuple[str, str, int, int], coverage: Coverage, *, revision: int = 0) -> Row:
        """The row with index `at`. place: node, key, start and end of the window."""
        node, key, start_us, end_us = place
        return Row(
            self.query.id,
            node,
            key_labels(key),
            start_us,
            end_us,
            {name: column[at] for name, column in self.values.items()},
            details_of({name: column[at] for name, column in self.details.items()}),
            self.readings[at],
            revision,
            withdrawn=False,
            definition_revision=self.query.revision,
            key=key,
            late=self.late[at],
            coverage=coverage,
        )


@dataclass(frozen=True, slots=True)
class WindowStates:
    """Combined states, one row per (window, key). late: count of late readings per row. shape: aggregates and scale."""

    rows: Partials
    late: Ints
    shape: tuple[tuple[Aggregate, ...], int | None]

    def answers(self, query: Query) -> WindowAnswers:
        """The results for a query, with the indexes of the rows."""
        aggregates, scale = self.shape
        answers = {each.name: lower(each, self.rows.states, scale) for each in aggregates}
        return WindowAnswers.of(query, answers, self.rows.states["count"], self.late)


def details_of(texts: Mapping[str, str | None]) -> str | None:
    """A JSON object with these members, whose values are JSON texts; None if there is none."""
    members = ", ".join(f'"{name}": {text}' for name, text in texts.items() if text is not None)
    return f"{{{members}}}" if members else None
