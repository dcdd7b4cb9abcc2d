"""What a connection leaves to others: how long it pauses between attempts, and which publishes wait for room."""

from __future__ import annotations

import os
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.ports.mqtt.backoff import STABLE_S, Backoff
from edge_agent.ports.mqtt.connection import MOST_LEAVING, Connection
from edge_agent.ports.mqtt.dial import Dial
from edge_agent.ports.mqtt.link import Down, Link, TooLargeError
from edge_agent.ports.mqtt.outgoing import Outgoing, QueuedPublish


def test_pauses_double_up_to_the_longest_and_each_is_shortened_by_at_most_half() -> None:
    backoff = Backoff(1.0, 10.0, seed=1)
    for full_s in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert full_s / 2 <= backoff.pause_s() <= full_s


def test_two_connections_do_not_pause_alike() -> None:
    assert Backoff(1.0, 60.0, seed=1).pause_s() != Backoff(1.0, 60.0, seed=2).pause_s()


def test_only_a_connection_that_lasts_makes_the_pauses_begin_anew() -> None:
    backoff = Backoff(1.0, 60.0, seed=1)
    for _ in range(5):
        backoff.pause_s()
    assert not backoff.lived(0.1)
    assert backoff.pause_s() > 15.0
    assert backoff.lived(0.1), "the second in a row"
    assert not backoff.lived(STABLE_S)
    assert backoff.pause_s() <= 1.0
    assert not backoff.lived(0.1), "the first again"


def test_after_the_broker_ended_all_connections_the_pauses_are_drawn_from_the_whole_spread() -> None:
    backoff = Backoff(1.0, 60.0, seed=1, spread_s=30.0)
    assert backoff.pause_s() <= 1.0, "an attempt that failed tells nothing of others"
    backoff.ended_with_others(True)
    pauses = [backoff.pause_s() for _ in range(200)]
    assert min(pauses) < 2.0
    assert 29.0 < max(pauses) <= 60.0
    backoff.ended_with_others(False)
    backoff.lived(STABLE_S)
    assert backoff.pause_s() <= 1.0


def test_without_a_spread_a_connection_comes_back_at_once() -> None:
    backoff = Backoff(1.0, 60.0, seed=1)
    backoff.ended_with_others(True)
    assert backoff.pause_s() <= 1.0


@pytest.mark.parametrize(("reason", "asks"), [("Packet too large", False), ("Session taken over", True)])
def test_who_is_cut_off_again_and_again_is_asked_for_a_second_client_unless_the_broker_says_why(
    reason: str, asks: bool
) -> None:
    connection = Connection(Link("mqtt://127.0.0.1:9", "gw-1"))
    for _ in range(2):
        client: Any = SimpleNamespace()
        connection._client, connection.up, connection._since = client, True, connection._now()
        connection._on_disconnect(client, None, None, ReasonCode(PacketTypes.DISCONNECT, reason), None)
    (_, down) = connection.take()
    assert isinstance(down, Down)
    assert down.why.startswith(reason)
    assert ("does another client use 'gw-1'?" in down.why) == asks


class Broker:
    """Takes what it is sent and answers later."""

    def __init__(self) -> None:
        self.got: list[QueuedPublish] = []
        self.up = True

    def send(self, publish: QueuedPublish) -> int | None:
        self.got.append(publish)
        return len(self.got) if self.up else None


@given(st.integers(1, 5), st.lists(st.sampled_from(["add", "answer"]), max_size=40))
def test_no_more_are_open_than_the_broker_takes_and_all_leave_in_order(quota: int, steps: list[str]) -> None:
    broker, token, answered = Broker(), 0, 0
    outgoing = Outgoing(broker.send)
    outgoing.quota = quota
    for step in steps:
        if step == "add":
            token += 1
            outgoing.add(QueuedPublish(token, "t", b"", retain=False, expiry_s=None))
        elif answered < len(broker.got):
            answered += 1
            assert outgoing.answered(answered) == answered
            outgoing.send_waiting()
        assert [each.token for each in broker.got] == list(range(1, min(answered + quota, token) + 1))
        assert len(outgoing) == token - answered


