"""The subscriptions of a gateway at its local broker, when its sensors change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edge_agent.config import topics
from edge_agent.ports.mqtt.link import Report
from edge_agent.runtime.gateway import GatewayLoop
from tests.hostile.stand_ins import Broker, Connected, Process

Calls = list[tuple[str, list[str]]]


class Recorded(Connected):
    """Writes down what is asked of the broker's session, in order."""

    def __init__(self, name: str, broker: Broker, answers: bool) -> None:
        super().__init__(name, broker)
        self.calls: Calls = []
        self.answers, self.turns = answers, 0

    def subscribe(self, filters: Mapping[str, int]) -> None:
        new = sorted(filters.keys() - self._filters.keys())
        self.calls += [("subscribe", new)] if new else []
        super().subscribe(filters)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        gone = sorted(filters)
        self.calls += [("unsubscribe", gone)] if gone else []
        super().unsubscribe(gone)

    def renew(self, why: str) -> None:
        self.calls.append(("renew", [why]))
        self._given = set(self._broker.done.get(self._who, ()))

    def take(self) -> list[Report]:
        self.turns += 1
        if self.answers and self.turns > 20:
            self._leaving.clear()
        return super().take()


class RecordingBroker(Broker):
    """answers: UNSUBSCRIBE is answered in the 20th turn; else never."""

    def __init__(self, answers: bool) -> None:
        super().__init__()
        self.answers = answers
        self.clients: dict[str, list[Recorded]] = {}

    def connect(self, client: str) -> Recorded:
        made = Recorded(client, self, self.answers)
        self.clients.setdefault(client, []).append(made)
        return made


def gateway(folder: Path, *definitions: Mapping[str, Any], without: bool = False, answers: bool = True) -> Calls:
    """One life of a gateway that is sent these definitions. Returns what it asked of its local broker."""
    broker = RecordingBroker(answers)
    process = Process("gateway", folder, broker)
    process.guard.without_definitions = without
    for revision, definition in enumerate(definitions, 1):
        text = json.dumps({"driver": "mqtt", "revision": revision, **definition})
        broker.send("g", topics.definition("sensor", "s"), text.encode())
    process.run(30)
    return broker.clients["g-sensors"][0].calls


def test_a_filter_is_subscribed_to_before_the_one_that_it_replaces_is_left(tmp_path: Path) -> None:
    """protocol 3.1: between the two the broker would queue nothing, and readings of QoS 1 were lost."""
    calls = gateway(tmp_path, {"topic": "plant/a/temp"}, {"topic": "plant/+/temp", "revision": 9})
    assert calls == [
        ("subscribe", ["plant/a/temp"]),
        ("subscribe", ["plant/+/temp"]),
        ("unsubscribe", ["plant/a/temp"]),
    ]


def test_filters_of_the_last_run_are_left_if_no_sensor_needs_them(tmp_path: Path) -> None:
    """They stayed in the session at the local broker, and their messages came for ever."""
    gateway(tmp_path, {"topic": "plant/#"})
    calls = gateway(tmp_path, {"topic": "plant/x", "revision": 9})
    assert calls[1:] == [("subscribe", ["plant/x"]), ("unsubscribe", ["plant/#"])]
    assert gateway(tmp_path) == [("subscribe", ["plant/x"])]


def test_a_filter_that_the_broker_has_not_left_is_left_by_the_next_run(tmp_path: Path) -> None:
    gateway(tmp_path, {"topic": "plant/#"}, {"topic": "plant/x", "revision": 9}, answers=False)
    assert gateway(tmp_path) == [("subscribe", ["plant/x"]), ("unsubscribe", ["plant/#"])]


def test_a_start_without_definitions_leaves_no_filter_until_the_broker_has_sent_them(tmp_path: Path) -> None:
    """Its sensors come later; what is published in between is to wait in the session."""
    gateway(tmp_path, {"topic": "plant/#"})
    calls = gateway(tmp_path, {"topic": "plant/x", "revision": 9}, without=True)
    assert calls == [("subscribe", ["plant/x"]), ("unsubscribe", ["plant/#"])]


def test_what_no_sensor_wants_is_acknowledged(tmp_path: Path) -> None:
    """A broker that waits for many acknowledgements delivers nothing more."""
    broker = Broker()
    process = Process("gateway", tmp_path, broker)
    broker.send("g", topics.definition("sensor", "s"), b'{"driver": "mqtt", "topic": "a/b", "revision": 1}')
    turns = 0

    def each_turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 5:
            broker.send("g-sensors", "x/y", b"1")

    process.each_turn = each_turn
    process.run(20)
    assert broker.given["g-sensors"] == {1}
    assert broker.open("g-sensors") == []


def test_readings_that_came_before_the_first_sensor_of_a_start_without_definitions_come_again(tmp_path: Path) -> None:
    """Without another connection a broker that has 20 messages unanswered, as many as it allows, delivers no more."""
    gateway(tmp_path, {"topic": "plant/a"})
    broker = RecordingBroker(answers=True)
    process = Process("gateway", tmp_path, broker)
    process.guard.without_definitions = True
    for n in range(25):
        broker.send("g-sensors", "plant/a", b"%d" % n)
    taken = list[int]()

    def each() -> None:
        if len(taken) == 30:
            text = json.dumps({"driver": "mqtt", "topic": "plant/a", "revision": 9})
            broker.send("g", topics.definition("sensor", "s"), text.encode())
        assert isinstance(process.loop, GatewayLoop)
        taken.append(process.loop.sensors.counters().get("s", {}).get("readings", 0))

    process.each_turn = each
    process.run(90)
    assert taken[29] == 0
    assert taken[-1] == 25
    assert not broker.open("g-sensors")
    assert [why for kind, why in broker.clients["g-sensors"][-1].calls if kind == "renew"] == [
        ["messages came before the first sensor that reads them"]
    ]
