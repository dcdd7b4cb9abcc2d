"""Stores the slices of one plan in blocks with a sum each, so that a long window is formed from few rows.

A window of n slices consists of a part of a block, some whole blocks, and a part of another block. If a block is a 64th
of the longest window, these are at most some 64 + 2 * n / 64 rows per key instead of n. The sum of a block replaces its
slices only if every requested window contains the whole block, so results are the same (floats within their tolerance,
docs/protocol.md 7.2). Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window Aggregation" (partial sums
over runs of slices).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, basis_of
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import evenly

LONG_SLIDES: Final = 4  # for windows of fewer slides, most slices that a batch reads are new anyway
PARTS: Final = 64  # blocks in the longest window; the best number is near the square root of its slices
_OBJECT_BYTES: Final = 40  # size of a Python integer beyond 64 bits, without the pointer to it


def kept_columns(basis: Iterable[str]) -> tuple[str, ...]:
    """The state columns of constant size; only these are cached."""
    return tuple(name for name in basis if not KINDS[COLUMNS[name].kind].grows)


def pays(query: Query, scale: int | None) -> bool:
    """Whether caching the slices of a query saves time: its windows have many slides, its states a constant size.

    With shorter windows most rows of a batch are new. With growing states a sum is as large as its slices.
    """
    window = evenly(query.window)
    if window is None or window.length_us <= LONG_SLIDES * window.slide_us:
        return False
    basis = basis_of(query.aggregates, scale)
    return kept_columns(basis) == basis


def kept_us(queries: Iterable[Query], scale: int | None) -> int:
    """Length in us of the longest window among the queries whose slices are cached; 0 if there is none."""
    return max((query.time_window.longest_us for query in queries if pays(query, scale)), default=0)


@dataclass(slots=True)
class _Block:
    """One block. low_us, high_us: lowest start and highest end of its rows. bytes: their size.

    sum: the rows combined to one per key; None if it is not up to date.
    """

    store: Store
    low_us: int
    high_us: int
    bytes: int = 0
    sum: Partials | None = field(default=None)


class Blocks:
    """Rows of one plan, divided into blocks by their start."""

    __slots__ = ("_blocks", "_empty", "_nodes", "basis", "block_us", "bytes")

    def __init__(self, basis: tuple[str, ...], longest_us: int, nodes: Sequence[str] = ()) -> None:
        """longest_us: window length for which the blocks have the best size; others cost more. nodes: as in Store."""
        self.basis, self.block_us = basis, max(longest_us // PARTS, 1)
        self._nodes = nodes
        self._empty = Store(basis, None, nodes)
        self._blocks: dict[int, _Block] = {}
        self.bytes = 0  # size of all rows

    def add(self, rows: Partials) -> None:
        """Add rows in any order; ranges and keys may repeat. Columns outside `basis` are dropped."""
        if not len(rows):
            return
        rows = Partials(rows.start, rows.end, rows.key, {name: rows.states[name] for name in self.basis})
        number = rows.start // self.block_us
        if number.min() == number.max():
            self._add(int(number[0]), rows)
            return
        for each in np.unique(number):
            self._add(int(each), rows.take(number == each))

    def within(self, low_us: int, high_us: int, shared: tuple[int, int]) -> Partials:
        """The rows within [low_us, high_us). The sum of a block replaces its rows if the block lies within `shared`.

        shared: the part [first, end) of event time that every requested window contains; empty if end <= first.
        """
        parts = []
        for number in sorted(self._blocks):
            block = self._blocks[number]
            if block.low_us >= high_us or block.high_us <= low_us:
                continue
            if shared[0] <= block.low_us and block.high_us <= shared[1]:
                parts.append(self._sum(block))
                continue
            rows = self._view(block)
            inside = (rows.start >= low_us) & (rows.end <= high_us)
            parts.append(rows if inside.all() else rows.take(inside))
        return concat(parts) if parts else NOTHING

    def keys(self) -> Ints:
        """The key numbers of all rows, each once, sorted."""
        found = [self._view(block).key for block in self._blocks.values()]
        return np.unique(np.concatenate(found)) if found else NO_INTS

    def ranks(self) -> Ints | None:
        """Store.ranks for the current nodes."""
        return self._empty.ranks()

    def forget(self, before_us: int) -> None:
        """Drop the blocks whose rows all start before this time."""
        for number in [number for number in self._blocks if (number + 1) * self.block_us <= before_us]:
            self.bytes -= self._blocks.pop(number).bytes

    def _add(self, number: int, rows: Partials) -> None:
        low_us, high_us = int(rows.start.min()), int(rows.end.max())
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block(Store(self.basis, None, self._nodes), low_us, high_us)
        block.low_us, block.high_us = min(block.low_us, low_us), max(block.high_us, high_us)
        block.store.add(rows)
        block.sum = None
        self._weigh(block, block.bytes + _bytes(rows))

    def _sum(self, block: _Block) -> Partials:
        if block.sum is None:
            rows = self._view(block)
            start, end = (np.full(len(rows), us) for us in (block.low_us, block.high_us))
            block.sum = combine(Partials(start, end, rows.key, rows.states), self.basis, None, self.ranks())
        return block.sum

    def _view(self, block: _Block) -> Partials:
        """The rows of a block, combined to one per range and key."""
        rows = block.store.view()
        self._weigh(block, _bytes(rows))
        return rows

    def _weigh(self, block: _Block, size: int) -> None:
        self.bytes += size - block.bytes
        block.bytes = size


def _bytes(rows: Partials) -> int:
    each = [rows.start, rows.end, rows.key, *rows.states.values()]
    return sum(column.nbytes + (_OBJECT_BYTES * len(column) if column.dtype == object else 0) for column in each)
