"""Compares every window in Delta with the expected results: how many differ, are missing or occur twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.demo.reference_answers import raw_readings, windows

TOLERANCE: Final = 1e-9  # relative: the order of merging floats changes the last digits (docs/protocol.md 7.2)
SHOWN: Final = 5  # differences described in full


@dataclass(frozen=True, slots=True)
class DeltaRow:
    """A row of gold.results that is not withdrawn."""

    query: str
    definition: int
    key: str
    start_us: int
    end_us: int
    values: Mapping[str, float | None]
    readings: int
    revision: int
    complete: bool
    expected: int


@dataclass(slots=True)
class Comparison:
    """Result of the comparison. differences: texts of the first ones. skipped: queries not compared -> why."""

    windows: int = 0
    differ: int = 0
    missing: int = 0
    double: int = 0
    incomplete: int = 0
    revised: int = 0
    differences: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether at least one window was compared and all are correct."""
        return bool(self.windows) and not (self.differ or self.missing or self.double)

    @property
    def line(self) -> str:
        """The result as a line: 412 windows, 0 differ, 0 missing, 0 double."""
        return f"{self.windows} windows, {self.differ} differ, {self.missing} missing, {self.double} double"

    def describe(self, text: str) -> None:
        """Record the text of a difference, up to SHOWN of them."""
        if len(self.differences) < SHOWN:
            self.differences.append(text)


def compare(
    results: Iterable[DeltaRow],
    queries: Iterable[Query],
    sensors: Mapping[str, Mapping[str, Sensor]],
    span: tuple[int, int],
    own: Collection[str],
) -> Comparison:
    """Compare all windows within span: [first reading, end) in us.

    queries: those in force, each in one revision. sensors: source -> gateway -> its sensor. own: the demo's queries,
    which must run on every gateway and to the end. They are compared from their first window in the results on, because
    a query is in force once all its gateways serve it. Other queries were added by a user, who may also have narrowed
    or removed them. They are compared from their first complete window on, because a gateway that was down received
    them later.
    """
    verdict = Comparison()
    begin_us, until_us = span
    by_query: dict[str, list[DeltaRow]] = {}
    for row in results:
        by_query.setdefault(row.query, []).append(row)
    for query in queries:
        if query.source not in sensors:
            verdict.skipped[query.id] = f"{query.source} cannot be read again"
            continue
        rows = [row for row in by_query.get(query.id, []) if row.definition == query.revision]
        last_us = until_us
        if query.id not in own:
            last_us = min(until_us, max((row.end_us for row in rows), default=0))
            if any(row.expected != len(sensors[query.source]) for row in rows) or query.scope != "global":
                verdict.skipped[query.id] = "it does not run on all gateways"
                continue
            whole_us = min((row.start_us for row in rows if row.complete), default=last_us)
            rows = [row for row in rows if row.start_us >= whole_us]
        rows = [row for row in rows if row.end_us <= last_us]
        try:
            _compare(query, rows, sensors[query.source], (begin_us, last_us), verdict)
        except ValueError as err:
            verdict.skipped[query.id] = str(err)
    return verdict


def _compare(
    query: Query, rows: list[DeltaRow], sensors: Mapping[str, Sensor], span: tuple[int, int], verdict: Comparison
) -> None:
    begin_us, until_us = span
    found = {(row.key, row.start_us): row for row in rows}
    twice = [place for place, count in Counter((row.key, row.start_us) for row in rows).items() if count > 1]
    verdict.double += len(twice)
    for place in twice:
        verdict.describe(f"{query.id} {place}: occurs twice")
    verdict.incomplete += sum(not row.complete for row in found.values())
    verdict.revised += sum(row.revision > 0 for row in found.values())
    first_us = min((row.start_us for row in rows), default=begin_us)
    for key, raw in raw_readings(query, sensors, begin_us, until_us).items():
        for start_us, values, readings in windows(query, raw, first_us, until_us):
            verdict.windows += 1
            row = found.pop((key, start_us), None)
            if row is None:
                verdict.missing += 1
                verdict.describe(f"{query.id} {key} at {start_us}: missing, {readings} readings")
            elif why := _difference(row, values, readings):
                verdict.differ += 1
                verdict.describe(f"{query.id} {key} at {start_us}: {why}")
    for (key, start_us), row in found.items():
        verdict.windows += 1
        verdict.differ += 1
        verdict.describe(f"{query.id} {key} at {start_us}: {row.readings} readings that never were")


def _difference(row: DeltaRow, values: Mapping[str, float], readings: int) -> str:
    """The text of a difference; '' if there is none."""
    if row.readings != readings:
        return f"{row.readings} readings, truth {readings}"
    for name, wanted in values.items():
        got: Any = row.values.get(name)
        if got is None:
            if not math.isnan(wanted):
                return f"{name} is null, truth {wanted}"
        elif (isinstance(wanted, int) and got != wanted) or not math.isclose(
            got, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE
        ):
            return f"{name} is {got}, truth {wanted}"
    return ""
