"""The HTTPS service of an authority.

`POST /enrol` takes JSON with "token" and "request". `POST /renew` takes "request", from a client with a valid
certificate of this authority. Both answer with "certificate", or with status 403 and "why". "request" and "certificate"
are PEM texts.
"""

from __future__ import annotations

import datetime
import json
import logging
import ssl
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, SHUT_RDWR, socket
from typing import Any, Final

from cryptography import x509

from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.authority import MAX_REQUEST_BYTES, Authority, RefusedError, end_of

log = logging.getLogger("headwater.ca")

PATIENCE_S: Final = 10.0  # timeout of socket operations, because a slow client occupies a thread
DEADLINE_S: Final = 20.0  # of a connection from beginning to end, as a node waits: else one byte now and then holds it
MOST_AT_ONCE: Final = 50  # threads; enough, because renewals of a fleet are spread over time, and nodes retry
MOST_FROM_ONE: Final = 10  # connections of one address, so that one peer cannot take all places
OWN_NAME: Final = "headwater-ca"
OWN_LIFE: Final = datetime.timedelta(days=365)
RENEW_AT: Final = 2 / 3  # of the life of its own certificate


class EnrolmentService(ThreadingHTTPServer):
    """The server. hosts: names and addresses by which devices reach it, for its certificate."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, authority: Authority, address: str, port: int, hosts: tuple[str, ...]) -> None:
        """Bind the address and port. Raises: PortError if they are in use, ConfigError for a wrong host or address."""
        self.authority = authority
        self._lock = threading.Lock()
        self._peers = Counter[str]()  # address -> its connections
        self._open: dict[socket, float] = {}  # connection -> when it is ended, in seconds of the monotonic clock
        self._hosts = hosts
        self._renew()
        if ":" in address:
            self.address_family = AF_INET6
        try:
            super().__init__((address, port), _Handler)
        except TypeError as err:  # of the socket module, for a name that cannot be encoded
            raise ConfigError(f"--address {address!r}: wanted an address of this machine, like 0.0.0.0") from err
        except OSError as err:
            raise PortError(f"{address}:{port}: {err.strerror}; is the service running already?") from err

    def server_bind(self) -> None:
        """Bind the socket. On `::` devices with IPv4 are served too, whatever the machine's default is."""
        if self.address_family == AF_INET6:
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle each connection in its own thread. Beyond the bounds, close it at once: the device retries."""
        peer = str(client_address[0])
        with self._lock:
            full = self._peers.total() >= MOST_AT_ONCE or self._peers[peer] >= MOST_FROM_ONE
            if not full:
                self._peers[peer] += 1
        if full:
            self.shutdown_request(request)
            return
        if datetime.datetime.now(datetime.UTC) >= self._renew_at:
            try:
                self._renew()
            except (OSError, PortError, RefusedError) as err:
                # such as a full disk; the certificate may still be valid, and the next connection tries again
                log.error("certificate.failed", extra={"why": str(err)})
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._leave(peer)
            raise

    def service_actions(self) -> None:
        """End connections that took too long. `serve_forever` calls it about twice a second."""
        now_s = time.monotonic()
        with self._lock:
            for connection in [each for each, until_s in self._open.items() if now_s > until_s]:
                del self._open[connection]
                with suppress(OSError):
                    socket.shutdown(connection, SHUT_RDWR)  # of the socket, not of TLS: another thread reads it

    def shutdown_request(self, request: Any) -> None:
        """Close a connection. It is forgotten before, so that `service_actions` never meets a closed one."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _leave(self, peer: str) -> None:
        """Free the place of a connection."""
        with self._lock:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def _renew(self) -> None:
        """Make a certificate for this service. Raises: PortError, and ConfigError for a wrong host."""
        now = datetime.datetime.now(datetime.UTC)
        self._context, until = _context(self.authority, self._hosts)
        self._renew_at = now + (until - now) * RENEW_AT

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Negotiate TLS in this thread, not in the accepting one, so that a silent peer cannot block the service."""
        try:
            request.settimeout(PATIENCE_S)
            try:
                secure = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the peer is gone already
                self.shutdown_request(request)
                return
            with self._lock:
                self._open[secure] = time.monotonic() + DEADLINE_S
            try:
                secure.do_handshake()
            except OSError:  # includes ssl.SSLError: another protocol, or a certificate of another authority
                self.shutdown_request(secure)
                return
            super().process_request_thread(secure, client_address)
        finally:
            self._leave(str(client_address[0]))

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Log one line without traceback, because a peer that disconnects is not our error."""
        log.warning("request.failed", extra={"peer": str(client_address[0])}, exc_info=False)


class _Handler(BaseHTTPRequestHandler):
    server: EnrolmentService
    server_version = "headwater-ca"
    sys_version = ""
    timeout = PATIENCE_S

    def do_POST(self) -> None:
        """Handle /enrol and /renew."""
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if not 0 <= size <= MAX_REQUEST_BYTES:
            self._answer(413, {"why": f"wanted a Content-Length of at most {MAX_REQUEST_BYTES} bytes"})
            return
        try:
            body = json.loads(self.rfile.read(size))
            request = str(body["request"]).encode()
            if self.path == "/enrol":
                certificate = self.server.authority.enrol(str(body["token"]), request)
            elif self.path == "/renew":
                certificate = self.server.authority.renew(self._serial(), request)
            else:
                self._answer(404, {"why": f"unknown path {self.path[:60]}; there are /enrol and /renew"})
                return
        except (ValueError, KeyError, TypeError, RecursionError):
            self._answer(400, {"why": 'wanted JSON with "request", and for /enrol also "token"'})
        except RefusedError as err:
            log.warning("request.refused", extra={"peer": self.client_address[0], "why": str(err)})
            self._answer(403, {"why": str(err)})
        except PortError as err:
            log.error("request.failed", extra={"why": str(err)})
            self._answer(503, {"why": "the authority cannot write its files; try again later"})
        else:
            log.info("request.done", extra={"peer": self.client_address[0], "what": self.path[1:]})
            self._answer(200, {"certificate": certificate.decode()})

    def _serial(self) -> str:
        """The serial of the peer's certificate, '' if it has none. TLS has already checked signature and dates."""
        assert isinstance(self.connection, ssl.SSLSocket)
        peer = self.connection.getpeercert() or {}
        return str(peer.get("serialNumber", ""))

    def _answer(self, status: int, body: dict[str, str]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Suppress the base class's log lines. Events are logged above, without tokens."""


def _context(authority: Authority, hosts: tuple[str, ...]) -> tuple[ssl.SSLContext, datetime.datetime]:
    """(TLS with a new certificate, end of its validity)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # a device that enrols has no certificate yet
    context.load_verify_locations(authority.folder / "ca.pem")
    key, certificate = authority.key_pair(OWN_NAME, hosts, OWN_LIFE)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "own.pem"  # the ssl module reads keys only from files
        file.touch(0o600)
        file.write_bytes(key + certificate)
        context.load_cert_chain(file)
    return context, end_of(x509.load_pem_x509_certificate(certificate))
