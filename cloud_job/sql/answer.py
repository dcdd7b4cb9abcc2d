"""The rows of an answer as plain values, and how they are printed: a table for people, CSV or JSON for programs."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TextIO

from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.checking.json_lines import json_line

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
WIDEST: Final = 60  # most characters of a cell in a printed table
DIGITS: Final = 10  # significant digits of a float in a printed table; CSV and JSON have all
STAR: Final = re.compile(r"\s*(?:select\s+(?:\w+\.)?\*\s+from|table)\s", re.IGNORECASE)
HIDDEN: Final = {  # columns that a printed table of `select *` leaves out: repeated information, bookkeeping, bytes
    *("window_end", "start", "end", "definition_revision", "revision", "late", "expected", "received", "coverage_id"),
    *("labels", "details", "withdrawn", "batch", "owner", "definition", "work", "state", "payload", "held"),
}
BOUNDS: Final = {"start", "end"}  # left out only if window_start is shown
NOT_IN_VIEWS: Final = {  # in a view, such a column is a label or an aggregate
    *("definition_revision", "labels", "withdrawn", "batch", "owner", "definition", "work", "state", "payload", "held"),
}
MICROSECONDS: Final = {"start", "end", "frontier", "group_frontier", "decided_us", "received_us"}
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
LEAST_TIME_US: Final = 10**14  # 1973; a smaller number in such a column is a position in a count window


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Columns and rows as plain Python values: bool, int, float, str, None, and lists and dicts of them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def of_arrow(table: pa.Table) -> QueryAnswer:
    """The rows of an Arrow table: times as text in UTC, bytes as hexadecimal digits. Equal for both engines."""
    columns = [_values(column) for column in table.columns]
    return QueryAnswer(tuple(table.column_names), tuple(zip(*columns, strict=True)))


def write(answer: QueryAnswer, form: str, out: TextIO, *, wide: bool = True) -> None:
    """Print an answer. form: 'table', 'csv' or 'json' (one object per line). wide: False: tables without HIDDEN."""
    if form == "table":
        _write_table(answer, out, wide=wide)
    else:
        FORMS[form](answer, out)


def time_text(us: int) -> str:
    """Microseconds since 1970 as 2027-01-15T08:00:00.000000Z; outside the years 1 to 9999 as a number."""
    try:
        moment = EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _values(column: pa.ChunkedArray) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):  # by integers, because datetime lacks some years and nanoseconds
        units = column.cast(pa.int64()).to_pylist()
        per_second = PER_SECOND[column.type.unit]
        return [None if unit is None else time_text(unit * 10**6 // per_second) for unit in units]
    values = column.to_pylist()
    if pa.types.is_map(column.type):
        values = [None if value is None else dict(value) for value in values]
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, datetime):
        return time_text((value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)  # decimals, dates, intervals


# --- printing ------------------------------------------------------------------------------------------------------


def _write_csv(answer: QueryAnswer, out: TextIO) -> None:
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(answer.columns)
    lines.writerows([_cell(value) for value in row] for row in answer.rows)


def _write_json(answer: QueryAnswer, out: TextIO) -> None:
    names = list[str]()
    for name in answer.columns:  # two tables of a join may have a column of one name
        while name in names:
            name += "_"
        names.append(name)
    for row in answer.rows:
        out.write(json_line(dict(zip(names, map(_finite, row), strict=True))) + "\n")


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list():
            return [_finite(item) for item in value]
    return value


FORMS: Final[dict[str, Callable[[QueryAnswer, TextIO], None]]] = {"csv": _write_csv, "json": _write_json}


def _write_table(answer: QueryAnswer, out: TextIO, *, wide: bool) -> None:
    left_out = set() if wide else HIDDEN if "window_start" in answer.columns else HIDDEN - BOUNDS
    if {"key", "window_start"} <= {*answer.columns} and "query" not in answer.columns:
        left_out = left_out - NOT_IN_VIEWS
    shown = [n for n, name in enumerate(answer.columns) if name not in left_out]
    names = [answer.columns[n] for n in shown]
    columns = [[row[n] for row in answer.rows] for n in shown]
    cells = [[_short(_text(name, value)) for value in column] for name, column in zip(names, columns, strict=True)]
    widths = [max(map(len, (name, *column))) for name, column in zip(names, cells, strict=True)]
    right = [all(map(_is_number, texts, values)) for texts, values in zip(cells, columns, strict=True)]
    for line in (names, ["-" * width for width in widths], *zip(*cells, strict=True)):
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(line, widths, right, strict=True)
        ]
        out.write("  ".join(padded).rstrip() + "\n")
    hidden = [name for name in answer.columns if name in left_out]
    note = f"; --wide also shows {', '.join(hidden)}" if hidden else ""
    out.write(f"({len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'}{note})\n")


def _is_number(shown: str, value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not shown.endswith("Z"))


def _text(name: str, value: Any) -> str:
    """A value in a printed table: times without a zero fraction, floats with DIGITS digits."""
    if name in MICROSECONDS and type(value) is int and value >= LEAST_TIME_US:
        value = time_text(value)
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    text = printable(_cell(value))  # labels come from devices
    return text.replace(".000000Z", "Z").replace("T", " ", 1) if TIME.fullmatch(text) else text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(_finite(value), ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def _short(cell: str) -> str:
    return cell if len(cell) <= WIDEST else cell[: WIDEST - 1] + "…"
