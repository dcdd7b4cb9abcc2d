"""Lines at a real Mosquitto that break, go silent, are forbidden or secured, and the waiter between them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.errors import PortError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.dial import tls_context
from edge_agent.ports.mqtt.link import Down, Link, Subscribed, Taken, Up
from tests.support.fakes import Mosquitto, free_port
from tests.support.ports.connections import QUICK, Net, link

pytestmark = pytest.mark.broker


def test_a_broker_that_dies_is_found_again_and_all_is_heard_as_before(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears"), "a", "b")
    says = net.connect(link(mosquitto, "says"))
    mosquitto.kill()
    net.until(lambda: net.count(hears, Down) >= 3 and net.count(says, Down) >= 1)
    downs = net.of(hears, Down)
    assert [down.was_up for down in downs[:3]] == [True, False, False]
    assert "refused" in downs[1].why.lower()
    assert says.publish("a", b"lost") is None
    mosquitto.start()
    net.until(lambda: hears.up and says.up and net.count(hears, Subscribed) == 2)
    assert not net.of(hears, Up)[-1].session_present
    says.publish("a", b"1")
    says.publish("b", b"2")
    net.until(lambda: len(net.messages(hears)) == 2)


def test_a_broker_that_is_not_there_yet_is_waited_for_with_growing_pauses(net: Net, tmp_path: Path) -> None:
    port = free_port()
    connection = Connection(Link(f"mqtt://127.0.0.1:{port}", "early", backoff_s=QUICK), seed=3)
    net.open.append(connection)
    net.reports[connection] = []
    connection.open()
    net.until(lambda: net.count(connection, Down) >= 5)
    pauses = [down.retry_s for down in net.of(connection, Down)]
    assert pauses[0] < 0.06
    assert pauses[4] >= 0.2
    assert max(pauses) <= 0.4
    broker = Mosquitto(tmp_path, port=port)
    try:
        net.until(lambda: connection.up)
    finally:
        broker.kill()


def test_a_name_that_does_not_exist_is_a_reason_and_blocks_nobody(net: Net, mosquitto: Mosquitto) -> None:
    other = net.connect(link(mosquitto, "other"), "a")
    lost = Connection(Link("mqtt://no-such-host.invalid:1883", "lost", backoff_s=QUICK), seed=1)
    net.open.append(lost)
    net.reports[lost] = []
    lost.open()
    began = time.monotonic()
    other.publish("a", b"1")
    net.until(lambda: net.messages(other))
    assert time.monotonic() - began < 2
    net.until(lambda: net.count(lost, Down))
    assert "no-such-host.invalid" in net.of(lost, Down)[0].why


def test_a_listener_that_never_answers_is_given_up(net: Net) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        url = f"mqtt://127.0.0.1:{deaf.getsockname()[1]}"
        connection = Connection(Link(url, "patient", connect_timeout_s=0.3, backoff_s=QUICK), seed=1)
        net.open.append(connection)
        net.reports[connection] = []
        connection.open()
        net.until(lambda: net.count(connection, Down) >= 2)
        assert "no answer" in net.of(connection, Down)[0].why
        connection.close()


def test_a_peer_that_speaks_no_mqtt_is_given_up(net: Net) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)

        def answer() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError):
                    peer.recv(1000)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 20)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        connection = Connection(
            Link(f"mqtt://127.0.0.1:{server.getsockname()[1]}", "puzzled", connect_timeout_s=1, backoff_s=QUICK), seed=1
        )
        net.open.append(connection)
        net.reports[connection] = []
        connection.open()
        net.until(lambda: net.count(connection, Down) >= 2)
        assert not connection.up
        connection.close()
        thread.join(5)


@pytest.mark.parametrize("lost", ["all", "first"])
def test_a_broker_that_leaves_a_publish_unanswered_is_connected_to_anew(net: Net, lost: str) -> None:
    """Mosquitto leaves unanswered what it drops because a reader's queue is full, and goes on with what comes after."""
    connects: list[bytes] = []

    def answers(got: bytes) -> bytes:
        numbers = [got[at + 5 : at + 7] for at in range(len(got)) if got[at : at + 5] == b"\x32\x07\x00\x01t"]
        answered = [number for number in numbers if number != b"\x00\x01"] if lost == "first" else []
        return b"".join(b"\x40\x02" + number for number in answered) + b"\xd0\x00" * got.count(b"\xc0\x00")

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError):
                    connects.append(peer.recv(1000))
                    peer.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK
                    while got := peer.recv(1000):
                        peer.sendall(answers(got))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        client = Connection(Link(url, "unheard", keepalive_s=1, backoff_s=QUICK), seed=1)
        net.open.append(client)
        net.reports[client] = []
        client.open()
        net.until(lambda: client.up)
        first = client.publish("t", b"x")

        def gone() -> bool:
            client.publish("t", b"y")  # as long as it is up
            return net.count(client, Down) > 0

        net.until(gone, within_s=10)
        (down,) = net.of(client, Down)
        assert "no answer to a publish for" in down.why
        assert first not in [taken.token for taken in net.of(client, Taken)]
        assert (net.count(client, Taken) > 0) == (lost == "first")
        net.until(lambda: client.up and len(connects) == 2)
        client.close()


