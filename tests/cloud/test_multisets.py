"""Bags and series as cells on their way through Spark: what comes back is what went in, brought together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_job.spark.native import cell_arrays, column_types, in_numpy
from cloud_job.spark.native import multisets as cells_of_bags
from cloud_job.spark.native import series as cells_of_series
from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments

VALUES = st.lists(st.integers(-5, 5), min_size=1, max_size=8)
GROUPS = st.lists(st.lists(VALUES, max_size=4), min_size=1, max_size=6)  # rows of cells of values
NODES = ("gw-b", "gw-a")


def flattened(groups: list[list[list[int]]], scale: int | None) -> tuple[Array, Segments, Ints]:
    """(values, cells among them, how many cells each row has)."""
    found = [values for group in groups for values in group]
    flat = np.array([value for values in found for value in values], np.float64 if scale is None else np.int64)
    starts = np.cumsum([0, *map(len, found)])[:-1]
    return flat, Segments.runs(starts, len(flat)), np.array([len(group) for group in groups])


def met(made: pa.Array, many: Ints) -> pa.Array:
    """Cells as Spark collects them."""
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(many)]), pa.int32()), made)


@given(GROUPS, st.sampled_from([None, 0]), st.integers(0, 3))
def test_the_cells_of_a_row_become_one_bag(groups: list[list[list[int]]], scale: int | None, skipped: int) -> None:
    """As algebra.bags.combine; rows without cells have no answer; a slice of the rows is enough."""
    flat, each, many = flattened(groups, scale)
    rows = met(cells_of_bags.to_arrow(multisets.lift(flat, each)), many)[skipped:]
    got: dict[int, multisets.Multiset] = {}
    for place, found in cells_of_bags.merged(rows, scale):
        got.update(zip(place.tolist(), found["bag"].tolist(), strict=True))
    kept = groups[skipped:]
    assert got.keys() == {i for i, group in enumerate(kept) if group}
    for i, bag in got.items():
        values, counts = np.unique([value for values in kept[i] for value in values], return_counts=True)
        assert bag == multisets.Multiset(values.astype(flat.dtype), counts)


@given(GROUPS, st.sampled_from([None, 0]), st.integers(0, 3))
def test_the_cells_of_a_row_become_one_series(groups: list[list[list[int]]], scale: int | None, skipped: int) -> None:
    """protocol 7.3: by event time, then the bytes of the node's id, then arrival."""
    flat, each, many = flattened(groups, scale)
    order = np.arange(len(flat))
    column = np.empty(len(each), object)
    for i, cell in enumerate(series.lift(np.zeros(len(flat), np.int64), flat, 0, order, each)):
        column[i] = series.Series(cell.time_us, cell.value, cell.node + i % 2, cell.order)
    rows = met(cells_of_series.to_arrow(column, NODES), many)[skipped:]
    got: dict[int, tuple[series.Series, int]] = {}
    for place, found in cells_of_series.ordered(rows, scale):
        got.update(
            zip(place.tolist(), zip(found["series"].tolist(), found["count"].tolist(), strict=True), strict=True)
        )
    first = np.cumsum([0, *many])
    for i in range(len(groups) - skipped):
        here = column[first[i + skipped] : first[i + skipped + 1]].tolist()
        if not here:
            assert i not in got
            continue
        wanted = [v for node in (1, 0) for cell in here if cell.node[0] == node for v in cell.value.tolist()]
        assert got[i][0].value.tolist() == wanted
        assert got[i][1] == len(wanted)


def test_counts_travel_only_where_they_say_something() -> None:
    different, several = (
        multisets.lift(np.array(values), Segments.runs(np.zeros(1, np.int64), 3)) for values in ([1, 2, 3], [1, 1, 2])
    )
    assert cells_of_bags.to_arrow(different).field("c").null_count == 1
    assert cells_of_bags.to_arrow(several).field("c").null_count == 0


def test_bags_with_and_without_counts_meet() -> None:
    parts = [
        cells_of_bags.to_arrow(multisets.lift(np.array(values), Segments.runs(np.zeros(1, np.int64), 3)))
        for values in ([1, 2, 3], [1, 1, 2])
    ]
    rows = met(pa.concat_arrays(parts), np.array([2]))
    ((_, found),) = cells_of_bags.merged(rows, 0)
    assert found["bag"][0] == multisets.Multiset(np.array([1, 2, 3]), np.array([3, 2, 1]))


