"""Counts the readings in the tables, for `headwater audit`. Checks every row against the decisions; needs no JVM."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from cloud_job.spark import state_log
from cloud_job.sql.views import unreadable
from edge_agent.algebra.frame import BEGAN, NEVER_US
from edge_agent.errors import PortError, WireError
from edge_agent.root.books import Line, RootBook
from edge_agent.root.decision.root_state import RootLimits

if TYPE_CHECKING:
    import pyarrow as pa

    from edge_agent.root.decision.root_state import RootState

NEVER_TAKEN: Final = (BEGAN, "stopped", "a function failed")  # reasons of gaps: no gateway accepted the readings
SHOWN: Final = 5  # at most so many rows that occur twice are named in the report
MOST_PARTS: Final = 2_000_000  # of which one pass looks for those that occur twice: some 200 MB
MESSAGES: Final = "bronze.messages"
WIDE: Final = "decimal(38, 0)"  # of sums: the engine lets a sum of integers beyond 64 bits begin again at -2^63
APPLIED: Final = {"node": str, "epoch": int, "low": int, "high": int}
OWNERS: Final = {"owner": str, "first": int, "until": int}
TOOK_EFFECT: Final = (
    "from t join applied as a on t.node = a.node and t.epoch = a.epoch and t.seq >= a.low and t.seq <= a.high "
    "join owners as o on t.owner = o.owner and t.batch >= o.first and t.batch < o.until "
    "where t.kind = 'frame' and t.part > 0"
)


def root_book(folder: str, name: str = "root") -> RootBook:
    """Build the root's book from the tables in `folder`. name: the root's id in its children. Raises: PortError."""
    last = _select(folder, "ops.batches", "select number, state from t order by number desc limit 1").to_pylist()
    if not last:  # the root has decided nothing yet: all readings are on their way, if there are no rows either
        rows = _select(folder, MESSAGES, "select count(*) as n from t")["n"][0].as_py()
        return RootBook(name, applied=None if rows else {})
    try:
        base = state_log.base_of(last[0]["state"], last[0]["number"])
        asked = f"select number, owner, work, state from t where number >= {base} order by number"  # noqa: S608 - number
        batches = _select(folder, "ops.batches", asked).to_pylist()
        decider, state, _parts = state_log.recall(batches, state_log.Rules(RootLimits(), 0))
    except WireError as err:
        raise unreadable("the tables", err) from err
    inbox = decider.parent.inbox
    lines = {
        node: Line(inbox.current[node], line.applied.next, line.readings, line.refused)
        for node, line in inbox.lines().items()
    }
    stored, doubled, uncounted = _stored(folder, state)
    gaps = _select(folder, "ops.gaps", "select reason, -sum(readings) as n from t where readings < 0 group by reason")
    unknown = {row["reason"]: row["n"] for row in gaps.to_pylist() if row["reason"] not in NEVER_TAKEN}
    known = RootBook(name, lines, state.readings, stored, doubled, uncounted, _late(folder), unknown)
    return replace(known, retired=frozenset(decider.parent.children.retired))


def _late(folder: str) -> int:
    """The readings in ops.late."""
    sql = f"select sum(cast(readings as {WIDE})) as n from t"  # noqa: S608 - our own name
    return int(_select(folder, "ops.late", sql)["n"][0].as_py() or 0)


def _stored(folder: str, state: RootState) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Count the readings in bronze.messages. Returns (child -> readings in the rows that took effect, names of rows
    that occur twice, number of rows that took effect without a count of readings).

    The engine counts, so that what is read here does not grow with the table.
    """
    stored: dict[str, int] = {}
    uncounted, doubled = 0, list[tuple[str, int, int, int]]()
    columns = {field.name for field in _schema(folder, MESSAGES)}
    readings = "coalesce(t.readings, -1)" if "readings" in columns else "-1"
    with _engine(folder, state) as engine:
        counts = _asked(
            engine,
            f"select node, sum(cast(greatest(had, 0) as {WIDE})) as had, "  # noqa: S608
            "sum(case when had < 0 then 1 else 0 end) as unknown, "
            f"count(*) as parts from (select t.node, {readings} as had {TOOK_EFFECT}) as taken group by node",
        ).to_pylist()
        for row in counts:
            stored[row["node"]], uncounted = int(row["had"]), uncounted + row["unknown"]
        passes = -(-sum(row["parts"] for row in counts) // MOST_PARTS)
        for number in range(passes):  # the engine keeps the parts of one pass in memory
            twice = _asked(
                engine,
                f"select t.node, t.epoch, t.seq, t.part {TOOK_EFFECT} and t.seq % {passes} = {number} "
                f"group by t.node, t.epoch, t.seq, t.part having count(*) > 1 order by 1, 2, 3, 4 limit {SHOWN}",
            )
            doubled += [tuple(row.values()) for row in twice.to_pylist()]
    for row in _expired(folder):
        stored[row["node"]] = stored.get(row["node"], 0) + row["readings"]
        uncounted += row["rows"]
    names = (f"{node} {epoch:08x}/{seq} part {part}" for node, epoch, seq, part in sorted(doubled)[:SHOWN])
    return stored, tuple(names), uncounted


@contextmanager
def _engine(folder: str, state: RootState) -> Iterator[Any]:
    """Yields the engine with the tables t (bronze.messages), applied (frames that took effect) and owners (runs)."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    applied = [(*line, low, high) for line, ranges in state.applied.items() for low, high in ranges]
    runs = pairwise([*state.owners, (-NEVER_US, "")])
    owners = [(owner, first, until) for (first, owner), (until, _) in runs]
    kinds = {str: pa.string(), int: pa.int64()}
    engine = QueryBuilder().register("t", _table(folder, MESSAGES))
    with tempfile.TemporaryDirectory(prefix="headwater-audit-") as beside:
        for name, columns, rows in (("applied", APPLIED, applied), ("owners", OWNERS, owners)):
            schema = pa.schema([(column, kinds[kind]) for column, kind in columns.items()])
            content = [dict(zip(columns, row, strict=True)) for row in rows]
            write_deltalake(f"{beside}/{name}", pa.Table.from_pylist(content, schema=schema))
            engine = engine.register(name, DeltaTable(f"{beside}/{name}"))
        yield engine


def _expired(folder: str) -> list[dict[str, Any]]:
    """The rows that count deleted readings, one per child: node, readings, and rows (deleted rows without a count of
    readings). cloud_job/delta/retention.py writes them.
    """
    if "readings" not in {field.name for field in _schema(folder, MESSAGES)}:
        return []
    sql = "select node, readings, rows from t where kind = 'expired'"
    return list(_select(folder, MESSAGES, sql).to_pylist())


def _schema(folder: str, table: str) -> list[Any]:
    return list(_table(folder, table).schema().fields)


def _table(folder: str, table: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    path = f"{folder}/{table.replace('.', '/')}"
    if "://" not in folder and not os.path.isdir(f"{path}/_delta_log"):  # noqa: PTH112 - it raises nothing
        raise PortError(
            f"no table {table} in {folder}: `headwater root` creates it; --tables FOLDER names another folder"
        )
    try:
        return DeltaTable(path)
    except (DeltaError, OSError) as err:
        raise unreadable(path, err) from err


def _select(folder: str, table: str, sql: str) -> pa.Table:
    from deltalake import QueryBuilder

    return _asked(QueryBuilder().register("t", _table(folder, table)), sql)


def _asked(engine: Any, sql: str) -> pa.Table:
    """Raises: PortError if files of the tables are missing or damaged, or the tables are not those of a root."""
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        return pa.RecordBatchReader.from_stream(engine.execute(sql)).read_all()
    except (DeltaError, pa.ArrowException, OSError) as err:
        raise unreadable("the tables", err) from err
