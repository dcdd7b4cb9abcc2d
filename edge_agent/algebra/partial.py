"""Readings and partials as columns: one frozen value holding numpy arrays, never a list of small objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra import aggregates
from edge_agent.algebra.query import Labels
from edge_agent.algebra.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.windows import Window

Ints = NDArray[np.int64]
Column = NDArray[Any]  # float64, int64, or object (Python ints beyond 64 bits)


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings of one sensor in arrival order.

    time_us: shape (k,), int64, event time, any order. value: shape (k,), float64 in the sensor's unit, or int64 in
    multiples of 10**scale. series: shape (k,), int64, index into `labels`, an append-only table of the driver.
    k may be 0.
    """

    time_us: Ints
    value: NDArray[np.float64] | Ints
    series: Ints
    labels: Sequence[Labels]


@dataclass(frozen=True, slots=True)
class Partials:
    """Mergeable states, a row per (range, key): [start, end) in us, key = a number in the holder's key table.

    start, end, key: shape (n,), int64. states: column name (algebra.aggregates) -> shape (n,). n may be 0.
    Rows need not be unique by (start, end, key): every row is a delta and the sum of all counts (docs/protocol.md 6.1).
    """

    start: Ints
    end: Ints
    key: Ints
    states: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: NDArray[np.bool_] | Ints | slice) -> Partials:
        """The rows an index or mask names, in its order."""
        return Partials(
            self.start[index], self.end[index], self.key[index], {c: v[index] for c, v in self.states.items()}
        )


NO_INTS: Final[Ints] = np.zeros(0, np.int64)
NOTHING: Final = Partials(NO_INTS, NO_INTS, NO_INTS, {})  # no rows; the identity of concat and combine

_SPARSE: Final = 4  # a dense table of groups may be this many times larger than the rows it is made from
_SMALL: Final = 1024  # and always this large: numpy's overhead is the same


def concat(parts: Sequence[Partials]) -> Partials:
    """All rows of partials that have the same columns, in order. Parts without rows may lack columns."""
    full = [part for part in parts if len(part)]
    if len(full) <= 1:
        return full[0] if full else max(parts, key=lambda part: len(part.states), default=NOTHING)
    return Partials(
        np.concatenate([part.start for part in full]),
        np.concatenate([part.end for part in full]),
        np.concatenate([part.key for part in full]),
        {name: np.concatenate([part.states[name] for part in full]) for name in full[0].states},
    )


def combine(
    partials: Partials, basis: tuple[str, ...], unit_us: int | None = None, ranks: Ints | None = None
) -> Partials:
    """The same content with one row a (start, end, key), sorted by them; combined by the algebra of `basis`.

    unit_us: what all starts are multiples of from the lowest, where the holder knows it (Plan.unit_us); only a hint.
    ranks: as in aggregates.combine. Returns the argument itself if its rows are so already.
    """
    if _in_order(partials):
        return partials
    dense = _dense_groups(partials, unit_us)
    if dense is not None:
        groups, first = dense
        return Partials(
            partials.start[first],
            partials.end[first],
            partials.key[first],
            aggregates.combine(partials.states, groups, basis, ranks),
        )
    rows = partials.take(np.lexsort((partials.key, partials.end, partials.start)))
    new = np.empty(len(rows), np.bool_)
    new[0] = True
    np.not_equal(rows.start[1:], rows.start[:-1], out=new[1:])
    new[1:] |= rows.end[1:] != rows.end[:-1]
    new[1:] |= rows.key[1:] != rows.key[:-1]
    starts = np.flatnonzero(new)
    if len(starts) == len(rows):
        return rows
    states = aggregates.combine(rows.states, Segments.runs(starts, len(rows)), basis, ranks)
    return Partials(rows.start[starts], rows.end[starts], rows.key[starts], states)


def assign_windows(partials: Partials, window: Window, basis: tuple[str, ...], ranks: Ints | None = None) -> Partials:
    """Partials of slices to partials of the windows that contain them, combined: a row a (window, key)."""
    row, start = window.assign(partials.start, partials.end)
    return combine(_moved(partials, row, start, window.length_us), basis, window.slide_us, ranks)


def in_windows(partials: Partials, windows: Iterable[Window]) -> Partials:
    """Partials of slices once in each range [start, end) that is a window of any of these; not combined.

    Windows of several specs can be one range, as the first of sliding (3, 2) and of tumbling 3: it is there once.
    """
    by_length: dict[int, list[Window]] = {}
    for window in windows:
        by_length.setdefault(window.length_us, []).append(window)
    parts = []
    for length_us, alike in by_length.items():
        pairs = [window.assign(partials.start, partials.end) for window in alike]
        row, start = (np.concatenate(column) for column in zip(*pairs, strict=True))
        if len(alike) > 1:
            order = np.lexsort((start, row))
            row, start = row[order], start[order]
            new = np.concatenate([[True], (row[1:] != row[:-1]) | (start[1:] != start[:-1])])[: len(row)]
            row, start = row[new], start[new]
        parts.append(_moved(partials, row, start, length_us))
    return concat(parts)


def _moved(partials: Partials, row: Ints, start: Ints, length_us: int) -> Partials:
    """The states of those rows with the ranges [start, start + length)."""
    states = {name: column[row] for name, column in partials.states.items()}
    return Partials(start, start + length_us, partials.key[row], states)


