"""Batches of readings that devices publish."""

from __future__ import annotations

from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import WireError
from edge_agent.wire import readings
from tests.support.wire.same import same_array

Tag = cbor2.CBORTag
START = 1_790_000_000_000_000


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.floats())))
def test_a_batch_of_floats_comes_back_bit_by_bit(rows: list[tuple[int, float]]) -> None:
    """NaN and infinities too: what to do with them is the sensor's policy."""
    time = np.array([t for t, _ in rows], np.int64)
    value = np.array([v for _, v in rows], np.float64)
    got_time, got_value = readings.decode(readings.encode(time, value))
    assert same_array(got_time, time)
    assert same_array(got_value, value)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(-(2**60), 2**60), st.integers(0, 10**9))
def test_a_batch_of_integers_at_equal_steps_comes_back(values: list[int], start: int, step: int) -> None:
    value = np.array(values, np.int64)
    time, got = readings.decode(readings.encode((start, step), value))
    assert same_array(got, value)
    assert time.tolist() == [start + i * step for i in range(len(values))]


@pytest.mark.parametrize("tag", sorted(readings.DTYPES))
def test_every_array_of_numbers_of_rfc_8746_is_read(tag: int) -> None:
    """Both byte orders, all widths, half precision."""
    dtype = readings.DTYPES[tag]
    content = np.array([1, 0, 100, 3], dtype)
    _, value = readings.decode(cbor2.dumps([1, [START, 1_000], Tag(tag, content.tobytes())]))
    assert value.tolist() == [1, 0, 100, 3]
    assert value.dtype == (np.float64 if dtype.kind == "f" else np.int64)
    assert value.dtype.isnative


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ([2, [START, 1], Tag(86, bytes(8))], "version 2"),
        ([1, [START, 1]], "3 items"),
        ([1, [START, 1], [1.0, 2.0]], "typed array"),
        ([1, [START, 1], Tag(87, bytes(16))], "typed array"),
        ([1, [START, 1], Tag(86, bytes(7))], "whole items"),
        ([1, [START, 1], Tag(86, "12345678")], "whole items"),
        ([1, [START, 1], Tag(71, b"\xff" * 8)], "64 bits"),
        ([1, Tag(75, bytes(8)), Tag(86, bytes(8))], "tag 75"),
        ([1, Tag(79, bytes(16)), Tag(86, bytes(8))], "2 times for 1 values"),
        ([1, [START, -1], Tag(86, bytes(8))], "step"),
        ([1, [START, 2**62], Tag(86, bytes(8))], "step"),
        ([1, [1.5, 1], Tag(86, bytes(8))], "start"),
        ([1, START, Tag(86, bytes(8))], "times"),
        ({"t": 1}, "not CBOR as agreed|map"),
        (21.5, "array of 3"),
    ],
)
def test_what_is_no_batch_is_refused_with_a_reason(payload: Any, why: str) -> None:
    with pytest.raises(WireError, match=why):
        readings.decode(cbor2.dumps(payload))


def test_a_batch_has_a_largest_size() -> None:
    payload = cbor2.dumps([1, [START, 1], Tag(64, bytes(readings.MAX_READINGS + 1))])
    with pytest.raises(WireError, match="more than"):
        readings.decode(payload)
