"""Sketches travel whole, and only what we would write ourselves is let in."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from edge_agent.algebra import sketches as algebra
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.sketches import hll, kll, theta
from edge_agent.errors import WireError
from edge_agent.wire import cbor, snapshot
from edge_agent.wire.columns import sketches
from tests.support.wire import frame_strategies as any_


@given(any_.sketches(3, 300) | any_.sketches(3, 1_500))
def test_a_column_of_sketches_comes_back_as_it_was(column: Array) -> None:
    item = cbor.loads(cbor.dumps(sketches.encode(column)), "x")
    assert sketches.decode(item, 3, "x").tolist() == column.tolist()
    assert snapshot.loads(snapshot.dumps({"column": column}))["column"].tolist() == column.tolist()


def sketch(values: Array) -> bytes:
    cell: bytes = theta.lift(values, Segments.runs(np.zeros(1, np.int64), len(values)))[0]
    return cell


def test_registers_are_deflated_to_less_than_two_thirds() -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    column = hll.lift(values, Segments.runs(np.zeros(1, np.int64), len(values)))
    assert len(cbor.dumps(sketches.encode(column))) < 4136 * 2 / 3


GOOD = sketch(np.arange(3.0))
OTHER = kll.lift(np.arange(3.0), Segments.runs(np.zeros(1, np.int64), 3))[0]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ([False, len(GOOD)], "array of 3"),
        ([False, len(GOOD), GOOD, 0], "array of 3"),
        ([False, 0, b""], "sketches of 1 to"),
        ([False, -1, b""], "sketches of 1 to"),
        ([False, algebra.MOST_BYTES + 1, b""], "sketches of 1 to"),
        ([False, 3.5, GOOD], "integers"),
        ([False, len(GOOD), GOOD[:-1]], "plain or deflated"),
        ([False, len(GOOD), [GOOD]], "inflated|deflated"),
        ([False, len(GOOD), [zlib.compress(GOOD)]], "inflated|deflated"),
        ([False, len(GOOD), None], "plain or deflated"),
        ([False, len(GOOD), GOOD[:-1] + b"\xff"], "not a sketch"),
        ([False, 8, bytes(8)], "not a sketch"),
        ([False, 1, b"\x01"], "not a sketch"),
    ],
)
def test_what_is_no_column_of_sketches_is_refused_with_a_reason(item: list[Any], why: str) -> None:
    with pytest.raises(WireError, match=why):
        sketches.decode(item, 1, "x")


def test_sketches_of_two_kinds_are_no_column() -> None:
    with pytest.raises(WireError, match="one known kind"):
        sketches.decode([False, [len(GOOD), len(OTHER)], GOOD + OTHER], 2, "x")


def test_a_few_bytes_do_not_grow_into_many() -> None:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = squeezer.compress(bytes(2**24)) + squeezer.flush()
    with pytest.raises(WireError, match="together"):
        sketches.decode([False, algebra.MOST_BYTES, [bomb]], 1_000, "x")
    with pytest.raises(WireError, match="deflated"):
        sketches.decode([False, algebra.MOST_BYTES, [bomb]], 1, "x")
