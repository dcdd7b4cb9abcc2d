"""Converts messages of one sensor to a batch: takes value, time and labels from each payload and topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import NO_INTS, Ints, repeated
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.label_templates import LabelTemplate, parse, pointer
from edge_agent.errors import WireError
from edge_agent.ports.mqtt.packets import LONGEST_CACHED
from edge_agent.ports.sensors import payloads as read
from edge_agent.ports.sensors.quality import Quality, Values
from edge_agent.wire import readings

CBOR_HEADS: Final = (b"\x83", b"\x9f")  # first byte of a batch of readings (an array of three), never of a number
MOST_TOPICS: Final = 4096  # limit of topics with cached series
LONGEST_LABEL: Final = 256  # characters; labels are sent as parts of keys


def filled(template: LabelTemplate, levels: Sequence[str], document: object) -> str:
    """The text of a label for one message. Raises: BadPayloadError if a part is missing in the topic or payload."""
    texts: list[str] = []
    for part in template.parts:
        if isinstance(part, int):
            if part >= len(levels):
                raise read.BadPayloadError(f"the topic has no level {part}")
            texts.append(levels[part])
        else:
            texts.append(part if isinstance(part, str) else _text(read.follow(document, part), part))
    text = "".join(texts)
    if len(text) > LONGEST_LABEL:
        raise read.BadPayloadError(f"a label has {len(text)} characters, allowed are {LONGEST_LABEL}")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise read.BadPayloadError("a label contains half a surrogate pair: it is not valid Unicode") from err
    return text


def _text(found: object, steps: Sequence[str]) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str | int | float):
        return str(found)
    raise read.BadPayloadError(f"the payload has no text or number at /{'/'.join(steps)}")


class Fields:
    """Reads value, time and labels of parsed documents, by the pointers of one sensor."""

    def __init__(self, quality: Quality, value: str, time: str) -> None:
        """value, time: JSON pointers. Without one: the whole document is the value, the time is that of arrival."""
        self.quality = quality
        self._value, self._time = pointer(value), pointer(time)
        self.bare = False  # whether documents are floats, read of payloads that are bare numbers
        self._templates = [(name, parse(text)) for name, text in sorted(quality.sensor.labels)]
        self.in_document = any(isinstance(part, tuple) for _, template in self._templates for part in template.parts)
        self._series_of_topic: dict[str, int] = {}
        quality.forgotten = self._series_of_topic.clear

    def columns(
        self, documents: Sequence[Any], shown: Sequence[bytes], topics: Sequence[str], came_us: Ints
    ) -> tuple[Ints, Ints, Values, Ints | int]:
        """Returns (rows, time, value, series) of the documents that contain a reading, and counts the others.

        shown: the payloads, for notes. came_us: times of arrival, used if there is no time pointer.
        """
        rows, value = self._values(documents, shown)
        time_us = came_us[rows] if not self._time else NO_INTS
        if self._time and len(rows):
            found = read.column(documents if len(rows) == len(documents) else [documents[i] for i in rows], self._time)
            times = read.moments(found)
            if times is None:
                good, each = self.quality.each(found, [shown[i] for i in rows], read.moment, "bad_time")
                rows, value, times = rows[good], value[good], np.array(each, np.int64)
            time_us = times
        if len(rows) == len(documents):
            return rows, time_us, value, self.series(topics, documents)
        series = self.series([topics[i] for i in rows], [documents[i] for i in rows])
        return rows, time_us, value, series

    def _values(self, documents: Sequence[Any], shown: Sequence[bytes]) -> tuple[Ints, Any]:
        found = read.column(documents, self._value) if self._value else documents
        value = read.plain(found)
        if value is not None:
            self.quality.rounds(shown if self.bare else found, value)
            return np.arange(len(value)), value
        there = [i for i, one in enumerate(found) if one is not read.ABSENT]
        self.quality.count.absent += len(documents) - len(there)
        rows, good = self.quality.each([found[i] for i in there], [shown[i] for i in there], read.value)
        taken, value = np.array(there, np.int64)[rows], np.array(good, np.float64)
        self.quality.rounds([found[i] for i in taken.tolist()], value)
        return taken, value

    def series(self, topics: Sequence[str], documents: Sequence[object] = ()) -> Ints | int:
        """The series number of each document, or one number if all have the same; NO_LABEL where a label is missing."""
        if self.in_document:
            return np.array([self._number(t, found) for t, found in zip(topics, documents, strict=True)], np.int64)
        known = self._series_of_topic
        new = {topic: self._number(topic, None) for topic in dict.fromkeys(topics) if topic not in known}
        number = known | new if new else known
        if len(number) > MOST_TOPICS:  # topics come from foreign devices and may be unlimited
            known.clear()
        known.update((topic, found) for topic, found in new.items() if len(topic) <= LONGEST_CACHED)
        if len(set(number.values())) == 1:
            return next(iter(number.values()))
        return np.array([number[topic] for topic in topics], np.int64)

    def _number(self, topic: str, document: object) -> int:
        levels = topic.split("/")
        try:
            labels: Labels = tuple((name, filled(template, levels, document)) for name, template in self._templates)
        except read.BadPayloadError as err:
            self.quality.note("bad_label", topic, why=str(err))
            return -1
        return self.quality.series(labels)


class Converter:
    """Converts the payloads of one mqtt sensor to batches, by its definition."""

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor
        self.quality = Quality(sensor)
        value, time = str(sensor.option("value", "")), str(sensor.option("time", ""))
        self._fields = Fields(self.quality, value, time)
        self._format = str(sensor.option("format", "auto"))
        self._json = self._format == "json" or bool(value or time or self._fields.in_document)
        self._fields.bare = not self._json

    def convert(
        self, payloads: list[bytes], topics: list[str], arrivals: list[tuple[int, int]], latest_us: int | None
    ) -> Batch:
        """Returns one batch of all readings in the messages, in order. arrivals: see `came`. latest_us: see Quality.

        A message on which this code fails is refused like a bad one: the broker would send it again for ever.
        """
        self.quality.count.messages += len(payloads)
        came_us = came(arrivals, len(payloads))
        try:
            return self._converted(payloads, topics, came_us, latest_us)
        except Exception:  # foreign bytes: find the message at fault
            return self._one_by_one(payloads, topics, came_us, latest_us)

    def _one_by_one(self, payloads: list[bytes], topics: list[str], came_us: Ints, latest_us: int | None) -> Batch:
        parts: list[Batch] = []
        for row, payload in enumerate(payloads):
            try:
                parts.append(self._converted([payload], [topics[row]], came_us[row : row + 1], latest_us))
            except Exception as err:  # of this message
                self.quality.refuse("bad_value", payload, f"cannot be read: {type(err).__name__}")
        if not parts:
            return self.quality.batch(NO_INTS, np.zeros(0), 0, latest_us)
        return Batch(
            np.concatenate([part.time_us for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.series for part in parts]),
            self.quality.labels,
        )

    def _converted(self, payloads: list[bytes], topics: list[str], came_us: Ints, latest_us: int | None) -> Batch:
        if self._format == "cbor" or (
            self._format == "auto" and not self._json and any(payload[:1] in CBOR_HEADS for payload in payloads)
        ):
            return self._batches(payloads, topics, came_us, latest_us)
        documents, good = self._parsed(payloads)
        if len(good) < len(payloads):
            payloads, topics, came_us = [payloads[i] for i in good], [topics[i] for i in good], came_us[good]
        _, time_us, value, series = self._fields.columns(documents, payloads, topics, came_us)
        return self.quality.batch(time_us, value, series, latest_us)

    def dated(self, payloads: Sequence[bytes]) -> NDArray[np.bool_]:
        """Whether each message contains its own time, shape (n,)."""
        own = self._format == "cbor" or bool(self.sensor.option("time", ""))
        batches = self._format == "auto" and not self._json
        return np.array([own or (batches and payload[:1] in CBOR_HEADS) for payload in payloads], np.bool_)

    def _parsed(self, payloads: list[bytes]) -> tuple[Sequence[Any], Ints | range]:
        """Returns (documents, their rows). A bare number is a document too. Unreadable payloads are refused."""
        if not self._json:
            found = read.numbers(payloads)
            if found is not None:
                return found, range(len(payloads))
        else:
            try:
                return [read.document(payload) for payload in payloads], range(len(payloads))
            except read.BadPayloadError:
                pass  # at least one payload is bad: parse each alone
        rows, documents = self.quality.each(payloads, payloads, read.document if self._json else read.number)
        return documents, rows

    def _batches(self, payloads: list[bytes], topics: list[str], came_us: Ints, latest_us: int | None) -> Batch:
        """Converts payloads that are batches of readings, possibly with bare numbers among them."""
        times: list[Ints] = []
        values: list[Values] = []
        names: list[str] = []
        for payload, topic, came in zip(payloads, topics, came_us.tolist(), strict=True):
            try:
                if self._format == "auto" and payload[:1] not in CBOR_HEADS:
                    time_us, value = np.array([came]), np.array([read.number(payload)])
                    self.quality.rounds([payload], value)
                else:
                    time_us, value = readings.decode(payload)
            except (WireError, read.BadPayloadError) as err:
                self.quality.refuse("bad_value", payload, str(err))
                continue
            times.append(time_us)
            values.append(value)
            names.append(topic)
        if not times:
            return self.quality.batch(NO_INTS, np.zeros(0), 0, latest_us)
        series = self._fields.series(names)
        numbers = series if isinstance(series, int) else np.repeat(series, [len(value) for value in values])
        if len(times) == 1:
            return self.quality.batch(times[0], values[0], numbers, latest_us)
        together: Any = np.concatenate(values)  # int64 and float64 together are float64
        for each in values if together.dtype.kind == "f" else ():
            if each.dtype.kind != "f":
                self.quality.rounds(each, each.astype(np.float64))
        return self.quality.batch(np.concatenate(times), together, numbers, latest_us)


def came(arrivals: list[tuple[int, int]], n: int) -> Ints:
    """Arrival times of n messages, shape (n,). arrivals: (number of messages so far, time), with increasing numbers."""
    if len(arrivals) == 1:
        return repeated(arrivals[0][1], n)
    counts, times = zip(*arrivals, strict=True)
    each = np.array(times, np.int64)
    return each if len(each) == n else np.repeat(each, np.array(counts) - (0, *counts[:-1]))
