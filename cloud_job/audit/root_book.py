"""Counts the readings in the tables, for `headwater audit`. Checks every row against the decisions; needs no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cloud_job.spark import state_log
from edge_agent.algebra.frame import BEGAN
from edge_agent.algebra.query.key import EpochKey
from edge_agent.errors import PortError
from edge_agent.root.books import Line, RootBook
from edge_agent.root.decision.root_state import RootLimits

if TYPE_CHECKING:
    import pyarrow as pa

    from edge_agent.root.decision.root_state import RootState

NEVER_TAKEN: Final = (BEGAN, "stopped", "a function failed")  # reasons of gaps: no gateway accepted the readings
SHOWN: Final = 5  # at most so many rows that occur twice are named in the report


def root_book(folder: str, name: str = "root") -> RootBook:
    """Build the root's book from the tables in `folder`. name: the root's id in its children. Raises: PortError."""
    last = _select(folder, "ops.batches", "select number, state from t order by number desc limit 1").to_pylist()
    if not last:
        return RootBook(name)
    base = state_log.base_of(last[0]["state"], last[0]["number"])
    asked = f"select number, owner, work, state from t where number >= {base} order by number"  # noqa: S608 - a number
    batches = _select(folder, "ops.batches", asked).to_pylist()
    decider, state, _parts = state_log.recall(batches, state_log.Rules(RootLimits(), 0))
    inbox = decider.parent.inbox
    lines = {
        node: Line(inbox.current[node], line.applied.next, line.readings, line.refused)
        for node, line in inbox.lines().items()
    }
    stored, doubled, uncounted = _stored(folder, state)
    late = _select(folder, "ops.late", "select coalesce(sum(readings), 0) as n from t")
    gaps = _select(folder, "ops.gaps", "select reason, -sum(readings) as n from t where readings < 0 group by reason")
    unknown = {row["reason"]: row["n"] for row in gaps.to_pylist() if row["reason"] not in NEVER_TAKEN}
    return RootBook(name, lines, state.readings, stored, doubled, uncounted, int(late["n"][0].as_py()), unknown)


def _stored(folder: str, state: RootState) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Count the readings in bronze.messages. Returns (child -> readings in the rows that took effect, names of rows
    that occur twice, number of rows that took effect without a count of readings).
    """
    found = _rows(folder)
    stored: dict[str, int] = {}
    doubled: list[str] = []
    uncounted = 0
    firsts = np.array([first for first, _ in state.owners], np.int64)
    owners = np.array([owner for _, owner in state.owners], object)
    for (node, epoch), rows in _by_epoch(found):
        ranges = state.applied.get(EpochKey(node, epoch), [])
        low, high = (np.array([each[i] for each in ranges], np.int64) for i in range(2))
        at = np.searchsorted(low, rows["seq"], side="right") - 1
        counts = (at >= 0) & (rows["seq"] <= high[np.maximum(at, 0)]) if len(low) else np.zeros(len(at), np.bool_)
        place = np.searchsorted(firsts, rows["batch"], side="right") - 1
        counts &= (place >= 0) & (owners[np.maximum(place, 0)] == rows["owner"])
        kept = {name: column[counts] for name, column in rows.items()}
        places, times = np.unique(np.stack([kept["seq"], kept["part"]]), axis=1, return_counts=True)
        doubled += [f"{node} {epoch:08x}/{seq} part {part}" for seq, part in places[:, times > 1].T.tolist()]
        stored[node] = stored.get(node, 0) + int(kept["readings"][kept["readings"] >= 0].sum())
        uncounted += int(np.count_nonzero(kept["readings"] < 0))
    for row in _expired(folder):
        stored[row["node"]] = stored.get(row["node"], 0) + row["readings"]
        uncounted += row["rows"]
    return stored, tuple(doubled[:SHOWN]), uncounted


def _expired(folder: str) -> list[dict[str, Any]]:
    """The rows that count deleted readings, one per child: node, readings, and rows (deleted rows without a count of
    readings). cloud_job/delta/retention.py writes them.
    """
    if "readings" not in {field.name for field in _schema(folder, "bronze.messages")}:
        return []
    sql = "select node, readings, rows from t where kind = 'expired'"
    return list(_select(folder, "bronze.messages", sql).to_pylist())


def _rows(folder: str) -> pa.Table:
    """Parts of frames: node, epoch, seq, part, batch, owner, readings (-1: stored before the column existed)."""
    import pyarrow as pa

    columns = {field.name for field in _schema(folder, "bronze.messages")}
    readings = "coalesce(readings, -1)" if "readings" in columns else "-1"
    table = _select(
        folder,
        "bronze.messages",
        f"select node, epoch, seq, part, batch, owner, {readings} as readings from t "  # noqa: S608 - of two texts
        "where kind = 'frame' and part > 0 order by node, epoch, seq",
    )
    return pa.table(table)


def _by_epoch(table: pa.Table) -> list[tuple[tuple[str, int], dict[str, Any]]]:
    if not len(table):
        return []
    node, epoch = np.array(table["node"].to_pylist(), object), table["epoch"].to_numpy()
    begins = np.flatnonzero(np.concatenate([[True], (node[1:] != node[:-1]) | (epoch[1:] != epoch[:-1])]))
    columns = {name: table[name].to_numpy() for name in ("seq", "part", "batch", "readings")}
    columns["owner"] = np.array(table["owner"].to_pylist(), object)
    return [
        ((str(node[low]), int(epoch[low])), {name: column[low:high] for name, column in columns.items()})
        for low, high in zip(begins, [*begins[1:], len(node)], strict=True)
    ]


def _schema(folder: str, table: str) -> list[Any]:
    return list(_table(folder, table).schema().fields)


def _table(folder: str, table: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    path = f"{folder}/{table.replace('.', '/')}"
    if "://" not in folder and not (Path(path) / "_delta_log").is_dir():
        raise PortError(
            f"no table {table} in {folder}: `headwater root` creates it; --tables FOLDER names another folder"
        )
    try:
        return DeltaTable(path)
    except (DeltaError, OSError) as err:
        raise PortError(f"cannot read {path}: {str(err).splitlines()[0]}") from err


def _select(folder: str, table: str, sql: str) -> pa.Table:
    import pyarrow as pa
    from deltalake import QueryBuilder

    found = QueryBuilder().register("t", _table(folder, table)).execute(sql)
    return pa.RecordBatchReader.from_stream(found).read_all()
