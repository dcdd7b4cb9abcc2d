"""Deletes rows that nothing needs any longer. Each call makes at most one commit in a table.

Ages are measured by `elapsed_us` in ops.batches: the lander's time without errors of its clock. Where readings are
deleted, one row of the same table counts them; the same commit writes it, so that `headwater audit` still balances
(docs/protocol.md 9.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloud_job.delta.driver_rows import arrow, arrow_schema, one_file, small
from cloud_job.delta.expiring import Expiring
from cloud_job.delta.tables import BATCHES, COVERAGE, GAPS, LATE, MESSAGES, POSITIONS, QUARANTINE, RESULTS, Table
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey
from edge_agent.config.node_file.node_tables import RootTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cloud_job.spark.job import Job

KEPT_STATES: Final = 100  # batches whose state is kept: a start needs the last one, the others help to find causes
MARKED: Final = 1_000  # the row of every 1000th batch is kept as long as results: it gives their age
MOST_TOTALS: Final = 100  # sums of old rows of ops.late and ops.gaps per child, each, and sources named by one of them
OTHER: Final = "other"  # in further sums, instead of the source or reason
MOST_READINGS: Final = 2**63 - 1  # of a sum: a child may make up 2^40 in each row, and Spark refuses a sum beyond it
UNUSABLE: Final = "quarantined: "  # a reason that begins so may contain anything that a child has sent
EXPIRED: Final = "expired"  # kind of the row of bronze.messages that counts a child's deleted readings
NO_EPOCH: Final = -1
EXPIRED_PLAN: Final = -2
_ADDED: Final = f"coalesce(try_add(t.readings, s.had), {MOST_READINGS})"
_EXPIRING: Final = arrow("of_node string, of_epoch bigint, of_plan int, before bigint, had bigint, unknown int")
_APPLIED: Final = arrow("of_node string, of_epoch bigint, low bigint, high bigint")
_OWNERS: Final = arrow("by string, first bigint, until bigint")


@dataclass(frozen=True, slots=True)
class Kept:
    """How long rows and versions stay. ops_us: rows of the ops tables. results_us: None means for ever."""

    versions_us: int
    ops_us: int
    results_us: int | None = None


def kept_of(root: RootTable) -> Kept:
    """Reads these times from a root's settings."""
    return Kept(root.keep_versions_us, root.keep_ops_us, root.keep_results_us)


def old_batch(root: Job, keep_us: int) -> int:
    """The newest batch in ops.batches before all that were decided in the last `keep_us`; -1 if there is none.

    Rows of earlier versions have only the time of their decision, which may fall: a batch that was decided while the
    lander's clock was wrong makes no batch before it old.
    """
    now_us, time = root.decider.elapsed_us, "coalesce(elapsed_us, decided_us)"
    batches = root.place.read(root.spark, BATCHES)
    recent, old = f"{time} BETWEEN {now_us - keep_us} AND {now_us}", f"{time} < {now_us - keep_us}"
    sums = (f"min(number) FILTER (WHERE {recent})", f"max(number) FILTER (WHERE {old})")
    first, found = batches.selectExpr(*sums).collect()[0]
    if first is None:
        return -1
    if found is not None and found > first:
        found = batches.where(f"number < {first} AND {old}").agg({"number": "max"}).collect()[0][0]
    return -1 if found is None else int(found)


def states(root: Job) -> None:
    """Delete the states of old batches. The last ones stay, and those that a start needs."""
    old = f"state IS NOT NULL AND number < {min(root.state.number - KEPT_STATES, root.needed_from)}"
    sql = f"UPDATE {root.place.sql(BATCHES)} SET state = NULL, work = NULL WHERE {old}"  # noqa: S608 - our own names
    _unless_none(root, BATCHES, old, sql)


def batches(root: Job, kept: Kept) -> None:
    """Delete the states of old batches, and old rows of ops.batches. Some rows stay, so that `old_batch` finds them."""
    states(root)
    stays = "false"
    if kept.results_us is not None:
        stays = f"number % {MARKED} = 0 AND number >= {old_batch(root, kept.results_us)}"
    gone = f"number < {min(old_batch(root, kept.ops_us), root.needed_from)} AND NOT ({stays})"
    _delete(root, BATCHES, gone)


def positions(root: Job) -> None:
    """Delete the rows of silver.positions whose readings the latest row of their key does not need."""
    name = root.place.sql(POSITIONS)
    latest = f"SELECT query, node, key, max_by(since, batch) AS since FROM {name} GROUP BY query, node, key"  # noqa: S608
    same = " AND ".join(f"t.`{column}` = s.`{column}`" for column in ("query", "node", "key"))
    root.spark.sql(f"MERGE INTO {name} t USING ({latest}) s ON {same} AND t.batch < s.since WHEN MATCHED THEN DELETE")


