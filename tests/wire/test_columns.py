"""Columns take the smallest form that gives back every bit."""

from __future__ import annotations

from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.arrays import Array
from edge_agent.errors import WireError
from edge_agent.wire import cbor
from edge_agent.wire.columns import numeric
from tests.support.wire import frame_strategies as any_
from tests.support.wire.same import same_array

many = st.integers(1, 40).flatmap(any_.columns)


@given(many)
def test_a_column_comes_back_bit_by_bit(column: Array) -> None:
    item = cbor2.loads(cbor.dumps(numeric.encode(column)))
    assert same_array(numeric.decode(item, len(column), "x"), column)


@given(many)
def test_no_column_is_longer_than_eight_bytes_a_row(column: Array) -> None:
    """Of integers within 64 bits and floats; the frames of a step are cut by that bound."""
    if column.dtype != object:
        assert len(cbor.dumps(numeric.encode(column))) <= 8 * len(column) + 5


@pytest.mark.parametrize(
    ("column", "form"),
    [
        (np.array([7] * 9), 7),
        (np.array([2.5] * 9), 2.5),
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.arange(20), cbor2.CBORTag(64, bytes(range(20)))),
        (np.array([1_000_000, 1_000_001, 1_000_005] * 5), [1_000_000, cbor2.CBORTag(64, b"\x00\x01\x05" * 5)]),
        (np.array([-1, 1] * 9), cbor2.CBORTag(72, b"\xff\x01" * 9)),
        (np.array([0.0, -0.0]), cbor2.CBORTag(84, b"\x00\x00\x00\x80")),
        (np.array([1.0, 2.0]), cbor2.CBORTag(84, b"\x00\x3c\x00\x40")),
        (np.array([1.0, 100_001.0]), cbor2.CBORTag(85, np.array([1, 100_001], "<f4").tobytes())),
        (np.array([0.1, 0.2]), cbor2.CBORTag(86, np.array([0.1, 0.2]).tobytes())),
        (np.array([2**63, 5], object), [2**63, 5]),
        (np.array([2, 5], object), [2, 5]),
    ],
)
def test_the_shortest_form_is_chosen(column: Array, form: object) -> None:
    assert numeric.encode(column) == form


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (np.array([2**127], object), "beyond 128 bits"),
        (np.array([-(2**127) - 1, 0], object), "beyond 128 bits"),
        (np.array([1.0, np.nan]), "NaN"),
        (np.array([True, False]), "cannot be encoded"),
        (np.array(["a"]), "cannot be encoded"),
    ],
)
def test_what_cannot_travel_is_our_own_bug(column: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        numeric.encode(column)


def test_narrow_types_of_numpy_travel_as_64_bits() -> None:
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        assert numeric.encode(np.array([1, 2, 3], dtype)) == [1, 2, 3]
    assert numeric.encode(np.array([1.5, 2.5], np.float32)) == cbor2.CBORTag(84, b"\x00\x3e\x00\x41")


def test_a_column_of_integers_does_not_take_fractions() -> None:
    with pytest.raises(WireError, match="64 bits"):
        numeric.decode_ints(2.5, 3, "starts")
    with pytest.raises(WireError, match="64 bits"):
        numeric.decode_ints(2**70, 3, "starts")
