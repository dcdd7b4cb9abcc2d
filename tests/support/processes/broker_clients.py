"""Publishes to and reads from a broker as a user does, with mosquitto_pub and `headwater`'s own listener."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from edge_agent.cli.support.broker_listener import listen
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.mqtt.packets import Message


def publish(broker: str, topic: str, payload: str, *, retain: bool = True) -> None:
    """`mosquitto_pub` as in the docs."""
    port = broker.rpartition(":")[2]
    command = ["mosquitto_pub", "-V", "5", "-p", port, "-q", "1", "-t", topic]
    command += ["-r"] if retain else []
    command += ["-m", payload] if payload else ["-n"]
    subprocess.run(command, check=True, timeout=10)


def retained(broker: str, topic: str) -> Any:
    """The retained JSON of a topic, None if there is none."""
    link = Link(broker, "test-listener", connect_timeout_s=5.0)
    for _, payload, _, _ in listen(link, [topic], 3.0, 0.2):
        return json.loads(payload) if payload else None
    return None


def ask(broker: str, node: str, command: str, name: str) -> Any:
    """Send a command and wait for its answer."""
    link = Link(broker, "test-operator", connect_timeout_s=5.0)
    for sent, (topic, payload, _, _) in enumerate(heard(link, f"hw/1/up/{node}/#", 10.0)):
        if not sent:  # its retained status came: we are subscribed
            publish(broker, f"hw/1/down/{node}/cmd", command, retain=False)
        if topic.endswith(f"/cmd/{name}"):
            return json.loads(payload)
    return None


def heard(link: Link, topic: str, seconds: float) -> Iterator[Message]:
    """Messages as they come, retained ones first."""
    return listen(link, [topic], seconds)
