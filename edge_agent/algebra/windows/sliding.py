"""Sliding windows: windows of one length, one starting every slide. The slide need not divide the length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import Lattice, Run
from edge_agent.algebra.windows.declaration import LENGTH, OFFSET, SHORTEST_US, OneLength, Setting, Wrong, not_positive

MOST_OVERLAP: Final = 86_400  # most windows that may contain one reading: a day that slides by a second


@dataclass(frozen=True, slots=True)
class Sliding(OneLength):
    """Windows [offset + i * slide, offset + i * slide + length), i = 0, 1, ...; 0 < slide_us <= length_us."""

    length_us: int
    slide_us: int
    offset_us: int = 0
    type: ClassVar[str] = "sliding"
    KEYS: ClassVar[tuple[Setting, ...]] = (
        LENGTH,
        Setting("slide", "duration", "start to start; need not divide the length", low=SHORTEST_US),
        OFFSET,
    )

    def wrong(self) -> Wrong | None:
        if (wrong := not_positive(length=self.length_us, slide=self.slide_us)) is not None:
            return wrong
        if self.slide_us > self.length_us:
            return Wrong("slide", "longer than length {length}", self.length_us)
        if self.offset_us >= self.slide_us:
            return Wrong("offset", "not shorter than the slide {slide}", self.offset_us % self.slide_us)
        if self.length_us > self.slide_us * MOST_OVERLAP:
            many = -(-self.length_us // self.slide_us)
            least_us = -(-self.length_us // MOST_OVERLAP // SHORTEST_US) * SHORTEST_US
            return Wrong("slide", f"every reading would be in {many} windows, at most {MOST_OVERLAP}", least_us)
        return None

    @property
    def unit_us(self) -> int:
        return math.gcd(self.length_us, self.slide_us, self.offset_us)

    @property
    def edge_sets(self) -> tuple[Lattice, ...]:
        starts = Lattice(self.slide_us, self.offset_us)
        if self.length_us % self.slide_us == 0:
            return (starts,)
        return (starts, Lattice(self.slide_us, self.offset_us + self.length_us))

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        return self.edge_sets

    def edges(self, low_us: int, high_us: int) -> Ints:
        starts, *ends = (lattice.points(low_us, high_us) for lattice in self.edge_sets)
        return np.union1d(starts, ends[0]) if ends else starts

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        first = np.maximum(-((self.length_us + self.offset_us - end) // self.slide_us), 0)
        last = (start - self.offset_us) // self.slide_us
        many = np.maximum(last - first + 1, 0)
        rows = np.repeat(np.arange(len(start)), many)
        # the i-th window of a row is its first window plus i
        before = np.cumsum(many) - many
        index = np.arange(len(rows)) - before[rows] + first[rows]
        return rows, self.offset_us + index * self.slide_us

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        yield Run(self.length_us, self.slide_us, self.offset_us, after_us, upto_us)