def test_what_is_of_qos_0_waits_for_nothing_and_has_no_answer() -> None:
    broker = Broker()
    outgoing = Outgoing(broker.send)
    outgoing.quota = 0
    outgoing.add(QueuedPublish(0, "t", b"", retain=False, expiry_s=None))
    assert len(broker.got) == 1
    assert len(outgoing) == 0
    assert outgoing.answered(1) is None


def test_what_a_lost_connection_was_handed_is_not_open() -> None:
    broker = Broker()
    outgoing = Outgoing(broker.send)
    broker.up = False
    outgoing.add(QueuedPublish(1, "t", b"", retain=False, expiry_s=None))
    assert len(outgoing) == 0


def test_publishes_wait_for_an_answer_since_the_last_one_came() -> None:
    broker, now = Broker(), [100.0]
    outgoing = Outgoing(broker.send, lambda: now[0])
    assert outgoing.unanswered_s == 0
    for token in (1, 2):
        outgoing.add(QueuedPublish(token, "t", b"", retain=False, expiry_s=None))
        now[0] += 10
    assert outgoing.unanswered_s == 20
    outgoing.answered(1)
    now[0] += 5
    assert outgoing.unanswered_s == 5
    outgoing.answered(2)
    assert outgoing.unanswered_s == 0


def test_a_publish_that_later_ones_overtook_has_waited_since_the_first_of_them_was_answered() -> None:
    broker, now = Broker(), [100.0]
    outgoing = Outgoing(broker.send, lambda: now[0])
    for token in (1, 2, 3, 4):
        outgoing.add(QueuedPublish(token, "t", b"", retain=False, expiry_s=None))
    now[0] += 10
    for token in (2, 3):
        outgoing.answered(token)
        now[0] += 7
    assert outgoing.unanswered_s == 14
    outgoing.answered(1)  # of a broker that answers in an order of its own
    now[0] += 3
    assert outgoing.unanswered_s == 3
    outgoing.clear()
    outgoing.add(QueuedPublish(5, "t", b"", retain=False, expiry_s=None))
    now[0] += 2
    assert outgoing.unanswered_s == 2


def test_an_attempt_that_is_given_up_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it connects later: else each one would cost a socket."""
    given_up = threading.Event()
    ours, theirs = socket.socketpair()

    def connect(_: Dial) -> socket.socket:
        given_up.wait(5.0)
        return ours

    monkeypatch.setattr(Dial, "_connect", connect)
    dial = Dial(Link("mqtt://127.0.0.1:9", "gw-1"))
    dial.abandon()
    given_up.set()
    theirs.settimeout(2.0)
    assert theirs.recv(1) == b"", "closed"
    theirs.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(dial.fileno())


def test_what_a_lost_connection_had_in_flight_takes_no_place_on_the_next() -> None:
    """Nobody answers it any more; once the broker's quota is used up, nothing would be sent."""
    connection = Connection(Link("mqtt://127.0.0.1:9", "gw-1"))
    client: Any = SimpleNamespace(publish_packet=lambda *_: 7)
    connection._client, connection.up = client, True
    connection.publish("t", b"")
    assert len(connection._outgoing) == 1
    connection.renew("a test")
    assert len(connection._outgoing) == 0


def test_a_topic_counts_in_the_size_of_a_message() -> None:
    """A broker ends the connection for a packet beyond its limit, each time that it comes."""
    connection = Connection(Link("mqtt://127.0.0.1:9", "gw-1"))
    connection.maximum_packet_bytes = 100
    assert connection.publish("t", bytes(60)) is None, "not connected"
    with pytest.raises(TooLargeError):
        connection.publish("t" * 30, bytes(60))


def test_of_the_filters_that_are_left_the_latest_are_remembered() -> None:
    """A broker that does not answer, and sensors that come and go."""
    connection = Connection(Link("mqtt://127.0.0.1:9", "gw-1"))
    filters = [f"a/{n}" for n in range(2 * MOST_LEAVING)]
    connection.unsubscribe(filters)
    assert connection.leaving == tuple(filters[MOST_LEAVING:])
