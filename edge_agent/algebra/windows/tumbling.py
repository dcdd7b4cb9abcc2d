"""Tumbling windows: windows of one length, one after the other without overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import Lattice, Run
from edge_agent.algebra.windows.declaration import LENGTH, OFFSET, OneLength, Setting, Wrong, not_positive


@dataclass(frozen=True, slots=True)
class Tumbling(OneLength):
    """Windows [offset + i * length, offset + (i + 1) * length), i = 0, 1, ...; 0 <= offset_us < length_us."""

    length_us: int
    offset_us: int = 0
    type: ClassVar[str] = "tumbling"
    KEYS: ClassVar[tuple[Setting, ...]] = (LENGTH, OFFSET)

    def wrong(self) -> Wrong | None:
        if (wrong := not_positive(length=self.length_us)) is not None:
            return wrong
        if self.offset_us >= self.length_us:
            return Wrong("offset", "not shorter than the length {length}", self.offset_us % self.length_us)
        return None

    @property
    def unit_us(self) -> int:
        return math.gcd(self.length_us, self.offset_us)

    @property
    def edge_sets(self) -> tuple[Lattice, ...]:
        return (Lattice(self.length_us, self.offset_us),)

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        return self.edge_sets

    def edges(self, low_us: int, high_us: int) -> Ints:
        return self.edge_sets[0].points(low_us, high_us)

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        index = (start - self.offset_us) // self.length_us
        opens = self.offset_us + index * self.length_us
        rows = np.flatnonzero((index >= 0) & (end <= opens + self.length_us))
        return rows, opens[rows]

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        yield Run(self.length_us, self.length_us, self.offset_us, after_us, upto_us)
