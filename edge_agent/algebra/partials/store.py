"""Open partials of one plan, until their ranges close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat, readings_in

_WAITING: Final = 4  # rows may wait until they are this many times those combined so far, and
_PENDING: Final = 65_536  # so many more: some 3 MB
_CHUNKS: Final = 64  # chunks that closing may have to read


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of a store with the least and the greatest end among them."""

    rows: Partials
    low_us: int
    high_us: int


class Store:
    """Open partials of one plan, for slicers and mergers.

    Rows are kept as chunks and combined lazily: adding costs nothing per row, closing reads only chunks with rows that
    close. nodes: the holder's table of node ids (it may grow), which columns of kind 'node' index.
    """

    __slots__ = ("_chunks", "_compacted", "_fresh", "_nodes", "_ranks", "_rows", "basis", "unit_us")

    def __init__(self, basis: tuple[str, ...], unit_us: int | None = None, nodes: Sequence[str] = ()) -> None:
        self.basis = basis
        self.unit_us = unit_us
        self._nodes = nodes
        self._ranks: Ints = NO_INTS
        self._fresh: list[Partials] = []  # as they came
        self._chunks: list[_Chunk] = []
        self._rows = 0
        self._compacted = 0

    def __len__(self) -> int:
        """Number of rows; several may have the same range and key."""
        return self._rows

    @property
    def readings(self) -> int:
        """Readings in its rows."""
        return sum(map(readings_in, self._all()))

    @property
    def lowest_start(self) -> int | None:
        """The lowest start of an open row, in us; None if there is none."""
        return min((int(rows.start.min()) for rows in self._all()), default=None)

    def add(self, partials: Partials) -> None:
        """Add rows, in any order, any number of times the same range and key. The arrays are kept, not copied."""
        if not len(partials):
            return
        self._fresh.append(partials)
        self._rows += len(partials)
        if self._rows - self._compacted > _WAITING * self._compacted + _PENDING:
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
        """Remove and return all rows, combined and in order."""
        rows = self._combined(concat(self._all()))
        self.restore(NOTHING)
        return rows

    def view(self) -> Partials:
        """All rows, combined and in order, without removing them."""
        if not self._rows:
            return NOTHING
        rows = self._combined(concat(self._all()))
        self.restore(rows)
        return rows

    def restore(self, rows: Partials) -> None:
        self._fresh, self._chunks = [], []
        self._rows = self._compacted = len(rows)
        if len(rows):
            self._keep(rows)

    def ranks(self) -> Ints | None:
        """Place of each node code in the bytewise order of ids (docs/protocol.md 7.3); None without a node table."""
        if len(self._nodes) != len(self._ranks):
            self._ranks = ranks_of(self._nodes)
        return self._ranks if len(self._ranks) else None

    def _all(self) -> list[Partials]:
        return [*(chunk.rows for chunk in self._chunks), *self._fresh]

    def _combined(self, rows: Partials) -> Partials:
        return combine(rows, self.basis, self.unit_us, self.ranks())

    def _keep(self, rows: Partials) -> None:
        self._chunks.append(_measured(rows))

    def _join(self) -> None:
        """Join many small chunks to one. The largest stays as it is, so that a row is not combined over and over."""
        chunks = sorted(self._chunks, key=lambda chunk: len(chunk.rows))
        self._chunks = [chunks.pop()]
        self._keep(self._combined(concat([chunk.rows for chunk in chunks])))
        self._rows = sum(len(chunk.rows) for chunk in self._chunks)


def _measured(rows: Partials) -> _Chunk:
    return _Chunk(rows, int(rows.end.min()), int(rows.end.max()))


def ranks_of(nodes: Sequence[str]) -> Ints:
    """Place of each id in their bytewise order (docs/protocol.md 7.3): shape (n,), int64."""
    order = sorted(range(len(nodes)), key=lambda code: nodes[code].encode())
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