def _in_order(partials: Partials) -> bool:
    """Whether rows are strictly increasing in (start, end, key)."""
    if len(partials) < 2:
        return True
    start, end, key = partials.start, partials.end, partials.key
    more = key[1:] > key[:-1]
    if start[0] == start[-1] and end[0] == end[-1]:  # often all rows have one range
        same = bool((start == start[0]).all() and (end == end[0]).all())
        return same and bool(more.all())
    end_more, end_same = end[1:] > end[:-1], end[1:] == end[:-1]
    start_more, start_same = start[1:] > start[:-1], start[1:] == start[:-1]
    return bool((start_more | (start_same & (end_more | (end_same & more)))).all())


def _dense_groups(partials: Partials, unit_us: int | None) -> tuple[Segments, Ints] | None:
    """Groups by code = slot * keys + key without sorting, and a row of each; None where that does not fit.

    It fits where a slot (start in units) has one end only and the table of codes is not much larger than the rows.
    """
    start, end, key = partials.start, partials.end, partials.key
    low, lowest_key = int(start.min()), int(key.min())
    span, keys = int(start.max()) - low, int(key.max()) - lowest_key + 1
    unit = unit_us or int(end[0] - start[0])
    slots = span // unit + 1
    if slots * keys > _SPARSE * len(partials) + _SMALL:
        return None
    codes = key - lowest_key
    if slots > 1:
        slot = (start - low) // unit
        end_of = np.zeros(slots, np.int64)
        end_of[slot] = end
        if not (np.array_equal(slot * unit, start - low) and np.array_equal(end_of[slot], end)):
            return None
        codes += slot * keys
    elif span or int(end.min()) != int(end.max()):
        return None
    groups = Segments.coded(codes, slots * keys)
    return groups, groups.last()


class Store:
    """Open partials of one plan: added as they come, combined when they leave. Held by slicers and mergers.

    Rows are kept as chunks and combined lazily, so that adding costs nothing per row. nodes: the holder's table of
    node ids (it may grow), needed where the basis has columns of kind 'node'; their codes index it.
    """

    __slots__ = ("_chunks", "_compacted", "_nodes", "_ranks", "_rows", "basis", "unit_us")

    def __init__(self, basis: tuple[str, ...], unit_us: int | None = None, nodes: Sequence[str] = ()) -> None:
        """unit_us: as in `combine`."""
        self.basis = basis
        self.unit_us = unit_us
        self._nodes = nodes
        self._ranks: Ints = NO_INTS
        self._chunks: list[Partials] = []
        self._rows = 0
        self._compacted = 0

    def __len__(self) -> int:
        """Rows held; equal (range, key) may still be several."""
        return self._rows

    @property
    def lowest_start(self) -> int | None:
        """The lowest start of an open row, in us; None if there is none."""
        return min((int(chunk.start.min()) for chunk in self._chunks), default=None)

    def add(self, partials: Partials) -> None:
        """Take rows (any order, any number of times the same range and key). The arrays are kept, not copied."""
        if not len(partials):
            return
        self._chunks.append(partials)
        self._rows += len(partials)
        if self._rows - self._compacted > _SPARSE * self._compacted + 65_536:
            self._hold(self._combined(concat(self._chunks)))
            self._compacted = self._rows

    def close(self, frontier_us: int) -> Partials:
        """Remove and return, combined and in order, the rows with end <= frontier_us."""
        if not self._rows:
            return NOTHING
        rows = concat(self._chunks)
        if int(rows.end.min()) > frontier_us:
            self._hold(rows)
            return NOTHING
        if int(rows.end.max()) <= frontier_us:
            return self.flush()
        closed = rows.end <= frontier_us
        self._hold(rows.take(~closed))
        self._compacted = min(self._compacted, self._rows)
        return self._combined(rows.take(closed))

    def flush(self) -> Partials:
        """Remove and return everything, combined and in order."""
        rows = concat(self._chunks)
        self._hold(NOTHING)
        self._compacted = 0
        return self._combined(rows)

    def view(self) -> Partials:
        """Everything, combined and in order; it stays."""
        self._hold(self._combined(concat(self._chunks)))
        self._compacted = self._rows
        return self._chunks[0] if self._chunks else NOTHING

    def snapshot(self) -> dict[str, object]:
        """Plain values for the spool: numpy arrays by name."""
        rows = self.view()
        return {"start": rows.start, "end": rows.end, "key": rows.key, "states": dict(rows.states)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the rows of a snapshot instead of one's own."""
        self._hold(Partials(state["start"], state["end"], state["key"], dict(state["states"])))
        self._compacted = self._rows

    def ranks(self) -> Ints | None:
        """Place of each node code in the bytewise order of ids (docs/protocol.md 7.3); None without a node table."""
        if len(self._nodes) != len(self._ranks):
            order = sorted(range(len(self._nodes)), key=lambda code: self._nodes[code].encode())
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks if len(self._ranks) else None

    def _combined(self, rows: Partials) -> Partials:
        return combine(rows, self.basis, self.unit_us, self.ranks())

    def _hold(self, rows: Partials) -> None:
        self._chunks = [rows] if len(rows) else []
        self._rows = len(rows)
