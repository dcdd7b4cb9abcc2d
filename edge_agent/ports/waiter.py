"""The one place where a process sleeps: until a connection is ready, `wake` is called, or a time is reached."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Sequence
from typing import Final

from edge_agent.ports.mqtt.connection import Connection

READ: Final = select.POLLIN | select.POLLHUP | select.POLLERR


class Waiter:
    """Waits on a few connections in one thread. `wake` may be called from any thread or signal handler."""

    def __init__(self) -> None:
        self._closed = False
        self._polled_s = time.monotonic()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def wait(self, connections: Sequence[Connection], timeout_s: float) -> None:
        """Sleep at most timeout_s, then serve the connections that have data or a timer that is due.

        Collect their reports with `Connection.take`.
        """
        now = time.monotonic()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        by_file: dict[int, Connection] = {}
        until = now + timeout_s
        for connection in connections:
            until = min(until, connection.due)
            file = connection.fileno()
            mask = (READ if connection.wants_read else 0) | (select.POLLOUT if connection.wants_write else 0)
            if file >= 0 and mask:
                poll.register(file, mask)
                by_file[file] = connection
        ready = dict(poll.poll(max(0, math.ceil((until - now) * 1000))))
        self._polled_s = time.monotonic()
        if self._woken in ready:
            try:
                os.read(self._woken, 4096)
            except BlockingIOError:
                pass  # another waiter has read the byte
        for file, connection in by_file.items():
            mask = ready.get(file, 0)
            if mask & select.POLLOUT:
                connection.on_writable()
            if mask & READ or connection.unread:
                connection.on_readable()
        for connection in connections:
            connection.misc()

    def since_poll_us(self) -> int:
        """Microseconds since the last wait ended. Messages that arrived after that have not been read."""
        return int((time.monotonic() - self._polled_s) * 1e6)

    def wake(self) -> None:
        """End the current wait, or else the next one, at once. Does nothing after `close`."""
        if self._closed:  # the number of the pipe may belong to another file by now
            return
        try:
            os.write(self._wake, b"w")
        except BlockingIOError:
            pass  # the pipe is full, so the wait will end anyway

    def close(self) -> None:
        self._closed = True  # first, because a signal handler may call `wake` in between
        os.close(self._woken)
        os.close(self._wake)
