"""Rows computed again into gold.results: replaced where their readings or their coverage changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cloud_job.tables import RESULTS, Place
from cloud_job.work import Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGED: Final = "(t.readings <> s.readings OR t.coverage_id <> s.coverage_id OR t.withdrawn)"


def merge(spark: SparkSession, place: Place, rows: DataFrame, spans: Sequence[Span]) -> None:
    """Upsert by replacement: done twice it changes nothing more. rows: of `spans`, unique by what names a row.

    A revision is a change of the set of readings or of the coverage; another rounding of a sum is none
    (docs/protocol.md 7.2). Values say nothing here: deltas only ever add readings.
    """
    from delta.tables import DeltaTable

    target = (
        DeltaTable.forName(spark, f"{place.root}{RESULTS.name}")
        if place.named
        else DeltaTable.forPath(spark, place.path(RESULTS))
    )
    low, high = min(s.low_us for s in spans), max(s.high_us for s in spans)
    queries = ", ".join(f"'{query}'" for query in sorted({s.query for s in spans}))
    same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in ("query", "node", "key", "start"))
    near = f"t.start >= {low} AND t.start <= {high} AND t.query IN ({queries})"  # for the files that need reading
    news: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in RESULTS.columns}
    (
        target.alias("t")
        .merge(rows.alias("s"), f"{near} AND {same}")
        .whenMatchedUpdate(CHANGED, {**news, "revision": F.col("t.revision") + 1})
        .whenNotMatchedInsert(values=news)
        .execute()
    )
