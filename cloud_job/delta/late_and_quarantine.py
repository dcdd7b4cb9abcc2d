"""Rows of ops.quarantine (unusable messages) and ops.late (readings in no result)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cloud_job.delta.driver_rows import arrow, arrow_schema, small
from cloud_job.delta.tables import LATE, QUARANTINE
from cloud_job.ingest.decode import EpochView
from edge_agent.algebra.frame import Section
from edge_agent.algebra.query.key import EpochKey
from edge_agent.root.decision.work import TooLate, Work
from edge_agent.root.work_rows import too_late_rows
from edge_agent.wire import heads

_REFUSED: Final = arrow("of_node string, of_epoch bigint, of_seq bigint, why string")
_PARTS: Final = arrow("node string, epoch bigint, seq bigint, part int")


def quarantined(frames: DataFrame, work: Work, owner: str) -> DataFrame:
    """Rows of ops.quarantine: messages that could not be read, and frames refused when they were to take effect.

    frames: bronze.messages. owner: the run of the job that decided the batch.
    """
    spark = frames.sparkSession
    unread = (F.col("batch") == work.number) & (F.col("owner") == owner) & (F.col("kind") != "frame")
    refused = small(spark, [(r.node, r.epoch, r.seq, r.reason) for r in work.refused], _REFUSED)
    same = (
        (F.col("node") == F.col("of_node")) & (F.col("epoch") == F.col("of_epoch")) & (F.col("seq") == F.col("of_seq"))
    )
    rows = frames.join(F.broadcast(refused), same & (F.col("kind") == "frame"), how="left")
    once = ["node", "epoch", "seq", "part", "payload", "reason"]  # of damaged landing files only the reasons differ
    rows = rows.where(unread | F.col("why").isNotNull()).dropDuplicates(once)
    made = {"reason": F.coalesce("why", "reason"), "batch": F.lit(work.number).cast("bigint")}
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in QUARANTINE.columns))


def parts_of(frames: DataFrame, beyond: Sequence[TooLate], number: int) -> pa.Table:
    """The parts that contain too-late readings (rare): node, epoch, seq, part, plan, payload.

    number: the batch in which they took effect. It also stored most of them, so its rows are searched first; the whole
    of bronze.messages is read only if some parts were stored by earlier batches.
    """
    places = {(b.node, b.epoch, b.seq, b.part) for b in beyond}
    found = _found(frames.where(F.col("batch") == number), places)
    places -= {row[:4] for row in _rows(found)}
    return pa.concat_tables([found, _found(frames, places)]) if places else found


def _found(frames: DataFrame, places: set[tuple[str, int, int, int]]) -> pa.Table:
    wanted = small(frames.sparkSession, sorted(places), _PARTS)
    rows = frames.join(F.broadcast(wanted), _PARTS.names, how="left_semi")
    return rows.select(*_PARTS.names, "plan", "payload").toArrow()


def late(
    parts: pa.Table, work: Work, pages: Mapping[EpochKey, EpochView], bases: Mapping[bytes, tuple[str, ...]]
) -> pa.Table:
    """The rows of ops.late for work.beyond. parts: as `parts_of` returns them. bases: hash of a plan -> its columns."""
    before = {(b.node, b.epoch, b.seq, b.part): b for b in work.beyond}
    made = []
    for node, epoch, seq, part, plan, payload in {row[:4]: row for row in _rows(parts)}.values():
        beyond = before.get((node, epoch, seq, part))
        if beyond is None or payload is None:
            continue
        page = pages[EpochKey(node, epoch)]
        rows = page.counting(Section(plan, heads.rows(payload)).rows(bases[page.plans[plan]]), seq, plan)
        gone = too_late_rows(rows, beyond)
        n = len(gone)
        columns = {
            "node": pa.array([node] * n, pa.string()),
            "source": pa.array([beyond.source] * n, pa.string()),
            "key": pa.array(page.keys, pa.string()).take(pa.array(gone.key)),
            "start": pa.array(gone.start),
            "end": pa.array(gone.end),
            "readings": pa.array(gone.states["count"]),
            "reason": pa.array([beyond.reason] * n, pa.string()),
            "batch": pa.array(np.full(n, work.number, np.int64)),
        }
        made.append(pa.table(columns, schema=arrow_schema(LATE)))
    return pa.concat_tables(made) if made else arrow_schema(LATE).empty_table()


def _rows(parts: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in parts.columns), strict=True)
