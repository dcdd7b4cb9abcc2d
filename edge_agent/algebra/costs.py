"""What rows of a plan weigh on the line: bytes a key, from the definitions alone.

Estimates that compare like with like and are shown to people (`headwater explain`): rather too much than too little,
sketches count as full. Source: schemas/frame.cddl, "section"; tests/laws/test_costs.py holds them against frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.span import Lattice, lattices
from edge_agent.algebra.windows import Window

FRAME_BYTES: Final = 28  # envelope, group, frontier and the head of one section: once a frame, whatever is in it
_RANGE_AND_KEY: Final = 2  # a few bytes for one row, next to nothing for rows of many keys
_FLOATS: Final = {"count": 1, "time": 4, "value": 8, "wide": 8, "real": 8, "node": 1, "order": 2, "sketch": 4_200}
_UNITS: Final = {**_FLOATS, "value": 2, "wide": 3}
_CELLS: Final = {"bag": (8.0, 1.6), "series": (12.0, 5.0)}  # bytes a reading in it, at most; of floats, of integers
_SAMPLE: Final = 2**14  # edges counted where their common period is too long: below 1 ms, and two digits of a rate


@dataclass(frozen=True, slots=True)
class Cost:
    """What one key sends. rows_per_s: None where the readings decide (sessions, markers, readings as they are).

    row_bytes: of a row, but for its readings. reading_bytes: of a reading, at most, in a column that holds readings.
    times: in how many rows a reading is.
    """

    rows_per_s: Fraction | None
    row_bytes: int
    reading_bytes: float = 0.0
    times: Fraction = Fraction(1)

    @property
    def bytes_per_s(self) -> float | None:
        """Of rows alone; readings come on top."""
        return None if self.rows_per_s is None else float(self.rows_per_s * self.row_bytes)

    @property
    def bytes_per_reading(self) -> float:
        """What every further reading adds."""
        return self.reading_bytes * float(self.times)

    def never_more_than(self, other: Cost) -> bool:
        """Whether it is at most as much as another at any rate of readings, and less at some."""
        mine, others = self.bytes_per_s or 0.0, other.bytes_per_s or 0.0
        return (
            mine <= others
            and self.bytes_per_reading <= other.bytes_per_reading
            and (mine, self.bytes_per_reading) != (others, other.bytes_per_reading)
        )

    def text(self) -> str:
        """`1 row/s of 13 B a key, and 8 B a reading`."""
        row = f"rows of {self.row_bytes} B" if self.rows_per_s is None else f"{_digits(self.bytes_per_s or 0.0)} B/s"
        return row + (f" and {_digits(self.bytes_per_reading)} B a reading" if self.reading_bytes else "")


def of_rows(
    basis: Iterable[str], scale: int | None, rows_per_s: Fraction | None = None, times: Fraction = Fraction(1)
) -> Cost:
    """Rows with these state columns. scale: of the values, None for floats."""
    sizes, kinds = (_FLOATS if scale is None else _UNITS), [COLUMNS[name].kind for name in basis]
    row_bytes = _RANGE_AND_KEY + sum(sizes.get(kind, 0) for kind in kinds)
    cells = [_CELLS[kind][scale is not None] for kind in kinds if kind in _CELLS]
    return Cost(rows_per_s, row_bytes, sum(cells), times)


def rates(windows: Iterable[Window]) -> tuple[Fraction, Fraction]:
    """(slices, windows) per second and key; windows of several queries that are one range count once."""
    windows = list(windows)
    slices = rate(edges for window in windows for edges in window.rhythm)
    return slices, sum(_by_length(windows).values(), Fraction(0))


def overlap(windows: Iterable[Window]) -> Fraction:
    """How many different windows hold a reading, on the average."""
    return sum((many * length_us / 1_000_000 for length_us, many in _by_length(windows).items()), Fraction(0))


def _by_length(windows: Iterable[Window]) -> dict[int, Fraction]:
    """Different windows a second by their length."""
    starts: dict[int, list[Lattice]] = {}
    for window in windows:
        starts.setdefault(window.longest_us, []).append(window.rhythm[0])
    return {length_us: rate(alike) for length_us, alike in starts.items()}


def rate(edges: Iterable[Lattice]) -> Fraction:
    """Different edges per second: exact where they repeat soon enough, else counted over a sample."""
    fewest = lattices(edges)
    span_us = math.lcm(*(lattice.step_us for lattice in fewest))
    if sum(span_us // lattice.step_us for lattice in fewest) > _SAMPLE:
        span_us = int(_SAMPLE / sum(1 / lattice.step_us for lattice in fewest))
    elif len(fewest) == 1:
        return Fraction(1_000_000, fewest[0].step_us)
    points = [Lattice(each.step_us, each.phase_us % each.step_us).points(0, span_us - 1) for each in fewest]
    return Fraction(1_000_000 * len(np.unique(np.concatenate(points))), span_us)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"
