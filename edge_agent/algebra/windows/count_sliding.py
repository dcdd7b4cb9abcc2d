"""Sliding count windows: `length` successive readings in the global order; one starts every `slide` readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.algebra.windows.declaration import Setting, Wrong, not_positive
from edge_agent.algebra.windows.ordered import KEYED, LENGTH, MOST_COUNT, OrderedReadings, RowWindows, counted


@dataclass(frozen=True, slots=True)
class CountSliding:
    """Full windows of the 0-based positions [i * slide, i * slide + length). keyed: False counts all keys together."""

    length: int
    slide: int
    keyed: bool = True
    type: ClassVar[str] = "count_sliding"
    positions: ClassVar[bool] = True
    labels: ClassVar[frozenset[str]] = frozenset()
    KEYS: ClassVar[tuple[Setting, ...]] = (
        LENGTH,
        Setting("slide", "count", "readings from start to start", low=1, high=MOST_COUNT),
        KEYED,
    )

    def wrong(self) -> Wrong | None:
        if (wrong := not_positive(length=self.length, slide=self.slide)) is not None:
            return wrong
        if self.slide > self.length:
            return Wrong(
                "slide", "more than length {length}: readings between two windows would be in none", self.length
            )
        return None

    def cut(self, line: OrderedReadings) -> RowWindows:
        return counted(line, self.length, self.slide)
