"""Event time as integer microseconds: half-open spans [start, end), and evenly spaced edges on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from edge_agent.algebra.partial import Ints

NO_EDGE: Final = -1  # before the first edge: no window starts before 0, the epoch
FAR_US: Final = 2**62  # after every edge


@dataclass(frozen=True, slots=True, order=True)
class Lattice:
    """Edges at phase_us + i * step_us for i = 0, 1, ...; step_us > 0, phase_us >= 0."""

    step_us: int
    phase_us: int

    def points(self, low_us: int, high_us: int) -> Ints:
        """All edges e with low_us <= e <= high_us, increasing."""
        first = max(0, -((self.phase_us - low_us) // self.step_us))
        last = (high_us - self.phase_us) // self.step_us
        return self.phase_us + self.step_us * np.arange(first, last + 1, dtype=np.int64)

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """(last edge <= t or NO_EDGE, first edge > t) of each time: shape (k,), int64."""
        index = (time_us - self.phase_us) // self.step_us
        before = self.phase_us + self.step_us * index
        return np.where(index < 0, NO_EDGE, before), np.where(index < 0, self.phase_us, before + self.step_us)

    def holds(self, other: Lattice) -> bool:
        """Whether every edge of the other is one of ours."""
        shift = other.phase_us - self.phase_us
        return other.step_us % self.step_us == 0 and shift >= 0 and shift % self.step_us == 0


def union(lattices: Iterable[Lattice]) -> tuple[Lattice, ...]:
    """The fewest of the given lattices that have the same edges together; finest first."""
    kept: list[Lattice] = []
    for lattice in sorted(set(lattices)):
        if not any(finer.holds(lattice) for finer in kept):
            kept.append(lattice)
    return tuple(kept)
