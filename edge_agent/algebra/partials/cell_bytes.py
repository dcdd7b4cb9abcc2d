"""The memory of what cells hold: values of multisets, readings of series, sketches and integers beyond 64 bits."""

from __future__ import annotations

from typing import Final

from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import Series

OBJECT_BYTES: Final = 40  # of an object without what it holds
ARRAY_BYTES: Final = 120  # of an array object


def held_bytes(rows: Partials) -> int:
    """Estimated memory of what the cells of all columns hold, besides the columns themselves."""
    return sum(_of(column) for column in rows.states.values() if column.dtype == object and len(column))


def _of(column: Array) -> int:
    cells = column.tolist()
    match cells[0]:
        case Multiset():
            return sum(16 * len(cell.values) for cell in cells) + (OBJECT_BYTES + 2 * ARRAY_BYTES) * len(cells)
        case Series():
            return sum(32 * len(cell.time_us) for cell in cells) + (OBJECT_BYTES + 4 * ARRAY_BYTES) * len(cells)
        case bytes():
            return sum(map(len, cells)) + OBJECT_BYTES * len(cells)
    return OBJECT_BYTES * len(cells)
