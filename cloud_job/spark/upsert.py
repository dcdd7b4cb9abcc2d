"""Writes recomputed rows to gold.results: inserts, replaces and withdraws rows.

The reasons for which a row is withdrawn are in edge_agent/root/decision/withdrawals.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cloud_job.delta.driver_rows import arrow, small
from cloud_job.delta.tables import RESULTS, Place, committed
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow, superseded
from edge_agent.root.decision.work import WindowRange

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

SAME: Final = " AND ".join(f"t.`{name}` = s.`{name}`" for name in ("query", "node", "key", "start"))
WHOSE: Final = " AND ".join(f"t.`{name}` = s.`{name}`" for name in ("query", "definition_revision", "node"))
FENCE: Final = "t.batch <= s.batch"  # a run that was paused must not overwrite rows of the next owner (protocol 8.5)
CHANGED: Final = (  # a newer revision's row replaces an older one's, never the other way round (docs/protocol.md 6.3)
    "(t.definition_revision < s.definition_revision OR (t.definition_revision = s.definition_revision AND "
    "(t.readings <> s.readings OR t.coverage_id <> s.coverage_id OR t.`end` <> s.`end` OR t.withdrawn)))"
)

# low, bound: values that start and end are compared with
_WITHDRAWN: Final = arrow("query string, definition_revision bigint, node string, low bigint, bound bigint")


def merge(spark: SparkSession, place: Place, rows: DataFrame, spans: Sequence[WindowRange]) -> None:
    """Insert or replace rows. A repetition changes nothing. rows: results of `spans`, each (query, node, key, start)
    once; with windows that may share a start, each end too.

    A row is replaced if its set of readings or its coverage changed. Values are not compared, because a sum may be
    rounded differently (docs/protocol.md 7.2), and a changed set of readings is a larger one.
    """
    low, high = min(s.low_us for s in spans), max(s.high_us for s in spans)
    near = _near({s.query for s in spans}, low, high)
    by_end = {s.query for s in spans if s.by_end}
    if by_end:
        near += f" AND (t.`end` = s.`end` OR t.query NOT IN ({_quoted(by_end)}))"
    target = _target(spark, place).merge(rows.alias("s"), f"{near} AND {SAME}")
    changed = target.whenMatchedUpdate(f"{FENCE} AND {CHANGED}", _replacement())
    committed(changed.whenNotMatchedInsert(values=_columns()).execute)


def merge_sessions(spark: SparkSession, place: Place, made: DataFrame, gone: DataFrame | None, low_us: int) -> None:
    """Write sessions computed again, and mark the rows that became part of them as withdrawn (docs/protocol.md 5.4).

    made: each (query, node, key, start) once. gone: rows of the table to withdraw, none of them in `made`; None: no
    rows. low_us: earliest start of all these rows.
    """
    rows = made if gone is None else made.unionByName(gone)
    target = _target(spark, place).merge(rows.alias("s"), f"t.start >= {low_us} AND {SAME}")
    matched = target.whenMatchedUpdate(f"{FENCE} AND (s.withdrawn OR {CHANGED})", _replacement())
    committed(matched.whenNotMatchedInsert("NOT s.withdrawn", _columns()).execute)


def withdraw(spark: SparkSession, place: Place, gone: Sequence[WithdrawnWindow], number: int) -> None:
    """Withdraw windows between markers. A repetition changes nothing."""
    windows = {(g.query, g.revision, g.node, g.start_us, g.end_us) for g in gone}
    near = _near({g.query for g in gone}, min(g.start_us for g in gone), max(g.start_us for g in gone))
    _withdraw(spark, place, sorted(windows), F.expr(f"{near} AND t.start = s.low AND t.`end` = s.bound"), number)


def withdraw_over(spark: SparkSession, place: Place, over: Sequence[SupersededRows], number: int) -> None:
    """Withdraw windows of a query revision from the time on at which a newer revision applies. A repetition changes
    nothing.
    """
    lows: dict[QueryPlace, tuple[int, int]] = {}  # MERGE allows one row per target row: use the lowest bounds
    for o in over:
        whose = QueryPlace(o.query, o.revision, o.node)
        from_us, after_us = lows.get(whose, (o.from_us, o.after_us))
        lows[whose] = (min(from_us, o.from_us), min(after_us, o.after_us))
    near = f"t.start >= {min(o.from_us for o in over)} AND t.query IN ({_quoted({o.query for o in over})})"
    bounds = F.expr(near) & superseded(F.col("t.start"), F.col("t.end"), F.col("s.low"), F.col("s.bound"))
    _withdraw(spark, place, [(*whose, *low) for whose, low in sorted(lows.items())], bounds, number)


def _withdraw(spark: SparkSession, place: Place, of: Sequence[tuple[object, ...]], bounds: Column, number: int) -> None:
    """Withdraw rows; the reasons are in edge_agent/root/decision/withdrawals.py.

    of: rows of _WITHDRAWN, at most one per row of the table. A join, because an OR of thousands takes Spark minutes.
    """
    batch = F.lit(number).cast("bigint")
    changed: dict[str, str | Column] = {"withdrawn": F.lit(True), "revision": F.col("t.revision") + 1, "batch": batch}
    rows = small(spark, of, _WITHDRAWN).alias("s")
    meant = F.expr(f"t.batch <= {number} AND NOT t.withdrawn AND {WHOSE}") & bounds
    target = _target(spark, place).merge(rows, meant)
    committed(target.whenMatchedUpdate(set=changed).execute)


def _target(spark: SparkSession, place: Place) -> DeltaTable:
    from delta.tables import DeltaTable

    if place.named:
        return DeltaTable.forName(spark, place.name(RESULTS)).alias("t")
    return DeltaTable.forPath(spark, place.uri(RESULTS)).alias("t")


def _near(queries: set[str], low: int, high: int) -> str:
    """A condition with which Delta can skip files."""
    return f"t.start >= {low} AND t.start <= {high} AND t.query IN ({_quoted(queries)})"


def _quoted(queries: set[str]) -> str:
    return ", ".join(f"'{query}'" for query in sorted(queries))


def _columns() -> dict[str, str | Column]:
    return {name: F.col(f"s.{name}") for name in RESULTS.columns}


def _replacement() -> dict[str, str | Column]:
    return {**_columns(), "revision": F.col("t.revision") + 1}
