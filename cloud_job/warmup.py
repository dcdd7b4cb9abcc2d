"""Runs an empty batch in a temporary folder, because a session's first write takes ten seconds and later ones one."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Final

from cloud_job.delta import driver_rows, tables
from cloud_job.ingest.decode import READ, Lookup
from cloud_job.spark.native.plan import Shape, state_columns
from cloud_job.spark.results import results, results_of
from edge_agent.algebra.query.query import Aggregate
from edge_agent.root.decision.work import ReadRequest, WindowRange, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS: Final = 2  # the second round uses the code that the first one compiled


def warm(spark: SparkSession) -> None:
    """Write, read and compute with temporary tables, so that Spark has loaded and compiled the code for a batch."""
    aggregates = (Aggregate("avg", "avg"), Aggregate("count", "count"))
    shape = Shape(aggregates, None)
    span = WindowRange("warm", 1, 0, 0, 10, 10, 10, 0, 0, 0, (0,), "", 0, 0, complete=True)
    order = ReadRequest(0, b"", "slice", shape.basis, None, None)
    work = Work(0, ((aggregates, None),), (order,), (span,))
    lookup = Lookup({}, (), {}, {}, state_columns([shape]), work.closing, (shape.basis,))
    with tempfile.TemporaryDirectory(prefix="headwater-warm-") as folder:
        place = tables.Place(folder)
        tables.create(spark, place, (tables.MESSAGES, tables.RESULTS))
        parts = driver_rows.arrow_schema(tables.MESSAGES).empty_table().select(READ)
        for number in range(ROUNDS):
            place.append(tables.MESSAGES, driver_rows.rows(spark, tables.MESSAGES, [_message(number)]), "warm", number)
            rows = results_of(parts, spark, work, lookup)
            assert rows is not None, "there are none"
            place.append(tables.RESULTS, rows, "warm", number)
        results(place.read(spark, tables.MESSAGES), work, lookup).collect()


def _message(number: int) -> dict[str, object]:
    empty: dict[str, object] = dict.fromkeys(tables.MESSAGES.columns)
    return {**empty, "batch": number, "part": 1, "start": 0, "end": 10, "payload": b""}