def test_a_publish_whose_answer_mosquitto_dropped_costs_the_connection_though_later_ones_are_answered(
    net: Net, tmp_path: Path
) -> None:
    broker = Mosquitto(tmp_path, "max_queued_messages 5")
    try:
        client, flood = (
            net.connect(link(broker, "client", keepalive_s=1), "flood", qos=0),
            net.connect(link(broker, "f")),
        )
        net.open.remove(client)  # it does not read for a while
        for _ in range(40):
            flood.publish("flood", bytes(1_000_000), qos=0)
        net.settled(flood)
        lost = client.publish("t", b"x")
        net.settled(flood)
        net.open.append(client)
        net.until(lambda: client.publish("t", b"y") is None, within_s=10)
        (down,) = net.of(client, Down)
        assert "no answer to a publish for" in down.why
        answered = [taken.token for taken in net.of(client, Taken)]
        assert answered
        assert lost not in answered
        net.until(lambda: client.up)
    finally:
        broker.stop()


def test_two_clients_with_one_id_slow_down_and_say_what_may_be_wrong(net: Net, mosquitto: Mosquitto) -> None:
    """Both are thrown out by each other for ever: each connect succeeds, so only our own back-off grows."""
    one = net.connect(link(mosquitto, "twin"))
    two = net.connect(link(mosquitto, "twin"))
    net.until(lambda: net.count(one, Down) + net.count(two, Down) >= 8)
    downs = net.of(one, Down) + net.of(two, Down)
    assert any("another client use 'twin'" in down.why for down in downs)
    assert max(down.retry_s for down in downs) >= 0.2


def test_a_link_that_went_silent_is_noticed_by_keepalive(net: Net, mosquitto: Mosquitto) -> None:
    """Half-open: no end of the connection arrives, as when a modem hangs. Detection takes two keepalives."""
    client = net.connect(link(mosquitto, "client", keepalive_s=1))
    subprocess.run(["kill", "-STOP", str(mosquitto.pid)], check=True)
    try:
        net.until(lambda: net.count(client, Down), within_s=10)
        assert net.of(client, Down)[0].was_up
    finally:
        subprocess.run(["kill", "-CONT", str(mosquitto.pid)], check=True)
    net.until(lambda: client.up)


def test_an_idle_link_stays_up_for_many_keepalives(net: Net, mosquitto: Mosquitto) -> None:
    client = net.connect(link(mosquitto, "client", keepalive_s=1))
    net.quiet(3.5)
    assert client.up
    assert not net.of(client, Down)


# --- TLS --------------------------------------------------------------------------------------------------------------


