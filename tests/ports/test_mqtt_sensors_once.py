"""Each message of a local sensor counts once, whatever connection or restart repeats it."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Confirmed, Link, Messages, Subscribed, Up
from edge_agent.ports.mqtt.packets import DUP
from edge_agent.ports.sensors import mqtt as driver
from edge_agent.ports.sensors.mqtt import QUIET_US, MqttSensors
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import readings, snapshot
from tests.support.fakes import BEGIN_US, Mosquitto
from tests.support.ports.sensor_hub import Hub, message, sensor, token


def test_senders_that_wait_for_acknowledgements_are_not_kept_waiting() -> None:
    """protocol 3.1: the commit comes early when some wait and none has come for a while."""
    hub = Hub(sensor("a", "t", qos=1))
    hub.sensors.feed([message("t", b"1", token(1))], BEGIN_US)
    hub.sensors.feed([message("t", b"2", token(2))], BEGIN_US + 60_000)
    assert hub.sensors.due_us(BEGIN_US + 60_000, 10**6) == BEGIN_US + 60_000 + QUIET_US
    hub.sensors.poll(BEGIN_US + 200_000)
    hub.sensors.feed([message("t", b"3")], BEGIN_US + 200_000)
    assert hub.sensors.due_us(BEGIN_US + 200_000, 10**6) == BEGIN_US + 1_200_000


def test_tokens_ride_with_the_last_read_of_a_poll_and_are_acknowledged_after_the_commit() -> None:
    """protocol 3.1: a message two sensors read is acknowledged when both have it in a commit."""
    hub = Hub(sensor("a", "t", qos=1), sensor("b", "t", qos=1), sensor("c", "c", qos=0))
    one, two = hub.reads(message("t", b"1", token(5)), message("t", b"2", token(6)))
    assert (one.token, two.token) == (None, (token(5), token(6)))
    assert len(hub.sensors._open) == 2
    assert hub.sensors.settled() == []
    assert hub.sensors.acknowledge([two.token]) == [token(5), token(6)]
    assert not hub.sensors._open


def test_what_holds_no_reading_is_acknowledged_all_the_same() -> None:
    hub = Hub(sensor("a", "t", qos=1))
    reads = hub.reads(message("t", b"bad", token(5)), message("foreign", b"1", token(6)))
    assert hub.sensors.settled() == [token(6)]
    assert [len(read.batch.value) for read in reads] == [0]
    assert hub.sensors.acknowledge([reads[0].token]) == [token(5)]


def test_after_a_restart_what_the_committed_position_names_is_not_read_again() -> None:
    """protocol 3.1: positions are committed with the readings; kill -9 between commit and acknowledgement."""
    definition = sensor("a", "t", qos=1)
    before = Hub(definition)
    (read,) = before.reads(message("t", b"1", token(1)), message("t", b"2", token(2)))
    position = snapshot.loads(snapshot.dumps(read.position))
    after = Hub(definition, positions={"a": position})
    after.sensors.session(present=True)
    rows = after.rows(
        message("t", b"1", token(1, 9), DUP),
        message("t", b"2", token(2, 9), DUP),
        message("t", b"3", token(3, 9), DUP),  # read before the kill, never committed
        message("t", b"1", token(4, 9)),  # the same number, newly measured
    )
    assert [row[2] for row in rows] == [3.0, 1.0]
    assert after.sensors.settled() == [token(1, 9), token(2, 9)]
    assert after.counts("a")["repeated"] == 2


def test_a_lost_session_makes_packet_ids_mean_nothing() -> None:
    definition = sensor("a", "t", qos=1)
    (read,) = Hub(definition).reads(message("t", b"1", token(1)))
    after = Hub(definition, positions={"a": read.position})
    after.sensors.session(present=False)
    assert len(after.rows(message("t", b"1", token(1, 9), DUP))) == 1


def test_a_message_of_a_lost_session_that_waits_for_its_commit_swallows_no_message_of_the_next_session() -> None:
    """protocol 3.1: the broker begins its packet ids again, and many payloads of a device are equal."""
    hub = Hub(sensor("a", "t", qos=1))
    (read,) = hub.reads(message("t", b"1", token(1, 1)))
    hub.sensors.session(present=False)
    (other,) = hub.reads(message("t", b"2", token(2, 2)))
    assert other.position["id"].tolist() == [2]  # type: ignore[index]
    hub.sensors.session(present=True)
    assert len(hub.rows(message("t", b"1", token(1, 3), DUP))) == 1  # sent before, first seen now
    assert hub.sensors.acknowledge([read.token, other.token]) == [token(1, 1), token(2, 2)]
    hub.sensors.session(present=True)
    assert hub.rows(message("t", b"2", token(2, 4), DUP)) == []


def test_a_message_repeated_on_a_new_connection_before_its_commit_counts_once_and_both_tokens_are_answered() -> None:
    hub = Hub(sensor("a", "t", qos=1))
    (read,) = hub.reads(message("t", b"1", token(1, 1)))
    hub.sensors.session(present=True)
    assert hub.rows(message("t", b"1", token(1, 2), DUP)) == []
    assert hub.sensors.settled() == []  # not durable yet
    assert hub.sensors.acknowledge([read.token]) == [token(1, 1), token(1, 2)]
    hub.sensors.session(present=True)
    assert hub.rows(message("t", b"1", token(1, 3), DUP)) == []  # its PUBACK was lost
    assert hub.sensors.settled() == [token(1, 3)]


def test_what_the_broker_has_confirmed_is_forgotten_so_that_its_packet_id_may_be_used_again() -> None:
    hub = Hub(sensor("a", "t", qos=1))
    (read,) = hub.reads(message("t", b"1", token(1)), message("t", b"2", token(2)))
    hub.sensors.acknowledge([read.token])
    hub.sensors.confirmed([token(1)])
    (read,) = hub.reads(message("t", b"9", token(9)))
    assert sorted(read.position["id"]) == [2, 9]  # type: ignore[index]
    hub.sensors.session(present=True)
    assert len(hub.rows(message("t", b"1", token(1, 2), DUP))) == 1  # another message with the old id, first seen now
    hub.sensors.confirmed([])  # the broker repeats no more
    assert len(hub.rows(message("t", b"2", token(2, 2), DUP))) == 1


def test_messages_that_the_broker_never_confirms_are_remembered_up_to_the_number_of_packet_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a token of its own, because each connection has its own tokens."""
    monkeypatch.setattr(driver, "MOST_IDS", 10)
    hub = Hub(sensor("a", "t", qos=1))
    for generation in range(1, 101):
        (read,) = hub.reads(message("t", b"1", token(5, generation)))
        hub.sensors.acknowledge([read.token])
    (source,) = hub.sensors._sources.values()
    assert list(source.acked) == [token(5, generation) for generation in range(91, 101)]


