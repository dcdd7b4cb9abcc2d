"""Connections at a real Mosquitto: what comes, comes as lists; what is lost, comes back; what fails, says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from edge_agent.errors import ConfigError
from edge_agent.ports.mqtt import (
    DUP,
    RETAIN,
    Connection,
    Down,
    Link,
    Message,
    Messages,
    Refused,
    Report,
    Subscribed,
    Taken,
    TooLargeError,
    Up,
    Will,
)
from edge_agent.ports.waiter import Waiter
from tests.fakes import Mosquitto, free_port

QUICK = (0.05, 0.4)  # back-off of tests
LONGEST_S = 20.0
T = TypeVar("T", bound=Report)


class Net:
    """Some connections and one waiter, as a loop has them."""

    def __init__(self) -> None:
        self.waiter = Waiter()
        self.open: list[Connection] = []
        self.reports: dict[Connection, list[Report]] = {}

    def connect(self, link: Link, *filters: str, qos: int = 1) -> Connection:
        connection = Connection(replace(link, backoff_s=QUICK), seed=1)
        self.open.append(connection)
        self.reports[connection] = []
        connection.subscribe(dict.fromkeys(filters, qos))
        connection.open()
        if filters:
            self.until(lambda: self.count(connection, Subscribed) > 0)
        else:
            self.until(lambda: connection.up)
        return connection

    def turn(self, timeout_s: float = 0.05) -> None:
        self.waiter.wait(self.open, timeout_s)
        for connection in self.open:
            self.reports[connection] += connection.take()

    def until(self, done: Callable[[], object], within_s: float = LONGEST_S) -> None:
        end = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < end, self.reports
            self.turn()

    def quiet(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()

    def of(self, connection: Connection, kind: type[T]) -> list[T]:
        return [report for report in self.reports[connection] if isinstance(report, kind)]

    def count(self, connection: Connection, kind: type[Report]) -> int:
        return len(self.of(connection, kind))

    def messages(self, connection: Connection) -> list[Message]:
        return [message for report in self.of(connection, Messages) for message in report.messages]

    def payloads(self, connection: Connection) -> list[bytes]:
        return [message[1] for message in self.messages(connection)]

    def close(self) -> None:
        for connection in self.open:
            connection.close()
        self.waiter.close()


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()


def link(broker: Mosquitto, client_id: str, **more: object) -> Link:
    return replace(Link(broker.url, client_id), **more)  # type: ignore[arg-type]


pytestmark = pytest.mark.broker


@pytest.mark.parametrize("version", [5, 4])
@pytest.mark.parametrize("qos", [0, 1])
def test_messages_arrive_in_order_and_in_lists(net: Net, mosquitto: Mosquitto, version: int, qos: int) -> None:
    hears = net.connect(link(mosquitto, "hears", version=version), "a/+/b", qos=qos)
    says = net.connect(link(mosquitto, "says"))
    sent = [b"%d" % n + b"." * (n % 300) for n in range(2000)]
    for payload in sent:
        says.publish("a/x/b", payload, qos=qos)
    net.until(lambda: len(net.messages(hears)) == len(sent))
    assert net.payloads(hears) == sent
    assert {message[0] for message in net.messages(hears)} == {"a/x/b"}
    assert net.count(hears, Messages) < len(sent) / 4
    assert hears.in_bytes > sum(map(len, sent)) < says.out_bytes
    if qos:
        net.until(lambda: net.count(says, Taken) == len(sent))
        assert all(taken.ok for taken in net.of(says, Taken))
        assert says.open_publishes == 0


def test_a_large_message_arrives_whole(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears"), "big")
    says = net.connect(link(mosquitto, "says"))
    payload = bytes(range(256)) * 4000
    says.publish("big", payload)
    net.until(lambda: net.payloads(hears))
    assert net.payloads(hears) == [payload]


def test_what_was_not_acknowledged_comes_again_after_a_reconnect_and_only_that(net: Net, mosquitto: Mosquitto) -> None:
    """protocol 3.1: messages of QoS 1 are acknowledged after the commit that holds them."""
    keeps = link(mosquitto, "hears", clean_start=False, session_expiry_s=600, manual_ack=True)
    hears = net.connect(keeps, "a")
    says = net.connect(link(mosquitto, "says"))
    for n in range(10):
        says.publish("a", b"%d" % n)
    net.until(lambda: len(net.messages(hears)) == 10)
    tokens = [message[2] for message in net.messages(hears)]
    hears.ack(tokens[:4])
    net.quiet(0.2)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    net.until(lambda: len(net.messages(hears)) == 6)
    assert net.of(hears, Up)[0].session_present
    assert net.payloads(hears) == [b"%d" % n for n in range(4, 10)]
    assert all(message[3] & DUP for message in net.messages(hears))
    again = [message[2] for message in net.messages(hears)]
    assert not set(again) & set(tokens)
    hears.ack(tokens[4:])  # of the earlier connection: they mean nothing now
    net.quiet(0.2)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    net.until(lambda: len(net.messages(hears)) == 6)
    hears.ack([message[2] for message in net.messages(hears)])
    net.quiet(0.2)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    net.quiet(0.5)
    assert net.messages(hears) == []


def test_the_receive_maximum_holds_back_what_is_not_acknowledged(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears", manual_ack=True, receive_maximum=5), "a")
    says = net.connect(link(mosquitto, "says"))
    for n in range(12):
        says.publish("a", b"%d" % n)
    net.quiet(0.5)
    assert len(net.messages(hears)) == 5
    hears.ack([message[2] for message in net.messages(hears)])
    net.until(lambda: len(net.messages(hears)) >= 10)  # Mosquitto 2.0.11 then sends two more than it may


def test_the_brokers_receive_maximum_is_kept_and_the_rest_waits_here(
    net: Net, brokers: Callable[..., Mosquitto]
) -> None:
    broker = brokers("max_inflight_messages 3")
    says = net.connect(link(broker, "says"))
    tokens = [says.publish("a", b"%d" % n) for n in range(50)]
    assert says.open_publishes == 50
    net.until(lambda: net.count(says, Taken) == 50)
    assert [taken.token for taken in net.of(says, Taken)] == tokens
    assert "receive maximum" not in broker.log.read_text().lower()


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


def test_two_clients_with_one_id_slow_down_and_say_what_may_be_wrong(net: Net, mosquitto: Mosquitto) -> None:
    """Both are thrown out by each other for ever: each connect succeeds, so only our own back-off grows."""
    one = net.connect(link(mosquitto, "twin"))
    two = net.connect(link(mosquitto, "twin"))
    net.until(lambda: net.count(one, Down) + net.count(two, Down) >= 8)
    downs = net.of(one, Down) + net.of(two, Down)
    assert any("another client use 'twin'" in down.why for down in downs)
    assert max(down.retry_s for down in downs) >= 0.2


def test_the_last_will_is_published_when_a_client_vanishes_and_not_when_it_says_goodbye(
    net: Net, mosquitto: Mosquitto
) -> None:
    """protocol 4.4: a last will starts the timer."""
    hears = net.connect(link(mosquitto, "hears"), "status/+")
    will = Will("status/x", b"offline")
    polite = net.connect(link(mosquitto, "polite", will=replace(will, topic="status/polite")))
    polite.publish("status/polite", b"leaving")
    polite.close()
    net.quiet(0.3)
    assert net.payloads(hears) == [b"leaving"]
    vanishing = net.connect(link(mosquitto, "vanishing", will=will))
    with socket.socket(fileno=os.dup(vanishing.fileno())) as cable:
        cable.shutdown(socket.SHUT_RDWR)
    net.until(lambda: b"offline" in net.payloads(hears))
    late = net.connect(link(mosquitto, "late"), "status/x")
    net.until(lambda: net.messages(late))
    assert net.messages(late)[0][3] & RETAIN


def test_closing_sends_what_was_just_published(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears"), "a")
    says = net.connect(link(mosquitto, "says"))
    for n in range(200):
        says.publish("a", b"%d" % n + bytes(5000))
    says.close()
    net.until(lambda: len(net.messages(hears)) == 200)


def test_a_message_the_broker_would_choke_on_is_refused_here_and_the_next_goes_through(
    net: Net, brokers: Callable[..., Mosquitto]
) -> None:
    """Sent, it would end the connection at every attempt, and nothing behind it would ever leave."""
    broker = brokers("max_packet_size 2000")
    hears = net.connect(link(broker, "hears"), "a")
    says = net.connect(link(broker, "says"))
    with pytest.raises(TooLargeError, match="at most 2000"):
        says.publish("a", bytes(3000))
    says.publish("a", b"small")
    net.until(lambda: net.payloads(hears) == [b"small"])
    assert says.up


def test_an_oversize_message_of_a_sensor_is_skipped_and_settled(net: Net, mosquitto: Mosquitto) -> None:
    local = link(mosquitto, "hears", version=4, clean_start=False, manual_ack=True, max_packet_bytes=100_000)
    hears = net.connect(local, "a")
    says = net.connect(link(mosquitto, "says", version=4))
    for payload in (b"before", bytes(3_000_000), b"after"):
        says.publish("a", payload)
    net.until(lambda: len(net.messages(hears)) == 2)
    assert net.payloads(hears) == [b"before", b"after"]
    (refused,) = net.of(hears, Refused)
    assert refused.topic == "a"
    assert "larger than 100000" in refused.why
    hears.ack([message[2] for message in net.messages(hears)])
    net.quiet(0.2)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    net.quiet(0.5)
    assert not net.messages(hears)
    assert not net.of(hears, Refused)  # it does not come again for ever


def test_many_small_messages_are_read_together(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears", version=4, read_every_s=0.05), "a", qos=0)
    says = net.connect(link(mosquitto, "says", version=4))
    for n in range(150):
        says.publish("a", b"%d" % n, qos=0)
        net.turn(0.002)
    net.until(lambda: len(net.messages(hears)) == 150)
    assert net.count(hears, Messages) < 40


def test_a_forbidden_topic_is_reported_by_the_broker_with_its_reason(
    net: Net, brokers: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite mine/#\n")
    acl.chmod(0o644)
    says = net.connect(link(brokers(f"acl_file {acl}"), "says"))
    says.publish("mine/a", b"1")
    says.publish("yours/a", b"1")
    net.until(lambda: net.count(says, Taken) == 2)
    allowed, refused = net.of(says, Taken)
    assert allowed.ok
    assert (refused.ok, refused.code) == (False, 0x87)
    assert "authorized" in refused.reason


def test_a_filter_that_is_left_is_heard_no_more_not_even_after_a_reconnect(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears"), "a", "b")
    says = net.connect(link(mosquitto, "says"))
    hears.unsubscribe(["a", "never"])
    net.quiet(0.2)
    for _ in range(2):
        says.publish("a", b"no")
        says.publish("b", b"yes")
        net.until(lambda: b"yes" in net.payloads(hears))
        net.quiet(0.1)
        assert b"no" not in net.payloads(hears)
        net.reports[hears].clear()
        mosquitto.kill()
        net.until(lambda: not hears.up)
        mosquitto.start()
        net.until(lambda: net.count(hears, Subscribed) and says.up)


def test_an_expired_message_is_not_delivered(net: Net, mosquitto: Mosquitto) -> None:
    keeps = link(mosquitto, "hears", clean_start=False, session_expiry_s=600)
    hears = net.connect(keeps, "a")
    says = net.connect(link(mosquitto, "says"))
    hears.close()
    says.publish("a", b"stale", expiry_s=1)
    says.publish("a", b"good", expiry_s=60)
    net.quiet(2.2)
    hears.open()
    net.until(lambda: net.payloads(hears))
    net.quiet(0.2)
    assert net.payloads(hears) == [b"good"]


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


@pytest.mark.parametrize("url", ["127.0.0.1:1883", "http://x:1", "mqtt://", "mqtt://x:99999", "mqtt://x/path", ""])
def test_a_url_that_names_no_broker_is_refused_with_the_form_it_wants(url: str) -> None:
    with pytest.raises(ConfigError, match="mqtt://host"):
        Connection(Link(url, "x"))


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
    net.until(lambda: net.count(nobody, Down))
    assert not net.of(nobody, Up)


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
