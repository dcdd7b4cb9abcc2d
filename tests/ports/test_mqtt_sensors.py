"""Sensors on a local broker: the payloads people already have become batches; each message counts once."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query import Sensor
from edge_agent.machines.events import Read
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.link import Confirmed, Link, Messages, Subscribed, Up
from edge_agent.ports.mqtt import Connection
from edge_agent.ports.packets import DUP, RETAIN, Message
from edge_agent.ports.sensors.mqtt import MOST_MESSAGES, QUIET_US, MqttSensors
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import readings, snapshot
from tests.fakes import BEGIN_US, FakeClock, Mosquitto


def sensor(
    name: str, topic: str, *, labels: dict[str, str] | None = None, scale: int | None = None, **more: Any
) -> Sensor:
    options = tuple({"topic": topic, "qos": 0, **more}.items())
    return Sensor(name, 1, "mqtt", options, labels=tuple((labels or {}).items()), scale=scale)


class Hub:
    """MqttSensors with a clock that stands still."""

    def __init__(self, *sensors: Sensor, positions: dict[str, object] | None = None) -> None:
        self.clock = FakeClock()
        self.sensors = MqttSensors(self.clock)
        self.sensors.configure(sensors, positions or {})

    def reads(self, *messages: Message) -> list[Read]:
        self.sensors.feed(messages, self.clock.us)
        return self.sensors.poll(self.clock.us)

    def rows(self, *messages: Message) -> list[tuple[str, int, float, dict[str, str]]]:
        """(sensor, time, value, labels) of every reading."""
        return [
            (read.sensor, int(t), v.item(), dict(read.batch.labels[s]))
            for read in self.reads(*messages)
            for t, v, s in zip(read.batch.time_us, read.batch.value, read.batch.series, strict=True)
        ]

    def counts(self, name: str) -> dict[str, int]:
        return {kind: n for kind, n in self.sensors.counters()[name].items() if n}


def message(topic: str, payload: bytes | dict[str, object], token: int = 0, flags: int = 0) -> Message:
    return (topic, payload if isinstance(payload, bytes) else json.dumps(payload).encode(), token, flags)


# --- what people already have -----------------------------------------------------------------------------------------


def test_esphome_states_are_bare_numbers() -> None:
    """ESPHome publishes <prefix>/sensor/<name>/state, a number as text, `nan` when the sensor has none, retained."""
    hub = Hub(sensor("esp", "+/sensor/+/state", labels={"device": "{topic[0]}", "name": "{topic[2]}"}))
    rows = hub.rows(
        message("kitchen/sensor/temperature/state", b"23.4"),
        message("kitchen/sensor/humidity/state", b"44"),
        message("kitchen/sensor/temperature/state", b"nan"),
        message("cellar/sensor/temperature/state", b"11.3", flags=RETAIN),
    )
    assert rows == [
        ("esp", BEGIN_US, 23.4, {"device": "kitchen", "name": "temperature"}),
        ("esp", BEGIN_US, 44.0, {"device": "kitchen", "name": "humidity"}),
    ]
    assert hub.counts("esp") == {"messages": 3, "readings": 2, "nan": 1, "retained": 1}


def test_tasmota_telemetry_is_json_with_a_time_and_several_sensors_in_one_message() -> None:
    """Tasmota publishes tele/<topic>/SENSOR with a naive local time; its clock is set to UTC for this."""
    hub = Hub(
        sensor(
            "temp", "tele/+/SENSOR", value="/DS18B20/Temperature", time="/Time", labels={"d": "{topic[1]}"}, scale=-1
        ),
        sensor("power", "tele/+/SENSOR", value="/ENERGY/Power", time="/Time", labels={"d": "{topic[1]}"}),
    )
    rows = hub.rows(
        message("tele/boiler/SENSOR", b'{"Time":"2026-11-21T09:00:00","DS18B20":{"Temperature":20.6},"TempUnit":"C"}'),
        message(
            "tele/pump/SENSOR", b'{"Time":"2026-11-21T09:00:10","ENERGY":{"Total":3.185,"Power":57,"Factor":0.72}}'
        ),
        message("tele/pump/SENSOR", b'{"Time":"2026-11-21T09:00:20","DS18B20":{"Temperature":null},"TempUnit":"C"}'),
    )
    nine = 1_795_251_600_000_000
    assert rows == [
        ("temp", nine, 206, {"d": "boiler"}),
        ("power", nine + 10_000_000, 57.0, {"d": "pump"}),
    ]
    assert hub.counts("temp") == {"messages": 3, "readings": 1, "absent": 1, "nan": 1}
    assert hub.counts("power") == {"messages": 3, "readings": 1, "absent": 2}


def test_zigbee2mqtt_devices_are_json_with_their_last_seen() -> None:
    """Zigbee2MQTT publishes zigbee2mqtt/<friendly name>; last_seen is ISO 8601 or milliseconds, as it is set there."""
    hub = Hub(sensor("zb", "zigbee2mqtt/#", value="/temperature", time="/last_seen", labels={"room": "{topic[1]}"}))
    rows = hub.rows(
        message("zigbee2mqtt/kitchen", {"temperature": 27.34, "humidity": 44.72, "last_seen": BEGIN_US // 1000}),
        message("zigbee2mqtt/hall", {"temperature": 21.4, "linkquality": 120, "last_seen": "2027-01-15T08:00:00.000Z"}),
        message(
            "zigbee2mqtt/hall", {"temperature": 21.5, "linkquality": 120, "last_seen": "2027-01-15T09:00:01+01:00"}
        ),
        message("zigbee2mqtt/motion", {"occupancy": True, "linkquality": 80, "last_seen": BEGIN_US // 1000}),
        message("zigbee2mqtt/bridge/state", b'{"state":"online"}'),
    )
    assert rows == [
        ("zb", BEGIN_US, 27.34, {"room": "kitchen"}),
        ("zb", BEGIN_US, 21.4, {"room": "hall"}),
        ("zb", BEGIN_US + 1_000_000, 21.5, {"room": "hall"}),
    ]
    assert hub.counts("zb") == {"messages": 5, "readings": 3, "absent": 2}


def test_a_cbor_batch_is_many_readings_in_one_message() -> None:
    time_us = BEGIN_US + np.arange(1000) * 1000
    value = np.linspace(-1, 1, 1000)
    hub = Hub(sensor("fast", "fast/+", labels={"m": "{topic[1]}"}))
    (read,) = hub.reads(
        message("fast/a", readings.encode(time_us, value)),
        message("fast/b", b"0.5"),  # a bare number among them
        message("fast/b", readings.encode((BEGIN_US, 10), np.array([1, 2, 3]))),
        message("fast/b", b"\x83 but no batch"),
    )
    assert list(read.batch.time_us) == [*time_us, BEGIN_US, BEGIN_US, BEGIN_US + 10, BEGIN_US + 20]
    assert list(read.batch.value) == [*value, 0.5, 1.0, 2.0, 3.0]
    assert list(read.batch.series) == [0] * 1000 + [1] * 4
    assert hub.counts("fast") == {"messages": 4, "readings": 1004, "bad_value": 1}


def test_labels_come_from_the_payload_too_and_one_that_is_missing_is_a_bad_reading() -> None:
    hub = Hub(sensor("s", "s", value="/v", labels={"unit": "u-{/ids/unit}", "ok": "{/ok}", "site": "a"}))
    rows = hub.rows(
        message("s", {"v": 1, "ids": {"unit": 7}, "ok": True}),
        message("s", {"v": 2, "ids": {}, "ok": True}),
        message("s", {"v": 3, "ids": {"unit": "x"}, "ok": False}),
    )
    assert rows == [
        ("s", BEGIN_US, 1.0, {"unit": "u-7", "ok": "true", "site": "a"}),
        ("s", BEGIN_US, 3.0, {"unit": "u-x", "ok": "false", "site": "a"}),
    ]
    assert hub.counts("s")["bad_label"] == 1


def test_labels_are_sorted_by_name_whatever_the_definition() -> None:
    hub = Hub(Sensor("s", 1, "mqtt", (("topic", "s"), ("qos", 0)), labels=(("z", "1"), ("a", "2"))))
    (read,) = hub.reads(message("s", b"1"))
    assert read.batch.labels == [(("a", "2"), ("z", "1"))]


# --- bad input --------------------------------------------------------------------------------------------------------

PAYLOADS = st.one_of(
    st.sampled_from([b'{"v":1}', b'{"v":2.5,"t":1800000000}', b'{"v":"3"}', b'{"v":null}', b'{"v":true}', b'{"t":5}']),
    st.sampled_from(
        [b"1,2", b"],[", b'{"v":1},{"v":2', b"{}", b"[]", b'"v"', b'{"v":NaN}', b'{"v":1e999}', b"\xff", b""]
    ),
    st.builds(lambda v, t: json.dumps({"v": v, "t": t}).encode(), st.floats(0, 9), st.integers(0, 2 * 10**9)),
)


@given(st.lists(PAYLOADS, max_size=8))
def test_a_payload_gives_the_same_reading_alone_as_among_others(payloads: list[bytes]) -> None:
    """Bulk reading is for speed only: what stands beside a payload never matters."""
    for time_pointer in ("", "/t"):
        definition = sensor("s", "s", value="/v", time=time_pointer)
        together = Hub(definition)
        rows = together.rows(*(message("s", payload) for payload in payloads))
        hubs = [Hub(definition) for _ in payloads]
        alone = [row for hub, payload in zip(hubs, payloads, strict=True) for row in hub.rows(message("s", payload))]
        assert rows == alone
        total: dict[str, int] = {}
        for hub in hubs:
            for kind, n in hub.counts("s").items():
                total[kind] = total.get(kind, 0) + n
        assert together.counts("s") == total if payloads else not total


def test_lies_about_time_are_counted_and_shown_and_late_ones_pass() -> None:
    """protocol 4.3: more than 5 minutes ahead of a synced clock is no reading; protocol 4.2: backwards is only late."""
    hub = Hub(sensor("s", "s", value="/v", time="/t"))
    now_s = BEGIN_US // 10**6
    rows = hub.rows(
        message("s", {"v": 1, "t": 12}),  # 1970
        message("s", {"v": 2, "t": now_s + 301}),
        message("s", {"v": 3, "t": now_s - 86_400}),
        message("s", {"v": 4, "t": now_s + 299}),
        message("s", {"v": 5, "t": "soon"}),
        message("s", {"v": 6}),
    )
    assert [row[2] for row in rows] == [3.0, 4.0]
    assert hub.counts("s") == {"messages": 6, "readings": 2, "bad_time": 3, "future": 1}
    notes = {(note.name, note.fields["sensor"]) for note in hub.sensors.notes()}
    assert notes == {("sensor.bad_time", "s"), ("sensor.future", "s")}


def test_texts_for_numbers_are_refused_and_shown_with_their_payload() -> None:
    hub = Hub(sensor("s", "s", value="/v"))
    assert hub.rows(message("s", {"v": "23.4"})) == []
    (note,) = hub.sensors.notes()
    assert note.name == "sensor.bad_value"
    assert note.fields["got"] == b'{"v": "23.4"}'
    assert "text" in str(note.fields["why"])


def test_a_message_without_a_time_has_the_time_it_came_not_the_time_it_was_read() -> None:
    hub = Hub(sensor("s", "s"))
    for n in range(3):
        hub.sensors.feed([message("s", b"%d" % n), message("other", b"x")], BEGIN_US + n * 1_000_000)
    (read,) = hub.sensors.poll(BEGIN_US + 9_000_000)
    assert list(read.batch.time_us) == [BEGIN_US, BEGIN_US + 1_000_000, BEGIN_US + 2_000_000]
    assert hub.sensors.unrouted == 3


def test_gathering_ends_when_the_oldest_has_waited_or_there_is_much() -> None:
    hub = Hub(sensor("s", "s"))
    assert hub.sensors.due_us(BEGIN_US, 250_000) > BEGIN_US + 10**9
    hub.sensors.feed([message("s", b"1")], BEGIN_US)
    hub.sensors.feed([message("s", b"2")], BEGIN_US + 100_000)
    assert hub.sensors.due_us(BEGIN_US + 100_000, 250_000) == BEGIN_US + 250_000
    hub.sensors.feed([message("s", b"3")] * MOST_MESSAGES, BEGIN_US + 100_000)
    assert hub.sensors.due_us(BEGIN_US + 100_000, 250_000) == BEGIN_US + 100_000
    hub.sensors.poll(BEGIN_US + 100_000)
    hub.sensors.feed([message("s", bytes(600_000))] * 2, BEGIN_US + 100_000)
    assert hub.sensors.due_us(BEGIN_US + 100_000, 250_000) == BEGIN_US + 100_000


# --- QoS 1 ------------------------------------------------------------------------------------------------------------


def token(mid: int, generation: int = 1) -> int:
    return generation << 16 | mid


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
    assert hub.sensors.unacknowledged == 2
    assert hub.sensors.settled() == []
    assert hub.sensors.acknowledge([two.token]) == [token(5), token(6)]
    assert hub.sensors.unacknowledged == 0


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


def test_a_sensor_that_is_configured_again_still_knows_what_it_read() -> None:
    hub = Hub(sensor("a", "t", qos=1))
    (read,) = hub.reads(message("t", b"1", token(1)))
    hub.sensors.configure([sensor("a", "t", qos=1, labels={"x": "y"})], {})
    assert hub.sensors.acknowledge([read.token]) == [token(1)]
    hub.sensors.session(present=True)
    assert hub.rows(message("t", b"1", token(1, 2), DUP)) == []


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
