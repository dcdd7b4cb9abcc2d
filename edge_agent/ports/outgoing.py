"""Publishes of QoS 1 on their way: as many at once as the broker takes, the others wait their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class QueuedPublish(NamedTuple):
    """A message to send. token: what its sender knows it by; 0: of QoS 0."""

    token: int
    topic: str
    payload: bytes
    retain: bool
    expiry_s: int | None


class Outgoing:
    """What of one connection has no answer yet. quota: publishes of QoS 1 that the broker lets be open."""

    def __init__(self, send: Callable[[QueuedPublish], int | None]) -> None:
        """send: hands a message to the connection; answers its number there, None: the connection is gone."""
        self.quota = 65535
        self._send = send
        self._open: dict[int, int] = {}  # number on the connection -> token of publishes without PUBACK
        self._waiting: deque[QueuedPublish] = deque()

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    def add(self, publish: QueuedPublish) -> None:
        """Send it now or once there is room."""
        if not publish.token or len(self._open) < self.quota:
            self._send_now(publish)
        else:
            self._waiting.append(publish)

    def answered(self, number: int) -> int | None:
        """The broker has answered. Answers the token; None: of none that is open."""
        return self._open.pop(number, None)

    def send_waiting(self) -> None:
        """Send what there is room for."""
        while self._waiting and len(self._open) < self.quota:
            self._send_now(self._waiting.popleft())

    def clear(self) -> None:
        """The connection is gone, and with it all that was on its way."""
        self._open.clear()
        self._waiting.clear()

    def _send_now(self, publish: QueuedPublish) -> None:
        number = self._send(publish)
        if publish.token and number is not None:
            self._open[number] = publish.token
