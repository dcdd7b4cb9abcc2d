"""A batch of readings after the filter, sorted by event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Ints


@dataclass(frozen=True, slots=True)
class SortedBatch:
    """Sound readings sorted by event time.

    keys: one key code for all readings, or one per reading; all below `limit`. index: position of each reading in its
    original batch; None: 0, 1, 2, … base: arrival number of position 0. numbers: see Readings.
    """

    time_us: Ints
    value: Array
    keys: int | Ints
    limit: int
    index: Ints | None
    base: int
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def part(self, first: int, last: int) -> SortedBatch:
        """The readings [first:last]."""
        if first == 0 and last == len(self.time_us):
            return self
        rows = slice(first, last)
        keys = self.keys if isinstance(self.keys, int) else self.keys[rows]
        index, base = (None, self.base + first) if self.index is None else (self.index[rows], self.base)
        numbers = {label: values[rows] for label, values in self.numbers.items()}
        return SortedBatch(self.time_us[rows], self.value[rows], keys, self.limit, index, base, numbers)

    def order(self) -> Ints:
        """The arrival number of each reading."""
        return self.base + (np.arange(len(self.time_us)) if self.index is None else self.index)
