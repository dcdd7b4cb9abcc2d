"""Converts definitions of sensors and queries between text and frozen values, for topics, files and recordings.

The canonical text of a definition is JSON on one line. It is sent in frames and stored in `ops.queries`.
Source: docs/configure.md; schemas/sensor.schema.json, schemas/query.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any, Final, TypeVar

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.config.checking.checker import BAD, Key, Report, complete, line_of, read_table, short
from edge_agent.config.checking.composite_types import ListOf
from edge_agent.config.checking.documents import Document, Path, read
from edge_agent.config.checking.durations import UNITS_US
from edge_agent.config.checking.durations import unit_us as unit_us_of
from edge_agent.config.checking.value_types import Flag, Number, Text
from edge_agent.config.definitions.queries import read_query, write_query
from edge_agent.config.definitions.sensors import read_sensor, write_sensor
from edge_agent.config.topics import ITEM_ID, TABLES
from edge_agent.errors import ConfigError, NotSupported

_Defined = TypeVar("_Defined", Sensor, Query)
Payload = bytes | str | Mapping[str, object]

MOST_PATTERNS: Final = 64  # node patterns in a command to all nodes
MOST_REVISION: Final = 2**53  # exact in every JSON reader
SHARED: Final = (  # keys of every definition
    Key(
        "id",
        Text("an id", ITEM_ID.pattern, "a-z, 0-9 and -, at most 64"),
        "",
        "optional; as in the topic",
    ),
    Key(
        *("revision", Number(1, MOST_REVISION, whole=True), None, "the highest revision is in force"),
        why="left out: the parent assigns the next free number",
    ),
    Key(
        *(
            "nodes",
            ListOf(Text("a node pattern", r"!?[a-z0-9*?-]{1,33}", 'like "press-*"; "!press-3" excludes'), 1),
            (),
        ),
        "patterns of the nodes that use the definition; left out: all nodes",
    ),
    Key("removed", Flag(), False, "true: this revision removes the definition"),
)


@dataclass(frozen=True, slots=True)
class Definition:
    """The content of one topic or one table of a file.

    revision: None until the parent has numbered it. nodes: patterns of the nodes that use it, () for all. value: None
    for a removal; value.revision is 0 while `revision` is None.
    """

    kind: str
    id: str
    revision: int | None
    value: Sensor | Query | None
    nodes: tuple[str, ...] = ()

    @property
    def removed(self) -> bool:
        """Whether this revision removes the definition."""
        return self.value is None

    @property
    def content(self) -> str:
        """Canonical text without the revision. Equal (id, revision) must have equal content in the whole fleet."""
        table = {} if self.value is None else _table(replace(self.value, revision=0))
        return _text({"removed": True} if self.value is None else {**table, **self._narrowing})

    @property
    def text(self) -> str:
        """Canonical text with revision and nodes, as a payload to publish."""
        table = {"id": self.id, "removed": True} if self.value is None else _table(self.value)
        number = {} if self.revision is None else {"revision": self.revision}
        return _text({**table, **number, **self._narrowing})

    @property
    def _narrowing(self) -> dict[str, object]:
        return {"nodes": list(self.nodes)} if self.nodes else {}

    def numbered(self, revision: int) -> Definition:
        """The same definition with a revision."""
        value = None if self.value is None else replace(self.value, revision=revision)
        return replace(self, revision=revision, value=value)

    def concerns(self, node: str) -> bool:
        """Whether the definition is for this node; see `fits`."""
        return fits(self.nodes, node)


def fits(patterns: Sequence[str], node: str) -> bool:
    """Whether node patterns include a node.

    It must match one of the patterns without `!`, if there are any, and none of those that begin with `!`.
    """
    wanted = [p for p in patterns if not p.startswith("!")]
    refused = [p[1:] for p in patterns if p.startswith("!")]
    return (not wanted or any(_fits(node, p) for p in wanted)) and not any(_fits(node, p) for p in refused)


def _fits(node: str, pattern: str) -> bool:
    """Whether a pattern with `*` and `?` matches a node. At most quadratic time, because patterns are not trusted."""
    states = {0}  # positions in the pattern that the letters so far can reach
    for letter in [*node, ""]:
        for place in sorted(states):  # a star may match no letter
            while place < len(pattern) and pattern[place] == "*":
                place += 1
                states.add(place)
        if letter:
            stays = {p for p in states if p < len(pattern) and pattern[p] == "*"}
            states = stays | {p + 1 for p in states if p < len(pattern) and pattern[p] in {"?", letter}}
    return len(pattern) in states


def parse_definition(kind: str, item: str, payload: Payload, name: str = "") -> Definition:
    """Read one definition. item: its id, '' if the text contains it. name: start of the lines of an error.

    Raises: ConfigError with all problems; NotSupported if all problems are words that are not supported yet.
    """
    return _parse(kind, item, payload, name or (f'{kind} "{item}"' if item else ""))


def parse_definition_file(kind: str, file: str | File, payload: bytes) -> Definition:
    """Read the definition in a file. Its id is the one in the text, else the file's name without the suffix.

    Raises: as `parse_definition`.
    """
    try:
        own = read(payload).value.get("id")
    except ConfigError:
        own = None  # `parse_definition` reports the mistake, with the name of the file
    stem = File(file).stem
    item = own if isinstance(own, str) and own else stem if ITEM_ID.fullmatch(stem) else ""
    return parse_definition(kind, item, payload, str(file))


def _parse(
    kind: str, item: str, payload: Payload, name: str, *, unbounded: bool = False, toml: bool = True
) -> Definition:
    try:
        document = read(payload, toml=toml)
    except ConfigError as err:
        raise ConfigError("\n".join(line_of(p, name) for p in err.problems), err.problems) from err
    report = Report(document, unbounded=unbounded)
    found = read_definition(kind, item, document.value, (), report)
    report.finish(name)
    if not isinstance(found, Definition):
        raise ConfigError("no definition")  # unreachable: BAD leaves a problem behind
    return found


def read_definition(kind: str, item: str, table: object, at: Path, report: Report) -> Any:
    """Read a Definition from a table at path `at` of a document. Returns BAD if there are problems."""
    if not isinstance(table, Mapping):
        return report.wrong(at, table, "wanted a table", f"[{kind}.{item}]")
    names = tuple(key.name for key in SHARED)
    report.more[at] = names
    shared = read_table(SHARED, {n: v for n, v in table.items() if n in names}, at, report)
    item = item or (shared["id"] if isinstance(shared["id"], str) else "")
    if not report.lenient:
        _check_id(kind, item, shared["id"], at, report)
    own = {n: v for n, v in table.items() if n not in names}
    if shared["removed"] is True:
        return Definition(kind, item, shared["revision"], None, shared["nodes"]) if complete(shared) else BAD
    revision = shared["revision"] if isinstance(shared["revision"], int) else 0
    value = (read_sensor if kind == "sensor" else read_query)(item, revision, own, at, report)
    if value is BAD or not complete(shared):
        return BAD
    return Definition(kind, item, shared["revision"], value, shared["nodes"])


def _check_id(kind: str, item: str, said: object, at: Path, report: Report) -> None:
    if not item:
        report.wrong(at, None, f"a {kind} needs an id", "add id = ...")
    elif ITEM_ID.fullmatch(item) is None:
        near = "".join(c if c in "abcdefghijklmnopqrstuvwxyz0123456789-" else "-" for c in item.lower())[:64]
        report.wrong(at, item, f"is not an id of a {kind}: a-z, 0-9 and -, at most 64", near)
    elif item in TABLES:
        report.wrong(at, item, f"is not an id of a {kind}: a table has this name", f"{item}-1")
    if said and said is not BAD and said != item:
        report.wrong((*at, "id"), said, f'the topic or table has the id "{item}"', item)


def parse_sensor(item: str, payload: Payload) -> Sensor:
    """Read a sensor. Raises: ConfigError, also for a removal; NotSupported."""
    value = parse_definition("sensor", item, payload).value
    if not isinstance(value, Sensor):
        raise ConfigError(f'sensor "{item}": wanted a sensor, got a removal')
    return value


IN_TIME: Final = frozenset({"tumbling", "sliding", "session", "fixed_band"})  # windows whose plain numbers have a unit


def parse_recording_query(query: Mapping[str, object], unit_us: int = 1000, **defaults: object) -> Query:
    """Read a query of a recording. Plain numbers are durations in unit_us; unknown keys are ignored.

    defaults: the recording's source, and its values for keys that the query lacks (by, lateness, late); durations are
    in unit_us too. Raises: ConfigError, NotSupported.
    """
    window = query.get("window")
    own = {name: value for name, value in query.items() if name != "source"}  # of another program
    table = {"source": "recording", "late": "per_window", "lateness": 0, **defaults, **own}
    if isinstance(window, Mapping):
        unit = window.get("unit")
        if unit is not None and str(window.get("type")) in IN_TIME:
            found = unit_us_of(unit) if isinstance(unit, str) else None
            if found is None:
                raise ConfigError(f"window.unit: wanted one of {', '.join(UNITS_US)}, got {short(repr(unit))}")
            unit_us = found
        if window.get("keyed") is False:
            table["by"] = []
        table["window"] = _said(window)
    if table.get("scope") in ("central", "global"):
        del table["scope"]  # over all children, as without it
    table["param"] = _said(query.get("param") or {})
    if isinstance(several := query.get("aggregates"), list):
        table["aggregates"] = [_said(each) for each in several]
    report = Report(Document(table), unit_us=unit_us, lenient=True)
    table.pop("revision", None)
    item = str(query.get("id") or "query")
    value = read_query(item, 1, {n: v for n, v in table.items() if n not in {"id", "nodes"}}, (), report)
    if report.later and not report.problems:  # one line for all unsupported words of a query
        said = " and ".join(problem.why.removesuffix(" is not supported yet") for problem in report.later)
        verb = "are" if len(report.later) > 1 else "is"
        raise NotSupported(f'query "{item}": {said} {verb} not supported yet', tuple(report.later))
    report.finish(f'query "{item}"')
    if not isinstance(value, Query):
        raise ConfigError(f'query "{item}": not understood')  # unreachable: BAD leaves a problem behind
    return value


def _said(table: Any) -> Any:
    """A table of a recording without its null values, which mean absent; 1.0 becomes 1. Others are unchanged."""
    if not isinstance(table, Mapping):
        return table
    whole = {n: int(v) for n, v in table.items() if isinstance(v, float) and v.is_integer()}
    return {n: whole.get(n, v) for n, v in table.items() if v is not None}


def canonical_sensor(sensor: Sensor) -> str:
    """The canonical text, one line of JSON; `sensor_of` returns the equal sensor."""
    return _text(_table(sensor))


def canonical_query(query: Query) -> str:
    """The canonical text, one line of JSON; `query_of` returns the equal query."""
    return _text(_table(query))


def sensor_of(text: str) -> Sensor:
    """Read a sensor from its canonical text, which contains the id. Raises: ConfigError."""
    return _of_text("sensor", text, Sensor)


def query_of(text: str) -> Query:
    """Read a query from its canonical text, which contains the id. Raises: ConfigError."""
    return _of_text("query", text, Query)


def _of_text(kind: str, text: str, wanted: type[_Defined]) -> _Defined:
    value = _parse(kind, "", text, f"a {kind}'s canonical text", unbounded=True, toml=False).value
    if not isinstance(value, wanted):
        raise ConfigError(f"a {kind}'s canonical text: wanted a {kind}, got a removal")
    return value


def _table(value: Sensor | Query) -> dict[str, object]:
    body = write_sensor(value) if isinstance(value, Sensor) else write_query(value)
    number = {"revision": value.revision} if value.revision else {}
    return {"id": value.id, **number, **body}


def _text(table: Mapping[str, object]) -> str:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
