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
_SMALL: Final = 1_024  # and always this large: numpy's overhead is the same
_PENDING: Final = 65_536  # rows a store lets wait at least before it combines them: some 3 MB
_CHUNKS: Final = 64  # chunks a store looks through on closing


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


def assign_windows(
    partials: Partials,
    window: Window,
    basis: tuple[str, ...],
    ranks: Ints | None = None,
    between: tuple[int, int] | None = None,
) -> Partials:
    """Partials of slices to partials of the windows that contain them, combined: a row a (window, key).

    Each row once for each of its windows: algebra.overlap is for windows that overlap. between: lowest and highest
    start that are wanted, in us; None: all.
    """
    row, start = window.assign(partials.start, partials.end)
    if between is not None:
        wanted = (start >= between[0]) & (start <= between[1])
        row, start = row[wanted], start[wanted]
    return combine(_moved(partials, row, start, window.ends(start)), basis, window.rhythm[0].step_us, ranks)


def in_windows(partials: Partials, windows: Iterable[Window]) -> Partials:
    """Partials of slices once in each range [start, end) that is a window of any of these; not combined.

    Windows of several specs can be one range, as the first of sliding (3, 2) and of tumbling 3: it is there once.
    """
    parts = []
    for alike in _alike(windows):
        pairs = [window.assign(partials.start, partials.end) for window in alike]
        ends = [window.ends(start) for window, (_, start) in zip(alike, pairs, strict=True)]
        row, start = (np.concatenate(column) for column in zip(*pairs, strict=True))
        end = np.concatenate(ends)
        if len(alike) > 1:
            order = np.lexsort((end, start, row))
            row, start, end = row[order], start[order], end[order]
            again = (row[1:] == row[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1])
            new = np.concatenate([[True], ~again])[: len(row)]
            row, start, end = row[new], start[new], end[new]
        parts.append(_moved(partials, row, start, end))
    return concat(parts)


def _alike(windows: Iterable[Window]) -> Iterable[list[Window]]:
    """The windows in groups; a range that is a window of several is one of a single group."""
    by_length: dict[int, list[Window]] = {}
    for window in windows:
        by_length.setdefault(window.longest_us, []).append(window)
    if all(window.one_length for alike in by_length.values() for window in alike):
        return by_length.values()
    return [[window for alike in by_length.values() for window in alike]]


def _moved(partials: Partials, row: Ints, start: Ints, end: Ints) -> Partials:
    """The states of those rows with the ranges [start, end)."""
    states = {name: column[row] for name, column in partials.states.items()}
    return Partials(start, end, partials.key[row], states)


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


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of a store with the least and the greatest end among them."""

    rows: Partials
    low_us: int
    high_us: int


class Store:
    """Open partials of one plan: added as they come, combined when they leave. Held by slicers and mergers.

    Rows are kept as chunks and combined lazily: adding costs nothing per row, closing looks only at rows that close.
    nodes: the holder's table of node ids (it may grow), needed where the basis has columns of kind 'node'; their codes
    index it.
    """

    __slots__ = ("_chunks", "_compacted", "_fresh", "_nodes", "_ranks", "_rows", "basis", "unit_us")

    def __init__(self, basis: tuple[str, ...], unit_us: int | None = None, nodes: Sequence[str] = ()) -> None:
        """unit_us: as in `combine`."""
        self.basis = basis
        self.unit_us = unit_us
        self._nodes = nodes
        self._ranks: Ints = NO_INTS
        self._fresh: list[Partials] = []  # as they came
        self._chunks: list[_Chunk] = []
        self._rows = 0
        self._compacted = 0

    def __len__(self) -> int:
        """Rows held; equal (range, key) may still be several."""
        return self._rows

    @property
    def lowest_start(self) -> int | None:
        """The lowest start of an open row, in us; None if there is none."""
        return min((int(rows.start.min()) for rows in self._all()), default=None)

    def add(self, partials: Partials) -> None:
        """Take rows (any order, any number of times the same range and key). The arrays are kept, not copied."""
        if not len(partials):
            return
        self._fresh.append(partials)
        self._rows += len(partials)
        if self._rows - self._compacted > _SPARSE * self._compacted + _PENDING:
            self.view()

    def close(self, frontier_us: int) -> Partials:
        """Remove and return, combined and in order, the rows with end <= frontier_us."""
        if self._fresh:
            self._keep(concat(self._fresh))
            self._fresh = []
        closed, kept = [], []
        for chunk in self._chunks:
            if chunk.low_us > frontier_us:
                kept.append(chunk)
            elif chunk.high_us <= frontier_us:
                closed.append(chunk.rows)
            else:
                ends = chunk.rows.end <= frontier_us
                closed.append(chunk.rows.take(ends))
                kept.append(_measured(chunk.rows.take(~ends)))
        if not closed:
            if len(kept) > _CHUNKS:
                self._join()
            return NOTHING
        self._chunks = kept
        self._rows = sum(len(chunk.rows) for chunk in kept)
        self._compacted = min(self._compacted, self._rows)
        return self._combined(concat(closed))

    def flush(self) -> Partials:
        """Remove and return everything, combined and in order."""
        rows = self._combined(concat(self._all()))
        self._hold(NOTHING)
        return rows

    def view(self) -> Partials:
        """Everything, combined and in order; it stays."""
        rows = self._combined(concat(self._all()))
        self._hold(rows)
        return rows

    def snapshot(self) -> dict[str, object]:
        """Plain values for the spool: numpy arrays by name."""
        rows = self.view()
        return {"start": rows.start, "end": rows.end, "key": rows.key, "states": dict(rows.states)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the rows of a snapshot instead of one's own."""
        self._hold(Partials(state["start"], state["end"], state["key"], dict(state["states"])))

    def ranks(self) -> Ints | None:
        """Place of each node code in the bytewise order of ids (docs/protocol.md 7.3); None without a node table."""
        if len(self._nodes) != len(self._ranks):
            order = sorted(range(len(self._nodes)), key=lambda code: self._nodes[code].encode())
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks if len(self._ranks) else None

    def _all(self) -> list[Partials]:
        return [*(chunk.rows for chunk in self._chunks), *self._fresh]

    def _combined(self, rows: Partials) -> Partials:
        return combine(rows, self.basis, self.unit_us, self.ranks())

    def _hold(self, rows: Partials) -> None:
        """These rows instead of all others."""
        self._fresh, self._chunks = [], []
        self._rows = self._compacted = len(rows)
        if len(rows):
            self._keep(rows)

    def _keep(self, rows: Partials) -> None:
        self._chunks.append(_measured(rows))

    def _join(self) -> None:
        """Many small chunks to one; the largest stays as it is, so that a row is not combined over and over."""
        chunks = sorted(self._chunks, key=lambda chunk: len(chunk.rows))
        self._chunks = [chunks.pop()]
        self._keep(self._combined(concat([chunk.rows for chunk in chunks])))
        self._rows = sum(len(chunk.rows) for chunk in self._chunks)


def _measured(rows: Partials) -> _Chunk:
    return _Chunk(rows, int(rows.end.min()), int(rows.end.max()))
