"""What `headwater status` says of a node."""

from __future__ import annotations

from typing import Any

from edge_agent.cli.fleet.status import alarms, complaint, in_doubt, losses, report, retired, row, running


def test_a_node_whose_time_is_not_known_is_named() -> None:
    """protocol 4.3: its readings wait, and its windows do not come."""
    shown = [
        row("gw-1", {"status": {"online": True, "clock": {"synced": synced}}}, 0)[3] for synced in (True, False)
    ] + [
        row("gw-1", {"status": {"online": True}}, 0)[3],
        row("gw-1", {}, 0)[3],
    ]
    assert shown == ["online", "online, CLOCK UNKNOWN", "online", "OFFLINE"]


def test_readings_without_a_time_are_told() -> None:
    """protocol 4.3, 9.1."""
    assert losses({"status": {"online": True}, "books": {"undated": 0}}) == []
    (line,) = losses({"status": {"online": True}, "books": {"undated": 20}})
    assert line.startswith("LOSS: 20 readings are in no window, because their time was never known")


def test_a_child_with_an_alarm_is_named() -> None:
    """protocol 1.4"""
    node = {"status": {"online": True, "alarms": {"gw-7": "two devices have this id"}}}
    assert alarms(node) == ["ALARM: gw-7: two devices have this id"]
    assert alarms({"status": {"online": True}}) == []


def test_frames_that_wait_for_a_former_parent_are_told_with_what_to_do() -> None:
    """protocol 1.5"""
    doubt = {"region-1": {"frames": 12, "since_us": 1_000_000_000_000_000}}
    (line,) = in_doubt("gw-1", {"status": {"online": True, "in_doubt": doubt}}, 1_000_000_480_000_000)
    assert line.startswith("IN DOUBT: 12 frames wait for region-1 since 2001-09-09T01:46:40Z (8 min).")
    assert line.endswith("headwater accept-loss gw-1 region-1")
    assert in_doubt("gw-1", {"status": {"online": True, "in_doubt": "nonsense"}}, 0) == []
    (line,) = in_doubt("gw-1", {"status": {"in_doubt": {"region-1": {"frames": 1, "since_us": 0}}}}, 0)
    assert "1 frame waits for region-1. They" in line


def test_a_refused_word_stands_once_with_the_nearest_valid_one() -> None:
    why = 'unknown window type "tumblin"'
    refused = {"at": "window.type", "got": "tumblin", "why": why, "hint": "tumbling"}
    assert complaint(refused) == f'window.type: {why}; did you mean "tumbling"?'
    assert complaint({"at": "length", "got": 3, "why": "too short", "hint": "try 4"}) == "length: 3: too short; try 4"


def test_retired_nodes_are_a_line_at_their_parent_and_no_mistake() -> None:
    """protocol 1.5: who retired a node sees it, when it was last heard, and that frames of it wait in vain."""
    nodes: dict[str, dict[str, Any]] = {
        "region-1": {"status": {"online": True, "retired": ["press-7", "press-8"]}},
        "press-7": {
            "status": {"online": False},
            "books": {"at_us": 1_000_000_000_000_000, "spool": {"frames": 12}},
        },
    }
    now_us = 1_000_000_000_000_000 + 4 * 86_400_000_000
    found = report("region-1", nodes["region-1"], now_us, nodes)
    assert found.grey == [
        "retired here, not expected any more: press-7 (heard 4 d ago, 12 frames wait in its spool), press-8"
    ]
    assert not found.wrong
    many = {"status": {"online": True, "retired": [f"p{n}" for n in range(20)], "retired_more": 5}}
    assert retired(many, {}, 0) == ["retired here, not expected any more: p0, p1, p2, p3, p4 and 20 more"]
    odds: tuple[object, ...] = ("all", 3, {"a": 1}, [])
    for odd in odds:
        assert retired({"status": {"retired": odd, "retired_more": "x"}}, {}, 0) == []
    assert retired(
        {"status": {"retired": ["a"]}}, {"a": {"books": {"at_us": 1, "spool": {"frames": 1}}}}, 3_000_001
    ) == ["retired here, not expected any more: a (heard 3 s ago, 1 frame waits in its spool)"]


def test_a_query_that_waits_for_a_sensor_is_a_mistake_only_if_it_runs_nowhere() -> None:
    """It was published for all nodes: they have different sensors, so `status` ended with 1 for good."""
    why = "no such sensor on this node; the query waits for it"
    error = {"at": "source", "got": "saw", "why": why, "hint": "publish the sensor"}
    waits = {"ok": False, "revision": 1, "waiting": True, "errors": [error]}

    def node(item: object) -> dict[str, Any]:
        return {"status": {"online": True}, "state": {"version": 1, "items": {"query/saw-1m": item}}}

    nodes = {"gw-1": node(waits), "gw-2": node({"ok": True, "revision": 1})}
    found = report("gw-1", nodes["gw-1"], 0, nodes, running(nodes.values()))
    assert not found.wrong
    assert found.row[-1] == ""
    assert found.lines == ["note: query/saw-1m: waits for sensor 'saw', which this node does not have"]
    for other in ({"gw-1": node(waits)}, {"gw-1": node(waits), "gw-2": node(waits)}):
        found = report("gw-1", other["gw-1"], 0, other, running(other.values()))
        assert found.wrong
        assert found.row[-1] == "1"
        assert found.lines == [f"query/saw-1m: source: 'saw': {why}; publish the sensor"]
    limit = {"at": "where", "why": "17 different sources", "hint": "share"}
    for refused in ({**waits, "errors": [limit]}, {**waits, "waiting": False}, {**waits, "errors": [error, limit]}):
        assert report("gw-1", node(refused), 0, nodes, running(nodes.values())).wrong
    odds: tuple[object, ...] = ([], {}, "source", [3], [{"at": ["source"]}])
    for odd in odds:
        assert report("gw-1", node({**waits, "errors": odd}), 0, nodes, running(nodes.values())).wrong
