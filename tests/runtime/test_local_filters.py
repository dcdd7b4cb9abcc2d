"""The subscriptions of a gateway at its local broker, when its sensors change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edge_agent.config import topics
from tests.hostile.stand_ins import Broker, Connected, Process

Calls = list[tuple[str, list[str]]]


class Recorded(Connected):
    """Writes down what is asked of the broker's session, in order."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        self.calls: Calls = []

    def subscribe(self, filters: Mapping[str, int]) -> None:
        new = sorted(filters.keys() - self._filters.keys())
        self.calls += [("subscribe", new)] if new else []
        super().subscribe(filters)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        gone = sorted(filters)
        self.calls += [("unsubscribe", gone)] if gone else []
        super().unsubscribe(gone)


class RecordingBroker(Broker):
    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[str, list[Recorded]] = {}

    def connect(self, client: str) -> Recorded:
        made = Recorded(client, self)
        self.clients.setdefault(client, []).append(made)
        return made


def gateway(folder: Path, *definitions: Mapping[str, Any], without: bool = False) -> Calls:
    """One life of a gateway that is sent these definitions. Returns what it asked of its local broker."""
    broker = RecordingBroker()
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
