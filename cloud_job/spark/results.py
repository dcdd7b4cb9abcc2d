"""Transforms parts of frames to rows of gold.results, with native Spark expressions.

Values that change from batch to batch are in one literal and do not change the structure of Spark's plan, so that Spark
compiles a plan once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from cloud_job.delta import driver_rows, tables
from cloud_job.ingest.decode import MOST_ROW_BYTES, MOST_ROWS, READ, Lookup, Reader, few, windows_of
from cloud_job.spark.native import lower, plan
from edge_agent.root.decision.window_ranges import join
from edge_agent.root.decision.work import WindowRange, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Formed = Sequence[pa.RecordBatch]  # rows on the driver
RESULT_COLUMNS: Final = tuple(tables.RESULTS.columns)
WINDOW: Final = ("span", "start", "key")  # identifies a row of a window
ABOUT: Final = {  # columns that a row takes from its WindowRange ("span") -> type
    "shape": "int",
    "query": "string",
    "definition_revision": "bigint",
    "node": "string",
    "length": "bigint",
    "coverage_id": "string",
    "expected": "int",
    "received": "int",
    "complete": "boolean",
}
_OF_SPAN: Final = {"definition_revision": "revision", "length": "length_us"}  # column -> field of WindowRange


def results(frames: DataFrame, work: Work, lookup: Lookup, formed: Formed = ()) -> DataFrame:
    """The rows of gold.results for lookup.spans. frames: bronze.messages, or the part of it with all their rows.

    formed: windows computed elsewhere, of spans without read requests: columns lookup.windows.
    """
    near = frames.transform(between, ranges_of([span for span in lookup.spans if span.orders or not formed]))
    windows = near.transform(decoded, windows_of(lookup), lookup.windows)
    if formed:
        windows = windows.unionByName(local(formed, frames.sparkSession, lookup.windows))
    return finished(windows, work, lookup)


def results_of(
    parts: pa.Table, spark: SparkSession, work: Work, lookup: Lookup, formed: Formed = ()
) -> DataFrame | None:
    """Like `results`, from parts on the driver; None if these are too many rows for it.

    parts: columns READ of all parts that overlap the spans.
    """
    rows, size_bytes = (sum(getattr(batch, each) for batch in formed) for each in ("num_rows", "nbytes"))
    batches = few(windows_of(lookup)(iter(parts.to_batches())), MOST_ROWS - rows, MOST_ROW_BYTES - size_bytes)
    if batches is None:
        return None
    return finished(local([*formed, *batches], spark, lookup.windows), work, lookup)


def finished(windows: DataFrame, work: Work, lookup: Lookup) -> DataFrame:
    """Turn rows of windows into rows of gold.results."""
    shapes = [plan.Shape(aggregates, scale) for aggregates, scale in work.shapes]
    return windows.transform(merged, shapes).transform(lowered, lookup.spans, work.number, shapes)


def between(frames: DataFrame, ranges: Sequence[tuple[int, int]]) -> DataFrame:
    """The parts that may have rows in the ranges. Delta uses this condition to skip files."""
    wanted = F.lit(False)
    for low, high in ranges:
        wanted = wanted | ((F.col("start") < high) & (F.col("end") > low))
    return frames.where(wanted)


def ranges_of(spans: Sequence[WindowRange]) -> list[tuple[int, int]]:
    """At most four ranges [low, high) of event time that contain all rows of the spans."""
    return join([(span.low_us, span.high_us + span.length_us) for span in spans], most=4)


def decoded(frames: DataFrame, reader: Reader, columns: Mapping[str, str]) -> DataFrame:
    """Decode parts to rows with these columns (name -> Spark type), on the executors."""
    return frames.select(*READ).mapInArrow(reader, driver_rows.struct(columns))


def local(batches: Formed, spark: SparkSession, columns: Mapping[str, str]) -> DataFrame:
    """Turn rows on the driver, with these columns, into a DataFrame."""
    kinds = driver_rows.struct(columns)
    if not batches:  # one empty batch rather than none: pyspark cannot convert a list column without chunks
        batches = [pa.RecordBatch.from_pylist([], schema=to_arrow_schema(kinds))]
    return driver_rows.frame(spark, pa.Table.from_batches(batches), kinds).coalesce(1)


def merged(rows: DataFrame, shapes: Sequence[plan.Shape]) -> DataFrame:
    """One row per (span, start, key): states combined, late readings counted."""
    late = F.sum(F.when(F.col("late"), F.col("count")).otherwise(F.lit(0).cast("bigint")))
    return plan.combine(rows, WINDOW, shapes, {"readings_late": late})


def lowered(states: DataFrame, spans: Sequence[WindowRange], batch: int, shapes: Sequence[plan.Shape]) -> DataFrame:
    """Rows of gold.results with revision 0, from merged rows."""
    fields = ",".join(f"{name}:{kind}" for name, kind in ABOUT.items())
    every = F.from_json(F.lit(about(spans)), F.lit(f"array<struct<{fields}>>"))
    rows = states.withColumn("about", F.get(every, F.col("span")))
    return shown(rows, F.col("start") + F.col("about.length"), shapes, F.lit(batch), "about.")


def shown(rows: DataFrame, end: Column, shapes: Sequence[plan.Shape], batch: Column, prefix: str = "") -> DataFrame:
    """Rows of gold.results with revision 0, from combined states.

    end: end of each row in us. prefix: of the names of the columns in ABOUT.
    """
    values, details = lower.answers(shapes, F.col(f"{prefix}shape"))
    made: dict[str, Column] = {
        "key": F.col("key"),
        "labels": labels(F.col("key")),
        "start": F.col("start"),
        "end": end,
        "window_start": F.timestamp_micros("start"),
        "window_end": F.timestamp_micros(end),
        "values": values,
        "details": details,
        "readings": F.col("count"),
        "revision": F.lit(0),
        "withdrawn": F.lit(False),
        "late": F.col("readings_late"),
        "batch": batch.cast("bigint"),
    }
    return rows.select(*(made.get(name, F.col(f"{prefix}{name}")).alias(name) for name in RESULT_COLUMNS))


def about(spans: Sequence[WindowRange]) -> str:
    """The values of ABOUT for each span, as a JSON list of objects."""
    return json.dumps([{name: getattr(span, _OF_SPAN.get(name, name)) for name in ABOUT} for span in spans])


def labels(key: Column) -> Column:
    """A key such as site=a,unit=3 as a map. In keys, '%', ',' and '=' are percent-encoded."""
    taken = F.when(key != "", F.str_to_map(key, F.lit(","), F.lit("="))).otherwise(
        F.create_map().cast("map<string,string>")
    )
    plain = F.transform_values(taken, lambda _name, value: _decoded(value))
    return F.when(F.contains(key, F.lit("%")), plain).otherwise(taken)


def _decoded(text: Column) -> Column:
    for code, sign in (("%2C", ","), ("%3D", "="), ("%25", "%")):  # '%' last, so that nothing is decoded twice
        text = F.replace(text, F.lit(code), F.lit(sign))
    return text
