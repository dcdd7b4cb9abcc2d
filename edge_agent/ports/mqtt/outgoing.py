"""Keeps to a broker's limits: publishes of QoS 1 in flight, of which the others are queued, and sizes of packets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

PACKET_BYTES: Final = 8  # of a SUBSCRIBE or UNSUBSCRIBE without filters: fixed header, packet id, empty property list
FILTER_BYTES: Final = 3  # of a filter in it, besides its text


def size_bytes(filters: Iterable[str]) -> int:
    """Size of a packet that subscribes to these filters or leaves them; at most."""
    return PACKET_BYTES + sum(len(name.encode()) + FILTER_BYTES for name in filters)


def in_packets(filters: Iterable[str], most_bytes: int | None) -> list[list[str]]:
    """The filters of each packet, as many as the broker accepts in one. most_bytes: its limit; None: it has none.

    A filter that no packet has room for is alone.
    """
    out: list[list[str]] = []
    for name in filters:
        if out and (most_bytes is None or size_bytes((*out[-1], name)) <= most_bytes):
            out[-1].append(name)
        else:
            out.append([name])
    return out


class QueuedPublish(NamedTuple):
    """A message to send. token: the id that the sender uses; 0 for QoS 0."""

    token: int
    topic: str
    payload: bytes
    retain: bool
    expiry_s: int | None


class Outgoing:
    """Unanswered publishes of one connection. quota: publishes of QoS 1 that the broker allows in flight."""

    def __init__(self, send: Callable[[QueuedPublish], int | None], now: Callable[[], float] = time.monotonic) -> None:
        """send: passes a message to the connection; returns its packet id, None if the connection is lost."""
        self.quota = 65535
        self._send, self._now = send, now
        self._moved_s = 0.0  # time of the last PUBACK, or of the first publish sent while none was in flight
        self._overtaken_s: float | None = None  # when a later publish was first answered before the oldest
        self._open: dict[int, int] = {}  # packet id -> token, for publishes without PUBACK
        self._waiting: deque[QueuedPublish] = deque()

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    def add(self, publish: QueuedPublish) -> None:
        """Send a publish now, or once the quota allows it."""
        if not publish.token or len(self._open) < self.quota:
            self._send_now(publish)
        else:
            self._waiting.append(publish)

    def answered(self, number: int) -> int | None:
        """Handle the PUBACK of packet id `number`. Returns its token; None if the id is unknown."""
        self._moved_s = self._now()
        oldest = next(iter(self._open), None)
        if number == oldest:
            self._overtaken_s = None
        elif number in self._open and self._overtaken_s is None:
            self._overtaken_s = self._moved_s
        return self._open.pop(number, None)

    @property
    def unanswered_s(self) -> float:
        """Seconds since the last PUBACK, or since a publish later than the oldest was answered; 0 if none is in flight.

        A broker answers publishes in order (MQTT 5, section 4.6), so it will never answer one that was overtaken.
        """
        if not self._open:
            return 0.0
        return self._now() - (self._moved_s if self._overtaken_s is None else self._overtaken_s)

    def send_waiting(self) -> None:
        """Send as many waiting publishes as the quota allows."""
        while self._waiting and len(self._open) < self.quota:
            self._send_now(self._waiting.popleft())

    def clear(self) -> None:
        """Drop all publishes: the connection is lost."""
        self._open.clear()
        self._waiting.clear()
        self._overtaken_s = None

    def _send_now(self, publish: QueuedPublish) -> None:
        number = self._send(publish)
        if publish.token and number is not None:
            self._moved_s = self._moved_s if self._open else self._now()
            self._open[number] = publish.token
