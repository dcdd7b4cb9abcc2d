"""Size of a row in a frame: the expected size and an upper bound.

The expected size assumes typical readings (floats that hardly repeat, or integers with some 128 distinct values), a
frame with a few other rows, and a key and plan that are already defined. Multisets and series grow with the readings,
sketches until they are full. The formulas use only sums, products and quotients, which are equal on every machine,
because all nodes must decide on the same plans. Source: schemas/frame.cddl, rule `section`; measured on frames, checked
by tests/laws/test_sizes.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.columns.numbers import SHARED_BYTES

ROW_BYTES: Final = 8 + 8 + 4 + 4  # upper bound: range, key and run lengths of one row
_OWN_RANGE: Final = 10.0  # start and end if no other row shares them; includes the register of a session's key


def of_row(basis: Iterable[str], scale: int | None, readings: float, *, own_range: bool = False) -> RowSize:
    """Size of a row in bytes. readings: in the row, at least 1. scale: of the values, None for floats.

    own_range: whether the row shares its start and end with no other row, like sessions.
    """
    expected, most = _OWN_RANGE if own_range else SHARED_BYTES, float(ROW_BYTES)
    for name in basis:
        column = COLUMNS[name]
        kind = KINDS[column.kind]
        held = (column.size or kind.size)(column.degree, scale, readings)
        expected, most = expected + held.expected, most + kind.bytes + held.most
    return RowSize(expected, most)
