"""The hub of MQTT sensors without a broker: messages in, readings out."""

from __future__ import annotations

import json
from typing import Any

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Read
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.sensors.mqtt import MqttSensors
from tests.support.fakes import FakeClock


def sensor(
    name: str, topic: str, *, labels: dict[str, str] | None = None, scale: int | None = None, **more: Any
) -> Sensor:
    options = tuple({"topic": topic, "qos": 0, **more}.items())
    return Sensor(name, 1, "mqtt", options, labels=tuple((labels or {}).items()), scale=scale)


class Hub:
    """MqttSensors with a clock that stands still."""

    def __init__(self, *sensors: Sensor, positions: dict[str, object] | None = None) -> None:
        self.clock = FakeClock()
        self.sensors = MqttSensors(self.clock)
        self.sensors.configure(sensors, positions or {})

    def reads(self, *messages: Message) -> list[Read]:
        self.sensors.feed(messages, self.clock.us)
        return self.sensors.poll(self.clock.us)

    def rows(self, *messages: Message) -> list[tuple[str, int, float, dict[str, str]]]:
        """(sensor, time, value, labels) of every reading."""
        return [
            (read.sensor, int(t), v.item(), dict(read.batch.labels[s]))
            for read in self.reads(*messages)
            for t, v, s in zip(read.batch.time_us, read.batch.value, read.batch.series, strict=True)
        ]

    def counts(self, name: str) -> dict[str, int]:
        return {kind: n for kind, n in self.sensors.counters()[name].items() if n}


def message(topic: str, payload: bytes | dict[str, object], token: int = 0, flags: int = 0) -> Message:
    return (topic, payload if isinstance(payload, bytes) else json.dumps(payload).encode(), token, flags)


def token(mid: int, generation: int = 1) -> int:
    return generation << 16 | mid
