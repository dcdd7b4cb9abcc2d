"""Messages under way between nodes, as bytes by topic: lost, repeated, delayed, reordered."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from functools import cache
from random import Random
from typing import Final, NamedTuple

from edge_agent.config import topics
from tests.support.simulation.failpoints import Faults

HALF_A_MINUTE_US: Final = 30_000_000
COPIED: Final = 300  # messages


class Address(NamedTuple):
    """Where a topic leads. kind: 'frame' (heartbeats too) or 'receipt'; sender: '' of a receipt."""

    to: str
    kind: str
    sender: str


class Message(NamedTuple):
    """A message as it arrives."""

    address: Address
    topic: str
    payload: bytes


@cache
def address(topic: str) -> Address:
    """Who hears a topic of frames or receipts."""
    found = topics.parse(topic)
    assert found is not None, topic
    if found.what == "frame":
        return Address(found.other, "frame", found.node)
    assert found.what == "ack", topic
    return Address(found.node, "receipt", "")


class Network:
    """Delivery order is by a random delay, so that everything overtakes everything."""

    def __init__(self, seed: int, faults: Faults, delay_us: int) -> None:
        """delay_us: the longest usual delay."""
        self.faults, self.delay_us = faults, delay_us
        self._delays = Random(f"{seed} delays")
        self.queue: list[tuple[int, int, Message]] = []
        self.count = 0
        self.cut_until: dict[str, int] = {}
        self.apart_until: dict[frozenset[str], int] = {}  # two nodes that do not reach each other
        self.held: dict[str, list[Message]] = {}  # frames for a parent that is away, whose session the broker keeps
        self._copy: deque[tuple[int, Message]] = deque(maxlen=COPIED)  # what an older copy of the broker may have
        self.stats: Counter[str] = Counter()

    def publish(self, topic: str, payload: bytes, now_us: int, sender: str = "") -> None:
        """sender: who publishes; '': somebody whom every node reaches."""
        self.stats["messages"] += 1
        self.stats["bytes"] += len(payload)
        if self.faults.happens("network.drop"):
            return
        message = Message(address(topic), topic, payload)
        if message.address.kind == "frame" and self.faults.on("broker.older"):
            self._copy.append((now_us, message))
        if self.apart_until and self.apart_until.get(frozenset((sender, message.address.to)), 0) > now_us:
            return
        for _ in range(2 if self.faults.happens("network.repeat") else 1):
            delay_us = self._delays.randint(1, max(self.delay_us, 2))
            if self.faults.happens("network.late"):
                delay_us += HALF_A_MINUTE_US
            self.count += 1
            heapq.heappush(self.queue, (now_us + delay_us, self.count, message))

    def due(self, now_us: int) -> list[Message]:
        """What arrives by now; a node whose connection is cut hears nothing."""
        out = []
        while self.queue and self.queue[0][0] <= now_us:
            _, _, message = heapq.heappop(self.queue)
            if self.cut_until.get(message.address.to, 0) <= now_us:
                out.append(message)
            else:
                self.hold(message)
        return out

    def hold(self, message: Message) -> None:
        """Keep it for a parent that is away, where brokers do so."""
        if message.address.kind == "frame" and self.faults.on("broker.held"):
            self.faults.hits["broker.held"] += 1
            self.held.setdefault(message.address.to, []).append(message)

    def under_way(self) -> list[bytes]:
        """All that may still arrive."""
        return [message.payload for _, _, message in self.queue] + [
            message.payload for messages in self.held.values() for message in messages
        ]

    def in_order(self, node: str, now_us: int) -> None:
        """What a node has sent arrives before all that it sends from now on.

        A broker closes the connection of a client that comes back under its name, so that nothing of the one before
        comes later. A node that lost its spool depends on it: its births name no past by which a parent orders them.
        """
        self.queue = [
            (min(due_us, now_us) if message.address.sender == node else due_us, count, message)
            for due_us, count, message in self.queue
        ]
        heapq.heapify(self.queue)

    def restart_broker(self) -> None:
        """All that is under way is lost."""
        self.queue.clear()
        self.held.clear()

    def restore_broker(self, now_us: int, back_us: int) -> None:
        """All that is under way is lost, and the frames of the last time come again, in their order."""
        self.restart_broker()
        for at_us, message in self._copy:
            if at_us >= now_us - back_us:
                self.count += 1
                heapq.heappush(self.queue, (now_us, self.count, message))
