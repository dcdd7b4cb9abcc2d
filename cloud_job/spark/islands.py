"""Computes sessions from their pieces, with native Spark expressions. An island is a session that may still grow.

Rules (docs/protocol.md): pieces that are no further apart than the gap form one island (5.3, 5.4), cut at multiples of
a maximum duration (5.5). An island gets its row when its last reading + gap is below the bound of its key (5.1). Values
that change from batch to batch are in small broadcast tables, so that Spark's plan stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cloud_job.delta.driver_rows import arrow, small
from cloud_job.spark.native import plan
from cloud_job.spark.results import RESULT_COLUMNS, shown
from edge_agent.algebra.span import FAR_US
from edge_agent.root.decision.window_ranges import Ranges
from edge_agent.root.decision.withdrawals import SessionExtent, joined
from edge_agent.root.decision.work import Islands, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACES: Final = arrow("of_order int, span int, gap bigint, longest bigint")
_ABOUT: Final = arrow(
    "of_span int, shape int, query string, definition_revision bigint, node string, batch bigint, due boolean, "
    "q_gap bigint, q_bound bigint, q_shut bigint, q_touch_low bigint, q_touch_high bigint, q_cut_high bigint, "
    "q_start_from bigint, q_start_until bigint, q_end_until bigint"
)
_KEYED: Final = arrow(
    "k_span int, k_key string, k_bound bigint, k_shut bigint, k_touch_low bigint, k_touch_high bigint, k_cells boolean"
)
_CELLS: Final = arrow(
    "c_span int, c_key string, c_first_low bigint, c_first_high bigint, c_end_low bigint, c_end_high bigint, "
    "coverage_id string, expected int, received int, complete boolean"
)
_WANTED: Final = arrow(
    "w_span int, w_query string, w_revision bigint, w_node string, w_key string, w_low bigint, w_high bigint"
)
_LIMITS: Final = arrow("query string, definition_revision bigint, limit bigint")


def closing_ranges(found: Sequence[Islands]) -> dict[int, Ranges]:
    """Ranges of event time of the pieces whose islands get their first rows, by index in `found`. Each range extends to
    the newest piece.
    """
    return {i: [(islands.low_us, FAR_US)] for i, islands in enumerate(found) if islands.low_us is not None}


def lowest_us(ranges: Mapping[int, Ranges]) -> int:
    """The earliest start of these ranges."""
    return min(low for found in ranges.values() for low, _ in found)


def revising_ranges(results: DataFrame, found: Sequence[Islands]) -> tuple[dict[int, Ranges], dict[int, int]]:
    """Returns (ranges of event time of the pieces whose islands are computed again, longest duration of such a row).

    Both by index in `found`. A range covers the rows of `results` (gold.results) that touch late pieces, and these
    pieces.
    """
    wanted: list[tuple[object, ...]] = []
    reach: dict[int, tuple[int, int]] = {}
    longest: dict[int, int] = {}
    for i, islands in enumerate(found):
        if not islands.revises:
            continue
        touches = [(k.key, *k.touch) for k in islands.keys if k.touch is not None]
        reach[i] = (
            min((low for _, low, _ in touches), default=FAR_US),
            max((high for _, _, high in touches), default=-FAR_US),
        )
        longest[i] = max((high - low for _, low, high in touches), default=0)
        every = [] if islands.touch is None else [(None, *islands.touch)]
        wanted += [(i, islands.query, islands.revision, islands.node, *touch) for touch in (*every, *touches)]
    asked = F.broadcast(small(results.sparkSession, wanted, _WANTED))
    touching = (F.col("query") == F.col("w_query")) & (F.col("definition_revision") == F.col("w_revision"))
    touching = touching & (F.col("node") == F.col("w_node"))
    touching = touching & (F.col("w_key").isNull() | (F.col("key") == F.col("w_key")))
    touching = touching & (F.col("start") <= F.col("w_high")) & (F.col("end") >= F.col("w_low"))
    known = results.where(F.col("query").isin([str(row[1]) for row in wanted])).where("not withdrawn")
    ends = (F.min("start"), F.max("end"), F.max(F.col("end") - F.col("start")))
    for i, low, high, lasted in known.join(asked, touching, how="inner").groupBy("w_span").agg(*ends).collect():
        reach[i] = (min(reach[i][0], low), max(reach[i][1], high))
        longest[i] += 2 * lasted  # the pieces may join one row before them and one after
    out: dict[int, Ranges] = {}
    for i, (low, high) in reach.items():
        if low <= high:
            islands = found[i]
            if islands.start_from_us is not None and low <= islands.crossing_us:
                low = min(low, islands.start_from_us - islands.gap_us)
            out[i] = [(low, high + 1)]
    return out, longest


def sessions(pieces: DataFrame, work: Work, ranges: Mapping[int, Ranges], *, revising: bool) -> DataFrame:
    """Rows of gold.results for islands that close or, if `revising`, are computed again.

    pieces: decoded for the read requests of these queries in these ranges (cloud_job/ingest/decode.py). ranges: index
    in work.islands -> ranges of event time.
    """
    shapes = [plan.Shape(aggregates, scale) for aggregates, scale in work.shapes]
    spark = pieces.sparkSession
    chosen = [i for i in range(len(work.islands)) if i in ranges]
    about, keyed, cells = _tables(spark, work, {i: ranges[i] for i in chosen}, revising=revising)
    return (
        pieces.transform(merged, _places(spark, work, chosen), shapes)
        .transform(due, about, keyed, revising=revising)
        .transform(covered, cells)
        .transform(shown, F.col("until"), shapes, F.col("batch"))
    )


def merged(pieces: DataFrame, places: DataFrame, shapes: Sequence[plan.Shape]) -> DataFrame:
    """One row per island: span, key, start, end (of the last reading, exclusive), states, readings_late."""
    rows = pieces.join(F.broadcast(places), F.col("order") == F.col("of_order"), how="inner")
    line = Window.partitionBy("span", "key").orderBy("start", "end")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max("end").over(before)
    apart = reached.isNull() | (F.col("start") - (reached - 1) > F.col("gap"))
    cut = (F.col("longest") > 0) & (_block("start") != F.lag(_block("start")).over(line))
    rows = rows.withColumn("begins", F.when(apart | cut, F.col("start")))
    rows = rows.withColumn("island", F.max("begins").over(line.rowsBetween(Window.unboundedPreceding, 0)))
    late = F.sum(F.when(F.col("late"), F.col("count")).otherwise(F.lit(0).cast("bigint")))
    extra = {"end": F.max("end"), "readings_late": late}
    states = plan.combine(rows, ("span", "island", "key"), shapes, extra)
    return states.withColumnRenamed("island", "start")


def _block(name: str) -> Column:
    return F.col(name) - F.pmod(F.col(name), F.greatest(F.col("longest"), F.lit(1)))


def due(islands: DataFrame, about: DataFrame, keyed: DataFrame, *, revising: bool) -> DataFrame:
    """The islands that get a row in this batch, with the columns of their query and key; `until`: end of the row."""
    rows = islands.join(F.broadcast(about), F.col("span") == F.col("of_span"), how="inner")
    same = (F.col("span") == F.col("k_span")) & (F.col("key") == F.col("k_key"))
    rows = rows.join(F.broadcast(keyed), same, how="left")
    rows = rows.withColumn("until", F.col("end") - 1 + F.col("q_gap"))
    until, bound = F.col("until"), F.coalesce("k_bound", "q_bound")
    shut = F.coalesce("k_shut", "q_shut")
    own = F.coalesce((F.col("start") <= F.col("k_touch_high")) & (until >= F.col("k_touch_low")), F.lit(False))
    shared = F.coalesce((F.col("start") <= F.col("q_touch_high")) & (until >= F.col("q_touch_low")), F.lit(False))
    whole = (F.col("start") >= F.col("q_cut_high")) | (until < F.col("q_cut_high"))  # else its end may be missing
    wanted = F.col("due") & (own | (shared & (until < shut))) & whole if revising else (until >= shut) & ~own
    served = (F.col("start") >= F.col("q_start_from")) & (F.col("start") < F.col("q_start_until"))
    return rows.where((until < bound) & wanted & served & (until <= F.col("q_end_until")))


def covered(rows: DataFrame, cells: DataFrame) -> DataFrame:
    """Add the columns of coverage to islands."""
    named = rows.withColumn("cell", F.when(F.col("k_cells"), F.concat(F.lit("="), F.col("key"))).otherwise(F.lit("")))
    here = (F.col("span") == F.col("c_span")) & (F.col("cell") == F.col("c_key"))
    here = here & (F.col("start") >= F.col("c_first_low")) & (F.col("start") < F.col("c_first_high"))
    here = here & (F.col("until") >= F.col("c_end_low")) & (F.col("until") < F.col("c_end_high"))
    return named.join(F.broadcast(cells), here, how="inner")


def withdrawn(results: DataFrame, made: DataFrame, found: Sequence[Islands], number: int) -> DataFrame:
    """The rows of gold.results that are part of an island computed again (root/decision/withdrawals.py).

    made: rows from `sessions` for the queries in `found`. number: of the batch.
    """
    other = made.select(*(F.col(name).alias(f"m_{name}") for name in ("query", "definition_revision", "node", "key")),
                        F.col("start").alias("m_start"), F.col("end").alias("m_end"))  # fmt: skip
    of = {(islands.query, islands.revision): islands.max_us for islands in found}
    limits = small(results.sparkSession, [(*whose, max_us) for whose, max_us in of.items()], _LIMITS)
    row, made_again = (
        SessionExtent(F.col(f"{of}start"), F.col(f"{of}end"), _block_of(f"{of}start")) for of in ("", "m_")
    )
    touching = (
        (F.col("query") == F.col("m_query"))
        & (F.col("definition_revision") == F.col("m_definition_revision"))
        & (F.col("node") == F.col("m_node"))
        & (F.col("key") == F.col("m_key"))
        & joined(row, made_again)
    )
    asked = results.where(F.col("query").isin(sorted({query for query, _ in of}))).where("not withdrawn")
    asked = asked.join(F.broadcast(limits), _LIMITS.names[:2], how="inner")
    rows = asked.join(other, touching, how="left_semi")
    changed = {"withdrawn": F.lit(True), "batch": F.lit(number).cast("bigint")}
    return rows.select(*(changed[name].alias(name) if name in changed else F.col(name) for name in RESULT_COLUMNS))


def _block_of(start: str) -> Column:
    """The multiple of the maximum duration, column `limit`, before a start; 0 without a maximum."""
    block = F.col(start) - F.pmod(F.col(start), F.greatest("limit", F.lit(1)))
    return F.when(F.col("limit") > 0, block).otherwise(F.lit(0).cast("bigint"))


def _places(spark: SparkSession, work: Work, chosen: Sequence[int]) -> DataFrame:
    rows = [
        (number, i, work.islands[i].gap_us, work.islands[i].max_us) for i in chosen for number in work.islands[i].orders
    ]
    return small(spark, rows, _PLACES)


def _tables(
    spark: SparkSession, work: Work, ranges: Mapping[int, Ranges], *, revising: bool
) -> tuple[DataFrame, DataFrame, DataFrame]:
    about: list[tuple[object, ...]] = []
    keyed: list[tuple[object, ...]] = []
    cells: list[tuple[object, ...]] = []
    for i, found in ranges.items():
        islands = work.islands[i]
        here = [cell for cell in islands.cells if cell.revising == revising]
        about.append(
            (
                *(i, islands.shape, islands.query, islands.revision, islands.node),
                *(work.number, islands.due, islands.gap_us),
                *(islands.bound_us, islands.shut_us, *(islands.touch or (None, None))),
                *(max(high for _, high in found), *islands.serving.bounds_us),
            )
        )
        own = {cell.key for cell in here if cell.key}
        listed = {key.key for key in islands.keys}
        keyed += [
            (i, k.key, k.bound_us, k.shut_us, *(k.touch or (None, None)), f"={k.key}" in own) for k in islands.keys
        ]
        keyed += [(i, name[1:], None, None, None, None, True) for name in sorted(own) if name[1:] not in listed]
        cells += [
            (
                *(i, cell.key, cell.first_low, cell.first_high, cell.end_low, cell.end_high),
                *(cell.coverage_id, cell.expected, cell.received, cell.complete),
            )
            for cell in here
        ]
    return small(spark, about, _ABOUT), small(spark, keyed, _KEYED), small(spark, cells, _CELLS)
