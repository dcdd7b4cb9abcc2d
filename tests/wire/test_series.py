"""Series travel whole, small, and never grow into more than a frame may hold."""

from __future__ import annotations

import zlib
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.series import Series, combine
from edge_agent.errors import WireError
from edge_agent.wire import cbor, snapshot
from edge_agent.wire.columns import series
from tests.support.wire import frame_strategies as any_
from tests.support.wire.same import same_array

ROOM = 65_536


def column_of(*cells: tuple[list[int], list[Any], list[int], list[int]]) -> Array:
    column = np.empty(len(cells), object)
    for row, (time, value, node, order) in enumerate(cells):
        column[row] = Series(np.array(time), np.array(value), np.array(node), np.array(order))
    return column


def deflated(raw: bytes) -> bytes:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeezer.compress(raw) + squeezer.flush()


@given(st.integers(1, 12).flatmap(any_.series), st.booleans())
def test_a_column_of_series_comes_back_as_it_was(column: Array, deflate: bool) -> None:
    item = cbor.loads(cbor.dumps(series.encode(column, deflate=deflate)), "x")
    back, readings = series.decode(item, len(column), ROOM, "x")
    assert same_array(back, column)
    assert readings == sum(len(each.time_us) for each in column)


@given(st.integers(1, 12).flatmap(any_.series))
def test_rows_that_start_with_their_first_reading_do_not_say_its_time_again(column: Array) -> None:
    start = np.array([cell.time_us[0] for cell in column])
    item = cbor.loads(cbor.dumps(series.encode(column, start)), "x")
    assert item[3][1] is None  # type: ignore[index]
    assert same_array(series.decode(item, len(column), ROOM, "x", start)[0], column)
    assert series.encode(column, start - 1)[3][1] is not None  # type: ignore[index]
    with pytest.raises(WireError, match="starts of rows"):
        series.decode([*item[:3], [7, None, item[3][2]], *item[4:]], len(column), ROOM, "x", start * 7 + 1)  # type: ignore[index]


@given(st.integers(1, 12).flatmap(any_.series))
def test_a_state_with_series_comes_back_as_it_was(column: Array) -> None:
    assert same_array(snapshot.loads(snapshot.dumps({"series": column}))["series"], column)


@pytest.mark.parametrize(
    ("column", "item"),
    [
        (column_of(([7000], [5], [2], [9])), [True, 1, 2, [1000, 7, 0], [9, 0], [None, 5]]),
        (column_of(([0, 2, 4], [2, 3, 1], [0] * 3, [5, 6, 7])), None),
        (
            column_of(([5], [1 / 3], [0], [0]), ([6], [1 / 3], [0], [1])),
            [True, 1, 0, [1, [5, 6], 0], [[0, 1], 0], 1 / 3],
        ),
    ],
)
def test_the_forms_are_as_the_schema_says(column: Array, item: object) -> None:
    wanted = [True, 3, 0, [10**9 * 0 + 3_600_000_000, 0, 0], [5, 1], [None, [2, 3, 1]]] if item is None else item
    if item is None:
        wanted[3] = [1, 0, 2]  # type: ignore[index]
    assert series.encode(column) == wanted


def test_a_sensor_read_every_second_costs_little_more_than_its_values() -> None:
    """0.1 degree at 1 Hz, a slow walk: times and arrivals are each one step."""
    random = np.random.default_rng(1)
    k = 3_600
    value = (np.cumsum(random.integers(-1, 2, k)) + 200) / 10
    cell = column_of((list(range(0, k * 10**6, 10**6)), value.tolist(), [0] * k, list(range(100, 100 + k))))
    assert len(cbor.dumps(series.encode(cell))) < 0.5 * k


TAG = cbor2.CBORTag(64, b"\x01\x02\x03")
GOOD: list[Any] = [True, 2, 0, [1, 0, 1], [0, 1], [None, [1, 2]]]


