"""The Delta tables: columns with their meaning, where they lie, how they are made. All schemas are defined here.

On a laptop a table is a folder below one root (`<root>/gold/results`); on a cluster it is `<catalog>.<schema>.<table>`
with the prefix as configuration. schemas/tables.md is the same for people.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent.errors import PortError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("headwater.root")
CONFLICT: Final = "DELTA_CONCURRENT"  # begins the names of Delta's errors for it
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Table:
    """One table. columns: name -> (type, meaning). cluster: columns of liquid clustering, () for none.

    properties: Delta's own, each for a reason given beside it.
    """

    name: str
    meaning: str
    columns: Mapping[str, tuple[str, str]]
    cluster: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def _tuned(*columns: str) -> dict[str, str]:
    """Properties of tables that every batch writes. columns: those with statistics, by which readers choose files. A
    checkpoint every 10 commits, Delta's default, would cost noticeable time.
    """
    return {"delta.checkpointInterval": "50", "delta.dataSkippingStatsColumns": ",".join(columns)}


MESSAGES: Final = Table(
    "bronze.messages",
    "Frames as they came, a row per part: rows of one plan and one hour, late and on time apart; part 0 is what a "
    "frame says beside its rows. A row counts only under the (batch, owner) that ops.batches names.",
    {
        "batch": ("BIGINT", "micro-batch that stored it"),
        "owner": ("STRING", "run of the job that stored it"),
        "node": ("STRING", "child that sent it, from the topic"),
        "epoch": ("BIGINT", "epoch of the child, 32 bits; -1 where no envelope could be read"),
        "seq": ("BIGINT", "number within the epoch; -1 where no envelope could be read"),
        "part": ("INT", "0, or a part of the frame's rows from 1"),
        "kind": ("STRING", "frame, or what could not be read: body, envelope; expired: counts deleted rows"),
        "group": ("INT", "number of the group in the epoch, -1 in part 0"),
        "plan": ("INT", "number of the plan in the epoch, -1 in part 0"),
        "late": ("BOOLEAN", "rows of readings that came late"),
        "rows": ("INT", "rows of partials; where expired: deleted rows without a count of readings"),
        "readings": ("BIGINT", "readings in these rows; null where it was stored before there was such a column"),
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
    "One row per query, node, key and start, between markers (unless they join) per end too. Withdrawn rows stay, "
    "marked.",
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
        "values": ("MAP<STRING, DOUBLE>", "by name of the aggregate"),
        "details": ("STRING", "JSON: what is no number, integers beyond 2^53 in full"),
        "readings": ("BIGINT", "readings in it"),
        "revision": ("INT", "0 for the first row, then one more for each change"),
        "withdrawn": ("BOOLEAN", "no longer a result"),
        "late": ("BIGINT", "readings in it that came late"),
        "complete": ("BOOLEAN", "every expected gateway is in it and nothing was lost"),
        "expected": ("INT", "gateways expected"),
        "received": ("INT", "gateways in it"),
        "coverage_id": ("STRING", "names the missing ones in ops.coverage"),
        "batch": ("BIGINT", "micro-batch that wrote it"),
    },
    cluster=("query", "start"),
    properties=_tuned("query", "start", "batch"),
)
BATCHES: Final = Table(
    "ops.batches",
    "A row per micro-batch that writes: its decision, and who may write. What follows is a function of the tables.",
    {
        "number": ("BIGINT", "from 0; not Spark's batch id"),
        "owner": ("STRING", "run of the job that decided it: the one that may go on"),
        "decided_us": ("BIGINT", "newest receive time of the lander it has seen, microseconds"),
        "files": ("ARRAY<STRING>", "landing files it holds"),
        "messages": ("BIGINT", "frames stored"),
        "effects": ("BIGINT", "frames that took effect"),
        "frontiers": ("STRING", "JSON: source, filter, key and frontier of every group"),
        "work": ("BINARY", "the windows that close or are revised; internal"),
        "state": (
            "BINARY",
            "the state after it, whole, or the input of the batch; internal; null for old batches",
        ),
    },
    properties=_tuned("number"),
)
POSITIONS: Final = Table(
    "silver.positions",
    "Central order: how far every key of a query of count or state windows is. The row of the latest batch holds, with "
    "the readings of the rows since `since`; earlier ones wait for `headwater maintain` to remove them.",
    {
        "query": ("STRING", "id of the query"),
        "node": ("STRING", "gateway of local windows, '' for global ones"),
        "key": ("STRING", "canonical text of the labels"),
        "definition_revision": ("BIGINT", "revision that took the last reading"),
        "base": ("BIGINT", "position from which windows of that revision count"),
        "position": ("BIGINT", "readings that have a position; the next one gets this one"),
        "held_from": ("BIGINT", "position of the first reading that windows to come may still hold"),
        "since": ("BIGINT", "batch of the first row with readings from there on"),
        "scale": ("INT", "power of ten of one unit of the values held; null for floats"),
        "held": ("BINARY", "the last readings before the position, those that no earlier row holds; internal"),
        "batch": ("BIGINT", "micro-batch after which this held"),
    },
    cluster=("query", "key"),
    properties=_tuned("query", "key", "batch"),
)
COVERAGE: Final = Table(
    "ops.coverage",
    "Which gateways are missing where a result names this coverage_id. A coverage without a row here lacks nothing.",
    {
        "coverage_id": ("STRING", "as in gold.results"),
        "leaf": ("STRING", "gateway that is missing"),
        "reason": (
            "STRING",
            "behind: not that far yet; lost: a gap record covers a part; began, ended: serves a part of it",
        ),
        "batch": ("BIGINT", "micro-batch that used it first"),
    },
)
GAPS: Final = Table(
    "ops.gaps",
    "Declared losses: of readings, and (of none) of the answers of a function of another package that failed.",
    {
        "node": ("STRING", "child whose frames declared it"),
        "sources": ("ARRAY<STRING>", "sources concerned"),
        "start": ("BIGINT", "first event time concerned, microseconds"),
        "end": ("BIGINT", "end of it, exclusive"),
        "readings": ("BIGINT", "readings lost, -1 if not known; of old records added up, -n: n not known"),
        "nodes": ("ARRAY<STRING>", "gateways concerned, none: all"),
        "reason": ("STRING", "why"),
        "detail": ("STRING", "such as the hash of a message given up, or what a function raised"),
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
        "reason": ("STRING", "what was wanted and what came"),
        "payload": ("BINARY", "the message"),
        "batch": ("BIGINT", "micro-batch that settled it"),
    },
)
LATE: Final = Table(
    "ops.late",
    "Readings in no result: when they came they were older than the correction horizon, or their place was past.",
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
        "by": ("ARRAY<STRING>", "labels that make its keys"),
        "aggregates": ("ARRAY<STRING>", "names of its values"),
        "definition": ("STRING", "JSON"),
        "batch": ("BIGINT", "micro-batch in which it came"),
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
        "batch": ("BIGINT", "micro-batch in which it came"),
    },
)
NODES: Final = Table(
    "ops.nodes",
    "Every gateway in every group: how far it is. Written when one came, went, fell behind or caught up, and at most "
    "twice a minute where frontiers moved; a large table less often.",
    {
        "node": ("STRING", "gateway"),
        "source": ("STRING", "source of the group"),
        "where": ("STRING", "filter of the group"),
        "by": ("ARRAY<STRING>", "key of the group"),
        "frontier": ("BIGINT", "no older reading follows, microseconds; null before the gateway's first reading"),
        "behind": ("BOOLEAN", "its frontier lies below the group's"),
        "behind_by": ("BIGINT", "by so many microseconds; null before a first reading"),
        "why": (
            "STRING",
            "why it is behind or left out: silent, clock, catching up, never heard; for a day: second device, copy",
        ),
        "group_frontier": ("BIGINT", "windows that end there or before are complete, microseconds; null as there"),
        "decided_us": ("BIGINT", "receive time of the lander up to which this holds"),
        "batch": ("BIGINT", "micro-batch that wrote it"),
    },
)
GROWN: Final = frozenset({MESSAGES.name, NODES.name})  # tables with columns that those of an earlier version lack
TABLES: Final = (MESSAGES, RESULTS, BATCHES, POSITIONS, COVERAGE, GAPS, QUARANTINE, LATE, QUERIES, SENSORS, NODES)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are: a folder, or a prefix such as `main.` of three-part names.

    guarded: other roots may write there too, so that a repeated append must have no effect. Folders of
    this machine need no guard: their owner holds a lock (cloud_job/delta/lease.py).
    """

    root: str
    named: bool = False
    guarded: bool = False

    def path(self, table: Table) -> str:
        """Folder of a table. Only where tables are folders."""
        return f"{self.root}/{table.name.replace('.', '/')}"

    def sql(self, table: Table) -> str:
        """The table as SQL names it."""
        return f"{self.root}{table.name}" if self.named else f"delta.`{self.path(table)}`"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The table as it is now."""
        if self.named:
            return spark.read.table(f"{self.root}{table.name}")
        return spark.read.format("delta").load(self.path(table))

    def append(self, table: Table, rows: DataFrame, step: str, number: int) -> None:
        """Append. If guarded, Delta ignores a second append of the same (step, number).

        The guard makes Delta read the whole state of the table, which takes 0.2 s, or 2 s on a busy machine.
        """
        writer = rows.write.format("delta").mode("append")
        self._write(writer, table, step, number)

    def overwrite(self, table: Table, rows: DataFrame, number: int) -> None:
        """Replace all rows of a small table. If guarded, rows of a later batch stay."""
        self._write(rows.write.format("delta").mode("overwrite"), table, "all", number)

    def replace(self, table: Table, rows: DataFrame, where: str) -> None:
        """Replace the rows for which the condition is true by these rows, in one commit. It must be true for the new
        rows.
        """
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        if self.named:
            writer.saveAsTable(f"{self.root}{table.name}")
        else:
            writer.save(self.path(table))

    def _write(self, writer: DataFrameWriter, table: Table, step: str, number: int) -> None:
        if self.guarded:
            writer = writer.option("txnAppId", f"headwater/{table.name}/{step}").option("txnVersion", number)
        if self.named:
            committed(lambda: writer.saveAsTable(f"{self.root}{table.name}"))
        else:
            committed(lambda: writer.save(self.path(table)))


def committed(write: Callable[[], object]) -> None:
    """Perform a write, and try again after a pause if another commit came first: the write then had no effect."""
    for pause_s in PAUSES_S:
        try:
            write()
        except Exception as err:  # py4j gives what the JVM raised
            if CONFLICT not in str(err):
                raise
            log.warning("root.conflict", extra={"why": str(err).splitlines()[0][:200], "again_s": pause_s})
            time.sleep(pause_s)
        else:
            return
    write()


def place(root: str) -> Place:
    """A folder if `root` looks like one (it holds a slash or is a dot), else a prefix of names.

    Raises: PortError when the folder cannot be made or written.
    """
    if "/" not in root and not root.startswith("."):
        return Place(root, named=True, guarded=True)
    if "://" in root or root.startswith(("dbfs:", "/Volumes/")):
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
    """Create missing tables, and columns that a table of an earlier version lacks.

    Raises: PortError if one cannot be created.
    """
    for table in tables:
        if not where.named and (Path(where.path(table)) / "_delta_log").is_dir():
            _add_columns(spark, where, table)
            continue
        columns = ", ".join(f"`{n}` {kind} COMMENT {_quoted(text)}" for n, (kind, text) in table.columns.items())
        clustered = f" CLUSTER BY ({', '.join(f'`{c}`' for c in table.cluster)})" if table.cluster else ""
        properties = "".join(f", '{name}' = '{value}'" for name, value in table.properties.items())
        try:
            if where.named:
                spark.sql(f"CREATE SCHEMA IF NOT EXISTS {where.root}{table.name.split('.')[0]}")
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {where.sql(table)} ({columns}) USING delta{clustered} "
                f"COMMENT {_quoted(table.meaning)} TBLPROPERTIES ('headwater.version' = '1'{properties})"
            )
        except Exception as err:  # whatever Spark, Delta or the file system has against it
            raise PortError(f"cannot make {where.sql(table)}: {str(err).splitlines()[0]}") from err
        if where.named:
            _add_columns(spark, where, table)


def _add_columns(spark: SparkSession, where: Place, table: Table) -> None:
    """Add the columns that a table lacks; its rows have null there. Looks only at tables in GROWN."""
    if table.name not in GROWN:
        return
    there = set(where.read(spark, table).columns)
    lacking = [
        f"`{name}` {kind} COMMENT {_quoted(text)}" for name, (kind, text) in table.columns.items() if name not in there
    ]
    if lacking:
        spark.sql(f"ALTER TABLE {where.sql(table)} ADD COLUMNS ({', '.join(lacking)})")


def schema(table: Table) -> StructType:
    """The table's columns as a Spark type."""
    return struct({name: kind for name, (kind, _) in table.columns.items()})


