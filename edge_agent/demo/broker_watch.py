"""Counts traffic on the demo's brokers: frames, receipts and bytes of every node, and its diagnostics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.config import topics
from edge_agent.errors import WireError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import frames, receipts

DIAGNOSE_EVERY_S: Final = 2.0
DIAGNOSE_ID: Final = "demo"
DIAGNOSE: Final = json.dumps({"cmd": "diagnose", "id": DIAGNOSE_ID}).encode()  # asks for readings and spooled frames
PACKET_BYTES: Final = 8  # fixed header, two lengths, packet id and an empty property list around topic and payload
PUBACK_BYTES: Final = 4


@dataclass(slots=True)
class NodeTraffic:
    """Traffic of one node on its broker. bytes: frames and heartbeats as MQTT packets, acknowledgements included."""

    online: bool = False
    frames: int = 0
    receipted: int = 0
    bytes: int = 0
    readings: int = 0
    spooled: int = 0
    _upto: dict[int, int] = field(default_factory=dict)

    def receipt(self, epoch: int, upto: int) -> None:
        """Record a receipt: the parent has durably stored the frames of the epoch below `upto`."""
        self._upto[epoch] = max(self._upto.get(epoch, 0), upto)
        self.receipted = sum(self._upto.values())


class BrokerWatch:
    """Subscribes to all brokers and counts their messages. Call `turn` often, and read `nodes`."""

    def __init__(self, links: Mapping[str, Link], commanded: Mapping[str, Iterable[str]]) -> None:
        """links: broker -> connection to it. commanded: broker -> nodes that receive commands there."""
        self.nodes: dict[str, NodeTraffic] = {}
        self.brokers = {name: Connection(link) for name, link in links.items()}
        self._waiter = Waiter()
        self._commanded = commanded
        self._diagnosed_s = 0.0
        self._unpublished: list[tuple[str, str, bytes]] = []  # (broker, topic, payload), retained
        wanted = [topics.frames("+", "+"), topics.ack("+"), topics.status(), topics.answer("+", DIAGNOSE_ID)]
        for connection in self.brokers.values():
            connection.subscribe(dict.fromkeys(wanted, 1))
            connection.open()

    def publish(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish a retained message once the broker is connected."""
        self._unpublished.append((broker, topic, payload))

    def turn(self, longest_s: float = 0.2) -> None:
        """Wait at most longest_s for messages and process them; publish what is pending."""
        connections = list(self.brokers.values())
        self._waiter.wait(connections, longest_s)
        for connection in connections:
            for report in connection.take():
                if isinstance(report, Messages):
                    self._count(report.messages)
        self._unpublished = [
            (broker, topic, payload)
            for broker, topic, payload in self._unpublished
            if self.brokers[broker].publish(topic, payload, retain=True) is None
        ]
        now = time.monotonic()
        if now - self._diagnosed_s >= DIAGNOSE_EVERY_S:
            self._diagnosed_s = now
            for broker, nodes in self._commanded.items():
                for node in nodes:
                    self.brokers[broker].publish(topics.commands(node), DIAGNOSE, expiry_s=5)

    def _count(self, messages: list[Message]) -> None:
        for name, payload, _, _ in messages:
            topic = topics.parse(name)
            if topic is None:
                continue
            node = self.nodes.setdefault(topic.node, NodeTraffic())
            match topic.what:
                case "frame":
                    node.bytes += len(name.encode()) + len(payload) + PACKET_BYTES + PUBACK_BYTES
                    try:
                        node.frames += frames.envelope(payload).seq is not None
                    except WireError:
                        node.frames += 1
                case "ack":
                    try:
                        receipt = receipts.decode(payload)
                    except WireError:
                        continue
                    node.receipt(receipt.epoch, receipt.upto)
                case "status":
                    node.online = _table(payload).get("online") is True
                case "answer":
                    diagnosis = _table(payload)
                    node.spooled = int(diagnosis.get("spooled", node.spooled))
                    readings = diagnosis.get("readings")
                    if isinstance(readings, dict):
                        node.readings = max(node.readings, sum(readings.values()))

    def close(self) -> None:
        for connection in self.brokers.values():
            connection.close()
        self._waiter.close()


def _table(payload: bytes) -> dict[str, Any]:
    try:
        table = json.loads(payload)
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}
