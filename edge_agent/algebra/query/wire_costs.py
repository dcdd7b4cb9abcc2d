"""Estimates the bytes that a plan sends per key, from the definitions and a rate of readings.

The planner compares plans by these estimates, and `headwater explain` shows them. row_sizes.py estimates single rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.query.row_sizes import of_row
from edge_agent.algebra.span import FAR_US, Lattice, edge_sets
from edge_agent.algebra.windows import Spec, Window

FRAME_BYTES: Final = 28  # overhead per frame: envelope, group, frontier and the head of one section
MINUTE_US: Final = 60_000_000  # assumed length of windows whose length depends on the readings
COMMIT: Final = Fraction(1)  # commits of a gateway per second; raw readings are sent as one row per commit
_FILLED: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)  # readings per slice for which plans are compared
_SAMPLE: Final = 2**14  # edges counted if their common period has more; takes < 1 ms, gives two digits of a rate


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated bytes for one key of a plan. basis: state columns of a row. scale: of the values, None for floats.

    rows_per_s: rows per second; None if it depends on readings (sessions, markers), 0 for a single window. times: how
    many rows contain a reading. own_range: as in row_sizes.of_row.
    """

    basis: tuple[str, ...]
    scale: int | None
    rows_per_s: Fraction | None = None
    times: Fraction = Fraction(1)
    own_range: bool = False

    def row(self, readings: float) -> RowSize:
        """Size of a row. readings: in the row; less than 1 counts as 1."""
        return of_row(self.basis, self.scale, max(1.0, readings), own_range=self.own_range)

    def per_s(self, readings_per_s: float) -> RowSize | None:
        """Bytes per second at a rate of readings, without the overhead of frames; None if rows_per_s is None or 0.

        A row without readings is not sent.
        """
        if not self.rows_per_s:
            return None
        rows = float(self.rows_per_s)
        readings = readings_per_s * float(self.times) / rows
        return self.row(readings).times(rows * min(1.0, readings))

    def never_more_than(self, other: Cost) -> bool:
        """Whether this is cheaper than `other` at some rate that fills the rows of `other`, and dearer at none."""
        pairs = [(mine, others) for _, mine, others in compared(self, other, other.rows_per_s)]
        return all(mine <= others for mine, others in pairs) and any(mine < others for mine, others in pairs)


def compared(one: Cost, other: Cost, rows_per_s: Fraction | None) -> list[tuple[float, float, float]]:
    """(readings per second, expected bytes per second of one, of the other) at rates from a reading a row to a million.

    Empty if their windows do not repeat. rows_per_s: rows to fill.
    """
    rates = [float((rows_per_s or 0) * readings) for readings in _FILLED]
    pairs = [(rate, one.per_s(rate), other.per_s(rate)) for rate in rates]
    return [(rate, mine.expected, others.expected) for rate, mine, others in pairs if mine and others]


def of_window(cost: Cost, kind: str, window: Spec, readings_per_s: float) -> RowSize:
    """Bytes of a key for one window of a query: its row, or the slices or readings between two successive windows.

    kind: of the plan's rows. Windows whose length depends on the readings are assumed to last MINUTE_US.
    """
    length_us = window_us(window) or MINUTE_US
    if kind == "raw":
        per_s = cost.per_s(readings_per_s) or RowSize(0.0, 0.0)
        step = getattr(window, "slide", None) or getattr(window, "length", None)
        return per_s.times(step / readings_per_s if isinstance(step, int) else length_us / 1e6)
    spacing: tuple[Lattice, ...] = getattr(window, "spacing", ())
    per_s_or_once = cost.per_s(readings_per_s) if kind == "slice" and spacing else None
    if per_s_or_once is None:
        return cost.row(readings_per_s * length_us / 1e6)
    step_us = spacing[0].step_us
    return per_s_or_once.times((length_us if step_us >= FAR_US else step_us) / 1e6)


def window_us(window: Spec) -> int | None:
    """Length of the longest window; None if it depends on the readings."""
    longest = getattr(window, "longest_us", None)
    return longest if isinstance(longest, int) else None


def rates(windows: Iterable[Window]) -> tuple[Fraction, Fraction]:
    """(slices, windows) per second for each key. A range that is a window of several queries counts once."""
    windows = list(windows)
    slices = rate(edges for window in windows for edges in window.spacing)
    return slices, sum(_by_length(windows).values(), Fraction(0))


def overlap(windows: Iterable[Window]) -> Fraction:
    """Mean number of distinct windows that contain a reading."""
    return sum((many * length_us / 1_000_000 for length_us, many in _by_length(windows).items()), Fraction(0))


def _by_length(windows: Iterable[Window]) -> dict[int, Fraction]:
    """Length in us -> distinct windows of that length per second."""
    starts: dict[int, list[Lattice]] = {}
    for window in windows:
        starts.setdefault(window.longest_us, []).append(window.spacing[0])
    return {length_us: rate(alike) for length_us, alike in starts.items()}


def rate(edges: Iterable[Lattice]) -> Fraction:
    """Distinct edges per second; 0 if no edge repeats. Exact if the common period is short, else from a sample."""
    fewest = edge_sets(edge for edge in edges if edge.step_us < FAR_US)
    if not fewest:
        return Fraction(0)
    span_us = math.lcm(*(lattice.step_us for lattice in fewest))
    if sum(span_us // lattice.step_us for lattice in fewest) > _SAMPLE:
        span_us = int(_SAMPLE / sum(1 / lattice.step_us for lattice in fewest))
    elif len(fewest) == 1:
        return Fraction(1_000_000, fewest[0].step_us)
    points = [Lattice(each.step_us, each.phase_us % each.step_us).points(0, span_us - 1) for each in fewest]
    return Fraction(1_000_000 * len(np.unique(np.concatenate(points))), span_us)


def digits(value: float) -> str:
    """A number as text: with three significant digits, from 1000 on rounded to an integer."""
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def speed(bytes_per_s: float) -> str:
    """A rate as text: `11 B/s`, or `0.35 B a day` for small rates."""
    return speeds(bytes_per_s)[0]


def speeds(*bytes_per_s: float) -> list[str]:
    """Rates as texts, all in the unit of the smallest."""
    if min(bytes_per_s) >= 0.01:
        return [f"{digits(each)} B/s" for each in bytes_per_s]
    return [f"{digits(each * 86_400)} B a day" for each in bytes_per_s]