def ops(root: Job, kept: Kept) -> None:
    """Delete old rows of ops.quarantine and of messages without readings; sum up old rows of ops.late and ops.gaps."""
    old = old_batch(root, kept.ops_us)
    gone = f"batch <= {old}"
    _delete(root, QUARANTINE, gone)
    # rows without readings: births, and messages that could not be read
    _delete(root, MESSAGES, f"part = 0 AND batch BETWEEN 0 AND {old}")
    late = (
        "node, source, '' AS key, min(start) AS start, max(`end`) AS `end`, "
        f"coalesce(try_sum(readings), {MOST_READINGS}) AS readings, reason"
    )
    _added_up(root, LATE, old, late, "node, source, reason", text="source")
    gaps = (  # try_sum: children may declare as many readings as a number holds
        f"node, slice(array_sort(array_distinct(flatten(collect_list(sources)))), 1, {MOST_TOTALS}) AS sources, "
        "min(start) AS start, max(`end`) AS `end`, "
        "coalesce(try_sum(readings), -1) AS readings, CAST(array() AS ARRAY<STRING>) AS nodes, "
        "reason, '' AS detail"
    )
    _added_up(root, GAPS, old, gaps, "node, reason, readings < 0", text="reason")


def results(root: Job, kept: Kept) -> None:
    """Delete old rows of gold.results, and rows of ops.coverage that no result refers to."""
    if kept.results_us is None:
        return
    old = old_batch(root, max(kept.results_us, root.settings.limits.horizon_us))
    gone = f"batch <= {old}"
    _delete(root, RESULTS, gone)
    coverage = root.place.read(root.spark, COVERAGE).where(gone).select("coverage_id").distinct()
    used = root.place.read(root.spark, RESULTS).select("coverage_id")
    unused = {row[0] for row in coverage.join(used, "coverage_id", "left_anti").collect()}
    unused -= root.state.covers_known.keys()
    if unused:
        root.spark.sql(f"DELETE FROM {root.place.sql(COVERAGE)} WHERE coverage_id IN ({_texts(unused)})")  # noqa: S608


def expire(root: Job, found: list[Expiring], number: int) -> int:
    """Delete rows of readings that no result can need any more (docs/protocol.md 8.4). Returns the number of rows.

    found: what `expiring` returned after batch `number`. This must not be the last batch: a start carries out the last
    batch again and may need the rows.
    """
    if not found:
        return 0
    spark, name, source = root.spark, root.place.sql(MESSAGES), "headwater_expiring"
    entries = small(spark, [(*each, None, None) for each in found], _EXPIRING)
    latest_us = max(before_us for *_, before_us in found)
    counts = _counted(root, entries, f"batch BETWEEN 0 AND {number} AND `end` < {latest_us}").collect()
    if not counts:
        return 0
    told = [(row["node"], NO_EPOCH, EXPIRED_PLAN, None, row["had"], row["unknown"]) for row in counts]
    rows = [*((*each, None, None) for each in found), *told]
    small(spark, rows, _EXPIRING).createOrReplaceTempView(source)
    near = f"(t.batch = -1 OR t.batch <= {number} AND t.`end` < {latest_us})"
    same = "t.node = s.of_node AND t.epoch = s.of_epoch AND t.plan = s.of_plan"
    values = {
        "batch": "-1L",
        "owner": "''",
        "node": "s.of_node",
        "epoch": "s.of_epoch",
        "seq": "-2L",
        "part": "-1",
        "kind": f"'{EXPIRED}'",
        "group": "-1",
        "plan": "s.of_plan",
        "rows": "s.unknown",
        "readings": "s.had",
    }
    columns = ", ".join(f"`{column}`" for column in values)
    spark.sql(
        f"MERGE INTO {name} t USING {source} s ON {near} AND {same} AND (t.batch = -1 OR t.`end` < s.before) "  # noqa: S608 - our own names
        "WHEN MATCHED AND t.batch >= 0 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET readings = {_ADDED}, rows = t.rows + s.unknown "
        f"WHEN NOT MATCHED AND s.of_plan = {EXPIRED_PLAN} THEN INSERT ({columns}) VALUES ({', '.join(values.values())})"
    )
    spark.catalog.dropTempView(source)
    return sum(row["all"] for row in counts)


