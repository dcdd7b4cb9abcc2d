"""Frames of a few hundred bytes whose columns are one number each cost bounded memory, decoded and kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import cbor2
import numpy as np
import pytest

from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.frame import MAX_COLUMNS, MAX_FRAME_BYTES, MAX_KEYS, Define, Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.multisets import FlatMultisets
from edge_agent.algebra.partials.partial import Partials
from edge_agent.errors import WireError
from edge_agent.machines.events import Arrived
from edge_agent.machines.region import partial_store
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from edge_agent.wire.sections import MAX_CELLS, MAX_ROWS
from tests.hostile.fed_region import COUNTED, NOW_US, Region, S, counted

WIDE = Plan(b"87654321", "slice", ("count", *(f"below:{n}" for n in range(MAX_COLUMNS - 1))), None, S, (("q", 1),))


def constant(seq: int, rows: int, *columns: int) -> bytes:
    """A frame of one section for each number of columns, all cells 1: 7 bytes and one for each column."""
    sections = [[0, 7, NOW_US // S + 100, [0, rows], *[1] * number] for number in columns]
    return cbor2.dumps([1, 7, seq, cbor2.dumps([0, NOW_US - 10 * S, *sections])])


@pytest.mark.parametrize("columns", [(256,), (5,), (2, 2, 17), (2, 2, 9)])
def test_a_frame_with_too_many_cells_is_refused_before_they_are_made(columns: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match=f"left of {MAX_CELLS} in a frame"):
        frames.decode(constant(1, MAX_ROWS // len(columns), *columns))


@pytest.mark.parametrize("columns", [4, 5])
def test_values_in_multisets_count_as_cells(columns: int) -> None:
    """A multiset of 65 536 values takes some hundred bytes of a frame if they are an even sequence."""
    flat = FlatMultisets(np.arange(MAX_ROWS), np.ones(MAX_ROWS, np.int64), np.array([MAX_ROWS]))
    one = np.array([NOW_US])
    states: Any = {str(n): flat.column() for n in range(columns)}
    section = Section(0, Partials(one, one + S, np.zeros(1, np.int64), states))
    payload = frames.encode(Frame(7, 1, groups=(GroupPart(0, NOW_US, (section,)),)))
    if columns * MAX_ROWS <= MAX_CELLS:
        frames.decode(payload)
        return
    with pytest.raises(WireError, match=f"left of {MAX_CELLS} in a frame"):
        frames.decode(payload)


def test_the_cells_of_a_full_frame_decode() -> None:
    frame = frames.decode(constant(1, MAX_CELLS // MAX_COLUMNS, MAX_COLUMNS))
    assert isinstance(frame, Frame)
    assert len(frame.groups[0].sections[0].partials) == MAX_CELLS // MAX_COLUMNS
    frames.decode(constant(1, MAX_ROWS, MAX_CELLS // MAX_ROWS))


def test_a_frame_that_nodes_make_has_room_to_spare() -> None:
    """A sender counts 9 bytes for a cell, so three quarters of a frame hold some 11 000, and 2 for a value."""
    assert MAX_FRAME_BYTES // min(kind.bytes for kind in KINDS.values()) < MAX_CELLS // 10
    assert MAX_FRAME_BYTES // 2 <= MAX_CELLS // 4


def registers(seq: int, groups: int, number: int = MAX_KEYS) -> bytes:
    """A frame with so many registers in each group, all of one key and start: 14 bytes for a group."""
    body = [[128, [[group, number, 0, 0, 0, None] for group in range(groups)]]]
    return cbor2.dumps([1, 7, seq, cbor2.dumps([*body, *(item for group in range(groups) for item in (group, None))])])


@pytest.mark.parametrize(("groups", "number"), [(2, MAX_KEYS), (5_000, MAX_KEYS), (300, 300)])
def test_a_frame_with_too_many_registers_is_refused_before_they_are_made(groups: int, number: int) -> None:
    """protocol 2.1: 4 500 bytes took a gigabyte."""
    frames.decode(registers(1, 1))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=f"more than {MAX_KEYS} registers"):
            frames.decode(registers(1, groups, number))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_it_costs_its_sender_the_frame_and_a_sibling_nothing() -> None:
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    region.gives("bad", constant(1, MAX_ROWS, 256))
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert ["in a frame" in why for why in region.quarantined] == [True]
    assert region.readings() == 5


def wide_rows(seq: int, rows: int) -> Frame:
    start = NOW_US + (np.arange(rows) + rows * seq) * S
    states: Any = {name: np.ones(rows, np.int64) for name in WIDE.basis}
    section = Section.of(1, WIDE, Partials(start, start + S, np.zeros(rows, np.int64), states))
    define = Define(plans=((1, 0, WIDE),)) if seq == 1 else None
    return Frame(7, seq, define=define, groups=(GroupPart(0, NOW_US - 10 * S, (section,)),))


@pytest.fixture
def few() -> Iterator[None]:
    with mock.patch.object(partial_store, "MOST_OPEN", 1_000):
        yield


@pytest.mark.usefixtures("few")
def test_open_rows_with_many_columns_count_for_more_and_leave_early() -> None:
    """protocol 6.1: 32 times as much as one of eight columns."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    for seq in range(1, 6):
        region.hears("bad", wide_rows(seq, 20))
        assert sum(map(len, region.merger.store._stores.values())) <= 1_000 // 32
    assert region.merger.counters()["beyond_bounds"]["open rows"] > 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("values", [MAX_ROWS, 100])
def test_open_rows_whose_cells_hold_many_values_count_for_more_and_leave_early(values: int) -> None:
    """protocol 6.1: a multiset of 60 000 values takes 35 bytes of a frame, and half a megabyte here."""
    plan = Plan(b"12345678", "slice", ("count", "bag"), 0, S, (("q", 1),))
    region = Region()
    region.hears("bad", region.birth("bad", plan))
    for seq in range(1, 31):
        row = [0, 7, [NOW_US // S + 1_000 + seq, 1], 0, values, [None, values, [None, 0, 0], 1]]
        region.gives("bad", cbor2.dumps([1, 7, seq, cbor2.dumps([0, NOW_US - 10 * S, row])]))
        store = region.merger.store
        assert sum(sum(len(rows.states["1"][0].values) for rows in raw) for raw in store._raw.values()) <= MAX_ROWS
        region.waits()
        kept = sum(len(bag.values) for of in store._stores.values() for bag in of.view().states.get("bag", ()))
        assert kept * 16 <= 1_000 * partial_store.BYTES_OF_ONE
        region.start()
        region.waits(1)
    assert not region.quarantined
    assert region.readings() + region.merger.store.readings == 30 * values


@pytest.mark.usefixtures("few")
def test_rows_of_one_commit_interval_are_bounded() -> None:
    """A region does not wait for the end of the interval when it has taken that many rows."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    for seq in range(1, 11):
        region.feed(Arrived((("bad", heard(frames.encode(wide_rows(seq, 20))), None),)))
        assert sum(len(rows) for raw in region.merger.store._raw.values() for rows in raw) <= 1_000 // 32