@pytest.mark.parametrize("lists", [True, False])
def test_a_value_beyond_64_bits_has_no_answer_and_harms_no_other_row(lists: bool) -> None:
    """protocol 7.1: units of a coarser scale made finer may leave them."""
    wide = np.empty(2, object)
    wide[:] = [
        multisets.Multiset(np.array([2**70], object), np.array([3])),
        multisets.Multiset(np.array([5], object), np.array([2])),
    ]
    made = cells_of_bags.to_arrow(wide)
    ((place, found),) = cells_of_bags.merged(met(made, np.ones(2, np.int64)) if lists else made, 0)
    assert place.tolist() == [1]
    assert found["bag"].tolist() == [multisets.Multiset(np.array([5]), np.array([2]))]


def test_bytes_with_wide_offsets_are_opened_too() -> None:
    flat, sizes = np.arange(5), np.array([2, 0, 3])
    column = cell_arrays.to_bytes(flat, sizes).cast(pa.large_binary())
    for cut in range(4):
        found, many = cell_arrays.opened(column[cut:], cell_arrays.INTS)
        assert (found.tolist(), many.tolist()) == (flat[sizes[:cut].sum() :].tolist(), sizes[cut:].tolist())


def test_more_than_a_column_of_bytes_holds_is_refused() -> None:
    many = np.broadcast_to(np.zeros(1), (2**28,))
    with pytest.raises(ValueError, match="a column of cells has"):
        cell_arrays.to_bytes(many, np.array([2**28]))


def test_states_for_numpy_leave_out_rows_that_have_no_answer() -> None:
    """protocol 7.1. Rows of queries of another shape have no cells, and one is beyond 64 bits."""
    many = np.array([1, 0, 2, 1])
    wide = np.empty(4, object)
    wide[:] = [multisets.Multiset(np.array([value], object), np.array([2])) for value in (2**70, 1, 3, 7)]
    given = pa.StructArray.from_arrays(
        [met(cells_of_bags.to_arrow(wide), many), pa.array([2, 0, 4, 2])], names=["c0", "c1"]
    )
    ((place, found),) = in_numpy.CollectedCells(("bag", "count"), ()).states(given, 0)
    assert place.tolist() == [2, 3]
    assert found["count"].tolist() == [4, 2]
    assert found["bag"].tolist() == [
        multisets.Multiset(np.array([1, 3]), np.array([2, 2])),
        multisets.Multiset(np.array([7]), np.array([2])),
    ]


def test_cells_that_numpy_combines_leave_out_rows_that_have_no_answer() -> None:
    """protocol 7.1."""
    wide = np.empty(3, object)
    wide[:] = [multisets.Multiset(np.array([value], object), np.array([2])) for value in (2**70, 1, 3)]
    cell = pa.StructArray.from_arrays([cells_of_bags.to_arrow(wide)], names=["c0"])
    given = pa.StructArray.from_arrays([met(cell, np.array([1, 0, 2]))], names=["c0"])
    ((place, found),) = in_numpy.CollectedCells((), ("bag",)).states(given, 0)
    assert place.tolist() == [2]
    assert found["bag"].tolist() == [multisets.Multiset(np.array([1, 3]), np.array([2, 2]))]


def test_a_series_with_a_value_beyond_64_bits_harms_no_other_row() -> None:
    """protocol 7.1."""
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    wide = np.empty(2, object)
    wide[:] = [series.Series(one, np.array([value], object), zero, zero) for value in (2**70, 5)]
    ((place, found),) = cells_of_series.ordered(met(cells_of_series.to_arrow(wide, NODES), np.ones(2, np.int64)), 0)
    assert place.tolist() == [1]
    assert found["series"][0].value.tolist() == [5]


def test_rows_whose_cells_hold_much_go_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row once and in order; rows without cells are one batch."""
    monkeypatch.setattr(multisets, "_BLOCK", 4)
    column = multisets.lift(np.arange(12), Segments.runs(np.array([0, 3, 4, 9]), 12))  # 3, 1, 5 and 3 values
    place = np.arange(4)
    assert list(column_types.blocks(Partials(place, place + 1, place, {"bag": column}))) == [(0, 2), (2, 3), (3, 4)]
    assert list(column_types.blocks(Partials(place, place + 1, place, {"count": place}))) == [(0, 4)]
