"""Scaled integers: printed like decimals, equal at a finer scale and as floats, never at a coarser one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import Readings, basis_of
from edge_agent.algebra.aggregates.lowered import decimals, value_names
from tests.oracle import central_computer
from tests.support import algebra_strategies
from tests.support.laws.split_readings import EVERY, lifted, naive, terms_of


@given(
    units=st.lists(st.integers(-(2**100), 2**100), min_size=1, max_size=5),
    scale=st.integers(-6, 6),
)
@example(units=[1], scale=-1)
@example(units=[2**53 + 1], scale=0)
def test_scaled_integers_are_printed_like_decimals_and_in_full(units: list[int], scale: int) -> None:
    column = np.array(units, object)
    if all(abs(unit) < 2**63 for unit in units):
        column = column.astype(np.int64)
    answer = decimals(column, scale)
    for i, unit in enumerate(units):
        number = central_computer.exact(unit, scale)
        assert answer.value[i] == float(number)
        detail = None if answer.details is None else answer.details[i]
        if abs(unit * 10 ** max(scale, 0)) > 2**53:
            assert detail is not None
            assert Fraction(detail) == number
        else:
            assert detail is None


@given(least=st.integers(-(2**61), 2**61), scale=st.integers(-6, 6))
@example(least=2**53 - 3, scale=-1)
@example(least=2**53 - 3, scale=-3)
@example(least=-(10**15) - 2, scale=-3)
@example(least=10**15 - 2, scale=0)
def test_names_of_different_values_differ_and_are_the_values(least: int, scale: int) -> None:
    """A name is a key of a JSON object: readings of a second value with the same name would be lost."""
    units = [least + n for n in range(4)]
    names = value_names(np.array(units, np.int64), scale)
    assert [Fraction(name) for name in names] == [central_computer.exact(unit, scale) for unit in units]


@given(part=algebra_strategies.readings(-1), finer=st.integers(0, 4))
@example(part=Readings(np.arange(2), np.array([2**53, -(2**53)]), np.arange(2)), finer=3)  # differences leave 64 bits
def test_a_finer_scale_and_floats_give_the_same_answers(part: Readings, finer: int) -> None:
    """protocol 7.1: unequal scales meet at the finer one."""
    if not len(part.time_us):
        return
    (row,) = lifted([part], basis_of(EVERY, -1), -1)
    fine = aggregates.convert(row.states, -1, -1 - finer)
    real = aggregates.convert(row.states, -1, None)
    for aggregate in EVERY:
        want = aggregates.lower(aggregate, row.states, -1)
        got = aggregates.lower(aggregate, fine, -1 - finer)
        if got.null[0] and not want.null[0]:  # what a decimal(38,0) does not hold has no answer
            assert max(abs(int(fine[name][0])) for name in ("sum", "sq")) >= 10**38
        else:
            assert got.value.tolist() == pytest.approx(want.value.tolist(), rel=1e-12, nan_ok=True)
        if aggregate.params != (("rounding", "truncate"),):
            size = terms_of(aggregate, naive([part], -1, ["n"]))
            same = pytest.approx(want.value.tolist(), rel=1e-9, abs=1e-9 * size, nan_ok=True)
            assert aggregates.lower(aggregate, real, None).value.tolist() == same


def test_there_is_no_exact_way_to_a_coarser_scale() -> None:
    with pytest.raises(ValueError, match="cannot be converted to"):
        aggregates.convert({}, -1, 0)
    with pytest.raises(ValueError, match="cannot be converted to"):
        aggregates.convert({}, None, -1)
