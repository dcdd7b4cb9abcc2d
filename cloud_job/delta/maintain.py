"""Maintains the tables: compacts small files, removes old versions, expired payloads and old states.

Payloads expire by plan: those of sessions and of windows between markers stay, because a row of them may reach back
without bound (docs/protocol.md 8.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloud_job.delta.tables import BATCHES, MESSAGES, POSITIONS, TABLES, Place, Table, arrow, small
from cloud_job.spark.job import Job, JobSettings
from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.query.group_cut import OrderedCut, TimeCut
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import extent_us
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import identity
from edge_agent.wire.heads import Parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_STATES: Final = 100  # batches whose state stays: the last one is needed, a few more help to see what happened
KEPT_HOURS: Final = 7 * 24  # of old versions, for readers under way and time travel
_EXPIRING: Final = arrow("of_node string, of_epoch bigint, of_plan int, before bigint")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of maintaining a table."""

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
    """Expire, and compact and vacuum these tables, as the root that owns them.

    Raises: PortError where a root runs: Delta's log in a folder is safe in one process only.
    """
    if place.guarded:
        say("payloads stay: a root on another machine may read them")
        superseded(spark, place)
        return [_compacted(spark, place, table, say, keep_hours) for table in tables]
    root = Job(spark, place, JobSettings(landing=""))
    root.open()  # carries the last decision out: rows that it still owed need their payloads
    try:
        expire(spark, place, root, say)
        superseded(spark, place)
        return [_compacted(spark, place, table, say, keep_hours) for table in tables]
    finally:
        root.close()


def _compacted(spark: SparkSession, place: Place, table: Table, say: Callable[[str], None], keep_hours: int) -> Done:
    name = place.sql(table)
    before = _files(spark, name)
    if not before:
        return Done(table.name, 0, 0)
    say(f"{table.name}: {before} files")
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"VACUUM {name} RETAIN {keep_hours} HOURS")
    return Done(table.name, before, _files(spark, name))


def expire(spark: SparkSession, place: Place, root: Job, say: Callable[[str], None]) -> None:
    """Delete payloads that no result can need any more, and states of old batches (docs/protocol.md 8.4).

    root: opened, between two batches.
    """
    old = f"state IS NOT NULL AND number < {min(root.state.number - KEPT_STATES, root.needed_from)}"
    spark.sql(f"UPDATE {place.sql(BATCHES)} SET state = NULL, work = NULL WHERE {old}")  # noqa: S608 - our own names
    found = expiring(root.decider, root.state, root.parts)
    if not found:
        return
    latest_us = max(before_us for *_, before_us in found)
    say(f"{MESSAGES.name}: payloads that end before {latest_us} expire")
    name, source = place.sql(MESSAGES), "headwater_expiring"
    small(spark, found, _EXPIRING).createOrReplaceTempView(source)
    same = "t.node = s.of_node AND t.epoch = s.of_epoch AND t.plan = s.of_plan AND t.`end` < s.before"
    near = f"t.payload IS NOT NULL AND t.`end` < {latest_us}"
    spark.sql(f"MERGE INTO {name} t USING {source} s ON {near} AND {same} WHEN MATCHED THEN UPDATE SET payload = NULL")
    spark.catalog.dropTempView(source)


def expiring(decider: Decider, state: RootState, parts: Parts) -> list[tuple[str, int, int, int]]:
    """(node, epoch, plan, time): parts of that plan which end before are in no row that may still be made.

    parts: of the frames that have not taken effect.
    """
    waiting: dict[EpochKey, int] = {}
    for (node, epoch, _seq), found in parts.items():
        line = EpochKey(node, epoch)
        waiting[line] = min([waiting.get(line, -NEVER_US), *(part.latest_end_us for part in found)])
    out = []
    for line, dictionary in decider.parent.dictionaries.items():
        for number, (group, plan) in dictionary.plans.items():
            before_us = _needed_us(group, plan, decider, state)
            if before_us is not None:
                out.append((*line, number, min(before_us, waiting.get(line, before_us))))
    return out


def _needed_us(group: Group, plan: Plan, decider: Decider, state: RootState) -> int | None:
    """Rows of a plan that end before are in no row that may still be made; None: not known."""
    floor_us, served = state.floors.get(group), group in decider.parent.children.memberships
    queries = [query for query in map(state.query, plan.keys) if query is not None]
    if floor_us is None or not served or identity(group, plan) not in state.plans or len(queries) < len(plan.keys):
        return None
    places = [QueryPlace(*key, group.node) for key in plan.keys]
    closed_us = min((state.closed_us(place) for place in places), default=NEVER_US)
    if closed_us == NEVER_US:  # its first windows are still to come
        return None
    if isinstance(group.cut, OrderedCut) and plan.kind == "raw":
        return min(closed_us, floor_us)
    if isinstance(group.cut, TimeCut) and plan.kind in ("slice", "window"):
        put_off = [after_us for place in places for after_us, _ in state.pending.get(place, ())]
        return min(closed_us, floor_us, *put_off) - max(extent_us(query.window) for query in queries)
    return None


def superseded(spark: SparkSession, place: Place) -> None:
    """Delete rows of silver.positions that the latest row of their key does not need."""
    name = place.sql(POSITIONS)
    latest = f"SELECT query, node, key, max_by(since, batch) AS since FROM {name} GROUP BY query, node, key"  # noqa: S608
    same = " AND ".join(f"t.`{column}` = s.`{column}`" for column in ("query", "node", "key"))
    spark.sql(f"MERGE INTO {name} t USING ({latest}) s ON {same} AND t.batch < s.since WHEN MATCHED THEN DELETE")


def _files(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"DESCRIBE DETAIL {name}").first()["numFiles"])  # type: ignore[index]
