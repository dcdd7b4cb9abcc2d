"""Foreign payloads: numbers, documents and times, many at once as one alone."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.definitions.label_templates import pointer
from edge_agent.ports.sensors import payloads as read
from edge_agent.ports.sensors.payloads import BadPayloadError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def alone(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return BadPayloadError


@given(
    st.one_of(JSON.map(lambda v: json.dumps(v).encode()), st.binary(max_size=30), st.text(max_size=20).map(str.encode))
)
def test_a_document_is_what_the_standard_library_reads(payload: bytes) -> None:
    try:
        found = read.document(payload)
    except BadPayloadError:
        found = BadPayloadError
    assert repr(found) == repr(alone(payload))


@pytest.mark.parametrize("payload", [b"1,2", b"],[", b'{"v":1},{"v":2', b"}", b"", b"[" * 100_000, b"\xff", b"{" * 9])
def test_a_payload_that_would_move_its_neighbours_in_a_joined_array_stays_alone(payload: bytes) -> None:
    with pytest.raises(BadPayloadError):
        read.document(payload)


def test_white_space_a_byte_order_mark_and_utf_16_are_no_obstacle() -> None:
    for payload in (b' {"v": 1}\r\n', b'\xef\xbb\xbf{"v": 1}', '{"v": 1}'.encode("utf-16")):
        assert read.document(payload) == {"v": 1}


NUMBERS = [b"23.4", b" 23.4\n", b"-1e3", b"+.5", b"5.", b"nan", b"NaN", b"-inf", b"Infinity"]
NOT_NUMBERS = [
    b"",
    b"ON",
    b"1_000",
    b"0x10",
    b"1,5",
    b"23.4 C",
    b"--1",
    b"1e",
    b"unavailable",
    b'"23.4"',
    b"nan(1)",
    b"true",
]


@pytest.mark.parametrize("payload", NUMBERS)
def test_a_bare_number_is_read_alone_as_in_company(payload: bytes) -> None:
    together = read.numbers([payload])
    assert together is not None
    assert read.number(payload) == together[0] or math.isnan(together[0])


@pytest.mark.parametrize("payload", NOT_NUMBERS)
def test_what_is_no_number_is_refused_alone_and_sends_company_the_slow_way(payload: bytes) -> None:
    with pytest.raises(BadPayloadError):
        read.number(payload)
    assert read.numbers([b"1", payload]) is None


@given(st.lists(JSON, min_size=1, max_size=5))
def test_values_in_company_are_the_values_alone(found: list[object]) -> None:
    together = read.plain(found)
    if together is not None:
        assert [repr(float(v)) for v in together] == [repr(read.value(one)) for one in found]
    else:
        assert not all(type(one) in (int, float) and abs(one) < 1e308 for one in found)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [True, False, "23.4", "", [], {}, [1]])
def test_booleans_texts_and_structures_are_no_values(found: object) -> None:
    with pytest.raises(BadPayloadError):
        read.value(found)


def test_null_is_a_value_that_is_missing_and_a_huge_integer_is_beyond_all() -> None:
    assert math.isnan(read.value(None))
    assert read.value(10**400) == math.inf


def test_pointers_walk_objects_and_arrays_and_unescape() -> None:
    document = {"a": [{"b/c": {"~": 7}}], "": 1, "0": "zero"}
    assert read.follow(document, pointer("/a/0/b~1c/~0")) == 7
    assert read.follow(document, pointer("/")) == 1
    assert read.follow(document, pointer("")) is document
    assert read.follow(document, pointer("/0")) == "zero"
    for nowhere in ("/a/1", "/a/x", "/b", "/a/0/b~1c/~0/deeper", "/a/-1", "/a/²"):
        assert read.follow(document, pointer(nowhere)) is read.ABSENT


@given(st.lists(JSON, max_size=4), st.sampled_from(["/a", "/0", "/a/b", ""]))
def test_a_column_is_what_each_pointer_leads_to(documents: list[object], text: str) -> None:
    steps = pointer(text)
    wanted = [read.follow(document, steps) for document in documents]
    assert repr(read.column(documents, steps)) == repr(wanted)


# --- times -----------------------------------------------------------------------------------------------------------

NOON = 1_795_348_800  # 2026-11-22T12:00:00Z


@pytest.mark.parametrize(
    ("found", "us"),
    [
        (NOON, NOON * 10**6),
        (NOON + 0.25, NOON * 10**6 + 250_000),
        (NOON * 1000 + 1, NOON * 10**6 + 1000),
        (NOON * 10**6 + 1, NOON * 10**6 + 1),
        (NOON * 10**9 + 1999, NOON * 10**6 + 1),
        ("2026-11-22T12:00:00Z", NOON * 10**6),
        ("2026-11-22T13:00:00.000001+01:00", NOON * 10**6 + 1),
        ("2026-11-22T12:00:00", NOON * 10**6),  # as Tasmota writes it; no zone is UTC
        ("2026-11-22 12:00:00.5", NOON * 10**6 + 500_000),
        (12, 12 * 10**6),  # a clock that was never set: refused later, as before 2000
        (-5, -5 * 10**6),
    ],
)
def test_a_time_is_told_by_its_form_and_size(found: object, us: int) -> None:
    assert read.moment(found) == us
    together = read.moments([found])
    assert together is None or together.tolist() == [us]


@pytest.mark.parametrize(
    "found",
    [
        None,
        True,
        "",
        "yesterday",
        "9999-12-31T00:00:00Z",
        "0001-01-01",
        9e16,
        -(9 * 10**16),
        9 * 10**10,
        "12:00",
        math.nan,
        math.inf,
        10**40,
        [],
        {},
        read.ABSENT,
    ],
)
def test_what_is_no_time_is_refused(found: object) -> None:
    with pytest.raises(BadPayloadError):
        read.moment(found)
    assert read.moments([found]) is None


TIMES = st.one_of(
    st.integers(-(10**20), 10**20),
    st.integers(NOON - 10**8, NOON + 10**8).flatmap(lambda s: st.sampled_from([s, s * 1000, s * 10**6, s * 10**9])),
    st.floats(),
    st.datetimes().map(str),
    st.just("never"),
)


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_times_in_company_are_the_times_alone(found: list[object]) -> None:
    together = read.moments(found)
    if together is not None:
        assert together.tolist() == [read.moment(one) for one in found]
