"""The names that a statement may use: the tables in a folder, and one view per query. No engine is imported here.

A view has a column per label and aggregate of its query and hides withdrawn rows. Both engines create the same views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cloud_job.sql.answer import QueryAnswer
from edge_agent.config.checking.checker import nearest
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import ConfigError, PortError

TABLES: Final = (
    "gold.results",
    *(f"ops.{name}" for name in ("batches", "coverage", "gaps", "late", "nodes", "quarantine", "queries", "sensors")),
    "silver.positions",
    "bronze.messages",
)
READS: Final = ("select", "with", "describe", "explain", "values")  # first words of statements that only read
BEFORE_ANOTHER: Final = ("with", "describe", "explain")  # the statement that they belong to follows and may write
WRITES: Final = (
    *("add", "alter", "cache", "call", "clear", "comment", "copy", "create", "delete", "drop"),
    *("execute", "from", "grant", "insert", "load", "merge", "msck", "optimize", "prepare", "refresh", "replace"),
    *("reset", "restore", "revoke", "set", "truncate", "uncache", "update", "use", "vacuum"),
)  # `from t insert into ...` is a statement of Spark
BEFORE: Final = ("key", "window_start", "window_end")
AFTER: Final = (
    *("readings", "revision", "late", "complete", "expected", "received", "coverage_id", "start", "end", "details"),
)
DEFINITIONS: Final = (  # a revision that the operator's publication corrected has another row, of a later batch
    'select query, revision, "by", aggregates from ops.queries where revision >= 0 order by revision, batch'
)
LONGEST: Final = 300  # characters of an engine's message that are shown
LISTED: Final = 8  # views that an error names
DEEPEST: Final = 200  # brackets within brackets: delta-rs reads 50; the check reads the statement once a level
NAME: Final = r'(?:"[^"]+"|[\w-]+)(?:\.(?:"[^"]+"|[\w-]+))*'
RELATION: Final = re.compile(rf"\b(?:from|join|table)\s+({NAME}(?:\s*,\s*{NAME})*)", re.IGNORECASE)
SIMPLE: Final = re.compile(r"[a-z_][a-z0-9_.]*")
STRINGS: Final = re.compile(r"'(?:[^']|'')*'")
_NO_WORDS: Final = r"--[^\n]*|/\*.*?\*/|`[^`]*`|"  # comments and quoted names
HIDDEN: Final = (  # what is not part of a statement's own words: with a backslash as a character, and as in Spark
    re.compile(_NO_WORDS + r"""'[^']*'|"[^"]*\"""", re.DOTALL),
    re.compile(_NO_WORDS + r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL),
)
INNER: Final = re.compile(r"\([^()]*\)")
OPENING: Final = re.compile(  # a word that begins a statement; `copy as (...)` is the name of a common table expression
    rf"(?<![\w.])({'|'.join((*READS, *WRITES))})(?![\w.])(?!\s*(?:<>\s*)?as\b)", re.IGNORECASE
)
INSIDE: Final = re.compile(r"\b(insert\s+(?:into|overwrite)|delete\s+from|merge\s+into)\b", re.IGNORECASE)
WRONG_NAME: Final = ("not found", "NOT_FOUND", "ParserError", "PARSE_SYNTAX_ERROR", "INVALID_IDENTIFIER")


DAMAGED: Final = ("Parquet error", "Object Store error", "Kernel error")  # of delta-rs: files, and no statement


class UnknownNameError(ConfigError):
    """A statement names a table or view that does not exist, perhaps not yet."""


def check(sql: str) -> None:
    """Refuse a statement that changes anything. Raises: ConfigError."""
    for hidden in HIDDEN:
        _only_reads(hidden.sub(_left_of, sql))


def _left_of(hidden: re.Match[str]) -> str:
    """What is left of a comment, string or quoted name."""
    if "/*" in hidden[0][2:] and hidden[0].startswith("/*"):  # where it ends would have to be counted
        raise ConfigError("`headwater query` reads no comments within comments; leave them out")
    return " " if hidden[0].startswith(("--", "/*")) else " x "


def _only_reads(words: str) -> None:
    """Refuse a statement that writes. words: it, without comments, strings and quoted names. Raises: ConfigError."""
    begin = words.lstrip("( \t\r\n")
    first = re.match(r"[a-zA-Z]+", begin)
    if first is None or first[0].lower() not in READS:
        raise ConfigError(f"`headwater query` only reads: begin the statement with one of {', '.join(READS)}")
    levels = 0
    while begin != (begin := INNER.sub("<>", begin)):  # without what is in brackets, the innermost first
        if (levels := levels + 1) > DEEPEST:  # else the time grows with the square of the length
            raise ConfigError(f"`headwater query` reads at most {DEEPEST} brackets within each other; flatten it")
    opened = (found[0].lower() for found in OPENING.finditer(begin))
    last = next((word for word in opened if word not in BEFORE_ANOTHER), "")
    inside = INSIDE.search(words)
    writes = inside[0] if inside else last if first[0].lower() in BEFORE_ANOTHER and last not in READS else ""
    if writes:
        raise ConfigError(f"`headwater query` only reads, and `{' '.join(writes.split())}` writes; ask with select")


