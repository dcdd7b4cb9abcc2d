from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.arrays import distinct


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_the_different_values_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))
