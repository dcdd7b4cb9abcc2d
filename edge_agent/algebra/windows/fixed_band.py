"""A fixed band: one window of fixed start and length, for example a test run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import FAR_US, Lattice, Listed, Run
from edge_agent.algebra.windows.declaration import LENGTH, OneLength, Setting, Wrong, not_positive


@dataclass(frozen=True, slots=True)
class FixedBand(OneLength):
    """The only window is [start_us, start_us + length_us). start_us >= 0, length_us > 0."""

    start_us: int
    length_us: int
    type: ClassVar[str] = "fixed_band"
    KEYS: ClassVar[tuple[Setting, ...]] = (Setting("start", "instant", "where it begins"), LENGTH)

    def wrong(self) -> Wrong | None:
        return not_positive(length=self.length_us)

    @property
    def unit_us(self) -> int:
        return math.gcd(self.start_us, self.length_us)

    @property
    def edge_sets(self) -> tuple[Listed, ...]:
        return Listed((self.start_us,)), Listed((self.start_us + self.length_us,))

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        return (Lattice(FAR_US, self.start_us),)

    def edges(self, low_us: int, high_us: int) -> Ints:
        return Listed((self.start_us, self.start_us + self.length_us)).points(low_us, high_us)

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        rows = np.flatnonzero((start >= self.start_us) & (end <= self.start_us + self.length_us))
        return rows, np.full(len(rows), self.start_us, np.int64)

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        end_us = self.start_us + self.length_us
        if after_us < end_us <= upto_us:
            yield Run(self.length_us, self.length_us, self.start_us, end_us - 1, end_us)
