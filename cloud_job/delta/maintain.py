"""Maintains the tables: compacts small files, removes old versions, expired payloads and old states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloud_job.delta.tables import BATCHES, MESSAGES, POSITIONS, TABLES, Place
from cloud_job.spark.decision_checkpoint import loads
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import extent_us
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.root.decision.root_state import RootLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_STATES: Final = 100  # batches whose state stays: the last one is needed, a few more help to see what happened
KEPT_HOURS: Final = 7 * 24  # of old versions, for readers under way and time travel


@dataclass(frozen=True, slots=True)
class Done:
    """The result of maintaining a table."""

    table: str
    files_before: int
    files_after: int


def maintain(
    spark: SparkSession, place: Place, limits: RootLimits, say: Callable[[str], None], keep_hours: int = KEPT_HOURS
) -> list[Done]:
    """Expire, compact and vacuum every table. A root may run meanwhile: its commits win."""
    expire(spark, place, limits, say)
    superseded(spark, place)
    out = []
    for table in TABLES:
        name = place.sql(table)
        before = _files(spark, name)
        if not before:
            out.append(Done(table.name, 0, 0))
            continue
        say(f"{table.name}: {before} files")
        spark.sql(f"OPTIMIZE {name}")
        spark.sql(f"VACUUM {name} RETAIN {keep_hours} HOURS")
        out.append(Done(table.name, before, _files(spark, name)))
    return out


def expire(spark: SparkSession, place: Place, limits: RootLimits, say: Callable[[str], None]) -> None:
    """Delete payloads that no result can need any more, and states of old batches (docs/protocol.md 8.4)."""
    last = place.read(spark, BATCHES).orderBy("number", ascending=False).limit(1).collect()
    if not last:
        return
    number = int(last[0]["number"])
    oldest_us = expired_before(bytes(last[0]["state"]), limits)
    messages, batches = place.sql(MESSAGES), place.sql(BATCHES)
    old = f"state IS NOT NULL AND number < {number - KEPT_STATES}"
    spark.sql(f"UPDATE {batches} SET state = NULL, work = NULL WHERE {old}")  # noqa: S608 - our own names and numbers
    if oldest_us > NEVER_US:
        say(f"{MESSAGES.name}: payloads of rows that end before {oldest_us} expire")
        old = f"payload IS NOT NULL AND `end` < {oldest_us}"
        spark.sql(f"UPDATE {messages} SET payload = NULL WHERE {old}")  # noqa: S608 - as above


def expired_before(content: bytes, limits: RootLimits) -> int:
    """The time before which rows may expire: their longest windows lie beyond the horizon of every query."""
    decider, state, _parts = loads(content, limits, 0)
    lengths = [extent_us(query.window) for key in state.queries if (query := state.query(key)) is not None]
    frontiers = [_reached_us(group, family) for group, family in decider.parent.children.memberships.items()]
    if not lengths or not frontiers or min(frontiers) == NEVER_US:
        return NEVER_US
    kept = [us for windows in state.markers.windows.values() if (us := windows.kept_us) is not None]
    kept += [after_us for ranges in state.pending.values() for after_us, _ in ranges]
    return min([min(frontiers) - limits.horizon_us, *kept]) - max(lengths)


def _reached_us(group: Group, family: GroupMembership) -> int:
    """The frontier up to which rows are computed. Ordered windows also wait for leaves that are left out."""
    if not isinstance(group.cut, OrderedCut):
        return family.published_us
    return min((us for us, _ in family.leaf_frontiers().values()), default=family.published_us)


def superseded(spark: SparkSession, place: Place) -> None:
    """Delete rows of silver.positions that the latest row of their key does not need."""
    name = place.sql(POSITIONS)
    latest = f"SELECT query, node, key, max_by(since, batch) AS since FROM {name} GROUP BY query, node, key"  # noqa: S608
    same = " AND ".join(f"t.`{column}` = s.`{column}`" for column in ("query", "node", "key"))
    spark.sql(f"MERGE INTO {name} t USING ({latest}) s ON {same} AND t.batch < s.since WHEN MATCHED THEN DELETE")


def _files(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"DESCRIBE DETAIL {name}").first()["numFiles"])  # type: ignore[index]
