"""The HTTPS service of an authority.

`POST /enrol` takes {"token", "request"}. `POST /renew` takes {"request"} from a client with a valid certificate of this
authority. Both answer {"certificate"}, or {"why"} with status 403. Requests are PEM texts.
"""

from __future__ import annotations

import datetime
import json
import logging
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any, Final

from edge_agent.errors import PortError
from edge_agent.identity.authority import MAX_REQUEST_BYTES, Authority, RefusedError

log = logging.getLogger("headwater.ca")

PATIENCE_S: Final = 10.0  # for a whole request: who is slower holds a thread
MOST_AT_ONCE: Final = 50  # threads; a fleet that renews does not come in one second, and comes again
OWN_NAME: Final = "headwater-ca"
OWN_LIFE: Final = datetime.timedelta(days=365)


class EnrolmentService(ThreadingHTTPServer):
    """Serves until `shutdown`. hosts: names and addresses by which devices reach it; its certificate contains them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, authority: Authority, address: str, port: int, hosts: tuple[str, ...]) -> None:
        """Raises: PortError if the address is taken."""
        self.authority = authority
        self._places = threading.Semaphore(MOST_AT_ONCE)
        self._context = _context(authority, hosts)
        try:
            super().__init__((address, port), _Handler)
        except OSError as err:
            raise PortError(f"{address}:{port}: {err.strerror}; is the service running already?") from err

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle each request in a thread of its own, up to a limit; others are closed at once and try again."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Negotiate TLS here, not in the accepting thread: a silent peer then blocks one thread, not the service."""
        try:
            request.settimeout(PATIENCE_S)
            try:
                secure = self._context.wrap_socket(request, server_side=True)
            except OSError:  # ssl.SSLError too: not our protocol, or not our certificates
                self.shutdown_request(request)
                return
            super().process_request_thread(secure, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Log one line without traceback: a peer that disconnects is no error of ours."""
        log.warning("request.failed", extra={"peer": str(client_address[0])}, exc_info=False)


class _Handler(BaseHTTPRequestHandler):
    server: EnrolmentService
    server_version = "headwater-ca"
    sys_version = ""
    timeout = PATIENCE_S

    def do_POST(self) -> None:
        """Enrol or renew."""
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if not 0 <= size <= MAX_REQUEST_BYTES:
            self._answer(413, {"why": f"a request has at most {MAX_REQUEST_BYTES} bytes, and says how many"})
            return
        try:
            body = json.loads(self.rfile.read(size))
            request = str(body["request"]).encode()
            if self.path == "/enrol":
                certificate = self.server.authority.enrol(str(body["token"]), request)
            elif self.path == "/renew":
                certificate = self.server.authority.renew(self._serial(), request)
            else:
                self._answer(404, {"why": "there are /enrol and /renew"})
                return
        except (ValueError, KeyError, TypeError, RecursionError):
            self._answer(400, {"why": 'wanted JSON with "request", and "token" to enrol'})
        except RefusedError as err:
            log.warning("request.refused", extra={"peer": self.client_address[0], "why": str(err)})
            self._answer(403, {"why": str(err)})
        except PortError as err:
            log.error("request.failed", extra={"why": str(err)})
            self._answer(503, {"why": "the authority cannot write; try again"})
        else:
            log.info("request.done", extra={"peer": self.client_address[0], "what": self.path[1:]})
            self._answer(200, {"certificate": certificate.decode()})

    def _serial(self) -> str:
        """The serial of the peer's certificate, whose signature and date TLS has checked; '' if there is none."""
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
        """Log nothing here: important events are logged elsewhere, without tokens."""


def _context(authority: Authority, hosts: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # a device that enrols has none yet
    context.load_verify_locations(authority.folder / "ca.pem")
    key, certificate = authority.key_pair(OWN_NAME, hosts, OWN_LIFE)  # anew at each start: nothing to renew or to keep
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "own.pem"  # the ssl module reads keys from files only
        file.touch(0o600)
        file.write_bytes(key + certificate)
        context.load_cert_chain(file)
    return context
