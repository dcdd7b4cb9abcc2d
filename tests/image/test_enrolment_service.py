"""The service of an authority: what it answers, and peers that would keep others from it."""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from edge_agent.errors import PortError
from edge_agent.identity import service as service_module
from edge_agent.identity.authority import Authority
from edge_agent.identity.device import Device
from edge_agent.identity.service import MOST_AT_ONCE, MOST_FROM_ONE, OWN_NAME, EnrolmentService
from tests.support.waiting import eventually

SECOND = datetime.timedelta(seconds=1)


def test_without_a_certificate_nobody_renews(
    url: str, authority: Authority, device: Callable[..., Device], tmp_path: Path
) -> None:
    _, request = device("g1")._request(new=True)
    assert post(f"{url}/renew", {"request": request.decode()}, authority)[0] == 403


def test_the_service_renews_its_own_certificate(
    authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(service_module, "OWN_LIFE", -SECOND)  # as after a year
        service = EnrolmentService(authority, "127.0.0.1", 0, ("127.0.0.1",))
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        for node in ("g1", "g2"):
            device(node).ensure(f"https://127.0.0.1:{service.server_address[1]}", authority.token(node))
    finally:
        service.shutdown()
        service.server_close()
        thread.join()
    assert len([each for each in authority.issued() if each.name == OWN_NAME]) == 2, "renewed once"


def test_a_certificate_of_the_service_that_cannot_be_written_takes_no_places(
    authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection that came meanwhile kept its place for ever: after ten of one address nobody there was served."""

    tried = list[None]()

    def full(*_: object) -> None:
        tried.append(None)
        raise OSError(28, "No space left on device")

    service = EnrolmentService(authority, "127.0.0.1", 0, ("127.0.0.1",))
    service._renew_at = datetime.datetime.now(datetime.UTC)
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        monkeypatch.setattr(service_module, "_context", full)
        for _ in range(MOST_FROM_ONE + 1):
            tried.clear()
            socket.create_connection(("127.0.0.1", service.server_address[1])).close()
            eventually(lambda: tried)
        eventually(lambda: not service._peers)
        device("g1").ensure(f"https://127.0.0.1:{service.server_address[1]}", authority.token("g1"))
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


def test_a_device_speaks_to_its_own_authority_only(
    authority: Authority, device: Callable[..., Device], tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", "fleet")
    service = EnrolmentService(other, "127.0.0.1", 0, ("127.0.0.1",))
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        with pytest.raises(PortError, match="certificate is not accepted"):
            device("g1").ensure(f"https://127.0.0.1:{service.server_address[1]}", "secret")
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


def post(
    url: str, body: object, authority: Authority, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, dict[str, str]]:
    context = ssl.create_default_context(cafile=authority.folder / "ca.pem")
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, payload, dict(headers))
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as err:
        with err:
            return err.code, json.load(err)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/enrol", b"", 400),
        ("/enrol", b"[" * 10_000, 400),
        ("/enrol", {"request": "x"}, 400),
        ("/enrol", ["request", "token"], 400),
        ("/enrol", {"request": "x", "token": "t"}, 403),
        (
            "/enrol",
            {"request": "-----BEGIN CERTIFICATE REQUEST-----\nMA==\n-----END CERTIFICATE REQUEST-----", "token": "t"},
            403,
        ),
        ("/elsewhere", {"request": "x"}, 404),
    ],
    ids=str,
)
def test_a_bad_request_is_answered_and_costs_nothing(
    url: str, authority: Authority, path: str, body: object, status: int
) -> None:
    code, answer = post(url + path, body, authority)
    assert code == status
    assert set(answer) == {"why"}
    assert not [each for each in authority.issued() if each.name != "headwater-ca"]


def test_a_request_of_a_gigabyte_is_not_read(url: str, authority: Authority) -> None:
    assert post(f"{url}/enrol", b"x", authority, {"Content-Length": "1000000000"})[0] == 413
    assert post(f"{url}/enrol", b"x", authority, {"Content-Length": "many"})[0] == 413


def test_a_request_for_a_weak_key_is_refused(url: str, authority: Authority, tmp_path: Path) -> None:
    key, request = tmp_path / "key", tmp_path / "request"
    os.system(f"openssl req -new -newkey rsa:1024 -nodes -keyout {key} -subj /CN=g1 -out {request} 2>/dev/null")
    body = {"request": request.read_text(), "token": authority.token("g1")}
    assert post(f"{url}/enrol", body, authority) == (403, {"why": "wanted a request with a key of the curve P-256"})


def test_silent_peers_do_not_stop_others(url: str, authority: Authority, device: Callable[..., Device]) -> None:
    """One peer that never begins TLS holds a place, not the service; with all places taken, others come again."""
    silent = [peer(url, f"127.0.0.{2 + number % 5}") for number in range(MOST_AT_ONCE // 2)]
    began = time.monotonic()
    device("g1").ensure(url, authority.token("g1"))
    assert time.monotonic() - began < 5
    for each in silent:
        each.close()


def peer(url: str, address: str) -> socket.socket:
    """A connection to the service from an address of this machine."""
    host, _, port = url.removeprefix("https://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20.0, source_address=(address, 0))


def test_one_peer_cannot_take_all_places(url: str, authority: Authority, device: Callable[..., Device]) -> None:
    greedy = [peer(url, "127.0.0.2") for _ in range(2 * MOST_AT_ONCE)]
    began = time.monotonic()
    device("g1").ensure(url, authority.token("g1"))
    assert time.monotonic() - began < 5
    for each in greedy:
        each.close()


def test_a_place_is_free_again_behind_each_connection(url: str, authority: Authority) -> None:
    """A fleet may have one address; after some connections nobody would be served any more."""
    for _ in range(MOST_FROM_ONE + 5):
        assert post(f"{url}/elsewhere", {"request": "x"}, authority)[0] == 404


def test_a_peer_that_sends_a_byte_now_and_then_is_ended(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single wait is long, but the whole connection is."""
    monkeypatch.setattr(service_module, "DEADLINE_S", 0.5)
    context = ssl.create_default_context(cafile=authority.folder / "ca.pem")
    slow = context.wrap_socket(peer(url, "127.0.0.2"), server_hostname="127.0.0.1")
    slow.sendall(b"POST /enrol HTTP/1.1\r\nX: ")
    began, ended = time.monotonic(), False
    while not ended and time.monotonic() - began < 15:
        try:
            slow.sendall(b"a")
        except OSError:  # reset, broken pipe or the end of TLS
            ended = True
        time.sleep(0.05)
    assert ended
    slow.close()
    silent = peer(url, "127.0.0.2")  # it never begins TLS
    assert silent.recv(1) == b""
    silent.close()
    assert post(f"{url}/elsewhere", {"request": "x"}, authority)[0] == 404, "the places are free again"


@pytest.mark.parametrize("address", ["::1", "::"])
def test_the_service_listens_on_an_address_of_ipv6(authority: Authority, address: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    service = EnrolmentService(authority, address, 0, ("ca.example",))
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        for host in ("::1", "127.0.0.1") if address == "::" else ("::1",):
            socket.create_connection((host, service.server_address[1]), timeout=5.0).close()
    finally:
        service.shutdown()
        service.server_close()
        thread.join()
