"""Failures of other packages' functions are reported once at the root: a row of ops.gaps for each query and reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.plugin_failures import PluginFailures
from edge_agent.algebra import aggregates
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling

if TYPE_CHECKING:
    from tests.support.cloud.jobs import Roots


def query(name: str, *fns: str) -> Query:
    return Query(name, 1, "boiler", Tumbling(1_000_000), tuple(Aggregate(fn, fn) for fn in fns))


def row(name: str, start: int, batch: int, **details: Any) -> dict[str, Any]:
    text = json.dumps(details) if details else None
    return {"query": name, "start": start, "end": start + 10, "details": text, "batch": batch}


@pytest.mark.spark
def test_a_failure_is_reported_once_however_many_rows_contain_it(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(aggregates.PLUGINS, "load", str)
    root = roots()
    known = [query("mine", "load", "sum"), query("other", "collect")]
    why = {"failed": "ValueError: no such valve"}
    rows = [
        *(row("mine", n, 7, load=why) for n in range(5)),
        *(row("mine", n, 7, load={"failed": f"on {n} readings: too wet"}) for n in range(5, 9)),
        row("mine", 9, 7, load="123456789012345678"),
        row("mine", 10, 6, load={"failed": "in another batch"}),
        row("other", 0, 7, collect={"failed": "a word like any other"}),
        row("other", 1, 7),
    ]
    root.place.append(tables.RESULTS, driver_rows.rows(root.spark, tables.RESULTS, rows), "results", 7)
    failures = PluginFailures(root.spark, root.place)
    with caplog.at_level(logging.WARNING, "headwater"):
        failures.report(iter(known), 7)
        failures.report(iter(known), 7)
    reported = sorted((each["detail"] for each in root.rows(tables.GAPS)), key=str)
    assert [text.partition("readings")[2] or text for text in reported] == [
        "load of query mine: ValueError: no such valve",
        ": too wet",
    ]
    assert all(
        (each["reason"], each["sources"], each["readings"], each["batch"]) == ("a function failed", ["boiler"], 0, 7)
        for each in root.rows(tables.GAPS)
    )
    assert [record.getMessage() for record in caplog.records] == ["package.failed"] * 2


def test_without_functions_of_packages_no_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} of a table that nobody asked for")

    failures = PluginFailures(Untouched(), Untouched())  # type: ignore[arg-type]
    failures.report(iter([query("plain", "sum")]), 1)
    monkeypatch.setitem(aggregates.PLUGINS, "load", str)
    failures.report(iter([query("plain", "sum")]), 1)
