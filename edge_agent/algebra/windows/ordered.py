"""Code shared by window types that only the root can form, because they depend on the order of all readings.

Such a type is a spec with a method `cut`, which forms windows from the ordered readings of all keys. Each window is a
run of rows. Rows that later windows need are kept for the next call (`RowWindows.keep`). Source: docs/protocol.md 7.4;
Disco section 3.4 (count windows by central processing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Floats, Ints, Mask
from edge_agent.algebra.query import where, where_parser
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.windows.declaration import Setting

RAW: Final = "raw"  # Plan.kind of raw readings
MOST_COUNT: Final = 1_000_000  # readings of a window; limits the readings per key that wait at the root
LENGTH: Final = Setting("length", "count", "readings in a window", low=1, high=MOST_COUNT)
KEYED: Final = Setting("keyed", "flag", "false: all keys are counted together, as with by = []", True)


@dataclass(frozen=True, slots=True)
class OrderedReadings:
    """n readings of k keys in their final order, key after key.

    first, until: shape (k,), int64, each key's rows are first..until-1. position: shape (k,), int64, the position of
    each key's first row among all its readings. base: shape (k,), int64, the position from which windows of this
    definition count. time_us: shape (n,), int64. value: shape (n,), float64, in the sensor's unit. labels: of each key.
    exact: (the values as int64 in units of 10**scale, scale) if they are integers, which conditions compare exactly.
    """

    first: Ints
    until: Ints
    position: Ints
    base: Ints
    time_us: Ints
    value: Floats
    labels: Sequence[Labels] = ()
    exact: tuple[Ints, int] | None = None

    def holds(self, text: str) -> Mask:
        """Whether each reading meets a condition: shape (n,), bool. text: see algebra/query/where_parser.py."""
        series = np.repeat(np.arange(len(self.first)), self.until - self.first)
        value, scale = self.exact or (self.value, None)
        return where.evaluate(where_parser.parse(text), value, series, self.labels, scale=scale)


@dataclass(frozen=True, slots=True)
class RowWindows:
    """w windows of the OrderedReadings of k keys.

    key: shape (w,), int64, index of the key. low, high: shape (w,), int64, the window has rows low..high-1. start, end:
    shape (w,), int64, as in results. keep: shape (k,), int64, the first row of each key that later windows need. since:
    shape (w,), int64, the row from which on a loss may have changed the window; None: `low`.
    """

    key: Ints
    low: Ints
    high: Ints
    start: Ints
    end: Ints
    keep: Ints
    since: Ints | None = None


def counted(line: OrderedReadings, length: int, slide: int) -> RowWindows:
    """The full windows of the positions [base + i * slide, base + i * slide + length)."""
    begin, many = line.position, line.until - line.first
    reached = begin + many
    next_ = np.maximum(-((line.base - begin) // slide), 0)  # number of the first window at or after the first row
    full = np.maximum((reached - length - line.base) // slide - next_ + 1, 0)
    key = np.repeat(np.arange(len(begin)), full)
    before = np.cumsum(full) - full
    start = line.base[key] + (next_[key] + np.arange(len(key)) - before[key]) * slide
    low = line.first[key] + start - begin[key]
    after = line.base + (next_ + full) * slide
    keep = line.first + np.minimum(after - begin, many)
    return RowWindows(key, low, low + length, start, start + length, keep)