def tables_in(folder: str) -> dict[str, str]:
    """Table -> its folder, for the tables that have a first commit.

    Raises: PortError if there are none, or if this user may not read them.
    """
    paths = {name: f"{folder}/{name.replace('.', '/')}" for name in TABLES}
    if is_uri(folder):
        return paths
    there = {name: path for name, path in paths.items() if _has_commits(path)}
    if "gold.results" not in there or "ops.queries" not in there:
        raise PortError(f"no tables in {folder}: `headwater root` creates them; --tables FOLDER names another folder")
    return there


def _has_commits(path: str) -> bool:
    log = Path(path, "_delta_log")
    try:
        return any(file.name[:1].isdigit() for file in log.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as err:
        raise PortError(f"{log}: {(err.strerror or str(err)).lower()}; run as the user of the root") from err


def views(definitions: QueryAnswer) -> Iterator[tuple[str, str]]:
    """Yields (query, select statement of its view). definitions: the answer to DEFINITIONS; the last row of a query is
    used.
    """
    newest = {query: (by, aggregates) for query, _revision, by, aggregates in definitions.rows}
    for query, (by, aggregates) in sorted(newest.items()):
        yield query, view(query, by, aggregates)


def view(query: str, by: Iterable[str], aggregates: Iterable[str]) -> str:
    """The select statement of a view. If a label or aggregate has the name of another column, `_` is appended."""
    taken = {*BEFORE, *AFTER}
    columns = [quoted(name) for name in BEFORE]
    for source, names in (("labels", by), ("values", aggregates)):
        for name in names:
            shown = name
            while shown.lower() in taken:  # Spark does not distinguish names by case
                shown += "_"
            taken.add(shown.lower())
            columns.append(f"{quoted(source)}[{text(name)}] as {quoted(shown)}")
    columns += [quoted(name) for name in AFTER]
    rows = f"query = {text(query)} and not withdrawn"
    return f"select {', '.join(columns)} from gold.results where {rows}"  # noqa: S608 - names are quoted above


def quoted(name: str) -> str:
    """The name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """The value as an SQL string. It must have no backslashes (Spark interprets them); ids and labels have none."""
    return "'" + value.replace("'", "''") + "'"


def unreadable(what: str, err: Exception) -> PortError:
    """The error for tables whose files are missing or damaged. what: a table or folder."""
    line = (str(err).splitlines() or [type(err).__name__])[0]  # a backtrace may follow
    return PortError(f"cannot read {what}: {line[:LONGEST]}")


def mistake(message: str, sql: str, tables: Iterable[str], queries: Iterable[str]) -> ConfigError:
    """The error for a statement that an engine refused: a hint at the nearest name, or the engine's message."""
    tables, queries = list(tables), list(queries)
    line = " ".join(message.split()).replace("datafusion.public.", "").replace("datafusion.", "")
    if any(word in line for word in WRONG_NAME):
        for written in _relations(sql):
            name, unquoted = written.replace('"', ""), '"' not in written and not SIMPLE.fullmatch(written)
            if name in tables or (name in queries and not unquoted):
                continue
            if name in queries:
                quotes = "put the name in double quotes and the statement in single quotes"
                return ConfigError(f"SQL: {name} is not quoted; type {quoted(name)}: {quotes}")
            if unquoted or name in re.sub('["`]', "", line):
                return UnknownNameError(f"SQL: no table or view {name}; {_instead(name, tables, queries)}")
    return ConfigError(f"SQL: {line[:LONGEST]}")


def _instead(name: str, tables: Sequence[str], queries: Sequence[str]) -> str:
    if near := nearest(name, (*tables, *queries)):
        return f"did you mean {typed(near)}?"
    more = f" and {len(queries) - LISTED} more views" if len(queries) > LISTED else ""
    return f"there are {', '.join((*tables, *map(typed, queries[:LISTED])))}{more}"


def typed(name: str) -> str:
    """The name as it must be typed in a statement, quoted if necessary."""
    return name if SIMPLE.fullmatch(name) else quoted(name)


def _relations(sql: str) -> list[str]:
    """Names after FROM, JOIN and TABLE, as written."""
    found = RELATION.findall(STRINGS.sub("''", sql))
    return [name for names in found for name in re.findall(NAME, names)]
