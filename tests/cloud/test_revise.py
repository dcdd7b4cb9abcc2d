"""Rows of gold.results that are withdrawn: those that are meant, however many, and none twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.tables import RESULTS, Place
from cloud_job.spark import islands
from cloud_job.spark.upsert import withdraw, withdraw_over
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow
from edge_agent.root.decision.work import Islands

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Name = tuple[str, int, str, int]  # query, revision, node, start
WINDOWS, LENGTH = 6_000, 10


@pytest.fixture
def place(spark: SparkSession, empty_tables: Path, tmp_path: Path) -> Place:
    """gold.results with windows end to end, of two queries, the first in two revisions, and of two nodes."""
    shutil.copytree(empty_tables, tmp_path / "tables")
    found = tables.place(str(tmp_path / "tables"))
    half = WINDOWS // 2
    names = [("q", 1 if i < half else 2, "", i * LENGTH) for i in range(WINDOWS)]
    names += [("other", 1, node, i * LENGTH) for i in range(100) for node in ("", "gw-1")]
    found.append(RESULTS, rows(spark, names), "rows", 0)
    return found


def rows(spark: SparkSession, names: Iterable[Name], length: int = LENGTH) -> DataFrame:
    """Rows of gold.results as they come first."""
    fresh = {"key": "", "revision": 0, "withdrawn": False, "batch": 0}
    content: list[dict[str, Any]] = [
        {"query": query, "definition_revision": revision, "node": node, "start": start, "end": start + length, **fresh}
        for query, revision, node, start in names
    ]
    table = pa.Table.from_pylist(content, schema=driver_rows.arrow_schema(RESULTS))
    return driver_rows.one_file(spark, RESULTS, table)


def changed(spark: SparkSession, place: Place) -> set[Name]:
    """The rows that are withdrawn; each says so in full, and the others say nothing of it."""
    gone = set()
    for row in place.read(spark, RESULTS).collect():
        if row.withdrawn:
            gone.add((row["query"], row.definition_revision, row.node, row.start))
        assert (row.revision, row.batch) == ((1, 7) if row.withdrawn else (0, 0))
    return gone


def test_thousands_of_windows_are_withdrawn_at_once(spark: SparkSession, place: Place) -> None:
    """protocol 5.4, 8.1: a marker that comes late may join all windows of a day. One condition each took minutes."""
    gone = [
        WithdrawnWindow("q", 1 if i < WINDOWS // 2 else 2, "", i * LENGTH, (i + 1) * LENGTH)
        for i in range(1, WINDOWS, 2)
    ]
    gone += [
        WithdrawnWindow("other", 1, "gw-1", 50, 60),
        WithdrawnWindow("other", 1, "", 70, 81),
        WithdrawnWindow("q", 2, "", 0, 10),
    ]
    began_s = time.monotonic()
    withdraw(spark, place, [*gone, gone[0]], 7)
    assert time.monotonic() - began_s < 60
    meant = {(g.query, g.revision, g.node, g.start_us) for g in gone[:-2]}
    assert changed(spark, place) == meant, "not those of another end or revision"
    withdraw(spark, place, gone, 8)
    assert changed(spark, place) == meant


def test_rows_of_an_older_revision_are_withdrawn_where_a_newer_one_holds(spark: SparkSession, place: Place) -> None:
    """protocol 6.3: from its begin on, but not beyond the horizon; of contradicting definitions the lower bounds."""
    half = WINDOWS // 2 * LENGTH
    over = [
        SupersededRows("q", 1, "", half - 500, half - 300),
        SupersededRows("q", 1, "", half - 400, 0),
        SupersededRows("other", 1, "gw-1", 900, 0),
    ]
    withdraw_over(spark, place, over, 7)
    meant = {("q", 1, "", start) for start in range(half - 500, half, LENGTH)}
    meant |= {("other", 1, "gw-1", start) for start in range(900, 1_000, LENGTH)}
    assert changed(spark, place) == meant
    withdraw_over(spark, place, [SupersededRows("q", 2, "", 0, 2 * half - 30)], 7)
    meant |= {("q", 2, "", start) for start in range(2 * half - 30, 2 * half, LENGTH)}
    assert changed(spark, place) == meant, "what ended before the horizon stays"
    withdraw_over(spark, place, over, 8)
    assert changed(spark, place) == meant


def test_sessions_of_a_thousand_queries_are_joined_at_once(spark: SparkSession) -> None:
    """protocol 5.4, 5.5: rows that an island made again touches go, but not across a cut at the longest duration."""
    names = [f"q{i}" for i in range(1_000)]
    none = ("low_us", "touch", "start_from_us", "start_until_us", "end_until_us")
    plain = {"shape": 0, "gap_us": 5, "orders": (), "bound_us": 0, "shut_us": 0, "due": True, "crossing_us": 0}
    about: dict[str, Any] = {**dict.fromkeys(none), **plain, "node": "", "meets": False, "keys": (), "cells": ()}
    found = [Islands(query=name, revision=1, max_us=100 * (i % 2), **about) for i, name in enumerate(names)]
    known = rows(spark, [(name, r, "", start) for name in names for r in (1, 2) for start in (80, 110, 300)], 20)
    made = rows(spark, [(name, 1, "", 90) for name in names], 20)
    began_s = time.monotonic()
    gone = islands.withdrawn(known, made, found, 7).collect()
    assert time.monotonic() - began_s < 30
    assert all(row.withdrawn and row.batch == 7 and row.definition_revision == 1 for row in gone)
    wanted = {(name, start) for i, name in enumerate(names) for start in ((80,) if i % 2 else (80, 110))}
    assert sorted((row["query"], row.start) for row in gone) == sorted(wanted)
