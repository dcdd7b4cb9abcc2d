"""Bags travel whole, small, and never grow into more than a frame may hold."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.errors import WireError
from edge_agent.wire import cbor, snapshot
from edge_agent.wire.columns import multisets
from tests.support.wire import frame_strategies as any_
from tests.support.wire.same import same_array

ROOM = 65_536


def column_of(*cells: tuple[Any, Any]) -> Array:
    column = np.empty(len(cells), object)
    for row, (values, counts) in enumerate(cells):
        column[row] = Multiset(np.array(values), np.array(counts, np.int64))
    return column


def deflated(raw: bytes) -> bytes:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeezer.compress(raw) + squeezer.flush()


@given(st.integers(1, 12).flatmap(any_.bags), st.booleans())
def test_a_column_of_bags_comes_back_as_it_was(column: Array, deflate: bool) -> None:
    item = cbor.loads(cbor.dumps(multisets.encode(column, deflate=deflate)), "x")
    back, values = multisets.decode(item, len(column), ROOM, "x")
    assert same_array(back, column)
    assert values == sum(len(bag.values) for bag in column)


@given(st.integers(1, 12).flatmap(any_.bags))
def test_a_state_with_bags_comes_back_as_it_was(column: Array) -> None:
    assert same_array(snapshot.loads(snapshot.dumps({"bag": column}))["bag"], column)


@given(st.integers(1, 400), st.integers(0, 2**32))
def test_many_values_of_each_kind_come_back_deflated_or_not(k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for values in (np.unique(random.integers(-50, 5_000, k)), np.unique(random.normal(0, 3, k)), np.arange(k) / 10):
        column = column_of((values, random.integers(1, 4, len(values))), (values[:1], [1]))
        back, _ = multisets.decode(cbor.loads(cbor.dumps(multisets.encode(column)), "x"), 2, ROOM, "x")
        assert same_array(back, column)


@pytest.mark.parametrize(
    ("column", "item"),
    [
        (column_of(([205, 206, 208], [3, 1, 2])), [None, 3, [None, 205, [0, 1]], [3, 1, 2]]),
        (column_of(([20.5, 20.6, 20.8], [1, 1, 1])), [None, 3, [1, 205, [0, 1]], 1]),
        (column_of(([7], [1]), ([9], [1])), [None, 1, [None, [7, 9], 0], 1]),
        (column_of(([1 / 3], [5])), [None, 1, 1 / 3, 5]),
    ],
)
def test_the_forms_are_as_the_schema_says(column: Array, item: object) -> None:
    assert multisets.encode(column) == item


TAG = cbor2.CBORTag(64, b"\x01\x02\x03")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ([None], "wanted an array of 4"),
        ([None, 0, 1.5, 1], "at least 1 value"),
        ([None, 65_537, [None, 0, 0], 1], "values together"),
        ([None, 2**62, [None, 0, 0], 1], "values together"),
        ([None, 1.5, 1.5, 1], "wanted integers"),
        ([None, 3, 5, 1], "wanted floats"),
        ([None, 3, [None, 1, 0], 0], "a count is outside"),
        ([None, 3, [None, 1, 0], 2**61], "a count is outside"),
        ([None, 3, [None, 1, 0], 1.5], "wanted integers"),
        ([None, 3, [None, 1, -1], 1], "below 0"),
        ([None, 3, [None, 2**62, 1], 1], "beyond 62 bits"),
        ([None, 3, [None, 1, 2**62], 1], "beyond 62 bits"),
        ([None, 3, [4, 1, 1], 1], "decimals"),
        ([None, 3, [1, 2**53, 1], 1], "53 bits"),
        ([None, 1, [None, 1, 1], 1], "no row has two values"),
        ([None, 3, 1.5, 1], "do not increase"),
        ([None, 3, [65, b"xx"], 1], "unknown tag 65"),
        ([None, 3, [86, b"\x00\x00"], 1], "inflated"),
        ([None, 3, [86, deflated(bytes(23))], 1], "wanted exactly 24 bytes"),
        ([None, 3, [86, deflated(bytes(25))], 1], "wanted exactly 24 bytes"),
        ([None, 3, [86, deflated(bytes(24)) + b"x"], 1], "wanted exactly 24 bytes"),
        ([None, 3, [64, deflated(bytes(3))], 1], "wanted floats"),
        ([None, 3, [None, 1, TAG], 1], "wanted 2 rows"),
    ],
)
def test_what_is_no_column_of_bags_is_refused_with_a_reason(item: list[Any], why: str) -> None:
    with pytest.raises(WireError, match=why):
        multisets.decode(item, 1, ROOM, "x")


def test_a_few_bytes_do_not_grow_into_many() -> None:
    bomb = deflated(bytes(50_000_000))
    assert len(bomb) < 64 * 1024
    tracemalloc.start()
    with pytest.raises(WireError, match="inflated"):
        multisets.decode([None, ROOM, [None, 0, [64, bomb]], 1], 1, ROOM, "x")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
