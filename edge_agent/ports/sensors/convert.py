"""Messages of one sensor to one batch: value, time and labels out of each payload and topic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partial import NO_INTS, Batch, Ints
from edge_agent.algebra.query import Labels, Sensor
from edge_agent.errors import WireError
from edge_agent.ports.sensors import payloads as read
from edge_agent.ports.sensors.quality import Quality, Values
from edge_agent.wire import readings

HOLE: Final = re.compile(r"\{(?:topic\[([0-9]+)\]|(/[^{}]*))\}")
CBOR_ARRAYS: Final = (0x83, 0x9F)  # first byte of a batch of readings: an array of three; no number begins so


class Template:
    """A label's text: as it is, or filled in from the levels of the topic and from the payload."""

    def __init__(self, text: str) -> None:
        self._parts: list[str | int | tuple[str, ...]] = []
        at = 0
        for hole in HOLE.finditer(text):
            self._parts += [text[at : hole.start()], int(hole[1]) if hole[1] else read.pointer(hole[2])]
            at = hole.end()
        self._parts.append(text[at:])
        self.needs_payload = any(isinstance(part, tuple) for part in self._parts)

    def fill(self, levels: Sequence[str], document: object) -> str:
        """The text for one message. Raises: BadPayloadError if topic or payload lack a part."""
        filled: list[str] = []
        for part in self._parts:
            if isinstance(part, int):
                if part >= len(levels):
                    raise read.BadPayloadError(f"the topic has no level {part}")
                filled.append(levels[part])
            elif isinstance(part, tuple):
                filled.append(_text(read.follow(document, part), part))
            else:
                filled.append(part)
        return "".join(filled)


def _text(found: object, steps: Sequence[str]) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str | int | float):
        return str(found)
    raise read.BadPayloadError(f"the payload has no text or number at /{'/'.join(steps)}")


