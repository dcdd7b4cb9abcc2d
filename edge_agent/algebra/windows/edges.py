"""Cuts readings into slices at the edges of many windows. Edges are computed ahead of the readings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.partials.segments import begins_run
from edge_agent.algebra.span import FAR_US, NO_EDGE, Lattice, union
from edge_agent.algebra.windows import Window

_AHEAD: Final = 1_024  # edges computed at once: takes 9 kB per query, and saves some us per batch for minutes
_FAR_AHEAD_US: Final = 366 * 86_400_000_000  # limit of the time computed at once: a year of dates takes a millisecond
_DENSE: Final = 4  # edges are listed if there are at most this many per reading, plus _FEW; else computed per reading
_FEW: Final = 8_192


class Edges:
    """The union of the edges of many windows. A window that shares all its edges with others costs nothing."""

    __slots__ = ("_cached", "_high", "_lattices", "_low", "_per_us", "first_us", "last_us")

    def __init__(self, windows: Iterable[Window]) -> None:
        self._lattices = union(lattice for window in set(windows) for lattice in window.edge_sets)
        self._per_us = sum(1 / lattice.step_us for lattice in self._lattices)
        self.first_us = min(each.first_us for each in self._lattices)
        self.last_us = max(each.last_us for each in self._lattices)
        self._cached: Ints = np.zeros(0, np.int64)
        self._low = self._high = 0  # the cache has the edges of every slice that overlaps [low, high)

    def cut(self, time_us: Ints) -> tuple[Ints, Ints, Ints]:
        """Cut times into slices. Returns (index of the first time, start, end) of each non-empty slice.

        time_us: shape (k,), int64, non-decreasing, within [first_us, last_us); k > 0. Each edge is searched in the
        times. If there are many more edges than times (sparse readings), the slice of each time is computed instead.
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
        """For each time t: (last edge <= t, or NO_EDGE; first edge > t, or FAR_US). Does not list other edges."""
        start, end = self._lattices[0].around(time_us)
        for lattice in self._lattices[1:]:
            before, after = lattice.around(time_us)
            np.maximum(start, before, out=start)
            np.minimum(end, after, out=end)
        return start, end

    def _between(self, low_us: int, high_us: int) -> Ints:
        """The edges from the last one <= low_us to the first one > high_us."""
        if not (self._low <= low_us and high_us < self._high):
            self._compute(low_us, high_us)
        first = int(np.searchsorted(self._cached, low_us, side="right")) - 1
        last = int(np.searchsorted(self._cached, high_us, side="right"))
        return self._cached[max(first, 0) : last + 1]

    def _compute(self, low_us: int, high_us: int) -> None:
        """Cache the edges of this range, of a long stretch after it, and of a short one before it for late readings."""
        stretch_us = min(int(_AHEAD / self._per_us) + 1, _FAR_AHEAD_US)
        self._low, self._high = low_us - stretch_us // 8, high_us + stretch_us
        ends, _ = self.around(np.array([self._low]))
        _, after = self.around(np.array([self._high]))
        before = self._low if ends[0] == NO_EDGE else int(ends[0])
        points = [lattice.points(before, int(after[0])) for lattice in self._lattices]
        # an edge set of a package may have failed in between: then the edges found first are not among its points
        found = [edge for edge in (ends[0], after[0]) if edge not in (NO_EDGE, FAR_US)]
        single = len(points) == 1 and type(self._lattices[0]) is Lattice
        self._cached = points[0] if single else distinct(np.concatenate([*points, np.array(found, np.int64)]))
