"""Slices of one plan in blocks with precomputed sums, so that a window costs a few rows however many slices it
contains.

A window of n slices is a part of a block, some whole blocks, and a part of another: with blocks of a 64th of the
longest window that is at most some 64 + 2 * n / 64 rows per key instead of n. A sum replaces the slices of its block
only if every requested window contains all of them, so that results are the same (states of floats within their
tolerance, docs/protocol.md 7.2). Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window Aggregation"
(partial sums over runs of slices).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, basis_of
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import evenly

LONG_SLIDES: Final = 4  # a batch that closes windows of fewer slides reads little but what is new
PARTS: Final = 64  # blocks in the longest window: the rows a window costs are least near the root of its slices
_OBJECT_BYTES: Final = 40  # of an integer beyond 64 bits, beside its pointer


def kept_columns(basis: Iterable[str]) -> tuple[str, ...]:
    """State columns of constant size: slices of these are cached."""
    return tuple(name for name in basis if not KINDS[COLUMNS[name].kind].grows)


def pays(query: Query, scale: int | None) -> bool:
    """Whether caching slices pays for a query: its windows are longer than four slides, and its states do not grow.

    For shorter windows a batch needs little more than its new rows, and a sum of multisets is as large as all of them.
    """
    window = evenly(query.window)
    if window is None or window.length_us <= LONG_SLIDES * window.slide_us:
        return False
    basis = basis_of(query.aggregates, scale)
    return kept_columns(basis) == basis


def kept_us(queries: Iterable[Query], scale: int | None) -> int:
    """The longest window of these queries for which slices are kept, in us; 0: for none of them."""
    return max((query.time_window.longest_us for query in queries if pays(query, scale)), default=0)


@dataclass(slots=True)
class _Block:
    """low_us, high_us: the hull of its rows. bytes: of the rows, as they came. sum: None once rows came."""

    store: Store
    low_us: int
    high_us: int
    bytes: int = 0
    sum: Partials | None = field(default=None)


class Blocks:
    """Rows of one plan, in blocks by their start."""

    __slots__ = ("_blocks", "_empty", "_nodes", "basis", "block_us", "bytes")

    def __init__(self, basis: tuple[str, ...], longest_us: int, nodes: Sequence[str] = ()) -> None:
        """longest_us: of the windows that will be requested. nodes: as in Store."""
        self.basis, self.block_us = basis, max(longest_us // PARTS, 1)
        self._nodes = nodes
        self._empty = Store(basis, None, nodes)
        self._blocks: dict[int, _Block] = {}
        self.bytes = 0  # of the rows held

    def add(self, rows: Partials) -> None:
        """Add rows, in any order, any number of times the same range and key. Columns other than `basis` are
        dropped.
        """
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
        """The rows in [low, high), with a block's sum in place of its rows if the block lies in `shared`.

        shared: [first, end) of event time that lies in every window that will be formed; empty if end <= first.
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

    def ranks(self) -> Ints | None:
        """As Store.ranks, for the current nodes."""
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
        """The rows of a block, those of one range and key as one."""
        rows = block.store.view()
        self._weigh(block, _bytes(rows))
        return rows

    def _weigh(self, block: _Block, size: int) -> None:
        self.bytes += size - block.bytes
        block.bytes = size


def _bytes(rows: Partials) -> int:
    each = [rows.start, rows.end, rows.key, *rows.states.values()]
    return sum(column.nbytes + (_OBJECT_BYTES * len(column) if column.dtype == object else 0) for column in each)
