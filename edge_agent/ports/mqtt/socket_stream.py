"""The socket of one connection, read in large pieces; paho receives only the packets meant for it."""

from __future__ import annotations

import socket
import ssl
from mmap import mmap
from typing import Final

from edge_agent.ports.mqtt.packets import Splitter

READ_BYTES: Final = 256 * 1024  # one read: thousands of small messages, or a few large ones
READS_A_TURN: Final = 4  # after these reads other connections are served
# As many messages end the reads of a turn, too. A burst of small ones took 7 MB at once, and memory for small objects
# is hardly ever returned to the system.
MESSAGES_A_TURN: Final = 4_096
ALERT: Final = "_ALERT_"  # in the reason of an error that the peer reported, such as TLSV13_ALERT_CERTIFICATE_REQUIRED


def error_text(err: OSError) -> str:
    """An error of a socket in words; of TLS also what the broker reports."""
    if not isinstance(err, ssl.SSLError):
        return err.strerror or str(err)
    reason = err.reason or str(err)
    _, alert, words = reason.partition(ALERT)
    return f"TLS: the broker reports: {words.replace('_', ' ').lower()}" if alert else f"TLS: {reason}"


class SocketStream:
    """The socket object that paho uses: `recv` returns only packets meant for paho, `send` writes to the real socket.

    buffer: at least READ_BYTES long; the owner reuses it for its next connection.
    """

    def __init__(self, sock: socket.socket, splitter: Splitter, buffer: bytearray | mmap) -> None:
        self.sock = sock
        self.splitter = splitter
        self.ready = b""  # whole packets that paho has not read yet
        self.ended = False
        self.why = ""  # the error of the socket that ended the connection
        self.more = False  # reading stopped before the socket was empty
        self.in_bytes = 0
        self.out_bytes = 0
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._tls = isinstance(sock, ssl.SSLSocket)

    def read(self) -> tuple[int, bytes]:
        """Read available bytes. PUBLISH packets go to the splitter. Returns (number of bytes read, other packets)."""
        others: list[bytes] = []
        got = 0
        self.more = False
        for _ in range(READS_A_TURN):
            try:
                size = self.sock.recv_into(self._buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as err:
                self.why = self.why or error_text(err)
                size = 0
            if size == 0:
                self.ended = True
                break
            got += size
            others.append(self.splitter.feed(bytes(self._view[:size])))
            if size < READ_BYTES and not self._tls:  # TLS returns one record at a time, even if more wait
                break
            if len(self.splitter.messages) >= MESSAGES_A_TURN:
                self.more = True
                break
        else:
            self.more = True
        self.in_bytes += got
        return got, b"".join(others)

    def recv(self, size: int) -> bytes:
        """Called by paho. Returns b'' at the end of the connection. Raises: BlockingIOError if no packet is ready."""
        piece, self.ready = self.ready[:size], self.ready[size:]
        if not piece and not self.ended:
            raise BlockingIOError
        return piece

    def send(self, data: bytes | bytearray) -> int:
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as err:
            self.why = self._alert() or error_text(err)
            raise
        self.out_bytes += sent
        return sent

    def _alert(self) -> str:
        """Why the broker has closed a TLS connection; '' if it did not say. Writing reports only that it is closed."""
        if self._tls:
            try:
                self.sock.recv_into(self._buffer)
            except ssl.SSLError as err:
                return error_text(err) if ALERT in (err.reason or "") else ""
            except OSError:
                pass
        return ""

    def close(self) -> None:
        self.sock.close()

    def fileno(self) -> int:
        return self.sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self.sock.setblocking(flag)
