"""Sensors on a local broker: the payloads people already have become batches, bad ones are counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.query import Sensor
from edge_agent.ports.mqtt.packets import RETAIN
from edge_agent.ports.sensors import payloads
from edge_agent.ports.sensors.convert import LONGEST_LABEL
from edge_agent.ports.sensors.mqtt import MOST_BYTES, MOST_MESSAGES, MOST_TOPICS
from edge_agent.wire import readings
from tests.support.fakes import BEGIN_US
from tests.support.ports.sensor_hub import Hub, message, sensor


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


def test_a_label_without_end_is_a_bad_reading() -> None:
    """It would be sent with every row as a part of its key."""
    hub = Hub(sensor("s", "s", value="/v", labels={"site": "{/site}"}))
    texts = ["x" * many for many in (LONGEST_LABEL, LONGEST_LABEL + 1)]
    rows = hub.rows(*(message("s", {"v": 1, "site": text}) for text in texts))
    assert rows == [("s", BEGIN_US, 1.0, {"site": texts[0]})]
    assert hub.counts("s")["bad_label"] == 1


def test_labels_are_sorted_by_name_whatever_the_definition() -> None:
    hub = Hub(Sensor("s", 1, "mqtt", (("topic", "s"), ("qos", 0)), labels=(("z", "1"), ("a", "2"))))
    (read,) = hub.reads(message("s", b"1"))
    assert read.batch.labels == [(("a", "2"), ("z", "1"))]


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


def test_absurd_times_are_refused_one_by_one_though_the_clock_is_unknown() -> None:
    """protocol 4.3: before the clock is known, nothing else judges the times of devices."""
    hub = Hub(sensor("s", "s", value="/v", time="/t"), sensor("b", "b"))
    hub.clock.synced = False
    now_s = BEGIN_US // 10**6
    times = np.array([2**62, BEGIN_US, -(2**63)])
    rows = hub.rows(
        message("s", {"v": 1, "t": 9 * 10**16}),
        message("s", {"v": 2, "t": "9999-12-31T23:59:59Z"}),
        message("s", {"v": 3, "t": now_s}),
        message("b", readings.encode(times, np.arange(3.0))),
    )
    assert [row[1:3] for row in rows] == [(BEGIN_US, 3.0), (BEGIN_US, 1.0)]
    assert hub.counts("s") == {"messages": 3, "readings": 1, "bad_time": 2}
    assert hub.counts("b") == {"messages": 1, "readings": 1, "bad_time": 2}


def test_messages_with_long_topics_are_read_and_their_topics_not_kept() -> None:
    """A topic may have 65 535 bytes: neither caches nor waiting messages may fill the memory with them."""
    hub = Hub(sensor("s", "plant/+/#", labels={"unit": "{topic[1]}"}))
    tail = "/x" * 30_000
    rows = hub.rows(*(message(f"plant/{n % 2}/{n}{tail}", b"%d" % n) for n in range(10)), message("plant/0/t", b"10"))
    assert [(row[2], row[3]["unit"]) for row in rows] == [(float(n), str(n % 2)) for n in range(11)]
    (source,) = hub.sensors._sources.values()
    assert list(hub.sensors._routes) == list(source.converter._fields._series_of_topic) == ["plant/0/t"]
    assert hub.sensors.due_us(BEGIN_US, 10**6) > BEGIN_US
    hub.sensors.feed([message(f"plant/0/{n}{tail}", b"1") for n in range(MOST_BYTES // len(tail) + 1)], BEGIN_US)
    assert hub.sensors.due_us(BEGIN_US, 10**6) == BEGIN_US


def test_topics_without_end_are_not_kept_though_all_have_the_same_labels() -> None:
    hub = Hub(sensor("s", "plant/#"))
    for first in range(0, 3 * MOST_TOPICS, 1_000):
        hub.rows(*(message(f"plant/{n}", b"1") for n in range(first, first + 1_000)))
    (source,) = hub.sensors._sources.values()
    assert len(source.converter._fields._series_of_topic) <= MOST_TOPICS
    assert len(hub.sensors._routes) <= MOST_TOPICS


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


def test_messages_without_a_time_wait_for_the_clock_and_others_do_not() -> None:
    """protocol 4.3: bare numbers get the time since boot at which they came; a batch has its own times."""
    hub = Hub(sensor("bare", "a"), sensor("own", "b", value="/v", time="/t"))
    hub.clock.synced = False
    batch = readings.encode(np.array([BEGIN_US + 7]), np.array([3.0]))
    reads = hub.reads(
        message("a", b"1"), message("a", batch), message("a", b"2"), message("b", {"v": 4, "t": (BEGIN_US + 9) / 1e6})
    )
    found = [(read.sensor, read.since_boot, read.batch.time_us.tolist(), read.batch.value.tolist()) for read in reads]
    since_us = hub.clock.boot_us()
    assert found == [
        ("bare", False, [BEGIN_US + 7], [3.0]),
        ("bare", True, [since_us, since_us], [1.0, 2.0]),
        ("own", False, [BEGIN_US + 9], [4.0]),
    ]


def test_a_message_on_which_the_code_fails_is_refused_and_its_neighbours_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker sends a message of QoS 1 again until it is acknowledged: the gateway ended with each, for ever."""
    numbers = payloads.numbers

    def fails(found: list[bytes]) -> object:
        if b"13" in found:
            raise ZeroDivisionError
        return numbers(found)

    monkeypatch.setattr(payloads, "numbers", fails)
    hub = Hub(sensor("t", "t/+", labels={"n": "{topic[1]}"}))
    rows = hub.rows(message("t/a", b"1", 5), message("t/a", b"13", 6), message("t/b", b"2", 7))
    assert [(value, labels["n"]) for _, _, value, labels in rows] == [(1.0, "a"), (2.0, "b")]
    assert hub.counts("t") == {"messages": 3, "readings": 2, "bad_value": 1}
    assert Hub(sensor("t", "t")).rows(message("t", b"13")) == []
