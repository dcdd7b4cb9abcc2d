"""Readings and partials as columns: one frozen value holding numpy arrays, never a list of small objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.partials.arrays import NO_INTS, Array, Floats, Ints, Mask
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.query.key import Labels

if TYPE_CHECKING:
    from edge_agent.algebra.windows import Window


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings of one sensor in arrival order.

    time_us: shape (k,), int64, event time, any order. value: shape (k,), float64 in the sensor's unit, or int64 in
    multiples of 10**scale. series: shape (k,), int64, index into `labels`, an append-only table of the driver.
    k may be 0.
    """

    time_us: Ints
    value: Floats | Ints
    series: Ints
    labels: Sequence[Labels]


@dataclass(frozen=True, slots=True)
class Partials:
    """Mergeable states, one row per (range, key): [start, end) in us, key = a number in the holder's key table.

    start, end, key: shape (n,), int64. states: column name (algebra.aggregates) -> shape (n,). n may be 0. Rows need
    not be unique by (start, end, key): every row is a delta and the sum of all counts (docs/protocol.md 6.1).
    """

    start: Ints
    end: Ints
    key: Ints
    states: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: Mask | Ints | slice) -> Partials:
        """The rows of an index or mask, in its order."""
        return Partials(
            self.start[index], self.end[index], self.key[index], {c: v[index] for c, v in self.states.items()}
        )


NOTHING: Final = Partials(NO_INTS, NO_INTS, NO_INTS, {})  # no rows; the identity of concat and combine


def readings_in(rows: Partials) -> int:
    """The number of readings in rows: the sum of their counts, the first column of every basis; 0 if that is no column
    of counts.

    A reading counts once in each row that contains it.
    """
    counts = next(iter(rows.states.values()), NO_INTS)
    return int(counts.sum()) if counts.dtype.kind in "iu" else 0


_SPARSE: Final = 4  # a dense table of groups may be this many times larger than the rows it is made from
_SMALL: Final = 1_024  # and always this large: numpy's overhead is the same


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
    """The same content with one row per (start, end, key), sorted by them; the argument itself if it is already so.

    unit_us: common divisor of the distances of starts, if known (Plan.unit_us); only a hint. ranks: as in
    aggregates.combine.
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
    starts = np.flatnonzero(begins_run(rows.start, rows.end, rows.key))
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
    """Partials of slices to partials of the windows that contain them: one row per (window, key).

    Copies each row into each of its windows; algebra/sliding is for windows that overlap. between: lowest and highest
    start of the requested windows, in us; None: all.
    """
    row, start = window.assign(partials.start, partials.end)
    if between is not None:
        wanted = (start >= between[0]) & (start <= between[1])
        row, start = row[wanted], start[wanted]
    return combine(_moved(partials, row, start, window.ends(start)), basis, window.spacing[0].step_us, ranks)


def in_windows(partials: Partials, windows: Iterable[Window]) -> Partials:
    """Copies of the rows of slices for each range [start, end) that is a window of one of these specs; not combined.

    A range that is a window of several specs gets one copy, like the first window of sliding (3, 2) and tumbling 3.
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
            new = begins_run(row, start, end)
            row, start, end = row[new], start[new], end[new]
        parts.append(_moved(partials, row, start, end))
    return concat(parts)


def _alike(windows: Iterable[Window]) -> Iterable[list[Window]]:
    """The specs in groups; windows of specs in different groups never have the same range."""
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
    """Groups by code = slot * keys + key without sorting, and one row of each; None if that does not fit.

    It fits if every slot (start in units) has only one end and the table of codes is not much larger than the rows.
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
