"""Event time in integer microseconds: sets of window edges, and runs of evenly spaced windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from edge_agent.algebra.partials.arrays import Ints

NO_EDGE: Final = -1  # earlier than every edge, because no window starts before 0 (1970)
FAR_US: Final = 2**62  # later than every edge


class EdgeSet(Protocol):
    """A hashable set of edges: points in event time at which windows start or end."""

    @property
    def step_us(self) -> int:
        """Approximate distance between edges, for estimates."""

    @property
    def first_us(self) -> int:
        """The first edge, >= 0."""

    @property
    def last_us(self) -> int:
        """The last edge; FAR_US if unbounded."""

    def points(self, low_us: int, high_us: int) -> Ints:
        """All edges e with low_us <= e <= high_us, increasing."""

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """For each time t: (last edge <= t, or NO_EDGE; first edge > t, or FAR_US). Shape (k,), int64."""


@dataclass(frozen=True, slots=True, order=True)
class Lattice:
    """Edges at phase_us + i * step_us for i = 0, 1, ...; step_us > 0, phase_us >= 0."""

    step_us: int
    phase_us: int

    @property
    def first_us(self) -> int:
        return self.phase_us

    @property
    def last_us(self) -> int:
        return FAR_US

    def points(self, low_us: int, high_us: int) -> Ints:
        first = max(0, -((self.phase_us - low_us) // self.step_us))
        last = (high_us - self.phase_us) // self.step_us
        return self.phase_us + self.step_us * np.arange(first, last + 1, dtype=np.int64)

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        index = (time_us - self.phase_us) // self.step_us
        before = self.phase_us + self.step_us * index
        return np.where(index < 0, NO_EDGE, before), np.where(index < 0, self.phase_us, before + self.step_us)


@dataclass(frozen=True, slots=True)
class Listed:
    """A finite set of edges. edges: at least one, increasing, >= 0."""

    edges: tuple[int, ...]

    @property
    def step_us(self) -> int:
        """FAR_US: estimates ignore a finite set, because it adds no edges in the long run."""
        return FAR_US

    @property
    def first_us(self) -> int:
        return self.edges[0]

    @property
    def last_us(self) -> int:
        return self.edges[-1]

    def points(self, low_us: int, high_us: int) -> Ints:
        edges = np.array(self.edges, np.int64)
        return edges[(edges >= low_us) & (edges <= high_us)]

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        return between(np.array(self.edges, np.int64), time_us)


@dataclass(frozen=True, slots=True)
class Run:
    """Windows [s, s + length_us) with s = offset_us + i * slide_us, i = 0, 1, ..., and an end in (after_us, upto_us].

    0 < slide_us, 0 <= offset_us.
    """

    length_us: int
    slide_us: int
    offset_us: int
    after_us: int
    upto_us: int


def between(edges: Ints, time_us: Ints) -> tuple[Ints, Ints]:
    """The result of EdgeSet.around for an increasing array of edges."""
    place = np.searchsorted(edges, time_us, side="right")
    bounds = np.concatenate([[NO_EDGE], edges, [FAR_US]])
    return bounds[place], bounds[place + 1]


def union(sets: Iterable[EdgeSet]) -> tuple[EdgeSet, ...]:
    """The same edges in fewer sets: contained lattices are dropped, the others come first, finest first; lists are
    merged.
    """
    given = set(sets)
    kept: list[EdgeSet] = [*edge_sets(given)]
    listed = {edge for each in given if isinstance(each, Listed) for edge in each.edges}
    others = [each for each in given if not isinstance(each, Lattice | Listed)]
    kept += sorted(others, key=repr)
    return (*kept, Listed(tuple(sorted(listed)))) if listed else tuple(kept)


def edge_sets(sets: Iterable[EdgeSet]) -> Sequence[Lattice]:
    """The given lattices without those whose edges another lattice contains, finest first. Other sets are ignored."""
    kept: list[Lattice] = []
    first: dict[int, dict[int, int]] = {}  # of the lattices kept: step -> phase modulo the step -> phase
    for lattice in sorted({each for each in sets if isinstance(each, Lattice)}):
        step_us, phase_us = lattice.step_us, lattice.phase_us
        for finer_us, phases in first.items():
            if step_us % finer_us == 0 and phases.get(phase_us % finer_us, FAR_US) <= phase_us:
                break
        else:
            kept.append(lattice)
            first.setdefault(step_us, {}).setdefault(phase_us % step_us, phase_us)
    return kept
