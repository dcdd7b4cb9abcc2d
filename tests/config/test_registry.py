"""Which definitions are in force on a node, whatever comes and in whatever order."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.crosscheck import MOST_ID_BYTES
from edge_agent.config.definitions import parse_definition
from edge_agent.config.registry import Registry
from edge_agent.config.schema import schemas
from edge_agent.config.settings import parse
from edge_agent.config.tables import Limits
from tests.config.test_mistakes import QUERIES, SENSORS

STATE = jsonschema.Draft202012Validator(schemas()["state"])


def query(length: str = "1m", revision: int | None = 1, **more: Any) -> bytes:
    table = {"source": "boiler", "window": {"type": "tumbling", "length": length}, "aggregates": ["avg"], **more}
    return json.dumps(table if revision is None else {**table, "revision": revision}).encode()


def sensor(revision: int | None = 1, **more: Any) -> bytes:
    return json.dumps({"driver": "host", **({} if revision is None else {"revision": revision}), **more}).encode()


def removal(revision: int) -> bytes:
    return json.dumps({"removed": True, "revision": revision}).encode()


def started(**more: Any) -> Registry:
    registry = Registry("press-1", **more)
    registry.take("all", "sensor", "boiler", sensor())
    return registry


def lengths(registry: Registry) -> dict[str, tuple[int, int]]:
    """Id -> (revision, window length in seconds) of the queries in force."""
    return {q.id: (q.revision, q.time_window.longest_us // 10**6) for q in registry.in_force()[1]}


def item(registry: Registry, name: str = "query/x") -> dict[str, Any]:
    state = json.loads(json.dumps(registry.state()))
    STATE.validate(state)
    found: dict[str, Any] = state["items"][name]
    return found


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
        "hint": "say revision = 4",
    }
    assert registry.take("all", "query", "x", query("2m", 4)) is True
    assert item(registry) == {"ok": True, "revision": 4}


def test_an_equal_revision_with_other_content_is_refused_and_with_the_same_content_is_not() -> None:
    registry = started()
    registry.take("all", "query", "x", query("1m", 3))
    assert registry.take("all", "query", "x", b" " + query("1m", 3)) is False
    assert item(registry) == {"ok": True, "revision": 3}
    registry.take("all", "query", "x", query("2m", 3))
    assert lengths(registry) == {"x": (3, 60)}
    assert item(registry)["errors"][0]["why"] == "revision 3 has another content already"
    assert item(registry)["errors"][0]["hint"] == "say revision = 4"


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
    assert item(registry)["errors"][0]["hint"] == "say revision = 6"


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
    registry = Registry("press-1")
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


# --- limits ---------------------------------------------------------------------------------------------------------


def test_what_is_too_much_is_refused_and_the_rest_stays() -> None:
    registry = Registry("press-1", Limits(sensors=2, queries=2, edges_per_second=110))
    for name in ("boiler", "b", "c"):
        registry.take("all", "sensor", name, sensor())
    assert [s.id for s in registry.in_force()[0]] == ["b", "boiler"]
    assert item(registry, "sensor/c")["errors"][0]["why"] == "3 sensors would be on this node, at most 2"
    registry.take("all", "query", "x", query("10ms"))
    registry.take("all", "query", "y", query("20ms"))
    assert item(registry, "query/y")["errors"][0]["why"] == "150 window edges a second in all, at most 110"
    registry.take("all", "query", "x", query("1ms", 2))
    assert lengths(registry) == {"x": (1, 0)}
    registry.take("all", "query", "y", query("10ms", 2))
    registry.take("all", "query", "z", query("1m", 1))
    assert item(registry, "query/z")["errors"][0]["why"] == "3 queries would be on this node, at most 2"
    assert item(registry, "query/z")["waiting"] is True
    registry.take("all", "query", "y", removal(3))
    assert set(lengths(registry)) == {"x", "z"}, "what waited for room takes it"
    assert item(registry, "query/z") == {"ok": True, "revision": 1}


def test_filters_without_end_are_refused_before_they_fill_the_memory() -> None:
    registry = started(limits=Limits(groups=2))
    for n in range(3):
        registry.take("all", "query", f"q{n}", query(where=f"value > {n}"))
    registry.take("all", "query", "q3", query(where="value > 1"))
    assert set(lengths(registry)) == {"q0", "q1", "q3"}
    said = item(registry, "query/q2")["errors"][0]
    assert said["why"] == "3 different sources, filters, labels or latenesses would be on this node, at most 2"
    assert said["hint"]


def test_the_names_of_queries_over_one_source_must_fit_a_frame() -> None:
    registry = started()
    names = [f"{n:04d}-{'x' * 59}" for n in range(600)]
    for name in names:
        registry.take("all", "query", name, query())
    many = len(lengths(registry))
    assert many == MOST_ID_BYTES // (64 + 8)
    assert item(registry, f"query/{names[many]}")["errors"][0]["hint"] == "take shorter ids or fewer queries"
    registry.take("all", "query", "short", query())
    assert "short" in lengths(registry)


def test_ten_thousand_queries_are_bounded_and_the_rest_is_told_what_to_do() -> None:
    registry = started(limits=Limits(queries=100))
    for n in range(10_000):
        registry.take("all", "query", f"q{n}", query())
    assert len(lengths(registry)) == 100
    assert item(registry, "query/q150")["waiting"] is True
    last = item(registry, "query/q9999")
    assert "waiting" not in last
    assert last["errors"][0]["hint"] == "publish it again once there is room"
    for n in range(3):
        registry.take("all", "query", f"q{n}", removal(2))
    assert len(lengths(registry)) == 100, "those that waited first take the room"
    registry.take("all", "query", "q3", removal(2))
    registry.take("all", "query", "q9999", query())
    assert len(lengths(registry)) == 100


def test_a_driver_the_node_cannot_run_is_refused() -> None:
    registry = Registry("press-1", usable=("host", "file", "simulated"))
    registry.take("all", "sensor", "s", b'{"driver": "mqtt", "topic": "a", "revision": 1}')
    assert registry.in_force() == ((), ())
    assert item(registry, "sensor/s")["errors"][0]["hint"].startswith("say [local]")


# --- the local file -------------------------------------------------------------------------------------------------

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


def booted(length: str | None, state: dict[str, Any] | None) -> Registry:
    text = FILE.replace("LENGTH", length or "1m")
    text = text if length else text.partition("[query.x]")[0]
    return Registry("press-1", local=parse(text).definitions, state=state)


def restart(registry: Registry, length: str | None) -> Registry:
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


# --- laws -----------------------------------------------------------------------------------------------------------

WORDS = st.tuples(
    st.sampled_from(["all", "node"]),
    st.sampled_from(["x", "y"]),
    st.integers(1, 6),
    st.sampled_from(["1m", "2m", "removed", "bad", "unnumbered"]),
)


def payload(word: tuple[str, str, int, str]) -> bytes:
    _, name, revision, what = word
    if what == "removed":
        return removal(revision)
    if what == "bad":
        return query("nonsense", revision)
    return query(
        what if what != "unnumbered" else "3m", None if what == "unnumbered" else revision, lateness=f"{len(name)}s"
    )


@given(st.lists(WORDS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter_where_a_number_has_one_content(
    words: list[tuple[str, str, int, str]], order: random.Random
) -> None:
    once = {(w[1], w[2]): w for w in words if w[3] != "unnumbered"}.values()
    registries = started(), started()
    for registry, sequence in zip(registries, (list(once), order.sample(list(once), len(once))), strict=True):
        for word in sequence:
            registry.take(word[0], "query", word[1], payload(word))
    assert registries[0].in_force() == registries[1].in_force()
    assert registries[0].state()["hash"] == registries[1].state()["hash"]


@given(st.lists(WORDS, max_size=12), st.integers(0, 12))
def test_a_restart_off_line_changes_nothing(words: list[tuple[str, str, int, str]], at: int) -> None:
    straight, broken = started(), started()
    for n, word in enumerate(words):
        if n == at:
            broken = Registry("press-1", state=json.loads(json.dumps(broken.snapshot())))
        assert straight.take(word[0], "query", word[1], payload(word)) == broken.take(
            word[0], "query", word[1], payload(word)
        )
        assert straight.in_force() == broken.in_force()
        STATE.validate(straight.state())
    assert straight.state() == broken.state()


@given(st.lists(WORDS, max_size=12))
def test_the_version_rises_exactly_when_what_is_in_force_changes(words: list[tuple[str, str, int, str]]) -> None:
    registry = started()
    for word in words:
        before, version = registry.in_force(), registry.state()["version"]
        changed = registry.take(word[0], "query", word[1], payload(word))
        assert changed == (registry.in_force() != before)
        assert registry.state()["version"] == version + changed


@given(st.binary(max_size=100), st.sampled_from(["sensor", "query"]))
def test_no_payload_breaks_the_registry(content: bytes, kind: str) -> None:
    registry = started()
    registry.take("all", kind, "x", content)
    STATE.validate(json.loads(json.dumps(registry.state())))


def test_a_snapshot_of_another_version_is_told_and_not_lost_for_the_rest() -> None:
    registry = started()
    registry.take("all", "query", "x", query())
    registry.take("all", "query", "y", query("2m"))
    state = json.loads(json.dumps(registry.snapshot()).replace('\\"120', "").replace("tumbling", "tumbling"))
    state["accepted"][1][3] = state["accepted"][1][3].replace("tumbling", "hopping")
    restored = Registry("press-1", state=state)
    assert lengths(restored) == {"y": (1, 120)}
    assert item(restored)["errors"]


def test_the_text_of_a_definition_is_a_payload_that_is_accepted() -> None:
    definition = parse_definition("query", "x", query("1m", 3, nodes=["press-*"]))
    registry = started()
    registry.take("all", "query", "x", definition.text)
    assert lengths(registry) == {"x": (3, 60)}
