"""From rows of frames to rows of gold.results: small named transforms, native expressions all the way.

Values that change from batch to batch stand in small broadcast tables, not in the expressions, so that Spark compiles
a plan once and runs it every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cloud_job import lower, plan, tables
from cloud_job.decode import READ, Lookup, reader
from cloud_job.work import Span, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT_COLUMNS: Final = tuple(tables.RESULTS.columns)
WINDOW: Final = ("span", "start", "key")  # what names a row while it is made
_PLACES: Final = pa.schema(
    [
        ("of_order", pa.int32()),
        ("span", pa.int32()),
        ("exact", pa.bool_()),
        *((name, pa.int64()) for name in ("length", "slide", "offset", "low", "high")),
    ]
)
_ABOUT: Final = pa.schema(
    [
        ("span", pa.int32()),
        ("shape", pa.int32()),
        ("query", pa.string()),
        ("definition_revision", pa.int64()),
        ("span_length", pa.int64()),
        ("coverage_id", pa.string()),
        ("expected", pa.int32()),
        ("received", pa.int32()),
        ("complete", pa.bool_()),
        ("batch", pa.int64()),
    ]
)


def results(frames: DataFrame, work: Work, spans: Sequence[Span], lookup: Lookup) -> DataFrame:
    """The rows of these spans. frames: bronze.messages, or a part of it that holds all their rows."""
    shapes = [plan.Shape(aggregates, scale) for aggregates, scale in work.shapes]
    spark = frames.sparkSession
    places, about = span_tables(spark, work, spans)
    return (
        frames.transform(within, spans)
        .transform(rows_of_parts, lookup)
        .transform(in_windows, places)
        .transform(merged, shapes)
        .transform(lowered, about, shapes)
    )


def within(frames: DataFrame, spans: Sequence[Span]) -> DataFrame:
    """Parts that may hold rows of the spans."""
    return between(frames, ranges_of(spans))


def between(frames: DataFrame, ranges: Sequence[tuple[int, int]]) -> DataFrame:
    """Parts that may hold rows there: literals here, because they choose the files that are read at all."""
    wanted = F.lit(False)
    for low, high in ranges:
        wanted = wanted | ((F.col("start") < high) & (F.col("end") > low))
    return frames.where(wanted)


def ranges_of(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """[low, high) of event time that holds all rows of the spans; far apart ones apart, at most four."""
    from cloud_job.spans import join

    return join([(span.low_us, span.high_us + span.length_us) for span in spans], most=4)


def rows_of_parts(frames: DataFrame, lookup: Lookup) -> DataFrame:
    """Parts to rows of partials: lookup.schema."""
    return frames.select(*READ).mapInArrow(reader(lookup), lookup.schema)


def span_tables(spark: SparkSession, work: Work, spans: Sequence[Span]) -> tuple[DataFrame, DataFrame]:
    """(where the windows of each span lie, by order; what a row of each span says)."""
    orders = {order.number: order for order in work.orders}
    places = [
        (number, i, orders[number].kind == "window", s.length_us, s.slide_us, s.offset_us, s.low_us, s.high_us)
        for i, s in enumerate(spans)
        for number in s.orders
    ]
    about = [
        (
            *(i, s.shape, s.query, s.revision, s.length_us),
            *(s.coverage_id, s.expected, s.received, s.complete, work.number),
        )
        for i, s in enumerate(spans)
    ]
    return small(spark, places, _PLACES), small(spark, about, _ABOUT)


def small(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> DataFrame:
    """A table made on the driver."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def in_windows(partials: DataFrame, places: DataFrame) -> DataFrame:
    """Each row once for every window of the spans that contains its range, or for 'window' rows equals it."""
    joined = partials.join(F.broadcast(places), F.col("order") == F.col("of_order"), how="inner")
    lowest = F.greatest(F.col("low"), F.col("end") - F.col("length"))
    highest = F.least(F.col("high"), F.col("start"))
    first = lowest + F.pmod(F.col("offset") - lowest, F.col("slide"))
    last = highest - F.pmod(highest - F.col("offset"), F.col("slide"))
    equal = (F.col("end") - F.col("start") == F.col("length")) & (first == F.col("start"))
    many = F.when((first <= last) & (~F.col("exact") | equal), F.sequence(first, last, F.col("slide")))
    states = [c for c in partials.columns if c not in ("order", "start", "end")]
    return joined.select("span", F.explode(many).alias("start"), *states)


def merged(rows: DataFrame, shapes: Sequence[plan.Shape]) -> DataFrame:
    """One row a (span, start, key): states combined, `readings_late` counted."""
    late = F.sum(F.when(F.col("late"), F.col("count")).otherwise(F.lit(0).cast("bigint")))
    return plan.combine(rows, WINDOW, shapes, {"readings_late": late})


def lowered(states: DataFrame, about: DataFrame, shapes: Sequence[plan.Shape]) -> DataFrame:
    """Rows of gold.results, first revision."""
    rows = states.join(F.broadcast(about), "span", how="inner")
    return shown(rows, F.col("start") + F.col("span_length"), shapes)


def shown(rows: DataFrame, end: Column, shapes: Sequence[plan.Shape]) -> DataFrame:
    """States, each with its shape and what a row says of it, as rows of gold.results. end: of the row."""
    values, details = lower.answers(shapes, F.col("shape"))
    made: dict[str, Column] = {
        "node": F.lit(""),
        "labels": labels(F.col("key")),
        "end": end,
        "window_start": F.timestamp_micros("start"),
        "window_end": F.timestamp_micros(end),
        "values": values,
        "details": details,
        "readings": F.col("count"),
        "revision": F.lit(0),
        "withdrawn": F.lit(False),
        "late": F.col("readings_late"),
    }
    return rows.select(*(made[name].alias(name) if name in made else F.col(name) for name in RESULT_COLUMNS))


def labels(key: Column) -> Column:
    """site=a,unit=3 as a map; '%', ',' and '=' are percent-encoded in it."""
    taken = F.when(key != "", F.str_to_map(key, F.lit(","), F.lit("="))).otherwise(
        F.create_map().cast("map<string,string>")
    )
    plain = F.transform_values(taken, lambda _name, value: _decoded(value))
    return F.when(F.contains(key, F.lit("%")), plain).otherwise(taken)


def _decoded(text: Column) -> Column:
    for code, sign in (("%2C", ","), ("%3D", "="), ("%25", "%")):  # the sign of the code itself comes last
        text = F.replace(text, F.lit(code), F.lit(sign))
    return text
