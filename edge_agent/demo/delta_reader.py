"""Reads the demo's Delta tables without a JVM: results, definitions, and how long rows take to appear."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import query_of
from edge_agent.demo.compare import DeltaRow
from edge_agent.errors import ConfigError

RESULTS: Final = "gold/results"
QUERIES: Final = "ops/queries"
BATCHES: Final = "ops/batches"
ROWS: Final = """
select query, definition_revision as definition, key, start as start_us, "end" as end_us, readings, revision, complete,
       expected, map_keys("values") as names, map_values("values") as numbers
from t where not withdrawn
"""


def _select(tables: Path, table: str, sql: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("t", DeltaTable(str(tables / table))).execute(sql)
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _is_there(tables: Path, table: str) -> bool:
    """Whether the table has its first commit. Its folder may exist before."""
    return any((tables / table / "_delta_log").glob("*.json"))


def results(tables: Path) -> list[DeltaRow]:
    """Every row of gold.results that is not withdrawn."""
    rows = _select(tables, RESULTS, ROWS)
    values = [dict(zip(row.pop("names"), row.pop("numbers"), strict=True)) for row in rows]
    return [DeltaRow(**row, values=each) for row, each in zip(rows, values, strict=True)]


def frontiers(tables: Path) -> list[int]:
    """Frontier of each group at the root's last decision, in us."""
    if not _is_there(tables, BATCHES):
        return []
    rows = _select(tables, BATCHES, "select frontiers from t order by number desc limit 1")
    return [int(group["frontier"]) for row in rows for group in json.loads(row["frontiers"])]


def query(tables: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of a select over gold.results."""
    return _select(tables, RESULTS, sql.replace("gold.results", "t"))


def count(tables: Path) -> int:
    """Number of rows in gold.results; 0 while there is no table."""
    if not _is_there(tables, RESULTS):
        return 0
    return int(_select(tables, RESULTS, "select count(*) as n from t")[0]["n"])


def queries(tables: Path) -> list[Query]:
    """The newest revision of every query that the root has received."""
    newest: dict[str, Query] = {}
    for row in _select(tables, QUERIES, "select * from t"):
        try:
            query = query_of(row["definition"])
        except ConfigError:
            continue
        if query.id not in newest or query.revision > newest[query.id].revision:
            newest[query.id] = query
    return sorted(newest.values(), key=lambda q: q.id)


def staleness(tables: Path, names: Iterable[str]) -> list[float]:
    """Seconds from a window's end to the commit of its first row, for the windows of these queries, sorted by end.

    The time of a commit is the modification time of its log file: from then on readers see the row.
    """
    wanted = set(names)
    first: dict[tuple[str, str, int], float] = {}
    folder = tables / RESULTS
    for log in sorted((folder / "_delta_log").glob("*.json")):
        committed_s = log.stat().st_mtime
        for line in filter(None, log.read_text("utf-8").split("\n")):
            added = json.loads(line).get("add")
            if added is None or not added.get("dataChange", True):
                continue
            for row in _parquet(folder / added["path"]):
                place = (row["query"], row["key"], row["end"])
                if row["query"] in wanted and place not in first:
                    first[place] = committed_s - row["end"] / 1e6
    return [first[place] for place in sorted(first, key=lambda p: p[2])]


def _parquet(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    if not file.exists():
        return []  # deleted by VACUUM
    rows: list[dict[str, Any]] = pq.read_table(file, columns=["query", "key", "end"]).to_pylist()
    return rows
