"""Refuses tables of which one was deleted: decisions, readings, positions and results are right only together.

The root creates a table that is missing. Created empty beside the others, it would give rows that lack readings or
contain them twice, and are marked complete. A table that an earlier version did not have is created all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud_job.delta.integrity import durable_versions
from cloud_job.delta.tables import BATCHES, FIRST, RESULTS, TABLES, Place, Table, exists
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_whole(spark: SparkSession, where: Place) -> None:
    """Refuse tables of which one was deleted, unless none is there. Call it before `tables.create`.

    A table was there if the note of durable versions names it, or if another one has rows that were made with it.
    Raises: PortError.
    """
    gone = [table for table in TABLES if not exists(spark, where, table)]
    if len(gone) == len(TABLES):
        return
    noted = frozenset[str]() if where.guarded else frozenset(_noted(where))
    for table in gone:
        if table.name in noted:
            raise _refused(where, table, f"{durable_versions.path_of(where)} says that it was there")
    made = [table for table in gone if table.name in FIRST]
    if not made:
        return
    other = BATCHES if BATCHES not in gone else RESULTS  # without a decision, the tables were never all created
    if other not in gone and not where.read(spark, other).isEmpty():
        raise _refused(where, made[0], f"{other.name} has rows that were made with it")


def _noted(where: Place) -> dict[str, int]:
    try:
        return durable_versions.read(where)
    except OSError as err:
        raise PortError(f"cannot read {durable_versions.path_of(where)}: {err.strerror}") from err


def _refused(where: Place, table: Table, why: str) -> PortError:
    return PortError(
        f"the table {where.sql(table)} is gone, and {why}; put it back from a copy, or move all tables away to begin "
        "anew"
    )
