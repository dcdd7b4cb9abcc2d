"""Definitions of the local file beside those that come by topic."""

from __future__ import annotations

import json
from typing import Any

from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.node_file.settings import parse
from tests.support.config.registries import item, lengths, query

FILE = """
[node]
id = "press-1"
[uplink]
broker = "mqtt://127.0.0.1"
[sensor.boiler]
driver = "host"
[query.x]
source = "boiler"
window = { type = "tumbling", length = "LENGTH" }
aggregates = ["avg"]
"""


def booted(length: str | None, state: dict[str, Any] | None) -> DefinitionRegistry:
    text = FILE.replace("LENGTH", length or "1m")
    text = text if length else text.partition("[query.x]")[0]
    return DefinitionRegistry("press-1", local=parse(text).definitions, state=state)


def restart(registry: DefinitionRegistry, length: str | None) -> DefinitionRegistry:
    return booted(length, json.loads(json.dumps(registry.snapshot())))


def test_an_unchanged_file_keeps_its_numbers_and_a_changed_one_takes_the_next() -> None:
    first = booted("1m", None)
    assert lengths(first) == {"x": (1, 60)}
    again = restart(first, "1m")
    assert lengths(again) == {"x": (1, 60)}
    assert again.state() == first.state()
    changed = restart(again, "2m")
    assert lengths(changed) == {"x": (2, 120)}
    assert changed.state()["version"] == first.state()["version"] + 1


def test_what_leaves_the_file_is_gone_and_its_number_is_not_given_again() -> None:
    gone = restart(booted("1m", None), None)
    assert lengths(gone) == {}
    assert lengths(restart(gone, "2m")) == {"x": (2, 120)}


def test_a_topic_for_the_node_overrides_the_file_until_the_file_changes() -> None:
    registry = booted("1m", None)
    registry.take("node", "query", "x", query("5m", 2))
    assert lengths(registry) == {"x": (2, 300)}
    registry = restart(registry, "1m")
    assert lengths(registry) == {"x": (2, 300)}
    assert item(registry) == {"ok": True, "revision": 2}
    registry = restart(registry, "2m")
    assert lengths(registry) == {"x": (3, 120)}
    registry.take("node", "query", "x", query("5m", 2))
    assert lengths(registry) == {"x": (3, 120)}


def test_the_file_beats_what_is_for_all() -> None:
    registry = booted("1m", None)
    registry.take("all", "query", "x", query("5m", 9))
    assert lengths(registry) == {"x": (1, 60)}


def warned(registry: DefinitionRegistry) -> list[str]:
    return [each["why"] for each in registry.state()["items"]["query/x"].get("warnings", ())]


def test_an_entry_whose_id_is_published_as_well_is_warned_of_until_it_is_the_published_one() -> None:
    """protocol 6.5: parents take what is published, so that these rows show nowhere."""
    registry = booted("1m", None)
    assert warned(registry) == []
    assert registry.unpublished() == {}
    registry.take("all", "query", "x", query("5m", 2))
    why = "revision 1 of this node's own file shows no rows: revision 2 of the id is published"
    assert warned(registry) == [why]
    assert registry.unpublished()["x"].why == why
    again = restart(registry, "1m")
    assert warned(again) == [why]
    changed = restart(registry, "2m")
    assert warned(changed) == [why.replace("revision 1 of", "revision 3 of")]
    changed.take("node", "query", "x", query("5m", 2))  # refused: an entry of the file is newer
    assert len(warned(changed)) == 1
    changed.take("node", "query", "x", query("5m", 4))  # in force now, instead of the entry
    assert warned(changed) == []
    assert changed.unpublished() == {}
    assert warned(restart(registry, None)) == []


def test_an_entry_with_a_number_that_is_published_with_other_content_is_warned_of() -> None:
    registry = booted("1m", None)
    registry.take("all", "query", "x", query("5m", 1))
    assert [problem.why for problem in registry.unpublished().values()] == [
        "revision 1 of this node's own file shows no rows: revision 1 of the id is published"
    ]
    registry.take("all", "query", "x", "")
    assert registry.unpublished() == {}


def test_an_entry_that_is_published_as_it_stands_is_not_warned_of() -> None:
    registry = booted("1m", None)
    (own,) = (text for _, kind, _, text in registry.snapshot()["accepted"] if kind == "query")  # type: ignore[attr-defined]
    registry.take("all", "query", "x", own)
    assert registry.unpublished() == {}
