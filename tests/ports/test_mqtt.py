"""Connections at a real Mosquitto: what comes, comes as lists; what is lost, comes back; what fails, says why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.errors import ConfigError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Link, Messages, Subscribed, Taken, TooLargeError, Up, Will
from edge_agent.ports.mqtt.packets import DUP, RETAIN, RefusedPublish
from tests.support.fakes import Mosquitto
from tests.support.ports.connections import Net, link

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
    net.settled(hears)
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
    net.settled(hears)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    net.until(lambda: len(net.messages(hears)) == 6)
    hears.ack([message[2] for message in net.messages(hears)])
    net.settled(hears)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    says.publish("a", b"next")
    net.until(lambda: net.messages(hears))
    assert net.payloads(hears) == [b"next"]


def test_the_receive_maximum_holds_back_what_is_not_acknowledged(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears", manual_ack=True, receive_maximum=5), "a")
    says = net.connect(link(mosquitto, "says"))
    for n in range(12):
        says.publish("a", b"%d" % n)
    net.until(lambda: net.count(says, Taken) == 12)
    net.settled(hears)
    assert len(net.messages(hears)) == 5
    hears.ack([message[2] for message in net.messages(hears)])
    net.until(lambda: len(net.messages(hears)) >= 10)  # Mosquitto 2.0.11 then sends two more than it may


def test_the_brokers_receive_maximum_is_kept_and_the_rest_waits_here(
    net: Net, brokers: Callable[..., Mosquitto]
) -> None:
    broker = brokers("max_inflight_messages 3")
    says = net.connect(link(broker, "says"))
    tokens = [says.publish("a", b"%d" % n) for n in range(50)]
    net.until(lambda: net.count(says, Taken) == 50)
    assert [taken.token for taken in net.of(says, Taken)] == tokens
    assert "receive maximum" not in broker.log.read_text().lower()


def test_the_last_will_is_published_when_a_client_vanishes_and_not_when_it_says_goodbye(
    net: Net, mosquitto: Mosquitto
) -> None:
    """protocol 4.4: a last will starts the timer."""
    hears = net.connect(link(mosquitto, "hears"), "status/+")
    will = Will("status/x", b"offline")
    polite = net.connect(link(mosquitto, "polite", will=replace(will, topic="status/polite")))
    polite.publish("status/polite", b"leaving")
    polite.close()
    net.until(lambda: "Client polite disconnected" in mosquitto.log.read_text())
    hears.publish("status/hears", b"next")
    net.until(lambda: b"next" in net.payloads(hears))
    assert net.payloads(hears) == [b"leaving", b"next"]
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


def test_a_broker_with_a_tiny_limit_gets_its_subscriptions_and_no_connect_in_vain_without_a_word(
    net: Net, brokers: Callable[..., Mosquitto]
) -> None:
    """A region connected for ever, and nothing said why."""
    broker = brokers("max_packet_size 150")
    hears = net.connect(link(broker, "hears"), *(f"hw/1/up/+/frame/region-{n}" for n in range(9)))
    net.until(lambda: sum(len(each.results) for each in net.of(hears, Subscribed)) == 9)
    assert hears.up
    says = net.connect(replace(link(broker, "says"), will=Will("w", bytes(150))), connected=False)
    net.until(lambda: any("bytes, raise its limit" in each.why for each in net.of(says, Down)))


def test_an_oversize_message_of_a_sensor_is_skipped_and_settled(net: Net, mosquitto: Mosquitto) -> None:
    local = link(mosquitto, "hears", version=4, clean_start=False, manual_ack=True, max_packet_bytes=100_000)
    hears = net.connect(local, "a")
    says = net.connect(link(mosquitto, "says", version=4))
    for payload in (b"before", bytes(3_000_000), b"after"):
        says.publish("a", payload)
    net.until(lambda: len(net.messages(hears)) == 2)
    assert net.payloads(hears) == [b"before", b"after"]
    (refused,) = net.of(hears, RefusedPublish)
    assert refused.topic == "a"
    assert "larger than 100000" in refused.why
    hears.ack([message[2] for message in net.messages(hears)])
    net.settled(hears)
    hears.close()
    net.reports[hears].clear()
    hears.open()
    says.publish("a", b"next")
    net.until(lambda: net.messages(hears))
    assert net.payloads(hears) == [b"next"]
    assert not net.of(hears, RefusedPublish)  # it does not come again for ever


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
    net.settled(hears)
    for _ in range(2):
        says.publish("a", b"no")
        says.publish("b", b"yes")
        net.until(lambda: b"yes" in net.payloads(hears))
        assert b"no" not in net.payloads(hears)
        net.reports[hears].clear()
        mosquitto.kill()
        net.until(lambda: not hears.up)
        mosquitto.start()
        net.until(lambda: net.count(hears, Subscribed) and says.up)


def test_a_filter_that_is_left_while_the_broker_is_away_is_left_in_the_session_too(
    net: Net, mosquitto: Mosquitto
) -> None:
    keeps = link(mosquitto, "hears", version=4, clean_start=False)
    hears = net.connect(keeps, "a/#", "b")
    hears.close()
    hears.unsubscribe(["a/#"])
    assert hears.leaving == ("a/#",)
    hears.open()
    net.until(lambda: hears.up and not hears.leaving)
    says = net.connect(link(mosquitto, "says"))
    says.publish("a/x", b"no")
    says.publish("b", b"yes")
    net.until(lambda: b"yes" in net.payloads(hears))
    assert b"no" not in net.payloads(hears)


def test_a_filter_is_replaced_without_a_loss_if_the_new_one_comes_first(net: Net, mosquitto: Mosquitto) -> None:
    hears = net.connect(link(mosquitto, "hears", version=4, clean_start=False), "plant/a/temp")
    says = net.connect(link(mosquitto, "says"))
    filters, sent = ["plant/a/temp", "plant/+/temp"], 0
    for n in range(20):
        for _ in range(20):
            says.publish("plant/a/temp", b"%d" % sent)
            sent += 1
        hears.subscribe({filters[(n + 1) % 2]: 1})
        hears.unsubscribe([filters[n % 2]])
        net.turn(0.001)
    net.until(lambda: len(net.messages(hears)) >= sent)
    net.settled(hears)
    assert net.payloads(hears) == [b"%d" % n for n in range(sent)]


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
    assert net.payloads(hears) == [b"good"]


@pytest.mark.parametrize("url", ["127.0.0.1:1883", "http://x:1", "mqtt://", "mqtt://x:99999", "mqtt://x/path", ""])
def test_a_url_that_names_no_broker_is_refused_with_the_form_it_wants(url: str) -> None:
    with pytest.raises(ConfigError, match="mqtt://host"):
        Connection(Link(url, "x"))


def test_paho_brings_neither_http_nor_email_and_urllib_works_where_it_is_used() -> None:
    code = (
        "import sys; import edge_agent.ports.mqtt.paho_client; "
        "print([name for name in ('http.client', 'email') if name in sys.modules]); "
        "from urllib.request import Request; print(Request('http://a/b').host, 'http.client' in sys.modules); "
        "import urllib.request; print(urllib.request.Request is Request)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:3] == ["[]", "a True", "True"]
