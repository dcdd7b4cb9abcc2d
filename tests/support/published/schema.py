"""JSON Schemas (draft 2020-12) of what people write and read, made from the tables that the checker uses.

`python -m tests.support.published.schema` writes schemas/*.schema.json; a test holds them up to date.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.windows import ALL
from edge_agent.config.checking.checker import REQUIRED, Key
from edge_agent.config.checking.composite_types import ListOf, MapOf, Rising
from edge_agent.config.checking.durations import DURATION, SIZE
from edge_agent.config.checking.quantities import FASTEST, SLOWEST, ByteSize, Duration, Instant, Speed, Zone
from edge_agent.config.checking.value_types import Anything, Choice, Flag, Number, Pick, Text, Url
from edge_agent.config.definitions.aggregate_entries import COLUMN_NAME, PERCENT, AggregateEntry, params
from edge_agent.config.definitions.conditions import MOST_FILTER, Condition
from edge_agent.config.definitions.definitions import SHARED
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.definitions.label_templates import LONGEST, LabelText
from edge_agent.config.definitions.queries import KEYS
from edge_agent.config.definitions.sensors import COMMON, Range, Resolution
from edge_agent.config.definitions.window_table import ShortText, WindowTable, keys_of_window
from edge_agent.config.node_file.node_tables import FOR_ROLE, ROLES, TABLES, keys_of
from edge_agent.config.topics import ITEM_ID
from edge_agent.ports.sensors.filters import TopicFilter

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
FOLDER: Final = Path(__file__).resolve().parents[3] / "schemas"
Schema = dict[str, object]


def schemas() -> dict[str, Schema]:
    """File name without ending -> schema."""
    found = {"sensor": _or_removal(sensor()), "query": _or_removal(query())}
    parts = {**found, "settings": settings(found), "state": state()}
    titles = {
        "sensor": "A sensor: payload of .../cfg/sensor/<id>",
        "query": "A query: payload of .../cfg/query/<id>",
        "settings": "headwater.toml, the local file of a node",
        "state": "What of the configuration is in force: payload of hw/1/up/<node>/state",
    }
    return {name: {"$schema": DRAFT, "title": titles[name], **part} for name, part in parts.items()}


def of_type(kind: Any) -> Schema:
    """The schema of what people write at a key of this type."""
    match kind:
        case Text():  # a path too
            made: Schema = {"type": "string", "maxLength": kind.longest}
            if not kind.empty:
                made["minLength"] = 1
            if kind.pattern:
                made["pattern"] = f"^(?:{kind.pattern}){'?' * kind.empty}$"
            return made
        case Choice():
            return {"enum": [*kind.words, *kind.of_packages]}
        case Pick():
            return {"enum": list(kind.choices)}
        case Number():
            made = {"type": "integer" if kind.whole else "number"}
            if math.isfinite(kind.low):
                made["exclusiveMinimum" if kind.above else "minimum"] = kind.low
            if math.isfinite(kind.high):
                made["maximum"] = kind.high
            return made
        case ListOf():
            made = {"type": "array", "items": of_type(kind.kind), "minItems": kind.least, "maxItems": kind.most}
            return {**made, "uniqueItems": True} if kind.unique else made
        case Rising():
            return of_type(ListOf(kind.number, 1, kind.most))
        case MapOf():
            names = {"propertyNames": of_type(kind.name), "additionalProperties": of_type(kind.kind)}
            return {"type": "object", **names, "maxProperties": kind.most}
        case ShortText():
            return {**of_type(kind.text), "type": ["string", "integer"]}
        case AggregateEntry():
            return _aggregate()
        case WindowTable():
            return {"oneOf": [of_table(keys_of_window(word), {"type": {"const": word}}, "type") for word in ALL]}
    return PLAIN[type(kind)]


PLAIN: Final[dict[type, Schema]] = {
    Anything: {},
    ByteSize: {"type": "string", "pattern": f"^{SIZE}$"},
    Condition: {"type": "string", "maxLength": MOST_FILTER},
    Duration: {"type": "string", "pattern": f"^{DURATION}$"},
    Flag: {"type": "boolean"},
    Instant: {"type": "string", "format": "date-time"},
    LabelText: {"anyOf": [{"type": "string", "minLength": 1, "maxLength": LONGEST}, {"type": "integer"}]},
    Range: {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    Resolution: {"type": "number", "exclusiveMinimum": 0},
    Speed: {"anyOf": [{"type": "number", "minimum": SLOWEST, "maximum": FASTEST}, {"const": "max"}]},
    TopicFilter: {"type": "string", "minLength": 1, "maxLength": 1000},
    Url: {"type": "string", "pattern": "^mqtts?://[^/?#@]+/?$"},
    Zone: {"type": "string", "minLength": 1, "maxLength": 64},  # which names there are changes with the years
}


def of_table(keys: Sequence[Key], more: Mapping[str, object] | None = None, *needed: str) -> Schema:
    """The schema of a table. more: further properties; needed: those of them that must be there."""
    properties: Schema = dict(more or {})
    for key in keys:
        if not key.later:
            properties[key.name] = {**of_type(key.kind), **({"description": key.doc} if key.doc else {})}
    required = [*needed, *(key.name for key in keys if key.default is REQUIRED)]
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def _or_removal(definition: Schema) -> Schema:
    properties = {key.name: of_type(key.kind) for key in SHARED} | {"removed": {"const": True}}
    removal = {"type": "object", "properties": properties, "required": ["removed"], "additionalProperties": False}
    return {"anyOf": [definition, removal]}


_SHARED: Final = tuple(key for key in SHARED if key.name != "removed")


def sensor() -> Schema:
    """A sensor: one branch a driver."""
    drivers = DRIVERS.items()
    return {
        "oneOf": [of_table((*_SHARED, *COMMON, *d.keys), {"driver": {"const": name}}, "driver") for name, d in drivers]
    }


def query() -> Schema:
    """A query, in its long and its short form."""
    short = {
        "aggregate": {"enum": list(FUNCTIONS), "description": "short form of aggregates with one function"},
        "param": {"type": "object", "description": "parameters of `aggregate`"},
    }
    made = of_table((*_SHARED, *KEYS), short)
    one_of = [{"required": ["aggregates"]}, {"required": ["aggregate"]}]
    return {**made, "required": ["source", "window"], "oneOf": one_of}


def _aggregate() -> Schema:
    name = Key("as", COLUMN_NAME)
    percent = {"type": "string", "pattern": f"^{PERCENT.pattern}$"}
    alone = [fn for fn in FUNCTIONS if all(key.default is not REQUIRED for key in params(fn))]
    tables = [of_table((name, *params(fn)), {"fn": {"const": fn}}, "fn") for fn in FUNCTIONS]
    rest = tuple(key for key in params("quantile") if key.name != "q")
    return {"oneOf": [{"enum": alone}, percent, *tables, of_table((name, *rest), {"fn": percent}, "fn")]}


def settings(of: dict[str, dict[str, object]]) -> dict[str, object]:
    """The local file: its tables, and definitions by id."""
    tables: dict[str, object] = {}
    for name, table in TABLES.items():
        about = (table.__doc__ or "").partition("]: ")[2].splitlines()[0].partition(". ")[0].rstrip(".")
        tables[name] = {**of_table(keys_of(table)), "description": about}
    for kind in ("sensor", "query"):
        names = {"pattern": f"^{ITEM_ID.pattern}$"}
        tables[kind] = {"type": "object", "propertyNames": names, "additionalProperties": {"$ref": f"#/$defs/{kind}"}}
    roles = []
    for role, allowed in FOR_ROLE.items():
        said: dict[str, object] = {"properties": {"role": {"const": role}}}
        node = said if role == ROLES[0] else {**said, "required": ["role"]}  # the first is the default
        others = {name: False for name in TABLES if name not in allowed}
        roles.append({"if": {"properties": {"node": node}}, "then": {"properties": others}})
    return {
        "type": "object",
        "properties": tables,
        "required": ["node"],
        "additionalProperties": False,
        "allOf": roles,
        "$defs": {"sensor": of["sensor"], "query": of["query"]},
    }


def state() -> dict[str, object]:
    """The document of a node's `state` topic."""
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    problem = {
        "type": "object",
        "properties": {
            "at": {**text, "description": "dotted path of the key, '' for the whole document"},
            "got": {"description": "the value found there; null if it is missing"},
            "why": text,
            "hint": {**text, "description": "the nearest valid word, or what to do; may be empty"},
            "line": {**count, "description": "line of the payload, from 1"},
        },
        "required": ["at", "got", "why", "hint"],
        "additionalProperties": False,
    }
    number = {"type": ["integer", "null"]}
    item = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean", "description": "the latest definition is in force"},
            "revision": {**number, "description": "of the latest definition; null if it has none"},
            "in_force": {**number, "description": "revision in force, if the latest one was refused"},
            "removed": {"const": True},
            "waiting": {"const": True, "description": "in force later: it waits for a revision or a sensor"},
            "unsupported": {"const": True, "description": "valid, but not supported by this version"},
            "errors": {"type": "array", "items": problem},
            "warnings": {"type": "array", "items": problem},
        },
        "required": ["ok", "revision"],
        "additionalProperties": False,
    }
    names = {"pattern": f"^(?:sensor|query)/{ITEM_ID.pattern}$"}
    return {
        "type": "object",
        "properties": {
            "version": {**count, "description": "increases when the definitions in force change"},
            "hash": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "of the definitions in force"},
            "left_out": {**count, "description": "items left out for size; items with errors are kept first"},
            "items": {"type": "object", "propertyNames": names, "additionalProperties": item},
        },
        "required": ["version", "hash", "items"],
        "additionalProperties": False,
    }


def text_of(schema: dict[str, object]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    for name, schema in schemas().items():
        (FOLDER / f"{name}.schema.json").write_text(text_of(schema), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