def test_a_sensor_that_is_configured_again_still_knows_what_it_read() -> None:
    hub = Hub(sensor("a", "t", qos=1))
    (read,) = hub.reads(message("t", b"1", token(1)))
    hub.sensors.configure([sensor("a", "t", qos=1, labels={"x": "y"})], {})
    assert hub.sensors.acknowledge([read.token]) == [token(1)]
    hub.sensors.session(present=True)
    assert hub.rows(message("t", b"1", token(1, 2), DUP)) == []


def test_a_sensor_of_qos_0_that_shares_a_subscription_of_qos_1_reads_nothing_twice() -> None:
    """protocol 3.1: overlapping filters become one subscription, of the higher QoS."""
    definitions = sensor("a", "plant/#", qos=1), sensor("b", "plant/+/temp", qos=0)
    before = Hub(*definitions)
    assert before.sensors.filters == {"plant/#": 1}
    reads = before.reads(message("plant/x/temp", b"1", token(7)))
    positions = {read.sensor: snapshot.loads(snapshot.dumps(read.position)) for read in reads}
    after = Hub(*definitions, positions=positions)
    after.sensors.session(present=True)
    assert after.rows(message("plant/x/temp", b"1", token(7, 2), DUP)) == []


def test_a_sensor_of_qos_0_replaces_a_position_that_means_nothing_any_more_and_writes_none_without_need() -> None:
    """An old packet id would swallow another message that has it now."""
    alone = Hub(sensor("b", "plant/+/temp", qos=0))
    (read,) = alone.reads(message("plant/x/temp", b"1"))
    assert read.position is None  # it would be one more write of each commit
    shared = sensor("a", "plant/#", qos=1), sensor("b", "plant/+/temp", qos=0)
    hub = Hub(*shared)
    last = hub.reads(message("plant/x/temp", b"1", token(7)))[-1]
    hub.sensors.acknowledge([last.token])
    hub.sensors.confirmed([token(7)])
    (read,) = hub.reads(message("plant/x/temp", b"2"))[1:]
    assert read.position["id"].tolist() == []  # type: ignore[index]
    again = Hub(*shared, positions={last.sensor: last.position})
    again.sensors.session(present=True)
    again.sensors.confirmed([])
    (read,) = again.reads(message("plant/x/temp", b"3"))[1:]
    assert read.position["id"].tolist() == []  # type: ignore[index]