def but(at: int, item: object) -> list[Any]:
    return [*GOOD[:at], item, *GOOD[at + 1 :]]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ([True], "wanted an array of 6"),
        (but(0, False), "wanted a column of series"),
        (but(1, 0), "at least 1 reading"),
        (but(1, 65_537), "readings together"),
        (but(1, 2**62), "readings together"),
        (but(2, -1), "below 0"),
        (but(2, 1.5), "wanted integers"),
        (but(3, [0, 0, 1]), "tick"),
        (but(3, [1, 0]), "wanted an array of 3"),
        (but(3, [1, None, 1]), "starts of rows"),
        (but(3, [1, 2**62, 1]), "beyond 61 bits"),
        (but(3, [3_600_000_000, 2**40, 1]), "beyond 61 bits"),
        (but(3, [1, 0, 2**63 - 1]), "beyond 61 bits"),
        (but(3, [1, 0, -1]), "not in the order"),
        (but(4, [0]), "wanted an array of 2"),
        (but(4, [2**62, 1]), "beyond 61 bits"),
        (but(4, [0, TAG]), "wanted 1 rows"),
        ([True, 2, 0, [1, 0, 0], [0, -1], [None, [1, 2]]], "not in the order"),
        ([True, 1, 0, [1, 0, 1], [0, 0], [None, 1]], "no row has two readings"),
        (but(5, 7), "wanted floats"),
        (but(5, [86, deflated(bytes(17))]), "wanted exactly 16 bytes"),
        (but(5, [86, b"\x00\x00"]), "inflated"),
        (but(5, [64, deflated(bytes(2))]), "wanted floats"),
        (but(5, [4, [1, 2]]), "decimals"),
        (but(5, [1, 2**53, 1]), "53 bits"),
        (but(5, [None, 1.5]), "wanted integers"),
        (but(5, [None, 2**61, 2**61]), "beyond 61 bits"),
    ],
)
def test_what_is_no_column_of_series_is_refused_with_a_reason(item: list[Any], why: str) -> None:
    with pytest.raises(WireError, match=why):
        series.decode(item, 1, ROOM, "x")
    assert series.decode(GOOD, 1, ROOM, "x")[1] == 2


MOST = series.LIMIT - 1
FAR = st.one_of(st.integers(-MOST, MOST), st.sampled_from([-MOST, MOST, 0, 1, MOST // 3_600_000_000 * 3_600_000_000]))
READINGS = st.lists(st.tuples(FAR, FAR, st.integers(0, 3), FAR), min_size=1, max_size=6)


def again(column: Array, start: Array | None = None) -> Array:
    item = cbor.loads(cbor.dumps(series.encode(column, start)), "x")
    return series.decode(item, len(column), ROOM, "x", start)[0]


@given(st.lists(READINGS, min_size=1, max_size=4), st.booleans())
@example([[(0, MOST * (-1) ** n, 0, MOST * (-1) ** n) for n in range(6)]], True)
@example([[(MOST // 3_600_000_000 * 3_600_000_000, 0, 0, 0)]], True)
@example([[(5, 1, 0, 7)], [(5, 2, 0, 7)]], True)
def test_all_series_that_decode_can_be_merged_and_encoded_and_decoded_again(
    found: list[list[tuple[int, int, int, int]]], whole: bool
) -> None:
    """A merger keeps merged series in its spool and sends them: neither its start nor its parent may refuse them."""
    cells = []
    for cell in found:
        time, value, node, order = (
            np.array(each) for each in zip(*sorted(cell, key=lambda r: (r[0], r[2], r[3])), strict=True)
        )
        # a child may send values without differences, and times in the smallest tick
        first = [int(time[0]), _steps(time)], [int(order[0]), _steps(order)]
        item = [True, len(time), _plain(node), [1, *first[0]], first[1], [None, _plain(value)]]
        column, _ = series.decode(cbor.loads(cbor.dumps(item), "x"), 1, ROOM, "x")
        assert same_array(again(column), column)
        cells.append(column)
    merged = combine(np.concatenate(cells), Segments.runs(np.zeros(1, np.int64), len(cells)), None)
    column = merged if whole else np.concatenate([merged, *cells])
    assert same_array(again(column), column)
    assert same_array(snapshot.loads(snapshot.dumps({"series": column}))["series"], column)


def _plain(numbers: Array) -> object:
    return int(numbers[0]) if len(numbers) == 1 else numbers.tolist()


def _steps(numbers: Array) -> object:
    return 0 if len(numbers) == 1 else _plain(np.diff(numbers))


@pytest.mark.parametrize("at", [4, 5])
def test_differences_that_leave_61_bits_in_between_are_refused(at: int) -> None:
    """Wrapping around they would come back within the limit."""
    steps = cbor2.CBORTag(79, np.array([2**62, 2**62, 2**62, 2**62], "<i8").tobytes())
    item = [True, 5, 0, [1, 0, 1], [0, 1], [None, 0, 0]]
    item[at] = [0, steps] if at == 4 else [None, 0, steps]
    with pytest.raises(WireError, match="beyond 61 bits"):
        series.decode(item, 1, ROOM, "x")
