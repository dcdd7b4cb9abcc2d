"""Columns of a row that contradict each other: such rows are refused, because no sender makes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import FlatMultisets
from edge_agent.algebra.partials.row_validation import check_held
from edge_agent.errors import WireError


def bags(*rows: list[int]) -> Array:
    """Multisets of the values 0, 1, ... with these counts."""
    values = np.array([value for counts in rows for value in range(len(counts))], np.int64)
    counts = np.array([count for row in rows for count in row], np.int64)
    return FlatMultisets(values, counts, np.array([len(row) for row in rows], np.int64)).column()


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ({"count": ints(1, 1), "min": ints(5, 6), "max": ints(5, 6)}, ""),
        ({"count": ints(1, 1), "min": ints(5, 7), "max": ints(5, 6)}, "a minimum above its maximum"),
        ({"count": ints(3, 1), "bag": bags([2, 1], [1])}, ""),
        ({"count": ints(3, 2), "bag": bags([2, 1], [1])}, "readings in bags differs"),
        ({"count": ints(3, 1), "bag": bags([5, -2], [1])}, "'bag' occurs more often"),
        ({"count": ints(3, 4), "frequent": bags([2, 1], [1])}, ""),
        ({"count": ints(3, 1), "frequent": bags([2, 1], [2])}, "'frequent' occurs more often"),
        ({"count": ints(3, 2), "frequent": bags([2, 1], [2, 1])}, "'frequent' sum to more"),
    ],
)
def test_a_row_whose_columns_contradict_each_other_is_refused(states: Mapping[str, Array], why: str) -> None:
    """protocol 7.1: in whichever row of several."""
    if not why:
        check_held(4, states)
        return
    with pytest.raises(WireError, match=f"plan 4: .*{why}"):
        check_held(4, states)