def struct(columns: Mapping[str, str]) -> StructType:
    """Columns name -> type as a Spark type; Spark's own reader of types wants a session."""
    from pyspark.sql import types as T

    simple: dict[str, DataType] = {
        "BIGINT": T.LongType(),
        "INT": T.IntegerType(),
        "STRING": T.StringType(),
        "BINARY": T.BinaryType(),
        "BOOLEAN": T.BooleanType(),
        "DOUBLE": T.DoubleType(),
        "TIMESTAMP": T.TimestampType(),
        "DECIMAL(38,0)": T.DecimalType(38, 0),
    }
    composed: dict[str, DataType] = {
        "ARRAY<STRING>": T.ArrayType(T.StringType()),
        "MAP<STRING, STRING>": T.MapType(T.StringType(), T.StringType()),
        "MAP<STRING, DOUBLE>": T.MapType(T.StringType(), T.DoubleType()),
    }
    kinds = {**simple, **composed}

    def read(kind: str) -> DataType:
        if kind.startswith("struct<"):  # of scalars: a cell (cloud_job/spark/native/cell_arrays.py)
            return struct(dict(field.split(":") for field in kind[len("struct<") : -1].split(",")))
        return kinds[kind.upper()]

    return T.StructType([T.StructField(name, read(kind)) for name, kind in columns.items()])


