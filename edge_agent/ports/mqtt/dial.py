"""Resolves the broker's name and connects TCP and TLS in a thread, because these calls may block for long."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Final

from edge_agent.errors import PortError
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.mqtt.socket_stream import error_text

LONGEST_PASSWORD: Final = 65_535  # bytes that fit into CONNECT (MQTT 5.0 section 1.5.6)
MOST_READ_BYTES: Final = 2 * LONGEST_PASSWORD  # of its file, with white space: /dev/zero has no end


class Dial:
    """One connection attempt. When it is done, `fileno` becomes readable; then call `take`. To give up: `abandon`."""

    def __init__(self, link: Link) -> None:
        self.why = ""
        self.local = False  # a file on this machine is missing; the broker saw no attempt
        self.password: str | None = None  # from the password file
        self._link = link
        self._sock: socket.socket | None = None
        self._done = self._abandoned = False
        self._guard = threading.Lock()
        self._ready, self._signal = os.pipe()
        threading.Thread(target=self._run, name=f"dial-{link.client_id}", daemon=True).start()

    def fileno(self) -> int:
        return self._ready

    @property
    def done(self) -> bool:
        with self._guard:
            return self._done

    def take(self) -> socket.socket | None:
        """The connected, non-blocking socket, or None with the reason in `why`. Call it once, when done."""
        os.close(self._ready)
        return self._sock

    def abandon(self) -> None:
        """Give up the attempt. Its socket is closed, even if it connects later."""
        with self._guard:
            self._abandoned = True
            if self._done:
                self._throw_away()

    def _throw_away(self) -> None:
        os.close(self._ready)
        if self._sock is not None:
            self._sock.close()

    def _run(self) -> None:
        sock: socket.socket | None = None
        try:
            sock = self._connect()
        except ssl.SSLCertVerificationError as err:
            self.why = f"{self._link.url}: the certificate is not accepted: {err.verify_message}"
        except ssl.SSLError as err:
            self.why = f"{self._link.url}: {error_text(err)}"
        except PortError as err:
            self.why, self.local = str(err), isinstance(err.__cause__, FileNotFoundError)
        except OSError as err:
            self.why = f"{self._link.url}: {err.strerror or err}"
        except Exception as err:  # such as an invalid host name: the thread must report every error
            self.why = f"{self._link.url}: {type(err).__name__}: {err}"
        with self._guard:
            self._sock, self._done = sock, True
            if self._abandoned:
                self._throw_away()
            os.close(self._signal)  # makes `fileno` readable

    def _connect(self) -> socket.socket:
        link = self._link
        host, port, tls = link.address()
        # files first, so that a missing one causes no connection
        self.password = None if link.password_file is None else read_password(link.password_file)
        context = tls_context(link) if tls else None
        name: Any = host.encode() if host.isascii() else host  # a str would load the codec idna: 0.4 MB
        sock = socket.create_connection((name, port), timeout=link.connect_timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # receipts and small frames should not wait
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise
        sock.setblocking(False)
        return sock


def tls_context(link: Link) -> ssl.SSLContext:
    """The settings of TLS with the link's files. Raises: PortError, which names the file; ssl names none."""
    files, wanted = [link.ca_file], "wanted certificates, as PEM"
    try:
        context = ssl.create_default_context(cafile=link.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if link.cert_file is not None:
            files = [link.cert_file, link.key_file]
            wanted = "wanted a certificate and its key, as PEM, without a pass phrase"
            context.load_cert_chain(link.cert_file, link.key_file, password=str)  # '': without it ssl asks the terminal
    except (OSError, ValueError) as err:
        used = [Path(file) for file in files if file is not None]
        for file in used:
            try:
                file.open("rb").close()
            except OSError as closed:
                raise PortError(f"{file}: {closed.strerror or closed}") from closed
        names = " and ".join(map(str, used))
        raise PortError(f"{names}: {wanted} ({getattr(err, 'reason', None) or err})") from err
    return context


def read_password(file: Path) -> str:
    """The password in a file, without white space around it.

    Raises: PortError, which names the file and never shows its content.
    """
    try:
        with file.open("rb") as opened:
            password = opened.read(MOST_READ_BYTES).decode().strip()
    except OSError as err:
        raise PortError(f"{file}: {err.strerror or err}") from err
    except ValueError:  # not as the cause, because it contains the bytes
        raise PortError(f"{file}: the password is not text in UTF-8") from None
    if len(password.encode()) > LONGEST_PASSWORD:
        raise PortError(f"{file}: the password is longer than {LONGEST_PASSWORD} bytes")
    return password
