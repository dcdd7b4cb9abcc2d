"""Maintains the tables once, for `headwater maintain`, while no root runs.

A root that runs does all of this itself (cloud_job/delta/upkeep.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloud_job.delta import retention, upkeep
from cloud_job.delta.expiring import expiring
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import MESSAGES, TABLES, Place, Table
from cloud_job.spark.job import Job, JobSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_HOURS: Final = 7 * 24  # how long old versions stay, for readers that have begun and for time travel


@dataclass(frozen=True, slots=True)
class Done:
    """The result of maintaining a table: its number of files before and after."""

    table: str
    files_before: int
    files_after: int


def maintain(
    spark: SparkSession,
    place: Place,
    say: Callable[[str], None],
    keep_hours: int = KEPT_HOURS,
    *,
    tables: Sequence[Table] = TABLES,
) -> list[Done]:
    """Delete expired readings, then compact and vacuum these tables, as the root that owns them.

    say: receives one line of text per step. keep_hours: versions younger than this stay.
    Raises: PortError if a root is running, because Delta's log in a folder is safe with one process only.
    """
    root = Job(spark, place, JobSettings(landing=""))
    if place.guarded:
        say("readings stay: a root on another machine may need them")
    else:
        root.open()  # carries out the last decision: results that are not written yet need their readings
    try:
        if not place.guarded and root.state.number >= 0:
            expire(root, say)
        retention.positions(root)
        root.committed("upkeep")
        return [_compacted(root, table, say, keep_hours) for table in tables]
    finally:
        root.close()


def expire(root: Job, say: Callable[[str], None]) -> None:
    """Delete readings that no result can need any more, and states of old batches (docs/protocol.md 8.4).

    root: open, and between two batches.
    """
    number, found = root.state.number, expiring(root.decider, root.state, root.parts)
    if found:
        root.forget_work()  # else the next start would carry out the last decision again, which may need the readings
        root.committed("work")
        say(f"{MESSAGES.name}: {retention.expire(root, found, number)} rows expire")
        root.committed("expired")
    retention.states(root)


def _compacted(root: Job, table: Table, say: Callable[[str], None], keep_hours: int) -> Done:
    before, after, _whole = upkeep.compact(root.spark, root.place, table)
    if before:
        say(f"{table.name}: {before} files, now {after}")
        root.committed("upkeep")
        upkeep.clean(root, table, Kept(keep_hours * upkeep.HOUR_US, 0))
    return Done(table.name, before, after)
