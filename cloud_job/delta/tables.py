"""The Delta tables: schemas with the meaning of each column, paths, creation and appends. schemas/tables.md is
generated from this file.

On a laptop a table is a folder below one root (`<root>/gold/results`). On a cluster it is `<catalog>.<schema>.<table>`,
and the prefix is configured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job.delta import table_folders
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headwater.root")
CONFLICT: Final = "DELTA_CONCURRENT"  # prefix of Delta's names for conflicts between two commits
VOLUMES: Final = "/Volumes/"  # mounted on Databricks, where Spark knows them by the same path
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Table:
    """One table. columns: name -> (type, meaning). cluster: columns of liquid clustering, () for none. properties:
    Delta's table properties.
    """

    name: str
    meaning: str
    columns: Mapping[str, tuple[str, str]]
    cluster: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def _tuned(*columns: str) -> dict[str, str]:
    """Properties of tables that every batch writes. columns: get statistics, with which readers skip files. Checkpoints
    every 50 commits: Delta's default of 10 takes noticeable time.
    """
    return {"delta.checkpointInterval": "50", "delta.dataSkippingStatsColumns": ",".join(columns)}


MESSAGES: Final = Table(
    "bronze.messages",
    "Frames as received, one row per part. A part contains the rows of one plan and one hour, either late or on time; "
    "part 0 is the frame without its rows. A row takes effect only if ops.batches names its (batch, owner).",
    {
        "batch": ("BIGINT", "micro-batch that stored it"),
        "owner": ("STRING", "run of the job that stored it"),
        "node": ("STRING", "child that sent it, from the topic"),
        "epoch": ("BIGINT", "epoch of the child, 32 bits; -1 where no envelope could be read"),
        "seq": ("BIGINT", "number within the epoch; -1 where no envelope could be read"),
        "part": ("INT", "0, or a part of the frame's rows from 1"),
        "kind": ("STRING", "frame; body, envelope: this could not be read; expired: the row counts deleted rows"),
        "group": ("INT", "number of the group in the epoch, -1 in part 0"),
        "plan": ("INT", "number of the plan in the epoch, -1 in part 0"),
        "late": ("BOOLEAN", "whether the readings came late"),
        "rows": ("INT", "rows of partials; if expired: deleted rows without a count of readings"),
        "readings": ("BIGINT", "readings in these rows; null if stored before this column existed"),
        "start": ("BIGINT", "lowest start of a row, microseconds; null in part 0"),
        "end": ("BIGINT", "latest end of a row, microseconds; null in part 0"),
        "received_us": ("BIGINT", "when the lander received it, microseconds"),
        "payload": ("BINARY", "CBOR; null once expired"),
        "reason": ("STRING", "why it could not be read"),
    },
    cluster=("start",),
    properties=_tuned("batch", "start", "`end`"),
)
RESULTS: Final = Table(
    "gold.results",
    "Results: one row per (query, node, key, start); windows between markers that do not join may differ in their end "
    "alone. Withdrawn rows stay and are marked.",
    {
        "query": ("STRING", "id of the query"),
        "definition_revision": ("BIGINT", "revision of the query in force at the start of the window"),
        "node": ("STRING", "gateway of a local window, '' for global ones"),
        "key": ("STRING", "canonical text of the labels, site=a,unit=3; '' without labels"),
        "labels": ("MAP<STRING, STRING>", "the same as a map"),
        "start": ("BIGINT", "start, microseconds since 1970 (position for count windows)"),
        "end": ("BIGINT", "end, exclusive"),
        "window_start": ("TIMESTAMP", "start"),
        "window_end": ("TIMESTAMP", "end, exclusive"),
        "values": ("MAP<STRING, DOUBLE>", "name of the aggregate -> value"),
        "details": ("STRING", "JSON: results that are not one number, and integers beyond 2^53 in full"),
        "readings": ("BIGINT", "readings in the window"),
        "revision": ("INT", "0 for the first row, one more with each change"),
        "withdrawn": ("BOOLEAN", "the row is no longer a result"),
        "late": ("BIGINT", "readings in the window that came late"),
        "complete": ("BOOLEAN", "every expected gateway is included and nothing was lost"),
        "expected": ("INT", "gateways expected"),
        "received": ("INT", "gateways included"),
        "coverage_id": ("STRING", "identifies the missing gateways in ops.coverage"),
        "batch": ("BIGINT", "micro-batch that wrote it"),
    },
    cluster=("query", "start"),
    properties=_tuned("query", "start", "batch"),
)
BATCHES: Final = Table(
    "ops.batches",
    "Decisions: one row per micro-batch that writes. It names the run that may write; all other rows of the batch "
    "follow from the tables and this row.",
    {
        "number": ("BIGINT", "number of the batch, from 0; not Spark's batch id"),
        "owner": ("STRING", "run of the job that decided the batch; only this run may continue"),
        "decided_us": (
            "BIGINT",
            "time of the lander's last record in the batch or before, microseconds; falls if its clock is set back",
        ),
        "elapsed_us": ("BIGINT", "for ages of rows: never falls, a step ahead counts a day at most; null in old rows"),
        "files": ("ARRAY<STRING>", "landing files that the batch read"),
        "messages": ("BIGINT", "frames stored"),
        "effects": ("BIGINT", "frames that took effect"),
        "frontiers": ("STRING", "JSON: source, filter, key and frontier of every group"),
        "work": ("BINARY", "the windows that close or are revised; null in older batches; internal"),
        "state": (
            "BINARY",
            "the whole state after the batch, or the input of the batch; internal; null for old batches",
        ),
    },
    properties=_tuned("number"),
)
POSITIONS: Final = Table(
    "silver.positions",
    "State of the queries with count or state windows, per key. The current state is the row of the latest batch, and "
    "the readings in the rows since batch `since`. Upkeep deletes earlier rows.",
    {
        "query": ("STRING", "id of the query"),
        "node": ("STRING", "gateway of local windows, '' for global ones"),
        "key": ("STRING", "canonical text of the labels"),
        "definition_revision": ("BIGINT", "revision that gave the last reading its position"),
        "base": ("BIGINT", "position at which the windows of this revision begin"),
        "position": ("BIGINT", "number of readings that have a position; also the position of the next reading"),
        "held_from": ("BIGINT", "position of the first reading that a later window may contain"),
        "since": ("BIGINT", "batch of the first row with readings from held_from on"),
        "scale": ("INT", "power of ten of one unit of the values in `held`; null for floats"),
        "held": ("BINARY", "readings that this row adds, of batch `since` all from held_from on; internal"),
        "batch": ("BIGINT", "micro-batch that wrote it; the state is the one after this batch"),
    },
    cluster=("query", "key"),
    properties=_tuned("query", "key", "batch"),
)
COVERAGE: Final = Table(
    "ops.coverage",
    "The gateways that are missing in results with this coverage_id. Without a row here, no gateway is missing.",
    {
        "coverage_id": ("STRING", "as in gold.results"),
        "leaf": ("STRING", "gateway that is missing"),
        "reason": (
            "STRING",
            "behind: not that far in time; lost: a gap record covers a part; began, ended: serves only a part",
        ),
        "batch": ("BIGINT", "micro-batch that first used the coverage"),
    },
)
GAPS: Final = Table(
    "ops.gaps",
    "Declared losses of readings. Rows of 0 readings report failures that lost no reading: of installed functions and "
    "of the upkeep of the tables.",
    {
        "node": ("STRING", "child whose frames declared it"),
        "sources": ("ARRAY<STRING>", "sources concerned"),
        "start": ("BIGINT", "first event time concerned, microseconds"),
        "end": ("BIGINT", "end of the event times concerned, exclusive"),
        "readings": ("BIGINT", "readings lost, -1 if not known; in a sum of n old records: -n if not known"),
        "nodes": ("ARRAY<STRING>", "gateways concerned; empty: all"),
        "reason": ("STRING", "why"),
        "detail": ("STRING", "more about the reason: the hash of a discarded message, the error of a function"),
        "batch": ("BIGINT", "micro-batch in which it took effect"),
    },
)
QUARANTINE: Final = Table(
    "ops.quarantine",
    "Messages that could not be used, with their bytes.",
    {
        "node": ("STRING", "child that sent it, from the topic"),
        "epoch": ("BIGINT", "epoch, -1 where the envelope could not be read"),
        "seq": ("BIGINT", "number, -1 where the envelope could not be read"),
        "received_us": ("BIGINT", "when the lander received it, microseconds"),
        "reason": ("STRING", "what was expected and what was received"),
        "payload": ("BINARY", "the message"),
        "batch": ("BIGINT", "micro-batch that rejected it"),
    },
)
LATE: Final = Table(
    "ops.late",
    "Readings in no result: on arrival they were older than the correction horizon, or later readings of their key "
    "already had positions.",
    {
        "node": ("STRING", "child that sent them"),
        "source": ("STRING", "source"),
        "key": ("STRING", "canonical text of the labels"),
        "start": ("BIGINT", "first event time, microseconds"),
        "end": ("BIGINT", "last event time, exclusive"),
        "readings": ("BIGINT", "how many"),
        "reason": ("STRING", "why they are in no result"),
        "batch": ("BIGINT", "micro-batch in which they took effect"),
    },
)
QUERIES: Final = Table(
    "ops.queries",
    "Every definition and revision seen.",
    {
        "query": ("STRING", "id; '' where this version cannot read the definition"),
        "revision": ("BIGINT", "of the definition; -1 where this version cannot read it"),
        "source": ("STRING", "source of its readings"),
        "by": ("ARRAY<STRING>", "labels that form its keys"),
        "aggregates": ("ARRAY<STRING>", "names of its values"),
        "definition": ("STRING", "JSON"),
        "batch": ("BIGINT", "micro-batch in which it was first received"),
    },
)
SENSORS: Final = Table(
    "ops.sensors",
    "Sensors seen, with unit and labels.",
    {
        "sensor": ("STRING", "id"),
        "revision": ("BIGINT", "of the definition"),
        "unit": ("STRING", "of its readings"),
        "labels": ("MAP<STRING, STRING>", "as configured"),
        "definition": ("STRING", "JSON"),
        "batch": ("BIGINT", "micro-batch in which it was first received"),
    },
)
NODES: Final = Table(
    "ops.nodes",
    "The progress of every gateway in every group. Rewritten when a gateway joins, leaves, falls behind or catches up, "
    "and at most twice a minute when frontiers move; less often if the table is large.",
    {
        "node": ("STRING", "gateway"),
        "source": ("STRING", "source of the group"),
        "where": ("STRING", "filter of the group"),
        "by": ("ARRAY<STRING>", "key of the group"),
        "frontier": ("BIGINT", "no older reading follows, microseconds; null before the gateway's first reading"),
        "behind": ("BOOLEAN", "its frontier is below the group's"),
        "behind_by": ("BIGINT", "how far below, microseconds; null before the gateway's first reading"),
        "why": (
            "STRING",
            "why it is behind or left out: silent, clock, catching up, never heard; for a day: second device, copy",
        ),
        "group_frontier": ("BIGINT", "windows that end here or before are complete, microseconds; null as `frontier`"),
        "decided_us": ("BIGINT", "receive time of the lander that the row describes, microseconds"),
        "batch": ("BIGINT", "micro-batch that wrote it"),
    },
)
GROWN: Final = frozenset({MESSAGES.name, BATCHES.name, NODES.name})  # had fewer columns in an earlier version
TABLES: Final = (MESSAGES, RESULTS, BATCHES, POSITIONS, COVERAGE, GAPS, QUARANTINE, LATE, QUERIES, SENSORS, NODES)
FIRST: Final = frozenset(table.name for table in TABLES)  # created by every version: leave out later tables


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are: a folder, or a prefix such as `main.` of three-part names.

    guarded: another root may write there too, so Delta must ignore a repeated append. Folders of this machine need no
    guard, because the root has locked them (cloud_job/delta/lease.py).
    """

    root: str
    named: bool = False
    guarded: bool = False

    def path(self, table: Table) -> str:
        """Folder of a table. Only for tables that are folders."""
        return f"{self.root}/{table.name.replace('.', '/')}"

    def uri(self, table: Table) -> str:
        """The folder of a table for Spark, whose default file system may be another than this machine's, as on a
        cluster. Only for tables that are folders.
        """
        return self.path(table) if self.guarded else f"file:{self.path(table)}"

    def name(self, table: Table) -> str:
        """The table's name in a catalog, each part in backticks: a catalog may be `my-cat`. Only for named tables."""
        return quoted_parts(f"{self.root}{table.name}")

    def sql(self, table: Table) -> str:
        """The table's name in SQL."""
        return self.name(table) if self.named else f"delta.`{self.uri(table)}`"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The table as it is now."""
        if self.named:
            return spark.read.table(self.name(table))
        return spark.read.format("delta").load(self.uri(table))

    def append(self, table: Table, rows: DataFrame, step: str, number: int) -> None:
        """Append rows. If guarded, Delta ignores a second append with the same (step, number).

        number: of the batch. The guard makes Delta read the whole state of the table: 0.2 s, or 2 s on a busy machine.
        """
        self._write(rows, "append", table, step, number)

    def overwrite(self, table: Table, rows: DataFrame, number: int) -> None:
        """Replace all rows of a small table. If guarded, rows of a later batch stay."""
        self._write(rows, "overwrite", table, "all", number)

    def replace(self, table: Table, rows: DataFrame, where: str) -> None:
        """Replace the rows for which `where` is true, in one commit. `where` must be true for the new rows too."""
        self._check(rows.sparkSession, table)
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        if self.named:
            writer.saveAsTable(self.name(table))
        else:
            writer.save(self.uri(table))

    def _check(self, spark: SparkSession, table: Table) -> None:
        """Raises: PortError if the table is gone. Spark would create it with the new rows alone."""
        log_folder = Path(self.path(table), table_folders.LOG)  # may have very many files, so it is not listed here
        if not (exists(spark, self, table) if self.guarded else log_folder.is_dir()):
            raise PortError(
                f"the table {self.sql(table)} is gone, and was there when this root began; put it back from a copy, or "
                "move all tables away to begin anew"
            )

    def _write(self, rows: DataFrame, mode: str, table: Table, step: str, number: int) -> None:
        self._check(rows.sparkSession, table)
        writer = rows.write.format("delta").mode(mode)
        if self.guarded:
            writer = writer.option("txnAppId", f"headwater/{table.name}/{step}").option("txnVersion", number)
        if self.named:
            committed(lambda: writer.saveAsTable(self.name(table)))
        else:
            committed(lambda: writer.save(self.uri(table)))


def committed(write: Callable[[], object]) -> None:
    """Perform a write. If another commit came first, the write had no effect and is tried again after a pause."""
    for pause_s in PAUSES_S:
        try:
            write()
        except Exception as err:  # whatever the JVM raised
            if CONFLICT not in str(err):
                raise
            log.warning("root.conflict", extra={"why": str(err).splitlines()[0][:200], "again_s": pause_s})
            time.sleep(pause_s)
        else:
            return
    write()


def quoted_parts(name: str) -> str:
    """A name of several parts, each in backticks unless it has them."""
    return ".".join(part if part.startswith("`") else f"`{part}`" for part in name.split("."))


def place(root: str) -> Place:
    """A folder if `root` contains a slash or begins with a dot, else a prefix of table names.

    A `file:` URI is the folder that it names, so that it has the same lock.

    Raises: PortError if the folder cannot be created or written.
    """
    if "/" not in root and not root.startswith("."):
        return Place(root, named=True, guarded=True)
    root = table_folders.without_scheme(root)
    if is_uri(root) or root.startswith(VOLUMES):
        return Place(root.rstrip("/"), guarded=True)
    folder = Path(root).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as err:
        raise PortError(f"cannot write the tables to {folder}: {err.strerror}; name another folder") from err
    return Place(str(folder))


def create(spark: SparkSession, where: Place, tables: tuple[Table, ...] = TABLES) -> None:
    """Create missing tables, and columns that are missing in tables of an earlier version.

    Raises: PortError if a table cannot be created.
    """
    for table in tables:
        if not where.named and table_folders.is_table(Path(where.path(table))):
            _add_columns(spark, where, table)
            continue
        if not where.guarded:
            table_folders.clear(Path(where.path(table)))
        columns = ", ".join(f"`{n}` {kind} COMMENT {_quoted(text)}" for n, (kind, text) in table.columns.items())
        clustered = f" CLUSTER BY ({', '.join(f'`{c}`' for c in table.cluster)})" if table.cluster else ""
        properties = "".join(f", '{name}' = '{value}'" for name, value in table.properties.items())
        try:
            if where.guarded and not where.named:
                table_folders.clear_at(spark, where.path(table))
            if where.named:
                spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted_parts(where.root + table.name.partition('.')[0])}")
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {where.sql(table)} ({columns}) USING delta{clustered} "
                f"COMMENT {_quoted(table.meaning)} TBLPROPERTIES ('headwater.version' = '1'{properties})"
            )
        except Exception as err:  # whatever Spark, Delta or the file system raises
            raise PortError(f"cannot create the table {where.sql(table)}: {str(err).splitlines()[0]}") from err
        if where.guarded:
            _add_columns(spark, where, table)


def exists(spark: SparkSession, where: Place, table: Table) -> bool:
    """Whether a table is there."""
    if where.named:
        return bool(spark.catalog.tableExists(where.name(table)))
    if where.guarded:
        from delta.tables import DeltaTable

        found = table_folders.is_table_at(spark, where.path(table))
        if found is not None:
            return found
        return DeltaTable.isDeltaTable(spark, where.path(table))
    return table_folders.is_table(Path(where.path(table)))


def _add_columns(spark: SparkSession, where: Place, table: Table) -> None:
    """Add missing columns to a table; its existing rows get null there. Only tables in GROWN can need it."""
    if table.name not in GROWN:
        return
    there = set(where.read(spark, table).columns)
    lacking = [
        f"`{name}` {kind} COMMENT {_quoted(text)}" for name, (kind, text) in table.columns.items() if name not in there
    ]
    if lacking:
        spark.sql(f"ALTER TABLE {where.sql(table)} ADD COLUMNS ({', '.join(lacking)})")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
