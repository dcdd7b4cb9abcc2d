"""What `headwater status` says of a node."""

from __future__ import annotations

from edge_agent.cli.status import alarms, losses, row


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
