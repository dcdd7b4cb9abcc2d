"""Sliding windows: one length, started every slide; the slide need not divide the length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partial import Ints
from edge_agent.algebra.span import Lattice


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows [offset + i * slide, offset + i * slide + length), i = 0, 1, ...; 0 < slide_us <= length_us."""

    length_us: int
    slide_us: int
    offset_us: int = 0
    type: ClassVar[str] = "sliding"

    @property
    def unit_us(self) -> int:
        """Greatest common divisor of all edges."""
        return math.gcd(self.length_us, self.slide_us, self.offset_us)

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        """Where its windows start and, where that is elsewhere, end."""
        starts = Lattice(self.slide_us, self.offset_us)
        if self.length_us % self.slide_us == 0:
            return (starts,)
        return (starts, Lattice(self.slide_us, self.offset_us + self.length_us))

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All window starts and ends e with low <= e <= high; sorted, unique."""
        starts, *ends = (lattice.points(low_us, high_us) for lattice in self.lattices)
        return np.union1d(starts, ends[0]) if ends else starts

    def assign(self, start: Ints, end: Ints) -> tuple[NDArray[np.int64], Ints]:
        """Windows that contain each range [start, end): (row index, window start), one entry a pair."""
        first = np.maximum(-((self.length_us + self.offset_us - end) // self.slide_us), 0)
        last = (start - self.offset_us) // self.slide_us
        many = np.maximum(last - first + 1, 0)
        rows = np.repeat(np.arange(len(start)), many)
        # the i-th pair of a row is its first window plus i
        before = np.cumsum(many) - many
        index = np.arange(len(rows)) - before[rows] + first[rows]
        return rows, self.offset_us + index * self.slide_us
