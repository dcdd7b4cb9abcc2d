"""Slice edges for many windows at once: the union of their edges, computed ahead of time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.partials.segments import begins_run
from edge_agent.algebra.span import NO_EDGE, union
from edge_agent.algebra.windows import Window

_AHEAD: Final = 1_024  # edges computed at once: 9 kB a query, and a few microseconds a batch are saved for minutes
_FAR_AHEAD_US: Final = 366 * 86_400_000_000  # and no more than that: a year of dates takes a millisecond
_DENSE: Final = 4  # at most so many edges a reading are looked at one by one (plus _FEW)
_FEW: Final = 8_192


class Edges:
    """Cuts sorted times into slices. Windows that share all edges with others cost nothing."""

    __slots__ = ("_cached", "_high", "_lattices", "_low", "_per_us", "first_us", "last_us")

    def __init__(self, windows: Iterable[Window]) -> None:
        self._lattices = union(lattice for window in set(windows) for lattice in window.edge_sets)
        self._per_us = sum(1 / lattice.step_us for lattice in self._lattices)
        self.first_us = min(each.first_us for each in self._lattices)
        self.last_us = max(each.last_us for each in self._lattices)
        self._cached: Ints = np.zeros(0, np.int64)
        self._low = self._high = 0  # the cache holds every slice that touches [low, high)

    def cut(self, time_us: Ints) -> tuple[Ints, Ints, Ints]:
        """The non-empty slices of sorted times in [first_us, last_us): (index of the first row, start, end) of each.

        time_us: shape (k,), int64, non-decreasing; k > 0. Edges are searched in the times; if there are many more edges
        than times (sparse readings), the slice of each time is computed instead.
        """
        low, high = int(time_us[0]), int(time_us[-1])
        if (high - low) * self._per_us > _DENSE * len(time_us) + _FEW:
            start, end = self.around(time_us)
            rows = np.flatnonzero(begins_run(start))
            return rows, start[rows], end[rows]
        edges = self._between(low, high)
        if len(edges) == 2:
            return np.zeros(1, np.int64), edges[:1], edges[1:]
        rows = np.searchsorted(time_us, edges)
        rows[0] = 0
        full = rows[1:] > rows[:-1]
        if full.all():
            return rows[:-1], edges[:-1], edges[1:]
        return rows[:-1][full], edges[:-1][full], edges[1:][full]

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """(last edge <= t or NO_EDGE, first edge > t or FAR_US) of each time, without looking at other edges."""
        start, end = self._lattices[0].around(time_us)
        for lattice in self._lattices[1:]:
            before, after = lattice.around(time_us)
            np.maximum(start, before, out=start)
            np.minimum(end, after, out=end)
        return start, end

    def _between(self, low_us: int, high_us: int) -> Ints:
        """The edges from the last <= low to the first > high."""
        if not (self._low <= low_us and high_us < self._high):
            self._compute(low_us, high_us)
        first = int(np.searchsorted(self._cached, low_us, side="right")) - 1
        last = int(np.searchsorted(self._cached, high_us, side="right"))
        return self._cached[max(first, 0) : last + 1]

    def _compute(self, low_us: int, high_us: int) -> None:
        """Compute the edges of this range and a stretch around it: mostly ahead, some behind for disorder."""
        stretch_us = min(int(_AHEAD / self._per_us) + 1, _FAR_AHEAD_US)
        self._low, self._high = low_us - stretch_us // 8, high_us + stretch_us
        ends, _ = self.around(np.array([self._low]))
        _, after = self.around(np.array([self._high]))
        before = self._low if ends[0] == NO_EDGE else int(ends[0])
        points = [lattice.points(before, int(after[0])) for lattice in self._lattices]
        self._cached = points[0] if len(points) == 1 else distinct(np.concatenate(points))