def openssl(*args: str, folder: Path) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server for 127.0.0.1, a client called gw-1, and another CA that signed nothing here."""
    assert shutil.which("openssl")
    folder = tmp_path_factory.mktemp("tls")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("ca", "other"):
        openssl("req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-days", "2", folder=folder)  # fmt: skip
    for name, extra in (("server", "subjectAltName=IP:127.0.0.1"), ("gw-1", "keyUsage=digitalSignature")):
        (folder / f"{name}.ext").write_text(extra)
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", folder=folder)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem", folder=folder)  # fmt: skip
    return folder


def test_a_certificate_is_who_one_is(net: Net, brokers: Callable[..., Mosquitto], certificates: Path) -> None:
    broker = brokers(
        f"cafile {certificates}/ca.pem",
        f"certfile {certificates}/server.pem",
        f"keyfile {certificates}/server.key",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
    )
    secure = Link(
        f"mqtts://127.0.0.1:{broker.port}",
        "gw-1",
        ca_file=certificates / "ca.pem",
        cert_file=certificates / "gw-1.pem",
        key_file=certificates / "gw-1.key",
        backoff_s=QUICK,
    )
    hears = net.connect(secure, "a")
    for n in range(300):
        hears.publish("a", b"%d" % n + bytes(10_000))
    net.until(lambda: len(net.messages(hears)) == 300)
    hears.close()
    for wrong, why in (
        (replace(secure, ca_file=certificates / "other.pem"), "certificate is not accepted"),
        (replace(secure, ca_file=certificates / "missing.pem"), "No such file"),
    ):
        connection = Connection(wrong, seed=1)
        net.open.append(connection)
        net.reports[connection] = []
        connection.open()
        net.until(lambda c=connection: net.count(c, Down))  # type: ignore[misc]
        assert why in net.of(connection, Down)[0].why
        connection.close()
    nobody = Connection(replace(secure, cert_file=None, key_file=None), seed=1)
    net.open.append(nobody)
    net.reports[nobody] = []
    nobody.open()
    net.until(lambda: net.count(nobody, Down) >= 5)
    assert not net.of(nobody, Up)
    assert {down.why for down in net.of(nobody, Down)} == {"TLS: the broker reports: certificate required"}


def test_a_file_that_tls_cannot_use_is_named(certificates: Path, tmp_path: Path) -> None:
    """`mqtts://broker: Permission denied`, or `[SSL] PEM lib (_ssl.c:3905)`, said neither which file nor what to do."""
    key, other, garbage = certificates / "gw-1.key", certificates / "other.pem", tmp_path / "garbage"
    garbage.write_bytes(b"\xff" * 100)
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:x"], check=True)
    good = Link("mqtts://127.0.0.1:1", "gw-1", ca_file=certificates / "ca.pem", cert_file=certificates / "gw-1.pem")
    assert tls_context(replace(good, key_file=key)).get_ca_certs()
    pair = f"{good.cert_file} and {{}}: wanted a certificate and its key, as PEM, without a pass phrase ("
    for wrong, why in (
        (replace(good, ca_file=garbage), f"{garbage}: wanted certificates, as PEM ("),
        (replace(good, ca_file=tmp_path), f"{tmp_path}: Is a directory"),
        (replace(good, key_file=tmp_path / "none"), f"{tmp_path}/none: No such file or directory"),
        (replace(good, key_file=other), pair.format(other)),
        (replace(good, key_file=locked), pair.format(locked)),
    ):
        with pytest.raises(PortError) as refused:
            tls_context(wrong)
        assert str(refused.value).startswith(why)


def test_a_certificate_that_comes_later_is_found_soon(
    net: Net, brokers: Callable[..., Mosquitto], certificates: Path, tmp_path: Path
) -> None:
    """A gateway starts before it is enrolled: pauses that double would keep it away long after."""
    broker = brokers(
        f"cafile {certificates}/ca.pem",
        f"certfile {certificates}/server.pem",
        f"keyfile {certificates}/server.key",
        "require_certificate true",
    )
    link = Link(
        f"mqtts://127.0.0.1:{broker.port}",
        "gw-1",
        ca_file=certificates / "ca.pem",
        cert_file=tmp_path / "gw-1.pem",
        key_file=certificates / "gw-1.key",
        backoff_s=(0.05, 60.0),
    )
    connection = Connection(link, seed=1)
    net.open.append(connection)
    net.reports[connection] = []
    connection.open()
    net.until(lambda: net.count(connection, Down) >= 8)
    assert all(down.retry_s <= 0.05 for down in net.of(connection, Down))
    assert str(tmp_path / "gw-1.pem") in net.of(connection, Down)[0].why
    shutil.copy(certificates / "gw-1.pem", tmp_path)
    net.until(lambda: net.count(connection, Up))


# --- the waiter -------------------------------------------------------------------------------------------------------


def test_a_wake_ends_the_wait_at_once(net: Net) -> None:
    timer = threading.Timer(0.1, net.waiter.wake)
    timer.start()
    began = time.monotonic()
    net.waiter.wait([], 10)
    assert 0.05 < time.monotonic() - began < 5
    net.waiter.wake()
    net.waiter.wake()
    net.waiter.wait([], 10)
    began = time.monotonic()
    net.waiter.wait([], 0.05)
    assert time.monotonic() - began >= 0.04
    timer.join()


def test_an_idle_connection_costs_no_wakeups(net: Net, mosquitto: Mosquitto) -> None:
    net.connect(link(mosquitto, "client"))
    net.quiet(0.2)
    turns = 0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        net.turn(0.5)
        turns += 1
    assert turns < 8
