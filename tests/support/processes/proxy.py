"""A TCP proxy on loopback between a node and its broker, that delays, cuts, and goes silent."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time
from typing import Final

from tests.support.processes.background import Background

PIECE_BYTES: Final = 65_536


class Proxy(Background):
    """Passes every connection on to a port. A thread of its own, from `with` on.

    delay_s: added to each piece in each direction. connections: how many were accepted.
    """

    def __init__(self, to_port: int) -> None:
        super().__init__()
        self.to_port, self.delay_s, self.connections = to_port, 0.0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._silent: set[socket.socket] = set()
        self._waiting: list[tuple[float, int, socket.socket, bytes]] = []  # (due, order, to, content)
        self._order = itertools.count()
        self._orders: list[str] = []
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._listener.close()
        self._selector.close()

    def cut(self) -> None:
        """End all connections at once, in the middle of whatever is under way."""
        self._do("cut")

    def silence(self) -> None:
        """Half-open: those that exist pass nothing any more, and nobody is told. New ones pass."""
        self._do("silence")

    def _do(self, order: str) -> None:
        with self._lock:
            self._orders.append(order)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._over.is_set():
            for key, _ in self._selector.select(self._pause_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._pass(key.fileobj)
            self._obey()
            self._send()
        for each in list(self._peers):
            self._close(each)

    def _pause_s(self) -> float:
        return min(0.02, max(0.0, self._waiting[0][0] - time.monotonic())) if self._waiting else 0.02

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            broker = socket.create_connection(("127.0.0.1", self.to_port), 1.0)
        except OSError:
            client.close()
            return
        self.connections += 1
        for each, other in ((client, broker), (broker, client)):
            each.setblocking(True)
            self._peers[each] = other
            self._selector.register(each, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        if source not in self._peers:
            return
        try:
            content = source.recv(PIECE_BYTES)
        except OSError:
            content = b""
        if source in self._silent:
            if not content:  # it gave up waiting
                self._close(source)
        elif not content:
            self._close(source)
        else:
            due = time.monotonic() + self.delay_s
            heapq.heappush(self._waiting, (due, next(self._order), self._peers[source], content))

    def _obey(self) -> None:
        with self._lock:
            orders, self._orders = self._orders, []
        for order in orders:
            if order == "cut":
                self._waiting.clear()
                for each in list(self._peers):
                    self._close(each)
            else:
                self._silent.update(self._peers)

    def _send(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, target, content = heapq.heappop(self._waiting)
            if target in self._peers and target not in self._silent:
                try:
                    target.sendall(content)
                except OSError:
                    self._close(target)

    def _close(self, one: socket.socket) -> None:
        other = self._peers.get(one)
        for each in (one, other):
            if each is not None and each in self._peers:
                del self._peers[each]
                self._silent.discard(each)
                self._selector.unregister(each)
                with contextlib.suppress(OSError):
                    each.close()
