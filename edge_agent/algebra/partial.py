"""Readings and partials as columns: one frozen value holding numpy arrays, never a list of small objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.query import Labels

Ints = NDArray[np.int64]
Column = NDArray[np.generic]  # float64, int64, or object (Python ints beyond 64 bits)


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings of one sensor in arrival order.

    time_us: shape (k,), int64, event time, any order. value: shape (k,), float64 in the sensor's unit, or int64 in
    multiples of 10**scale. series: shape (k,), int64, index into `labels`, an append-only table of the driver.
    k may be 0.
    """

    time_us: Ints
    value: NDArray[np.float64] | Ints
    series: Ints
    labels: Sequence[Labels]


@dataclass(frozen=True, slots=True)
class Partials:
    """Mergeable states, a row per (range, key): [start, end) in us, key = a number in the holder's key table.

    start, end, key: shape (n,), int64. states: column name (algebra.aggregates) -> shape (n,). n may be 0.
    Rows need not be unique by (start, end, key): every row is a delta and the sum of all counts (docs/protocol.md 6.1).
    """

    start: Ints
    end: Ints
    key: Ints
    states: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: NDArray[np.bool_] | Ints | slice) -> Partials:
        """The rows an index or mask names, in its order."""
        return Partials(
            self.start[index], self.end[index], self.key[index], {c: v[index] for c, v in self.states.items()}
        )


NO_INTS: Final[Ints] = np.zeros(0, np.int64)
