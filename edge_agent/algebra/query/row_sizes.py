"""Size of a row in a frame: the expected size and an upper bound.

The expected size assumes typical readings (floats that hardly repeat, or integers with some 128 distinct values) and a
row in a frame with a few others, after its key and plan were defined. Columns that hold readings or values grow with
the readings, sketches until they are full. Only sums, products and quotients: equal on every machine, as plans must be.
Source: schemas/frame.cddl, "section"; figures measured on frames, checked by tests/laws/test_sizes.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.columns.numbers import SHARED_BYTES

ROW_BYTES: Final = 8 + 8 + 4 + 4  # range, key and run lengths of one row at their longest
_OWN_RANGE: Final = 10.0  # start and end that no other row has; of sessions the register of the key, too


def of_row(basis: Iterable[str], scale: int | None, readings: float, *, own_range: bool = False) -> RowSize:
    """Size of a row of that many readings, at least 1. scale: of the values, None for floats. own_range: as of
    sessions.
    """
    expected, most = _OWN_RANGE if own_range else SHARED_BYTES, float(ROW_BYTES)
    for name in basis:
        column = COLUMNS[name]
        kind = KINDS[column.kind]
        held = (column.size or kind.size)(column.degree, scale, readings)
        expected, most = expected + held.expected, most + kind.bytes + held.most
    return RowSize(expected, most)
