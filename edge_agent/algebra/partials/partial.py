"""Readings and partials as columns: a frozen value with one numpy array per column."""

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

    time_us: shape (k,), int64, event times in any order; k may be 0. value: shape (k,), float64 in the sensor's unit,
    or int64 in multiples of 10**scale. series: shape (k,), int64, index into `labels`, an append-only table of the
    driver.
    """

    time_us: Ints
    value: Floats | Ints
    series: Ints
    labels: Sequence[Labels]


@dataclass(frozen=True, slots=True)
class Partials:
    """Mergeable states of ranges [start, end) in us and keys, one per row.

    start, end, key: shape (n,), int64; n may be 0. key: index into the owner's table of keys. states: column name
    (algebra.aggregates) -> shape (n,). Several rows may have the same range and key: each is a delta, and the result is
    their combination (docs/protocol.md 6.1).
    """

    start: Ints
    end: Ints
    key: Ints
    states: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: Mask | Ints | slice) -> Partials:
        """The rows that an index or mask selects, in its order."""
        return Partials(
            self.start[index], self.end[index], self.key[index], {c: v[index] for c, v in self.states.items()}
        )


NOTHING: Final = Partials(NO_INTS, NO_INTS, NO_INTS, {})  # no rows; the identity of concat and combine


def readings_in(rows: Partials) -> int:
    """The number of readings in rows: the sum of the column `count`, the first of every basis; 0 without that column.

    A reading counts once per row that contains it.
    """
    counts = next(iter(rows.states.values()), NO_INTS)
    return int(counts.sum()) if counts.dtype.kind in "iu" else 0


_SPARSE: Final = 4  # cells of a dense table of groups per row, at most (plus _SMALL)
_SMALL: Final = 1_024  # cells that a dense table may have for any number of rows: cheap beside numpy's overhead


def concat(parts: Sequence[Partials]) -> Partials:
    """The rows of all parts, in order. Parts must have the same columns; a part without rows may lack some."""
    full = [part for part in parts if len(part)]
    if len(full) <= 1:
        return full[0] if full else max(parts, key=lambda part: len(part.states), default=NOTHING)
    return Partials(
        np.concatenate([part.start for part in full]),
        np.concatenate([part.end for part in full]),
        np.concatenate([part.key for part in full]),
        {name: np.concatenate([part.states[name] for part in full]) for name in full[0].states},
    )


def with_names(rows: Partials, basis: tuple[str, ...]) -> Partials:
    """The rows with columns named by the basis, which are in its order. Their number is not checked."""
    if tuple(rows.states) == basis:
        return rows
    return Partials(rows.start, rows.end, rows.key, dict(zip(basis, rows.states.values(), strict=True)))


def combine(
    partials: Partials, basis: tuple[str, ...], unit_us: int | None = None, ranks: Ints | None = None
) -> Partials:
    """One row per (start, end, key), sorted by them. Returns the argument itself if it already has this form.

    unit_us: a common divisor of the distances between starts (Plan.unit_us), which may make this faster. ranks: as in
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
    """Combine rows of slices to one row per (window, key), for the windows that contain them.

    Copies each row once per window; for overlapping windows algebra/sliding is faster. between: lowest and highest
    start of the requested windows, in us; None: all. ranks: as in aggregates.combine.
    """
    row, start = window.assign(partials.start, partials.end)
    if between is not None:
        wanted = (start >= between[0]) & (start <= between[1])
        row, start = row[wanted], start[wanted]
    return combine(_moved(partials, row, start, window.ends(start)), basis, window.spacing[0].step_us, ranks)


def in_windows(partials: Partials, windows: Iterable[Window]) -> Partials:
    """Copy each row of slices once per window that contains it, with the range of the window. Rows are not combined.

    A range that is a window of several specs gets one copy: sliding (3, 2) and tumbling 3 both have [0, 3).
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
    """Group the specs so that windows of different groups never have the same range."""
    by_length: dict[int, list[Window]] = {}
    for window in windows:
        by_length.setdefault(window.longest_us, []).append(window)
    if all(window.one_length for alike in by_length.values() for window in alike):
        return by_length.values()
    return [[window for alike in by_length.values() for window in alike]]


def _moved(partials: Partials, row: Ints, start: Ints, end: Ints) -> Partials:
    """The selected rows with new ranges [start, end). row, start, end: shape (m,)."""
    states = {name: column[row] for name, column in partials.states.items()}
    return Partials(start, end, partials.key[row], states)


def _in_order(partials: Partials) -> bool:
    """Whether rows are strictly increasing in (start, end, key)."""
    if len(partials) < 2:
        return True
    start, end, key = partials.start, partials.end, partials.key
    more = key[1:] > key[:-1]
    if start[0] == start[-1] and end[0] == end[-1]:  # fast path: often all rows have the same range
        same = bool((start == start[0]).all() and (end == end[0]).all())
        return same and bool(more.all())
    end_more, end_same = end[1:] > end[:-1], end[1:] == end[:-1]
    start_more, start_same = start[1:] > start[:-1], start[1:] == start[:-1]
    return bool((start_more | (start_same & (end_more | (end_same & more)))).all())


def _dense_groups(partials: Partials, unit_us: int | None) -> tuple[Segments, Ints] | None:
    """Group rows without sorting, by code = slot * keys + key. Returns (groups, index of one row per group).

    slot: the start in units. Returns None if starts of one slot have different ends, or if the table of codes would be
    much larger than the rows.
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
