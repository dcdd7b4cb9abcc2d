"""Sensors that publish to the local MQTT broker: ESPHome, Tasmota, Zigbee2MQTT, or any device with numeric payloads.

All mqtt sensors of a node share one connection (MQTT 3.1.1, one client id), so one object contains them all. It routes
messages by topic, collects them, and returns one batch per sensor at `poll`. It does not use paho.

Messages of QoS 1 are acknowledged after the commit that contains their readings. The position of a sensor lists packet
id and CRC of the messages that the broker may still repeat (flag DUP), so that each counts once, even after a lost
connection or a restart. Retained messages are dropped, because they repeat old values at each subscription.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import REQUIRED, Key, Report
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import Choice, Number, Text
from edge_agent.config.definitions.drivers import Driver
from edge_agent.config.definitions.label_templates import POINTER, parse
from edge_agent.machines.events import Note, Read
from edge_agent.ports import Clock
from edge_agent.ports.mqtt.packets import DUP, LONGEST_CACHED, RETAIN, Message
from edge_agent.ports.sensors.convert import Converter, came
from edge_agent.ports.sensors.filters import TopicFilter, disjoint, matches
from edge_agent.ports.sensors.quality import MAX_SERIES

MOST_BYTES: Final = 1024 * 1024  # with this size of collected topics and payloads `poll` is due at once
MOST_MESSAGES: Final = 4_096  # with this number of collected messages `poll` is due at once
MOST_TOPICS: Final = 4096  # limit of cached routes
MOST_IDS: Final = 2**16  # number of packet ids
# If messages of QoS 1 wait for their commit and no others arrive for so long, `poll` is due: the broker may have
# reached its limit of messages in flight, and wait for our acknowledgements (docs/protocol.md 3.1).
QUIET_US: Final = 75_000
FAR_US: Final = 3_600_000_000  # due time if nothing is collected


Part = tuple[list[bytes], list[str], list[tuple[int, int]]]  # payloads, topics, arrivals (see convert.came)
Mark = tuple[int, int]  # packet id and CRC of the payload: identifies a repeated message


@dataclass(slots=True)
class MqttSource:
    """One mqtt sensor: its collected messages, and the messages of QoS 1 that the broker may repeat."""

    converter: Converter
    payloads: list[bytes] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # (number of messages so far, time of arrival)
    open: dict[int, int] = field(default_factory=dict)  # token -> CRC, received but not yet acknowledged
    acked: dict[int, int] = field(default_factory=dict)  # token -> CRC, acknowledged but not confirmed by the broker
    known: dict[Mark, None] = field(default_factory=dict)  # durable before this connection; the broker may repeat them
    has_position: bool = False  # the spool may hold one, which a later one must replace

    @property
    def sensor(self) -> Sensor:
        return self.converter.sensor

    def position(self, without: Collection[int] = ()) -> object:
        """Packet ids and CRCs of the messages that the broker may repeat; None at QoS 0 if there has been none.

        A sensor of QoS 0 receives messages of QoS 1 if its subscription is shared with a sensor of QoS 1. without:
        tokens of messages whose readings follow in a later batch.
        """
        self.has_position |= bool(self.sensor.option("qos", 1) or self.known or self.acked or self.open)
        if not self.has_position:
            return None
        waits = {token: crc for token, crc in self.open.items() if token not in without} if without else self.open
        ids = [*(id_ for id_, _ in self.known), *(token & 0xFFFF for held in (self.acked, waits) for token in held)]
        crc = [*(crc for _, crc in self.known), *self.acked.values(), *waits.values()]
        return {"id": np.array(ids, np.uint16), "crc": np.array(crc, np.uint32)}


class MqttSensors:
    """All mqtt sensors of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sources: dict[str, MqttSource] = {}
        self._routes: dict[str, list[MqttSource]] = {}
        self._bytes = 0
        self._messages = 0
        self._since_us: int | None = None  # arrival of the oldest collected message
        self._last_us = 0  # arrival of the newest collected message
        self._open: dict[int, None] = {}  # tokens that wait for a commit, in order of arrival
        self._fresh: list[int] = []  # tokens of _open that arrived since the last poll
        self._held: set[Mark] = set()  # messages that waited for a commit when the connection was lost
        self._again: dict[Mark, int] = {}  # messages of _held that were repeated -> their new token
        self._settled: list[int] = []
        self.unrouted = 0
        self.most_series = MAX_SERIES  # of one sensor

    def configure(self, sensors: Iterable[Sensor], positions: Mapping[str, object]) -> None:
        """Replace the sensors. Call `poll` first, because messages collected for a changed sensor are dropped."""
        old, self._sources = self._sources, {}
        for sensor in sensors:
            before = old.get(sensor.id)
            if before is not None and before.sensor == sensor:
                self._sources[sensor.id] = before
            else:
                source = self._sources[sensor.id] = MqttSource(Converter(sensor))
                source.converter.quality.most_series = self.most_series
                source.known = _known(positions.get(sensor.id)) if before is None else before.known
                source.has_position = positions.get(sensor.id) is not None
                if before is not None:
                    source.open, source.acked = before.open, before.acked
                    source.has_position = before.has_position
        self._routes.clear()

    def give_back(self) -> bool:
        """End a turn of each sensor (Quality.give_back). Call after a poll. Returns whether series were removed."""
        went = sum(source.converter.quality.give_back() for source in self._sources.values()) > 0
        if went:
            self._routes.clear()
        return went

    @property
    def filters(self) -> dict[str, int]:
        """Filters to subscribe to, filter -> QoS. No topic matches two of them."""
        wanted = ((str(s.sensor.option("topic")), int(bool(s.sensor.option("qos", 1)))) for s in self._sources.values())
        return disjoint(wanted)

    def session(self, present: bool) -> None:
        """Note that the connection is up. present: the broker kept the session. If not, old packet ids are invalid."""
        self._again.clear()
        self._held.clear()
        for source in self._sources.values():
            if present:
                self._held |= {(token & 0xFFFF, crc) for token, crc in source.open.items()}
                source.known |= dict.fromkeys((token & 0xFFFF, crc) for token, crc in source.acked.items())
            else:
                source.known.clear()
                source.open.clear()  # the broker repeats none of these, and gives their packet ids to other messages
            source.acked.clear()

    def confirmed(self, tokens: Iterable[int]) -> None:
        """Note that the broker has read the acknowledgements of these tokens. No tokens: all repetitions arrived."""
        gone = tuple(tokens)
        for source in self._sources.values():
            if not gone:
                source.known.clear()
            for token in gone:
                source.acked.pop(token, None)

    # --- messages in --------------------------------------------------------------------------------------------------

    def feed(self, messages: Iterable[Message], now_us: int) -> None:
        """Route messages to the sensors whose filters match. now_us: arrival, the time of readings without a time."""
        routes, bytes_ = self._routes, 0
        touched: dict[int, MqttSource] = {}
        n = 0
        for topic, payload, token, flags in messages:
            sources = routes.get(topic)
            if sources is None:
                sources = self._route(topic)
            n += 1
            if token or flags or not sources:
                sources = self._special(sources, payload, token, flags)
            for source in sources:
                source.payloads.append(payload)
                source.topics.append(topic)
                touched[id(source)] = source
            bytes_ += len(topic) + len(payload)
        for source in touched.values():
            source.arrivals.append((len(source.payloads), now_us))
        self._bytes += bytes_
        self._messages += n
        if touched:
            self._last_us = now_us
            self._since_us = now_us if self._since_us is None else self._since_us

    def _route(self, topic: str) -> list[MqttSource]:
        sources = [source for source in self._sources.values() if matches(str(source.sensor.option("topic")), topic)]
        if len(topic) <= LONGEST_CACHED:
            if len(self._routes) >= MOST_TOPICS:
                self._routes.clear()
            self._routes[topic] = sources
        return sources

    def _special(self, sources: list[MqttSource], payload: bytes, token: int, flags: int) -> list[MqttSource]:
        """The sources that must read a message of QoS 1, or a repeated, retained or unrouted message."""
        if flags & RETAIN or not sources:
            for source in sources:
                source.converter.quality.count.retained += 1
            self.unrouted += not sources
            if token:
                self._settled.append(token)
            return []
        if not token:
            return sources
        crc = zlib.crc32(payload)
        if flags & DUP:
            mark = (token & 0xFFFF, crc)
            if mark in self._held:  # read but not yet durable: acknowledge the new token with the old
                self._again[mark] = token
                self._repeated(sources)
                return []
            old = [source for source in sources if mark in source.known]
            for source in old:
                del source.known[mark]
                source.acked[token] = crc
            self._repeated(old)
            sources = [source for source in sources if source not in old]
            if not sources:  # durable for every sensor; only our PUBACK was lost
                self._settled.append(token)
                return []
        self._open[token] = None
        self._fresh.append(token)
        for source in sources:
            source.open[token] = crc
        return sources

    @staticmethod
    def _repeated(sources: Iterable[MqttSource]) -> None:
        for source in sources:
            source.converter.quality.count.repeated += 1

    # --- readings out -------------------------------------------------------------------------------------------------

    def due_us(self, now_us: int, gather_us: int) -> int:
        """When to call `poll`: gather_us after the oldest message; earlier if there are many or the broker may wait."""
        if self._bytes >= MOST_BYTES or self._messages >= MOST_MESSAGES:
            return now_us
        if self._since_us is None:
            return now_us + FAR_US
        due_us = self._since_us + gather_us
        return min(due_us, self._last_us + QUIET_US) if self._fresh else due_us

    def poll(self, now_us: int) -> list[Read]:
        """Returns one batch per sensor with messages. The last batch has the tokens of all, as they share a commit."""
        latest_us = now_us if self._clock.synced else None
        reads: list[Read] = []
        for source in self._sources.values():
            if not source.payloads:
                continue
            for part, undated, later in self._parts(source):
                batch = source.converter.convert(*part, latest_us)
                if undated:
                    batch = replace(batch, time_us=batch.time_us - now_us + self._clock.boot_us())
                if len(batch.value) or source.open:
                    position = source.position(self._tokens_of(source, later))
                    reads.append(Read(source.sensor.id, batch, position, since_boot=undated))
            source.payloads, source.topics, source.arrivals = [], [], []
        tokens, self._fresh = self._fresh, []
        if reads:
            last = reads[-1]
            reads[-1] = replace(last, token=tuple(tokens) or None)
        elif tokens:
            self._settled += self.acknowledge(tokens)
        self._bytes = self._messages = 0
        self._since_us = None
        return reads

    def _tokens_of(self, source: MqttSource, payloads: Iterable[bytes]) -> frozenset[int]:
        """The tokens of these collected messages of a source; equal payloads are always in the same part."""
        crcs = {zlib.crc32(payload) for payload in payloads}
        return frozenset(token for token in self._fresh if source.open.get(token) in crcs) if crcs else frozenset()

    def _parts(self, source: MqttSource) -> Iterator[tuple[Part, bool, list[bytes]]]:
        """Yields the collected messages of a source as (part, undated, payloads of the part behind it).

        undated: readings get times of arrival, but the clock was not synchronised. There may be a commit between parts.
        """
        whole = source.payloads, source.topics, source.arrivals
        dated = None if self._clock.synced else source.converter.dated(source.payloads)
        if dated is None or dated.all():
            yield whole, False, []
            return
        came_us = came(source.arrivals, len(source.payloads))
        for undated in (False, True):
            rows = np.flatnonzero(dated != undated).tolist()
            if rows:
                arrivals = [(i + 1, int(came_us[row])) for i, row in enumerate(rows)]
                part = [source.payloads[row] for row in rows], [source.topics[row] for row in rows], arrivals
                yield part, undated, [] if undated else [source.payloads[row] for row in np.flatnonzero(~dated)]

    def acknowledge(self, tokens: Iterable[object]) -> list[int]:
        """Note that readings with these tokens are durable. Returns these tokens and those of repeated messages."""
        answer: list[int] = []
        for token in _flat(tokens):
            self._open.pop(token, None)
            answer.append(token)
            for source in self._sources.values():
                crc = source.open.pop(token, None)
                if crc is None:
                    continue
                again = self._again.get((token & 0xFFFF, crc))
                source.acked[token if again is None else again] = crc
                answer += [] if again is None else [again]
                if len(source.acked) > MOST_IDS:  # the broker does not confirm
                    del source.acked[next(iter(source.acked))]
        return answer

    def settled(self) -> list[int]:
        """Removes and returns tokens of messages to acknowledge now: without readings, or durable already."""
        settled, self._settled = self._settled, []
        return settled

    # --- for people ---------------------------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """Notes for the operator, once each."""
        return [note for source in self._sources.values() for note in source.converter.quality.notes()]

    def counters(self) -> dict[str, dict[str, int]]:
        return {name: source.converter.quality.count.as_dict() for name, source in self._sources.items()}


