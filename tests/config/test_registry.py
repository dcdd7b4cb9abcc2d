"""Which definitions are in force on a node: revisions, scopes, removals, and what waits for a sensor."""

from __future__ import annotations

import pytest

from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.in_force.registry import DefinitionRegistry
from tests.support.config.mistakes import QUERIES, SENSORS
from tests.support.config.registries import item, lengths, query, removal, sensor, started


def test_a_definition_comes_into_force_and_state_says_so() -> None:
    registry = started()
    before = registry.state()
    assert registry.take("all", "query", "x", query()) is True
    assert lengths(registry) == {"x": (1, 60)}
    assert item(registry) == {"ok": True, "revision": 1}
    assert registry.state()["version"] == before["version"] + 1
    assert registry.state()["hash"] != before["hash"]


def test_the_higher_revision_wins_and_a_lower_one_is_refused_with_the_next_free_number() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 3))
    assert registry.take("all", "query", "x", query("2m", 2)) is False
    assert lengths(registry) == {"x": (3, 60)}
    said = item(registry)
    assert (said["ok"], said["revision"], said["in_force"]) == (False, 2, 3)
    assert said["errors"][0] == {
        "at": "revision",
        "got": 2,
        "why": "lower than revision 3, which is in force",
        "hint": "set revision = 4",
    }
    assert registry.take("all", "query", "x", query("2m", 4)) is True
    assert item(registry) == {"ok": True, "revision": 4}


def test_a_free_number_is_above_those_of_both_scopes_in_whatever_order_they_came() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 5))
    assert registry.take("node", "query", "x", query("2m", 3)) is True
    assert registry.take("node", "query", "x", query("3m", 2)) is False
    assert item(registry)["errors"][0]["hint"] == "set revision = 6"


def test_an_equal_revision_with_other_content_is_refused_and_with_the_same_content_is_not() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 3))
    assert registry.take("all", "query", "x", b" " + query("1m", 3)) is False
    assert item(registry) == {"ok": True, "revision": 3}
    registry.take("all", "query", "x", query("2m", 3))
    assert lengths(registry) == {"x": (3, 60)}
    assert item(registry)["errors"][0]["why"] == "revision 3 has other content already"
    assert item(registry)["errors"][0]["hint"] == "set revision = 4"


def test_a_definition_without_a_revision_waits_for_the_parents_number() -> None:
    registry = started()
    assert registry.take("all", "query", "x", query("1m", None)) is False
    assert lengths(registry) == {}
    assert (item(registry)["ok"], item(registry)["revision"], item(registry)["waiting"]) == (False, None, True)
    assert registry.take("all", "query", "x", query("1m", 1)) is True
    assert item(registry) == {"ok": True, "revision": 1}
    registry.take("all", "query", "x", query("2m", None))
    assert lengths(registry) == {"x": (1, 60)}
    assert item(registry)["in_force"] == 1


@pytest.mark.parametrize("first", ["all", "node"])
def test_what_is_for_the_node_beats_what_is_for_all(first: str) -> None:
    registry = started()
    said = {"all": query("1m", 5), "node": query("2m", 2)}
    registry.take(first, "query", "x", said[first])
    other = "node" if first == "all" else "all"
    registry.take(other, "query", "x", said[other])
    assert lengths(registry) == {"x": (2, 120)}
    assert item(registry)["ok"] is True


def test_one_revision_has_one_content_over_both_scopes() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 5))
    registry.take("node", "query", "x", query("2m", 5))
    assert lengths(registry) == {"x": (5, 60)}
    assert item(registry)["errors"][0]["hint"] == "set revision = 6"


def test_a_removal_ends_a_definition_and_a_higher_revision_begins_it_again() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 1))
    assert registry.take("all", "query", "x", removal(2)) is True
    assert lengths(registry) == {}
    assert item(registry) == {"ok": True, "revision": 2, "removed": True}
    assert registry.take("all", "query", "x", query("1m", 1)) is False
    assert lengths(registry) == {}
    assert registry.take("all", "query", "x", query("1m", 3)) is True
    assert lengths(registry) == {"x": (3, 60)}


def test_a_removal_for_the_node_hides_what_is_for_all_until_that_is_newer() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 5))
    registry.take("node", "query", "x", removal(6))
    assert lengths(registry) == {}
    registry.take("all", "query", "x", query("2m", 7))
    assert lengths(registry) == {"x": (7, 120)}


@pytest.mark.parametrize("scope", ["all", "node"])
def test_the_mere_absence_of_a_topic_changes_nothing(scope: str) -> None:
    registry = started()
    registry.take(scope, "query", "x", query())
    assert registry.take(scope, "query", "x", b"") is False
    assert lengths(registry) == {"x": (1, 60)}


@pytest.mark.parametrize(
    "bad", [b"\xff", b"{", b"[1]", query("1x", 2), query("1m", 2, windw=1), query("400d", 2), b"x" * 70_000, b"{}"]
)
def test_a_bad_definition_never_replaces_a_good_one(bad: bytes) -> None:
    registry = started()
    registry.take("all", "query", "x", query())
    assert registry.take("all", "query", "x", bad) is False
    assert lengths(registry) == {"x": (1, 60)}
    said = item(registry)
    assert said["ok"] is False
    assert said["in_force"] == 1
    assert said["errors"]
    assert registry.take("all", "query", "x", query("2m", 2)) is True, "the same number may be corrected"
    assert item(registry) == {"ok": True, "revision": 2}


