"""What a node does not take: more than it can hold, and drivers it cannot run."""

from __future__ import annotations

import pytest

from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.in_force import registry as registry_module
from edge_agent.config.in_force.crosscheck import MOST_ID_BYTES
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.node_file.node_tables import LimitsTable
from tests.support.config.registries import item, lengths, query, removal, sensor, started


def test_what_is_too_much_is_refused_and_the_rest_stays() -> None:
    registry = DefinitionRegistry("press-1", LimitsTable(sensors=2, queries=2, edges_per_second=110))
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


def test_what_waited_for_room_takes_that_of_what_left_the_file() -> None:
    """It waited until something else was published, or the broker was connected anew."""
    file = [parse_definition("sensor", name, sensor(revision=None)) for name in ("a", "b")]
    registry = DefinitionRegistry("press-1", LimitsTable(sensors=2), file)
    registry.take("all", "sensor", "c", sensor())
    assert item(registry, "sensor/c")["waiting"] is True
    registry = DefinitionRegistry("press-1", LimitsTable(sensors=2), file[:1], registry.snapshot())
    assert [each.id for each in registry.in_force()[0]] == ["a", "c"]
    assert item(registry, "sensor/c") == {"ok": True, "revision": 1}


def test_filters_without_end_are_refused_before_they_fill_the_memory() -> None:
    registry = started(limits=LimitsTable(groups=2))
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
    assert item(registry, f"query/{names[many]}")["errors"][0]["hint"] == "use shorter ids or fewer queries"
    registry.take("all", "query", "short", query())
    assert "short" in lengths(registry)


def test_ten_thousand_queries_are_bounded_and_the_rest_is_told_what_to_do() -> None:
    registry = started(limits=LimitsTable(queries=100))
    for n in range(10_000):
        registry.take("all", "query", f"q{n}", query())
    assert len(lengths(registry)) == 100
    assert item(registry, "query/q150")["waiting"] is True
    last = item(registry, "query/q9999")
    assert "waiting" not in last
    assert last["errors"][0]["hint"].startswith("publish it again once there is room; set [limits] queries = 101")
    for n in range(3):
        registry.take("all", "query", f"q{n}", removal(2))
    assert len(lengths(registry)) == 100, "those that waited first take the room"
    registry.take("all", "query", "q3", removal(2))
    registry.take("all", "query", "q9999", query())
    assert len(lengths(registry)) == 100


def test_a_sensor_of_a_driver_that_the_node_does_not_have_is_no_mistake_of_the_node() -> None:
    registry = DefinitionRegistry("press-1", local_broker=False)
    registry.take("all", "sensor", "s", b'{"driver": "mqtt", "topic": "a", "revision": 1}')
    registry.take("all", "query", "x", query(source="s"))
    assert registry.in_force() == ((), ())
    assert registry.refused() == {}
    assert list(registry.cannot_run()) == ["s"]
    why = "this node has no [local] broker, so it ignores mqtt sensors"
    for name, at in (("sensor/s", "driver"), ("query/x", "source")):
        said = item(registry, name)
        assert (said["ok"], [(each["at"], each["why"]) for each in said["warnings"]]) == (True, [(at, why)])
    registry.take("all", "query", "y", query(source="nowhere"))
    assert item(registry, "query/y")["waiting"] is True
    able = DefinitionRegistry("press-1", state=registry.snapshot())
    assert [sensor.id for sensor in able.in_force()[0]] == ["s"]
    assert item(able, "query/x") == {"ok": True, "revision": 1}


def test_refusals_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may publish can cause any number of them."""
    monkeypatch.setattr(registry_module, "MOST_REFUSED", 10)
    registry = DefinitionRegistry("press-1")
    for n in range(100):
        registry.take("all", "query", f"q{n}", b"{")
    assert list(registry.refused()) == [("query", f"q{n}") for n in range(90, 100)]
