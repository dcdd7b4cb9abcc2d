"""Series: readings in their global order, one series per row of a state column. Used by functions that need the order.

A column of series is an object array, like a column of multisets (partials/multisets.py). Operations work on the flat
arrays of all rows at once (`FlatSeries`). The order is (event time, node, arrival). Nodes sort by the bytes of their
ids, not by code (docs/protocol.md 7.3), so a series stays sorted when nodes get other codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import Segments


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Readings sorted by (time, node, arrival), at least one.

    time_us: shape (k,), int64. value: shape (k,), float64 or int64 units; values beyond 64 bits, which occur only at
    the root, are Python integers. node: shape (k,), int64, index into the owner's table of nodes. order: shape (k,),
    int64, arrival numbers.
    """

    time_us: Ints
    value: Array
    node: Ints
    order: Ints

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Series)
            and self.value.dtype == other.value.dtype
            and np.array_equal(self.value, other.value)
            and np.array_equal(self.time_us, other.time_us)
            and np.array_equal(self.node, other.node)
            and np.array_equal(self.order, other.order)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Series({self.time_us.tolist()}, {self.value.tolist()}, {self.node.tolist()}, {self.order.tolist()})"


@dataclass(frozen=True, slots=True)
class FlatSeries(multisets.FlatCells):
    """The series of a column. An entry is a reading; no row is empty. Fields as in `Series`."""

    time_us: Ints
    value: Array
    node: Ints
    order: Ints
    sizes: Ints

    def column(self) -> NDArray[Any]:
        """The column: an object array of one `Series` per row."""
        out = np.empty(len(self.sizes), object)
        first = 0
        for row, end in enumerate(np.cumsum(self.sizes).tolist()):
            part = slice(first, end)
            out[row] = Series(self.time_us[part], self.value[part], self.node[part], self.order[part])
            first = end
        return out


def flat(column: Array) -> FlatSeries:
    """The series of a column of shape (n,), n may be 0."""
    cells: list[Series] = column.tolist()
    none = np.zeros(0, np.int64)
    if not cells:
        return FlatSeries(none, np.zeros(0), none, none, none)
    sizes = np.fromiter((len(cell.time_us) for cell in cells), np.int64, len(cells))
    if len(cells) == 1:
        return FlatSeries(cells[0].time_us, cells[0].value, cells[0].node, cells[0].order, sizes)
    return FlatSeries(
        np.concatenate([cell.time_us for cell in cells]),
        np.concatenate([cell.value for cell in cells]),
        np.concatenate([cell.node for cell in cells]),
        np.concatenate([cell.order for cell in cells]),
        sizes,
    )


def is_series(column: Array) -> bool:
    """Whether a column is not empty and contains series."""
    return column.dtype == object and len(column) > 0 and isinstance(column[0], Series)


def kind_of(column: Array) -> str:
    """The kind of a column as a letter: 'S' for series of floats, 's' of integers, else as `multisets.kind_of`."""
    if is_series(column):
        return "S" if column[0].value.dtype.kind == "f" else "s"
    return multisets.kind_of(column)


def lift(time_us: Ints, value: Array, node: int, order: Ints, groups: Segments) -> NDArray[Any]:
    """One series per group of readings of one node. time_us, value, order: shape (k,), sorted by (time, arrival)."""
    if not len(groups):
        return np.empty(0, object)
    nodes = np.full(len(time_us), node, np.int64)
    value = value + 0.0 if value.dtype == np.float64 else value  # turns -0.0 into 0.0, as in multisets
    if groups.starts is None:
        at = np.argsort(groups.spread(np.arange(len(groups))), kind="stable")
        time_us, value, order = time_us[at], value[at], order[at]
    return FlatSeries(time_us, value, nodes, order, groups.count()).column()


def combine(column: Array, groups: Segments, ranks: Ints | None) -> Array:
    """One series per group of series. ranks: as in aggregates.combine."""
    if not len(groups) or (len(groups) == groups.rows and groups.starts is not None):
        return column
    found = flat(column)
    owner = np.repeat(groups.spread(np.arange(len(groups))), found.sizes)
    place = found.node if ranks is None else ranks[found.node]
    at = np.lexsort((found.order, place, found.time_us, owner))
    sizes = np.bincount(owner, minlength=len(groups))
    return FlatSeries(found.time_us[at], found.value[at], found.node[at], found.order[at], sizes).column()


def mapped(column: Array, change: Callable[[Array], Array]) -> Array:
    """Series of changed values. change: maps the flat array of values."""
    found = flat(column)
    return FlatSeries(found.time_us, change(found.value), found.node, found.order, found.sizes).column()


def renumbered(column: Array, change: Callable[[Ints], Ints]) -> Array:
    """Series with other node codes. change: maps the flat array of codes and keeps the order of node ids."""
    found = flat(column)
    return FlatSeries(found.time_us, found.value, change(found.node), found.order, found.sizes).column()