def _known(position: object) -> dict[Mark, None]:
    match position:
        case {"id": np.ndarray() as ids, "crc": np.ndarray() as crcs}:
            return dict.fromkeys(zip(ids.tolist(), crcs.tolist(), strict=True))
    return {}


def _flat(tokens: Iterable[Any]) -> Iterable[int]:
    for token in tokens:
        if isinstance(token, tuple):
            yield from token
        else:
            yield token


def _check(values: Mapping[str, Any], at: Path, report: Report) -> None:
    """Refuse labels that use a level that the topic does not have, or a field of a payload that has no fields."""
    levels = values["topic"].split("/")
    for name, text in values["labels"]:
        for part in parse(text).parts:
            if isinstance(part, int) and part >= len(levels) and levels[-1] != "#":
                last = len(levels) - 1
                why = f"the topic has levels 0 to {last}"
                report.wrong((*at, "labels", name), text, why, f"{{topic[{last}]}}")
            elif isinstance(part, tuple) and values["format"] == "cbor":
                why = "a CBOR batch has times and values only"
                report.wrong((*at, "labels", name), text, why, "{topic[1]}")


_POINTER: Final = Text(
    "a JSON pointer", POINTER, 'like "/temperature"; leave it out for a bare number', 200, empty=True
)
DRIVER: Final = Driver(
    name="mqtt",
    about="numbers in messages of the local broker",
    keys=(
        Key("topic", TopicFilter(), REQUIRED, "topic filter on the local broker, like plant/+/temp"),
        Key("value", _POINTER, "", "JSON pointer to the value; left out: the payload is a bare number or a CBOR batch"),
        Key("time", _POINTER, "", "JSON pointer to the event time (RFC 3339, or a number); left out: time of arrival"),
        Key("qos", Number(0, 1, whole=True), 1, "of the subscription", "the broker keeps readings during a restart"),
        Key("format", Choice(("auto", "number", "json", "cbor"), what="format"), "auto", "format of the payload"),
    ),
    start=MqttSensors,
    check=_check,
    labels=(),
    templates=frozenset({"topic", "payload"}),
    rate=None,
    rereadable=lambda sensor: sensor.option("qos") == 1,
    own_clock=False,
    ends=False,
    local=True,
    extra="",
)
