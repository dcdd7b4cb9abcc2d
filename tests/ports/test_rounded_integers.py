"""Integers beyond 2^53 that no float equals: the reading is the nearest float, and that is counted and shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_agent.algebra.query.query import Sensor
from edge_agent.ports.sensors.convert import Converter
from edge_agent.ports.sensors.file import FileSensor
from edge_agent.wire import readings
from tests.support.fakes import BEGIN_US, FakeClock

BIG = 2**53
TOLD = [BIG + 1, -BIG - 1, 2**63 - 1]
EQUAL = [BIG, -BIG, BIG + 2, 2**60, BIG - 1, 7]
FORMS = ["bare", "json", "json among nulls", "cbor", "cbor among bare numbers"]


def converted(form: str, numbers: list[int], scale: int | None = None) -> tuple[Converter, list[float]]:
    options = (("value", "/v"),) if form.startswith("json") else ()
    converter = Converter(Sensor("s", 1, "mqtt", scale=scale, options=options))
    payloads = {
        "bare": [b" %d" % number for number in numbers],
        "json": [json.dumps({"v": number}).encode() for number in numbers],
        "json among nulls": [b'{"v": null}', *(json.dumps({"v": number}).encode() for number in numbers)],
        "cbor": [readings.encode((BEGIN_US, 1), np.array(numbers, np.int64))],
        "cbor among bare numbers": [
            readings.encode((BEGIN_US, 1), np.array(numbers[:1], np.int64)),
            readings.encode((BEGIN_US, 1), np.array([0.5])),
            *(b"%d" % number for number in numbers[1:]),
        ],
    }[form]
    batch = converter.convert(payloads, ["t"] * len(payloads), [(len(payloads), BEGIN_US)], BEGIN_US)
    return converter, batch.value.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_integer_that_no_float_equals_is_counted_as_rounded_and_shown(form: str) -> None:
    converter, values = converted(form, [*EQUAL, *TOLD])
    assert [value for value in values if value != 0.5] == [float(number) for number in [*EQUAL, *TOLD]]
    assert converter.quality.count.rounded == len(TOLD)
    notes = [note for note in converter.quality.notes() if note.name == "sensor.rounded"]
    assert notes[0].fields["got"] == TOLD[0]
    assert sum(int(str(note.fields["readings"])) for note in notes) == len(TOLD)


@pytest.mark.parametrize("form", FORMS)
def test_integers_that_are_floats_are_not_counted(form: str) -> None:
    converter, _ = converted(form, EQUAL)
    assert converter.quality.count.rounded == 0
    assert [note for note in converter.quality.notes() if note.name == "sensor.rounded"] == []


def test_with_a_resolution_of_1_it_is_told_or_refused() -> None:
    converter, values = converted("json", [BIG + 1, 5], 0)
    assert (values, converter.quality.count.rounded) == ([BIG, 5], 1)
    converter, values = converted("cbor", [BIG + 1, 5], 0)
    assert (values, converter.quality.count.bad_value) == ([5], 1)


def test_numbers_with_fraction_or_exponent_are_approximations_anyway() -> None:
    converter = Converter(Sensor("s", 1, "mqtt"))
    converter.convert(
        [b"9007199254740993.0", b"9.007199254740993e15", b"inf", b"1e300"], ["t"] * 4, [(4, BEGIN_US)], None
    )
    assert converter.quality.count.rounded == 0


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_file_tells_it_too(tmp_path: Path, clock: FakeClock, sign: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"t,v\n1700000000,{sign}{BIG + 1}\n1700000001,{sign}{BIG + 2}\n")
    options = (("path", str(path)), ("speed", 0.0), ("time", "/t"), ("value", "/v"))
    driver = FileSensor(Sensor("s", 1, "file", options), None, clock)
    assert driver.poll(clock.us)[-1].ended
    driver.close()
    assert driver.counters()["rounded"] == 1
