"""Queries, and how they are published, in tests of claims."""

from __future__ import annotations

from typing import Any

from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import canonical_query, parse_definition
from edge_agent.config.in_force.known_definitions import (
    Publication,
)

S = 1_000_000

BEGIN_US = 1_790_000_000 * S

BEYOND = 10**9

TOPIC = "hw/1/all/cfg/query/q"


def query(revision: int, window: str = "1s", *aggregates: str, **more: Any) -> Query:
    text = {"source": "s", "window": {"type": "tumbling", "length": window}, "aggregates": list(aggregates or ("sum",))}
    value = parse_definition("query", "q", {**text, "revision": revision, **more}).value
    assert isinstance(value, Query)
    return value


def of(value: Query, node: str = "") -> Publication:
    return Publication(node, value.id, value.revision, canonical_query(value))