class Converter:
    """The payloads of one mqtt sensor, by its definition."""

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor
        self.quality = Quality(sensor)
        self._value = read.pointer(str(sensor.option("value", "")))
        self._time = read.pointer(str(sensor.option("time", "")))
        self._format = str(sensor.option("format", "auto"))
        self._templates = [(name, Template(text)) for name, text in sorted(sensor.labels)]
        self._series_of_topic: dict[str, int] = {}
        self._documents_label = any(template.needs_payload for _, template in self._templates)
        self._json = self._format == "json" or bool(self._value or self._time or self._documents_label)

    def convert(
        self, payloads: list[bytes], topics: list[str], arrivals: list[tuple[int, int]], latest_us: int | None
    ) -> Batch:
        """One batch of all readings in the messages, in their order. arrivals: (messages so far, time they came)."""
        count = self.quality.count
        count.messages += len(payloads)
        came_us = _came(arrivals, len(payloads))
        if self._format == "cbor" or (
            self._format == "auto" and not self._json and any(payload[:1] in CBOR_HEADS for payload in payloads)
        ):
            return self._batches(payloads, topics, came_us, latest_us)
        if self._json:
            time_us, value, series = self._documents(payloads, topics, came_us)
        else:
            time_us, value, series = self._numbers(payloads, topics, came_us)
        return self.quality.batch(time_us, value, series, latest_us)

    # --- bare numbers -------------------------------------------------------------------------------------------------

    def _numbers(self, payloads: list[bytes], topics: list[str], came_us: Ints) -> tuple[Ints, Values, Ints | int]:
        found = read.numbers(payloads)
        if found is not None:
            return came_us, np.array(found, np.float64), self._series(topics)
        values: list[float] = []
        rows: list[int] = []
        for row, payload in enumerate(payloads):
            try:
                values.append(read.number(payload))
                rows.append(row)
            except read.BadPayloadError as err:
                self.quality.refuse("bad_value", payload, str(err))
        return came_us[rows], np.array(values, np.float64), self._series([topics[row] for row in rows])

    # --- JSON ---------------------------------------------------------------------------------------------------------

    def _documents(self, payloads: list[bytes], topics: list[str], came_us: Ints) -> tuple[Ints, Values, Ints | int]:
        try:
            documents = [read.document(payload) for payload in payloads]
        except read.BadPayloadError:
            documents, rows = [], []
            for row, payload in enumerate(payloads):
                try:
                    documents.append(read.document(payload))
                    rows.append(row)
                except read.BadPayloadError as err:
                    self.quality.refuse("bad_value", payload, str(err))
            payloads, topics, came_us = [payloads[row] for row in rows], [topics[row] for row in rows], came_us[rows]
        found = read.column(documents, self._value) if self._value else documents
        value = read.plain(found)
        if value is None:
            value, rows = self._each_value(found, payloads)
            documents, topics, came_us = [documents[row] for row in rows], [topics[row] for row in rows], came_us[rows]
            payloads = [payloads[row] for row in rows]
        time_us = came_us
        if self._time and documents:
            found = read.column(documents, self._time)
            times = read.moments(found)
            if times is None:
                times, rows = self._each_time(found, payloads)
                documents, topics, value = [documents[row] for row in rows], [topics[row] for row in rows], value[rows]
            time_us = times
        return time_us, value, self._series(topics, documents)

    def _each_value(self, found: list[Any], payloads: list[bytes]) -> tuple[Any, list[int]]:
        values: list[float] = []
        rows: list[int] = []
        for row, one in enumerate(found):
            if one is read.ABSENT:
                self.quality.count.absent += 1
                continue
            try:
                values.append(read.value(one))
                rows.append(row)
            except read.BadPayloadError as err:
                self.quality.refuse("bad_value", payloads[row], str(err))
        return np.array(values, np.float64), rows

    def _each_time(self, found: list[Any], payloads: list[bytes]) -> tuple[Ints, list[int]]:
        times: list[int] = []
        rows: list[int] = []
        for row, one in enumerate(found):
            try:
                times.append(read.moment(None if one is read.ABSENT else one))
                rows.append(row)
            except read.BadPayloadError as err:
                self.quality.refuse("bad_time", payloads[row], str(err))
        return np.array(times, np.int64), rows

    # --- CBOR batches -------------------------------------------------------------------------------------------------

    def _batches(self, payloads: list[bytes], topics: list[str], came_us: Ints, latest_us: int | None) -> Batch:
        times: list[Ints] = []
        values: list[Values] = []
        lengths: list[int] = []
        names: list[str] = []
        for payload, topic, came in zip(payloads, topics, came_us.tolist(), strict=True):
            try:
                if self._format == "auto" and payload[:1] not in CBOR_HEADS:  # a bare number among batches
                    time_us, value = np.array([came]), np.array([read.number(payload)])
                else:
                    time_us, value = readings.decode(payload)
            except (WireError, read.BadPayloadError) as err:
                self.quality.refuse("bad_value", payload, str(err))
                continue
            times.append(time_us)
            values.append(value)
            lengths.append(len(value))
            names.append(topic)
        if not times:
            return self.quality.batch(NO_INTS, np.zeros(0), 0, latest_us)
        series = self._series(names)
        numbers = series if isinstance(series, int) else np.repeat(series, lengths)
        if len(times) == 1:
            return self.quality.batch(times[0], values[0], numbers, latest_us)
        together: Any = np.concatenate(values)  # int64 and float64 together are float64
        return self.quality.batch(np.concatenate(times), together, numbers, latest_us)

    # --- labels -------------------------------------------------------------------------------------------------------

    def _series(self, topics: list[str], documents: Sequence[object] = ()) -> Ints | int:
        """The series of each message; one number where all are of one series, -1 where a label is not to be had."""
        if self._documents_label:
            numbers = [self._number(topic, found) for topic, found in zip(topics, documents, strict=True)]
        else:
            known = self._series_of_topic
            for topic in set(topics) - known.keys():
                known[topic] = self._number(topic, None)
            if len(self.quality.labels) == 1 and len(known) == 1:
                return known[topics[0]] if topics else 0
            numbers = [known[topic] for topic in topics]
            if len(known) > 2 * len(self.quality.labels) + 4096:  # foreign topics without end
                known.clear()
        return np.array(numbers, np.int64)

    def _number(self, topic: str, document: object) -> int:
        levels = topic.split("/")
        try:
            labels: Labels = tuple((name, template.fill(levels, document)) for name, template in self._templates)
        except read.BadPayloadError as err:
            self.quality.note("bad_label", topic, why=str(err))
            return -1
        return self.quality.series(labels)


CBOR_HEADS: Final = tuple(bytes([head]) for head in CBOR_ARRAYS)


def _came(arrivals: list[tuple[int, int]], n: int) -> Ints:
    """Arrival times of n messages, shape (n,), from marks (messages so far, time)."""
    if len(arrivals) == 1:
        return np.full(n, arrivals[0][1], np.int64)
    upto = np.array([count for count, _ in arrivals], np.int64)
    return np.repeat(np.array([us for _, us in arrivals], np.int64), np.diff(upto, prepend=0))
