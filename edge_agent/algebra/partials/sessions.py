"""Joins pieces of sessions. Slicers, mergers and the root all use these rules (docs/protocol.md).

- Two pieces belong to one session iff next.first - previous.last <= gap. One piece may join several others (5.3).
- A session is complete when the bound of its key is above last + gap. The bound is the lesser of frontier and hint
  (5.1).
- A maximum duration cuts at its multiples since 1970. Parts on either side of a cut never join (5.5).

A piece is a row [first, last + 1 us) of Partials. Joining takes one sort and one pass of numpy, for all keys at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.partials.arrays import NO_INTS, Ints, Mask
from edge_agent.algebra.partials.partial import NOTHING, Partials
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.partials.store import Store

NO_HINT: Final = 2**62  # for a key without a hint: its bound is the frontier
_ROOM: Final = 2**62  # largest integer in the running maximum over all keys at once


def join(pieces: Partials, basis: tuple[str, ...], gap_us: int, max_us: int = 0, ranks: Ints | None = None) -> Partials:
    """Join pieces to one row per session, sorted by (key, start). max_us: maximum duration, 0 for none.

    Laws: the result does not depend on the order or grouping of pieces (a join of joins is the join of all), and no
    rows are the identity. ranks: as in aggregates.combine.
    """
    if len(pieces) < 2:
        return pieces
    rows = pieces.take(np.lexsort((pieces.end, pieces.start, pieces.key)))
    begins = breaks(rows, gap_us, max_us)
    if len(begins) == len(rows):
        return rows
    groups = Segments.runs(begins, len(rows))
    states = aggregates.combine(rows.states, groups, basis, ranks)
    return Partials(rows.start[begins], np.maximum.reduceat(rows.end, begins), rows.key[begins], states)


def breaks(rows: Partials, gap_us: int, max_us: int = 0) -> Ints:
    """Index of the first row of each session, int64. rows: at least one, sorted by (key, start)."""
    new = np.ones(len(rows), np.bool_)
    same_key = rows.key[1:] == rows.key[:-1]
    new[1:] = ~same_key | (rows.start[1:] - (_reached(rows, same_key)[:-1] - 1) > gap_us)
    if max_us:
        new[1:] |= rows.start[1:] // max_us != rows.start[:-1] // max_us
    begins: Ints = np.flatnonzero(new)
    return begins


def _reached(rows: Partials, same_key: Mask) -> Ints:
    """For each row, the latest end of its key so far. same_key: for rows from 1 on, whether the key is unchanged."""
    rank = np.concatenate([[0], np.cumsum(~same_key)])
    low = int(rows.start.min())
    span = int(rows.end.max()) - low + 1
    if span * (int(rank[-1]) + 1) < _ROOM:  # one running maximum: an offset per key keeps keys apart
        lifted: Ints = np.maximum.accumulate(rows.end - low + rank * span)
        reached: Ints = lifted - rank * span + low
        return reached
    out = rows.end.copy()
    for first, last in zip(*_bounds(rank), strict=True):  # few keys far apart in time: one pass per key
        np.maximum.accumulate(out[first:last], out=out[first:last])
    return out


def _bounds(rank: Ints) -> tuple[list[int], list[int]]:
    first = np.flatnonzero(begins_run(rank))
    return first.tolist(), [*first[1:].tolist(), len(rank)]


def pieces_of(time_us: Ints, key: int | Ints, gap_us: int, max_us: int = 0) -> tuple[Ints, Ints]:
    """Split readings into pieces. Returns (order of the readings by key and time, index in it where each piece begins).

    time_us: shape (k,), int64, non-decreasing, k > 0. key: one code for all readings, or one per reading.
    """
    order = np.arange(len(time_us)) if isinstance(key, int) else np.argsort(key, kind="stable")
    time = time_us[order]
    new = np.ones(len(time), np.bool_)
    new[1:] = time[1:] - time[:-1] > gap_us
    if not isinstance(key, int):
        sorted_key = key[order]
        new[1:] |= sorted_key[1:] != sorted_key[:-1]
    if max_us:
        new[1:] |= time[1:] // max_us != time[:-1] // max_us
    return order, np.flatnonzero(new)


class SessionStore(Store):
    """Open sessions of one plan. Pieces are joined only when sessions are read, and once until others are added."""

    __slots__ = ("_joined", "gap_us", "max_us")

    def __init__(self, basis: tuple[str, ...], gap_us: int, max_us: int = 0, nodes: Sequence[str] = ()) -> None:
        super().__init__(basis, None, nodes)
        self.gap_us, self.max_us = gap_us, max_us
        self._joined: Partials | None = None  # the sessions; None: to be made of the rows

    def add(self, partials: Partials) -> None:
        self._joined = None
        super().add(partials)

    def restore(self, rows: Partials) -> None:
        self._joined = None
        super().restore(rows)

    def close(self, frontier_us: int, hints: Mapping[int, int] | None = None) -> Partials:
        """Remove and return the complete sessions: those whose key has a bound past last + gap.

        hints: key code -> earliest start of an open session at a child. The bound of a key is the lesser of frontier
        and hint (5.1).
        """
        sessions = self._sessions()
        if not len(sessions):
            return NOTHING
        bound = np.full(len(sessions), frontier_us, np.int64)
        if hints:
            codes = np.fromiter(hints.keys(), np.int64, len(hints))
            starts = np.fromiter(hints.values(), np.int64, len(hints))
            order = np.argsort(codes)
            codes, starts = codes[order], starts[order]
            place = np.minimum(np.searchsorted(codes, sessions.key), len(codes) - 1)
            bound = np.where(codes[place] == sessions.key, np.minimum(bound, starts[place]), bound)
        done = bound > sessions.end - 1 + self.gap_us
        if not done.any():
            return NOTHING
        self.restore(sessions.take(~done))
        return sessions.take(done)

    def flush(self) -> Partials:
        """Remove and return all sessions, joined."""
        sessions = self._sessions()
        self.restore(NOTHING)
        return sessions

    def lows(self) -> tuple[Ints, Ints]:
        """(key codes, start of the earliest open session of each), for the hints to the parent (5.2)."""
        sessions = self._sessions()
        if not len(sessions):
            return NO_INTS, NO_INTS
        first = np.flatnonzero(begins_run(sessions.key))
        return sessions.key[first], sessions.start[first]

    def _sessions(self) -> Partials:
        if not len(self):
            return NOTHING
        if self._joined is None:
            rows = self.view()
            sessions = join(rows, self.basis, self.gap_us, self.max_us, self.ranks())
            if len(sessions) < len(rows):
                self.restore(sessions)
            self._joined = sessions
        return self._joined
