"""Tumbling windows: one after the other, without overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partial import Ints
from edge_agent.algebra.span import Lattice


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows [offset + i * length, offset + (i + 1) * length), i = 0, 1, ...; 0 <= offset_us < length_us."""

    length_us: int
    offset_us: int = 0
    type: ClassVar[str] = "tumbling"

    @property
    def slide_us(self) -> int:
        """Start to start: the length."""
        return self.length_us

    @property
    def unit_us(self) -> int:
        """Greatest common divisor of all edges."""
        return math.gcd(self.length_us, self.offset_us)

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        """Where its windows start and end."""
        return (Lattice(self.length_us, self.offset_us),)

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All window starts and ends e with low <= e <= high; sorted, unique."""
        return self.lattices[0].points(low_us, high_us)

    def assign(self, start: Ints, end: Ints) -> tuple[NDArray[np.int64], Ints]:
        """Windows that contain each range [start, end): (row index, window start), one entry a pair."""
        index = (start - self.offset_us) // self.length_us
        opens = self.offset_us + index * self.length_us
        rows = np.flatnonzero((index >= 0) & (end <= opens + self.length_us))
        return rows, opens[rows]