def test_a_kill_between_the_two_batches_of_an_unknown_clock_loses_neither_and_repeats_neither() -> None:
    """Batches with times of their own and bare numbers in one poll: there may be a commit between them."""
    definition = sensor("a", "t", qos=1)
    before = Hub(definition)
    before.clock.synced = False
    batch = readings.encode(np.array([BEGIN_US]), np.array([1.0]))
    before.reads(message("t", b"5", token(1)))  # in the machine, not acknowledged
    dated, undated = before.reads(
        message("t", batch, token(2)), message("t", b"5", token(3)), message("t", b"7", token(4))
    )
    assert (dated.since_boot, undated.since_boot) == (False, True)
    for committed, again in ((dated, [5.0, 7.0]), (undated, [])):
        after = Hub(definition, positions={"a": snapshot.loads(snapshot.dumps(committed.position))})
        after.sensors.session(present=True)
        repeated = [message("t", p, token(n, 9), DUP) for n, p in ((1, b"5"), (2, batch), (3, b"5"), (4, b"7"))]
        assert [row[2] for row in after.rows(*repeated)] == again


class Agent:
    """A gateway's local side in miniature: connection, sensors, commits to memory; it may die at any moment."""

    def __init__(self, broker: Mosquitto, disk: dict[str, Any], waiter: Waiter) -> None:
        self.disk, self.waiter = disk, waiter
        self.hub = MqttSensors(SystemClock())
        self.hub.configure([sensor("s", "s", qos=1)], {"s": disk.get("position")})
        self.subscribed = False
        self.connection = Connection(
            Link(
                broker.url,
                "gw-sensors",
                version=4,
                clean_start=False,
                manual_ack=True,
                confirm_acks=True,
                backoff_s=(0.05, 0.2),
            ),
            seed=1,
        )
        self.connection.subscribe(self.hub.filters)
        self.connection.open()

    def turn(self) -> None:
        self.waiter.wait([self.connection], 0.02)
        for report in self.connection.take():
            match report:
                case Up():
                    self.hub.session(report.session_present)
                case Subscribed():
                    self.subscribed = True
                case Confirmed(tokens):
                    self.hub.confirmed(tokens)
                case Messages(messages):
                    self.hub.feed(messages, time.time_ns() // 1000)
        self.connection.ack(self.hub.settled())

    def commit(self) -> list[object]:
        reads = self.hub.poll(time.time_ns() // 1000)
        for read in reads:
            self.disk["values"] = self.disk.get("values", []) + read.batch.value.tolist()
            self.disk["position"] = snapshot.loads(snapshot.dumps(read.position))
        return [read.token for read in reads if read.token]

    def acknowledge(self, tokens: list[object]) -> None:
        self.connection.ack(self.hub.acknowledge(tokens))

    def die(self) -> None:
        """kill -9: the kernel closes the socket, nothing is said."""
        if self.connection._stream is not None:
            self.connection._stream.close()
            self.connection._stream = self.connection._client = None


@pytest.mark.broker
def test_no_reading_of_qos_1_is_lost_or_counted_twice_though_the_agent_is_killed_anywhere(mosquitto: Mosquitto) -> None:
    """protocol 3.1, with kills before the commit, between commit and acknowledgement, and after it."""
    rng = random.Random(7)
    waiter = Waiter()
    disk: dict[str, Any] = {}
    agent = Agent(mosquitto, disk, waiter)
    says = Connection(Link(mosquitto.url, "device", version=4), seed=2)
    says.open()
    until = time.monotonic() + 10
    while not (says.up and agent.subscribed) and time.monotonic() < until:
        waiter.wait([says], 0.01)
        agent.turn()
    sent, kills, quiet = 0, 0, 0
    until = time.monotonic() + 30
    while time.monotonic() < until and quiet < 10:
        if sent < 600:
            for _ in range(rng.randrange(12)):
                says.publish("s", b"%d" % (sent % 50))  # many equal payloads
                sent += 1
        waiter.wait([says], 0.001)
        agent.turn()
        tokens: list[object] = []
        where = rng.randrange(8) if sent < 600 else 9
        if where != 0:
            tokens = agent.commit()
        if where > 1:
            agent.acknowledge(tokens)
        if where < 3:
            agent.die()
            kills += 1
            agent = Agent(mosquitto, disk, waiter)
        quiet = quiet + 1 if sent >= 600 and agent.connection.up and not tokens and len(disk["values"]) >= sent else 0
    agent.connection.close()
    says.close()
    waiter.close()
    assert kills > 5
    assert len(disk["values"]) == sent
    assert sorted(disk["values"]) == sorted(float(n % 50) for n in range(sent))
