"""State windows: per key, from the reading at which a condition becomes true to the reading that ends the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_agent.algebra.partials.arrays import Ints, Mask
from edge_agent.algebra.query import where, where_parser
from edge_agent.algebra.windows.declaration import Setting, Wrong
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows


@dataclass(frozen=True, slots=True)
class State:
    """Windows [time of the reading that begins them, time of the reading that ends them).

    begin, end: conditions on a reading; end '' means: not `begin`. If no window is open, a reading that meets `begin`
    opens one. A later reading that meets `end` closes it; that reading is not in it, but opens the next window if it
    also meets `begin`. Empty windows and open windows give no row.
    """

    begin: str
    end: str = ""
    type: ClassVar[str] = "state"
    positions: ClassVar[bool] = False
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting("begin", "condition", 'a window begins where it holds, like "value > 80"'),
        Setting("end", "condition", "it ends where this holds; empty: where `begin` does not", ""),
    )

    def wrong(self) -> Wrong | None:
        return None if self.begin.strip() else Wrong("begin", "is empty: no window would ever begin", "value > 80")

    @property
    def labels(self) -> frozenset[str]:
        """The labels in its conditions."""
        texts = [text for text in (self.begin, self.end) if text.strip()]
        return frozenset().union(*(where.names(where_parser.parse(text)) for text in texts)) - {where.VALUE}

    def cut(self, line: OrderedReadings) -> RowWindows:
        """The windows that have ended."""
        n, rows = len(line.time_us), np.arange(len(line.time_us))
        begin = line.holds(self.begin)
        end = line.holds(self.end) if self.end.strip() else ~begin
        first = np.repeat(line.first, line.until - line.first)
        event = np.maximum.accumulate(np.where(begin | end, rows, -1)) if n else rows
        is_open = (event >= first) & begin[event]  # after each reading; kept rows begin at the start of the open window
        was_open = np.zeros(n, np.bool_)
        was_open[1:] = is_open[:-1] & (first[1:] == first[:-1])
        starts = np.flatnonzero(begin & (~was_open | end))
        ends = np.flatnonzero(was_open & end)
        low = starts[np.searchsorted(starts, ends) - 1] if len(ends) else ends
        lasts = line.time_us[ends] > line.time_us[low]
        low, ends = low[lasts], ends[lasts]
        key = np.searchsorted(line.first, low, side="right") - 1
        before = np.where(was_open, rows, np.maximum(rows - 1, first))
        keep = self._kept(line, starts, is_open, before)
        return RowWindows(key, low, ends, line.time_us[low], line.time_us[ends], keep, before[low])

    @staticmethod
    def _kept(line: OrderedReadings, starts: Ints, is_open: Mask, before: Ints) -> Ints:
        """The first row of each key to keep: that before the start of its open window; without one, the last row.

        before: the row before each, itself if a window was open then: a loss between the two may have begun a window.
        """
        keep = line.until.copy()
        some = np.flatnonzero(line.until > line.first)
        keep[some] -= 1
        some = some[is_open[line.until[some] - 1]]
        keep[some] = before[starts[np.searchsorted(starts, line.until[some]) - 1]]
        return keep
