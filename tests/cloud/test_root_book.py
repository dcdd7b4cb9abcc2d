"""`headwater audit` over tables that the Spark root has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from cloud_job.audit.root_book import root_book
from cloud_job.delta import tables
from edge_agent.root.books import Line, NodeBook, audit
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import Roots

pytestmark = pytest.mark.spark


def test_rows_that_count_are_what_the_decisions_applied_and_a_row_that_stands_twice_is_found(
    roots: Callable[..., Roots],
) -> None:
    """protocol 9.1; rows that a run stored for a batch it did not decide do not count (8.1)."""
    root, child = roots(), Child("gw-1", (query(),))
    epoch, folder = child.epoch, root.place.root
    birth = child.birth()
    rows = child.rows(START + SECOND, np.array([START, START + SECOND]), np.array([1.0, 5.0]))
    root.take(tick(START), record(child, START, birth), record(child, START + SECOND, rows))
    _again(root, F.lit("a run that died"))
    found = root_book(folder)
    assert (found.applied, found.stored, found.doubled, found.uncounted) == ({"gw-1": 2}, {"gw-1": 2}, (), 0)
    assert found.lines == {"gw-1": Line(epoch, 2, 2)}
    book = {"epoch": epoch, "seq": 1, "sent": 2, "lost": 0, "lost_frames": 0, "spooled": 0, "whole": True}
    book |= {"taken": 3, "added": 0, "left": 2, "open": 1, "outside": 0, "dropped": 0, "waiting": 0}
    node = NodeBook("gw-1", "root", book)
    before = audit(found, [node])
    assert (before.off, before.unknown, before.rest, before.pending) == ([], [], 0, {"gw-1": 1})

    _again(root, F.col("owner"))
    after = audit(root_book(folder), [node])
    assert after.off == [
        f"bronze.messages: gw-1 {epoch:08x}/1 part 1 occurs twice",
        "bronze.messages, rows of gw-1: 2 readings counted twice between decisions and rows",
    ]


def _again(root: Roots, owner: Column) -> None:
    """Stores the parts of frames once more."""
    stands = root.place.read(root.spark, tables.MESSAGES)
    rows = stands.where(f"part = 1 and owner = '{root.job.owner}'").limit(1).withColumn("owner", owner).collect()
    root.place.append(tables.MESSAGES, root.spark.createDataFrame(rows, stands.schema), "test", 0)


def test_tables_of_a_version_without_counts_get_the_column_and_their_rows_stay_uncounted(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {name: kind for name, kind in tables.MESSAGES.columns.items() if name != "readings"}
    place = tables.place(str(tmp_path))
    tables.create(spark, place, (replace(tables.MESSAGES, columns=columns),))
    assert "readings" not in place.read(spark, tables.MESSAGES).columns
    for where in (tables.Place(f"file://{tmp_path}", guarded=True), place):  # as at the URI of a store
        tables.create(spark, where, (tables.MESSAGES,))
        assert sorted(place.read(spark, tables.MESSAGES).columns) == sorted(tables.MESSAGES.columns)
