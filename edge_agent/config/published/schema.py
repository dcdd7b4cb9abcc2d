"""JSON Schemas (draft 2020-12) of what people write and read, made from the tables that the checker uses.

`python -m edge_agent.config.published.schema` writes schemas/*.schema.json; a test holds them up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from edge_agent.config.checking.composite_types import object_schema
from edge_agent.config.definitions import definitions
from edge_agent.config.node_file.node_tables import FOR_ROLE, ROLES, TABLES, keys_of
from edge_agent.config.topics import ITEM_ID

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
FOLDER: Final = Path(__file__).resolve().parents[3] / "schemas"


def schemas() -> dict[str, dict[str, object]]:
    """File name without ending -> schema."""
    found = definitions.schemas()
    parts = {"sensor": found["sensor"], "query": found["query"], "settings": settings(found), "state": state()}
    titles = {
        "sensor": "A sensor: payload of .../cfg/sensor/<id>",
        "query": "A query: payload of .../cfg/query/<id>",
        "settings": "headwater.toml, the local file of a node",
        "state": "What of the configuration is in force: payload of hw/1/up/<node>/state",
    }
    return {name: {"$schema": DRAFT, "title": titles[name], **part} for name, part in parts.items()}


def settings(of: dict[str, dict[str, object]]) -> dict[str, object]:
    """The local file: its tables, and definitions by id."""
    tables: dict[str, object] = {}
    for name, table in TABLES.items():
        about = (table.__doc__ or "").partition("]: ")[2].splitlines()[0].partition(". ")[0].rstrip(".")
        tables[name] = {**object_schema(keys_of(table)), "description": about}
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
            "at": {**text, "description": "dotted path of the place, '' for the whole"},
            "got": {"description": "what came there"},
            "why": text,
            "hint": {**text, "description": "the nearest valid word, or what to do; may be empty"},
            "line": {**count, "description": "of the payload, from 1"},
        },
        "required": ["at", "got", "why", "hint"],
        "additionalProperties": False,
    }
    number = {"type": ["integer", "null"]}
    item = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean", "description": "the last word on it is in force"},
            "revision": {**number, "description": "of the last word; null while it has none"},
            "in_force": {**number, "description": "the revision that is kept where the last word was refused"},
            "removed": {"const": True},
            "waiting": {"const": True, "description": "comes into force without another word: for a number, a sensor"},
            "unsupported": {"const": True, "description": "right, but of a later version of the software"},
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
            "version": {**count, "description": "rises when what is in force changes"},
            "hash": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "of what is in force"},
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
