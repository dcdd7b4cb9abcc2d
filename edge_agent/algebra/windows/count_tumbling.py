"""Tumbling count windows: every so many readings, in the global order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.algebra.windows.base import Setting, Wrong, not_positive
from edge_agent.algebra.windows.ordered import MOST_COUNT, OrderedReadings, RowWindows, counted


@dataclass(frozen=True, slots=True)
class CountTumbling:
    """Windows [i * length, (i + 1) * length) of 0-based positions; only full ones. keyed: False counts all keys."""

    length: int
    keyed: bool = True
    type: ClassVar[str] = "count_tumbling"
    positions: ClassVar[bool] = True
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting("length", "count", "readings in a window", low=1, high=MOST_COUNT),
        Setting("keyed", "flag", "false: all keys are counted together, as with by = []", True),
    )

    def wrong(self) -> Wrong | None:
        return not_positive(length=self.length)

    @property
    def labels(self) -> frozenset[str]:
        return frozenset()

    def cut(self, line: OrderedReadings) -> RowWindows:
        return counted(line, self.length, self.length)
