"""A registry with one sensor, payloads for it, and its answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from edge_agent.config.in_force.registry import DefinitionRegistry
from tests.support.published.schema import schemas

STATE = jsonschema.Draft202012Validator(schemas()["state"])


def query(length: str = "1m", revision: int | None = 1, **more: Any) -> bytes:
    table = {"source": "boiler", "window": {"type": "tumbling", "length": length}, "aggregates": ["avg"], **more}
    return json.dumps(table if revision is None else {**table, "revision": revision}).encode()


def sensor(revision: int | None = 1, **more: Any) -> bytes:
    return json.dumps({"driver": "host", **({} if revision is None else {"revision": revision}), **more}).encode()


def removal(revision: int) -> bytes:
    return json.dumps({"removed": True, "revision": revision}).encode()


def started(**more: Any) -> DefinitionRegistry:
    registry = DefinitionRegistry("press-1", **more)
    registry.take("all", "sensor", "boiler", sensor())
    return registry


def lengths(registry: DefinitionRegistry) -> dict[str, tuple[int, int]]:
    """Id -> (revision, window length in seconds) of the queries in force."""
    return {q.id: (q.revision, q.time_window.longest_us // 10**6) for q in registry.in_force()[1]}


def item(registry: DefinitionRegistry, name: str = "query/x") -> dict[str, Any]:
    state = json.loads(json.dumps(registry.state(10**8)))
    STATE.validate(state)
    found: dict[str, Any] = state["items"][name]
    return found