def test_every_mistake_of_the_book_leaves_a_running_node_as_it_was() -> None:
    registry = started()
    registry.take("all", "query", "x", query())
    before = registry.in_force()
    for text, *_ in QUERIES:
        assert registry.take("node", "query", "x", text) is False
        assert registry.take("all", "query", "x", text) is False
    for text, *_ in SENSORS:
        assert registry.take("all", "sensor", "boiler", text) is False
    assert registry.in_force() == before
    assert item(registry)["ok"] is False
    assert item(registry, "sensor/boiler")["in_force"] == 1


@pytest.mark.usefixtures("without_counts")
def test_state_says_what_a_later_version_would_understand() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 4, window={"type": "count_tumbling", "length": 5}))
    said = item(registry)
    assert (said["ok"], said["revision"], said["unsupported"]) == (False, 4, True)
    assert said["errors"][0]["why"] == 'window type "count_tumbling" is not supported yet'


def test_a_query_waits_for_its_sensor() -> None:
    registry = DefinitionRegistry("press-1")
    registry.take("all", "sensor", "boilers", sensor())
    registry.take("all", "query", "x", query())
    assert lengths(registry) == {}
    said = item(registry)
    assert (said["ok"], said["revision"], said["waiting"]) == (False, 1, True)
    assert said["errors"][0]["hint"] == "boilers"
    assert registry.take("all", "sensor", "boiler", sensor()) is True
    assert lengths(registry) == {"x": (1, 60)}
    assert item(registry) == {"ok": True, "revision": 1}


def test_a_query_waits_for_the_sensor_of_its_markers() -> None:
    registry = started()
    registry.take("all", "query", "x", query(window={"type": "punctuation", "markers": "mode"}))
    said = item(registry)
    assert (said["ok"], said["waiting"], said["errors"][0]["at"]) == (False, True, "window.markers")
    assert registry.in_force()[1] == ()
    registry.take("all", "sensor", "mode", sensor())
    assert item(registry) == {"ok": True, "revision": 1}
    assert [each.id for each in registry.in_force()[1]] == ["x"]


def test_nodes_narrow_what_is_for_all() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 1, nodes=["press-*"]))
    registry.take("all", "query", "y", query("1m", 1, nodes=["saw-*"]))
    registry.take("all", "query", "z", query("1m", 1, nodes=["press-*", "!press-1"]))
    assert lengths(registry) == {"x": (1, 60)}
    assert set(registry.state()["items"]) == {"sensor/boiler", "query/x"}
    registry.take("all", "query", "x", query("1m", 2, nodes=["saw-*"]))
    assert lengths(registry) == {}


def test_labels_that_no_reading_has_are_told_and_harm_nothing() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 1, by=["metrik"], where="site = 'a' and metric = 'cpu'"))
    assert lengths(registry) == {"x": (1, 60)}
    said = item(registry)
    assert said["ok"] is True
    assert [(w["at"], w["got"], w["hint"]) for w in said["warnings"]] == [
        ("by", "metrik", "metric"),
        ("where", "site", "labels are metric, zone"),
    ]


def test_the_text_of_a_definition_is_a_payload_that_is_accepted() -> None:
    definition = parse_definition("query", "x", query("1m", 3, nodes=["press-*"]))
    registry = started()
    registry.take("all", "query", "x", definition.text)
    assert lengths(registry) == {"x": (3, 60)}


@pytest.mark.parametrize("bad", [b"{", query("400d", 2), query("1m", None)])
@pytest.mark.parametrize("scope", ["all", "node"])
def test_a_definition_that_was_refused_and_is_deleted_disappears_from_state(scope: str, bad: bytes) -> None:
    registry = started()
    registry.take(scope, "query", "bad", bad)
    assert item(registry, "query/bad")["ok"] is False
    assert registry.take(scope, "query", "bad", b"") is False
    assert "query/bad" not in registry.state()["items"]
    assert registry.refused() == {}
    registry.take(scope, "query", "x", query())
    registry.take(scope, "query", "x", bad)
    registry.take(scope, "query", "x", b"")
    assert item(registry) == {"ok": True, "revision": 1}
    assert lengths(registry) == {"x": (1, 60)}


def test_a_definition_that_was_deleted_while_the_node_was_away_disappears_once_the_broker_has_sent_all() -> None:
    registry = started()
    for name in ("bad", "worse"):
        registry.take("all", "query", name, b"{")
    again = DefinitionRegistry("press-1", state=registry.snapshot())
    again.connected()
    again.take("all", "query", "worse", b"{")
    assert set(again.state()["items"]) == {"sensor/boiler", "query/bad", "query/worse"}
    assert again.confirmed() is True
    assert set(again.state()["items"]) == {"sensor/boiler", "query/worse"}
    assert again.confirmed() is False


def test_the_newest_refusal_is_the_last() -> None:
    registry = started()
    for name in ("a", "b", "a"):
        registry.take("all", "query", name, b"{")
    assert [name for _, name in registry.refused()] == ["b", "a"]
