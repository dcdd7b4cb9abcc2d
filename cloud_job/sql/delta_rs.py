"""SQL over the tables without a JVM: delta-rs reads them with its own engine, within a second.

Besides the tables there is one view a query, named like it: a column a label and an aggregate, withdrawn rows hidden.
cloud_job/sql/spark_sql.py offers the same in Spark; what a row holds is the same in both.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from edge_agent.errors import ConfigError, PortError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES: Final = (
    "gold.results",
    *(f"ops.{name}" for name in ("batches", "coverage", "gaps", "late", "nodes", "quarantine", "queries", "sensors")),
    "silver.positions",
    "bronze.messages",
)
READS: Final = ("select", "with", "describe", "explain", "values", "table")  # first words of what only reads
BEFORE: Final = ("key", "window_start", "window_end")
AFTER: Final = ("readings", "revision", "late", "complete", "expected", "received", "coverage_id", "start", "end")
WIDEST: Final = 60  # characters of a cell of a printed table
DEFINITIONS: Final = 'select query, revision, "by", aggregates from ops.queries where revision >= 0 order by revision'


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Columns and rows as plain Python values: bool, int, float, str, None, and lists and dicts of them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def ask(sql: str, folder: str) -> QueryAnswer:
    """One statement over the tables in a folder.

    Raises: ConfigError for wrong SQL; PortError where there are no tables.
    """
    check(sql)
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError

    found = tables_in(folder)
    engine = QueryBuilder()
    try:
        for schema in sorted({name.split(".")[0] for name in found}):
            engine.execute(f"create schema {schema}").read_all()
        for name, path in found.items():
            engine.register(name, DeltaTable(path))
        for view in views(_plain(_arrow(engine.execute(DEFINITIONS)))):
            engine.execute(view).read_all()
        return _plain(_arrow(engine.execute(sql)))
    except (DeltaError, OSError, ValueError) as err:
        raise ConfigError(_one_line(str(err), found)) from err


def check(sql: str) -> None:
    """Refuse what does not only read. Raises: ConfigError."""
    word = re.match(r"(?:\s|\()*([a-zA-Z]+)", sql)
    if word is None or word.group(1).lower() not in READS:
        raise ConfigError(f"this reads only: a statement begins with {', '.join(READS)}")


def tables_in(folder: str) -> dict[str, str]:
    """Name -> folder of the tables there are. Raises: PortError for none."""
    paths = {name: f"{folder}/{name.replace('.', '/')}" for name in TABLES}
    if "://" in folder:
        return paths
    there = {name: path for name, path in paths.items() if (Path(path) / "_delta_log").is_dir()}
    if "gold.results" not in there or "ops.queries" not in there:
        raise PortError(f"no tables in {folder}; `headwater root` makes them, --tables FOLDER says where they are")
    return there


def views(definitions: QueryAnswer) -> Iterator[str]:
    """Statements that make a view a query. definitions: query, revision, by, aggregates; the last of a query wins."""
    newest = {query: (by, aggregates) for query, _revision, by, aggregates in definitions.rows}
    for query, (by, aggregates) in sorted(newest.items()):
        yield f"create view {quoted(query)} as {view(query, by, aggregates)}"


def view(query: str, by: Iterable[str], aggregates: Iterable[str]) -> str:
    """What a view selects. A label or aggregate that is called like another column gets a `_` behind."""
    taken = {*BEFORE, *AFTER}
    columns = [quoted(name) for name in BEFORE]
    for source, names in (("labels", by), ("values", aggregates)):
        for name in names:
            shown = name
            while shown in taken:
                shown += "_"
            taken.add(shown)
            columns.append(f"{quoted(source)}[{text(name)}] as {quoted(shown)}")
    columns += [quoted(name) for name in AFTER]
    rows = f"query = {text(query)} and not withdrawn"
    return f"select {', '.join(columns)} from gold.results where {rows}"  # noqa: S608 - names are quoted above


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string of SQL. Spark reads backslashes in it; ids and label names hold none."""
    return "'" + value.replace("'", "''") + "'"


def _arrow(result: Any) -> pa.Table:
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(result).read_all()


def _plain(table: pa.Table) -> QueryAnswer:
    import pyarrow as pa

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        columns.append([_value(v, mapped=pa.types.is_map(table.schema.field(name).type)) for v in values])
    return QueryAnswer(tuple(table.column_names), tuple(zip(*columns, strict=True)))


def plain(value: Any) -> Any:
    """A value as both engines answer it: times as text in UTC, bytes as hexadecimal digits."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _value(value: Any, *, mapped: bool) -> Any:
    return plain(dict(value)) if mapped and value is not None else plain(value)


def _one_line(message: str, found: Mapping[str, str]) -> str:
    line = " ".join(message.split())[:300].replace("datafusion.public.", "").replace("datafusion.", "")
    hint = f"; there are {', '.join(found)} and a view a query" if "not found" in line else ""
    return f"SQL: {line}{hint}"


# --- printing ------------------------------------------------------------------------------------------------------


def write(answer: QueryAnswer, form: str, out: TextIO) -> None:
    """Print as 'table', 'csv' or 'json' (an object a line)."""
    FORMS[form](answer, out)


def _write_csv(answer: QueryAnswer, out: TextIO) -> None:
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(answer.columns)
    lines.writerows([_cell(value) for value in row] for row in answer.rows)


def _write_json(answer: QueryAnswer, out: TextIO) -> None:
    for row in answer.rows:
        out.write(json.dumps(dict(zip(answer.columns, row, strict=True)), ensure_ascii=False) + "\n")


def _write_table(answer: QueryAnswer, out: TextIO) -> None:
    cells = [[_short(_cell(value)) for value in row] for row in answer.rows]
    widths = [max(map(len, column)) for column in zip(answer.columns, *cells, strict=True)]
    right = [all(isinstance(v, (int, float, type(None))) for v in column) for column in _columns(answer)]
    for line in ([*answer.columns], ["-" * width for width in widths], *cells):
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(line, widths, right, strict=True)
        ]
        out.write("  ".join(padded).rstrip() + "\n")
    out.write(f"({len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'})\n")


def _columns(answer: QueryAnswer) -> Sequence[Sequence[Any]]:
    return list(zip(*answer.rows, strict=True)) or [()] * len(answer.columns)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def _short(cell: str) -> str:
    return cell if len(cell) <= WIDEST else cell[: WIDEST - 1] + "…"


FORMS: Final[dict[str, Callable[[QueryAnswer, TextIO], None]]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
}