def _counted(root: Job, entries: DataFrame, near: str) -> DataFrame:
    """Counts the rows to be deleted, per child (node): `had` readings in rows that took effect, `unknown` such rows
    without a count of readings, and `all` rows.
    """
    from pyspark.sql import functions as F

    state, spark = root.state, root.spark
    applied = [(*line, low, high) for line, ranges in state.applied.items() for low, high in ranges]
    ends = [first for first, _ in state.owners[1:]] + [-NEVER_US]
    owners = [(owner, first, until) for (first, owner), until in zip(state.owners, ends, strict=True)]
    rows = root.place.read(spark, MESSAGES).where(near)
    line = (F.col("node") == F.col("of_node")) & (F.col("epoch") == F.col("of_epoch"))
    plan = (F.col("plan") == F.col("of_plan")) & (F.col("end") < F.col("before"))
    columns = ("node", "epoch", "seq", "batch", "owner", "readings")
    rows = rows.join(F.broadcast(entries), line & plan).select(*columns)
    taken = line & F.col("seq").between(F.col("low"), F.col("high"))
    rows = rows.join(small(spark, applied, _APPLIED), taken, "left").select(*columns, "low")
    owned = (F.col("owner") == F.col("by")) & (F.col("batch") >= F.col("first")) & (F.col("batch") < F.col("until"))
    rows = rows.join(small(spark, owners, _OWNERS), owned, "left")
    counts = F.col("low").isNotNull() & F.col("by").isNotNull()
    had = F.when(counts & F.col("readings").isNotNull(), F.col("readings")).otherwise(F.lit(0).cast("bigint"))
    return rows.groupBy("node").agg(
        F.coalesce(F.try_sum(had), F.lit(MOST_READINGS)).alias("had"),
        F.count_if(counts & F.col("readings").isNull()).cast("int").alias("unknown"),
        F.count("*").alias("all"),
    )


def first_batch(root: Job) -> int:
    """The oldest batch with rows in bronze.messages; the last batch if there are no rows."""
    found = root.place.read(root.spark, MESSAGES).where("batch >= 0").agg({"batch": "min"}).collect()[0][0]
    return root.state.number if found is None else int(found)


def without_rows(root: Job, lines: list[EpochKey]) -> list[EpochKey]:
    """Returns those of these epochs that have no rows of readings in bronze.messages."""
    if not lines:
        return []
    rows = root.place.read(root.spark, MESSAGES).where("part > 0").select("node", "epoch").distinct()
    asked = small(root.spark, [(*line, None, None) for line in lines], _APPLIED)
    same = (rows["node"] == asked["of_node"]) & (rows["epoch"] == asked["of_epoch"])
    found = asked.join(rows, same, "left_anti").select("of_node", "of_epoch").collect()
    return [EpochKey(node, epoch) for node, epoch in found]


def _added_up(root: Job, table: Table, old: int, columns: str, by: str, *, text: str) -> None:
    """Replace the rows of old batches by one row per group of `by`, in one commit.

    text: a column of `by` whose values children choose. Of each child, the MOST_TOTALS groups with the latest rows keep
    it, those for messages that could not be used last; in the others it becomes OTHER.
    """
    rows = root.place.read(root.spark, table).where(f"batch <= {old}")
    before = rows.count()
    if not before:
        return
    view = "headwater_added_up"
    bad = f"reason LIKE '{UNUSABLE}%'"  # the statements below consist of our own names
    rows.createOrReplaceTempView(view)
    sums = f"SELECT {columns}, max(batch) AS batch FROM {{}} GROUP BY {by}"  # noqa: S608
    place = f"row_number() OVER (PARTITION BY node ORDER BY {text} = '{OTHER}', {bad}, batch DESC, {text})"
    ranked = f"SELECT * EXCEPT ({text}), {text} AS own_text, {place} AS place FROM ({sums.format(view)})"  # noqa: S608
    kept = f"IF(place > {MOST_TOTALS}, '{OTHER}', own_text)"
    short = f"SELECT * EXCEPT (own_text, place), {kept} AS {text} FROM ({ranked})"  # noqa: S608
    content = root.spark.sql(sums.format(f"({short})")).select(*table.columns).toArrow()
    root.spark.catalog.dropTempView(view)
    if before <= len(content):
        return
    root.place.replace(table, one_file(root.spark, table, content.cast(arrow_schema(table))), f"batch <= {old}")


def _delete(root: Job, table: Table, where: str) -> None:
    _unless_none(root, table, where, f"DELETE FROM {root.place.sql(table)} WHERE {where}")  # noqa: S608 - our own names


def _unless_none(root: Job, table: Table, where: str, sql: str) -> None:
    if not root.place.read(root.spark, table).where(where).isEmpty():
        root.spark.sql(sql)


def _texts(values: set[str]) -> str:
    return ", ".join("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in sorted(values))
