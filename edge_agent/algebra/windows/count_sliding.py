"""Sliding count windows: the last so many readings, each time so many more have come, in the global order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.algebra.windows.base import Setting, Wrong, not_positive
from edge_agent.algebra.windows.ordered import MOST_COUNT, OrderedReadings, RowWindows, counted


@dataclass(frozen=True, slots=True)
class CountSliding:
    """Windows [i * slide, i * slide + length) of 0-based positions; only full ones. keyed: False counts all keys."""

    length: int
    slide: int
    keyed: bool = True
    type: ClassVar[str] = "count_sliding"
    positions: ClassVar[bool] = True
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting("length", "count", "readings in a window", low=1, high=MOST_COUNT),
        Setting("slide", "count", "readings from start to start", low=1, high=MOST_COUNT),
        Setting("keyed", "flag", "false: all keys are counted together, as with by = []", True),
    )

    def wrong(self) -> Wrong | None:
        if (wrong := not_positive(length=self.length, slide=self.slide)) is not None:
            return wrong
        if self.slide > self.length:
            return Wrong(
                "slide", "more than length {length}: readings between two windows would be in none", self.length
            )
        return None

    @property
    def labels(self) -> frozenset[str]:
        return frozenset()

    def cut(self, line: OrderedReadings) -> RowWindows:
        return counted(line, self.length, self.slide)
