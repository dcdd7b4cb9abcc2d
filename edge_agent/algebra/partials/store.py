"""A store for the open partials of one plan, until their ranges close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat, readings_in

_WAITING: Final = 4  # rows are combined when new ones exceed _WAITING times the combined ones plus _PENDING
_PENDING: Final = 65_536  # new rows that may always wait to be combined: some 3 MB
_CHUNKS: Final = 64  # more chunks than this are joined, because closing reads all of them


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of a store. low_us, high_us: lowest and highest end of the rows."""

    rows: Partials
    low_us: int
    high_us: int


class Store:
    """Open partials of one plan, for slicers and mergers.

    Rows are kept in chunks and combined when they are read: adding costs nothing per row, and closing reads only chunks
    with rows that close. unit_us: as in partial.combine. nodes: the owner's table of node ids, which may grow; columns
    of kind 'node' contain indices into it.
    """

    __slots__ = ("_chunks", "_compacted", "_fresh", "_nodes", "_ranks", "_rows", "basis", "unit_us")

    def __init__(self, basis: tuple[str, ...], unit_us: int | None = None, nodes: Sequence[str] = ()) -> None:
        self.basis = basis
        self.unit_us = unit_us
        self._nodes = nodes
        self._ranks: Ints = NO_INTS
        self._fresh: list[Partials] = []  # added since, not combined
        self._chunks: list[_Chunk] = []
        self._rows = 0
        self._compacted = 0

    def __len__(self) -> int:
        """Number of rows. Rows of the same range and key count separately until they are combined."""
        return self._rows

    @property
    def readings(self) -> int:
        """Number of readings in its rows."""
        return sum(map(readings_in, self._all()))

    @property
    def lowest_start(self) -> int | None:
        """The lowest start of an open row, in us; None if there is none."""
        return min((int(rows.start.min()) for rows in self._all()), default=None)

    def add(self, partials: Partials) -> None:
        """Add rows in any order; ranges and keys may repeat. The arrays are kept, not copied."""
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
        if not self._rows:
            return NOTHING
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
        """The rank of each node code in the bytewise order of ids (docs/protocol.md 7.3); None without a node table."""
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
        """Join all chunks but the largest, which stays as it is so that its rows are not combined over and over."""
        chunks = sorted(self._chunks, key=lambda chunk: len(chunk.rows))
        self._chunks = [chunks.pop()]
        self._keep(self._combined(concat([chunk.rows for chunk in chunks])))
        self._rows = sum(len(chunk.rows) for chunk in self._chunks)


def _measured(rows: Partials) -> _Chunk:
    return _Chunk(rows, int(rows.end.min()), int(rows.end.max()))


def ranks_of(nodes: Sequence[str]) -> Ints:
    """The rank of each id in the bytewise order of ids (docs/protocol.md 7.3): shape (n,), int64."""
    order = sorted(range(len(nodes)), key=lambda code: nodes[code].encode())
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