def arrow_schema(table: Table) -> pa.Schema:
    """The table's columns as an Arrow schema, for rows made on the driver."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema(table), timezone="UTC")


def arrow(columns: str) -> pa.Schema:
    """An Arrow schema in Spark's words: `query string, revision bigint`."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "map<string,double>": pa.map_(pa.string(), pa.float64()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in columns.split(", "))])


def rows(spark: SparkSession, table: Table, content: list[dict[str, object]]) -> DataFrame:
    """Rows made on the driver, a dict a row, in the table's columns."""
    import pyarrow as pa

    return one_file(spark, table, pa.Table.from_pylist(content, schema=arrow_schema(table)))


def of_columns(spark: SparkSession, table: Table, content: Mapping[str, list[object]]) -> DataFrame:
    """The same, a list a column."""
    import pyarrow as pa

    return one_file(spark, table, pa.Table.from_pydict(dict(content), schema=arrow_schema(table)))


def one_file(spark: SparkSession, table: Table, content: pa.Table) -> DataFrame:
    """Rows made on the driver, to be written as one file."""
    return frame(spark, content, schema(table)).coalesce(1)


def frame(spark: SparkSession, content: pa.Table, kinds: StructType) -> DataFrame:
    """Rows made on the driver, as one chunk: Spark reads nothing behind an empty chunk."""
    return spark.createDataFrame(content.combine_chunks(), kinds)


def small(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> DataFrame:
    """Rows made on the driver, for a join. Values that change in every batch are data here, so that Spark's plan stays
    the same.
    """
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
