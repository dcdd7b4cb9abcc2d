"""Tumbling count windows: each has `length` successive readings in the global order, without overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.algebra.windows.declaration import Setting, Wrong, not_positive
from edge_agent.algebra.windows.ordered import KEYED, LENGTH, OrderedReadings, RowWindows, counted


@dataclass(frozen=True, slots=True)
class CountTumbling:
    """Full windows of the 0-based positions [i * length, (i + 1) * length). keyed: False counts all keys together."""

    length: int
    keyed: bool = True
    type: ClassVar[str] = "count_tumbling"
    positions: ClassVar[bool] = True
    labels: ClassVar[frozenset[str]] = frozenset()
    KEYS: ClassVar[tuple[Setting, ...]] = (LENGTH, KEYED)

    def wrong(self) -> Wrong | None:
        return not_positive(length=self.length)

    def cut(self, line: OrderedReadings) -> RowWindows:
        return counted(line, self.length, self.length)
