"""The laws of lift, combine and lower, for every registered function, floats and scaled integers, by introspection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, COMPONENTS, Param, Readings, basis_of
from edge_agent.algebra.aggregates.non_commutative import with_needs
from edge_agent.algebra.aggregates.package_families import order_dependence
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import NOTHING, combine, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from tests.oracle import central_computer, functions, member_itself
from tests.support.algebra_strategies import every_aggregate
from tests.support.effort import examples
from tests.support.laws.split_readings import EVERY, NODES, RANKS, assert_same, lifted, naive, parts_of, reach, terms_of
from tests.support.tolerance import assert_close, assert_same_column, close


def _some(numbers: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    return {label: said[rows] for label, said in numbers.items()}


@examples(200)
@given(case=parts_of(), random=st.randoms(use_true_random=False))
def test_lifting_parts_and_combining_them_in_any_order_and_grouping_gives_the_oracles_answer(
    case: tuple[int | None, list[Readings]], random: Random
) -> None:
    """protocol 7.1, 7.2, 7.3. Every function over the same readings: they take longer to draw than to combine."""
    scale, parts = case
    readings, seed = naive(parts, scale, NODES), random.getrandbits(32)
    for aggregate in EVERY:
        holds_of(aggregate, scale, parts, readings, Random(seed))


def holds_of(
    aggregate: Aggregate,
    scale: int | None,
    parts: list[Readings],
    readings: list[central_computer.Reading],
    random: Random,
) -> None:
    """Parts of these readings, combined in an order and grouping that is drawn, give the oracle's answer."""
    basis = basis_of([aggregate], scale)
    rows = lifted(parts, basis, scale)
    random.shuffle(rows)
    while len(rows) > 1:
        taken = [rows.pop() for _ in range(random.randint(2, len(rows)))]
        rows.insert(random.randint(0, len(rows)), combine(concat(taken), basis, ranks=RANKS))
    if not readings:
        assert not len(rows[0]), aggregate
        return
    answer = aggregates.lower(aggregate, rows[0].states, scale)
    want = central_computer.FUNCTIONS[aggregate.fn](readings, dict(aggregate.params))
    assert bool(answer.null[0]) == (want is None), aggregate
    assert bool(np.isnan(answer.value[0])) == (want is None), aggregate
    if want is None:
        return
    got = float(answer.value[0])
    if aggregate.fn == "stddev":  # a root enlarges the error of what is nearly 0
        got, want = got**2, want**2
    assert close(got, want, terms_of(aggregate, readings)), (aggregate, got, want)


@given(case=parts_of(), random=st.randoms(use_true_random=False))
def test_states_are_equal_whatever_the_order_and_grouping(
    case: tuple[int | None, list[Readings]], random: Random
) -> None:
    """protocol 7.1: integers bit-equal; floats within tolerance."""
    scale, parts = case
    basis = basis_of(EVERY, scale)
    rows = lifted(parts, basis, scale)
    whole = combine(concat(rows), basis, ranks=RANKS)
    random.shuffle(rows)
    some = random.randint(0, len(rows))
    left, right = (combine(concat(side), basis, ranks=RANKS) for side in (rows[:some], rows[some:]))
    assert_same(combine(concat([left, right]), basis, ranks=RANKS), whole, parts)


@given(case=parts_of())
def test_nothing_is_the_exact_identity_also_with_itself(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    basis = basis_of(EVERY, scale)
    (row,) = lifted(parts[:1], basis, scale)
    assert len(combine(concat([NOTHING, NOTHING]), basis)) == 0
    assert len(combine(concat([]), basis)) == 0
    for both in ([row, NOTHING], [NOTHING, row], [NOTHING, row, NOTHING]):
        got = combine(concat(both), basis)
        assert got.key.tolist() == row.key.tolist()
        for name, column in row.states.items():
            assert got.states[name].tolist() == column.tolist()


@given(case=parts_of())
def test_lift_of_coded_groups_equals_lift_of_each_group_alone(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    (part, *_) = parts
    basis = basis_of(EVERY, scale)
    k = len(part.time_us)
    codes = np.arange(k) % 3 * 2  # some codes do not occur
    got = aggregates.lift(part, Segments.coded(codes, 6), basis, scale)
    alone: dict[str, list[Array]] = {name: [np.zeros(0, got[name].dtype)] for name in basis}
    for code in np.unique(codes):
        mine = codes == code
        own = Readings(part.time_us[mine], part.value[mine], part.order[mine], part.node, _some(part.numbers, mine))
        states = aggregates.lift(own, Segments.runs(np.zeros(1, np.int64), int(mine.sum())), basis, scale)
        for name, column in states.items():
            alone[name].append(column)
    for name in basis:
        want = np.concatenate(alone[name])
        assert_same_column(got[name].astype(want.dtype), want, reach([part], name))


def test_every_component_keeps_the_law_that_a_definition_checks_for_those_of_packages() -> None:
    every = {component.name: component for component in COMPONENTS.values()}
    for component in every.values():
        if not {COLUMNS[name].kind for name in component.columns} & {"node", "order", "series", "sketch"}:
            assert not order_dependence(tuple(with_needs((component.name,), every)), component.columns)


def test_variance_far_from_zero_is_no_difference_of_squares() -> None:
    """protocol 7.2: the naive formula gives -113.8 for values of which the variance is 20."""
    value = np.array([1e9 + v for v in (4.0, 7.0, 13.0, 16.0)])
    parts = [Readings(np.zeros(1, np.int64), value[i : i + 1], np.zeros(1, np.int64)) for i in range(4)]
    basis = basis_of([Aggregate("var", "v")], None)
    row = combine(concat(lifted(parts, basis, None)), basis)
    assert aggregates.lower(Aggregate("var", "v"), row.states, None).value[0] == pytest.approx(30.0, rel=1e-12)


@given(case=parts_of())
def test_what_details_tell_is_what_the_oracle_counts(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    edges = (-3.0, 0.0, 0.3, 20.0, 1e6)
    asked = [
        Aggregate("histogram", "h", (("edges", edges),)),
        *(Aggregate(n, n) for n in ("time_by_state", "value_counts")),
    ]
    basis = basis_of(asked, scale)
    row = combine(concat(lifted(parts, basis, scale)), basis, ranks=RANKS)
    readings = naive(parts, scale, NODES)
    if not readings:
        return
    told = [aggregates.lower(each, row.states, scale).details for each in asked]
    assert json.loads((told[0] or [""])[0] or "") == functions.histogram(readings, {"edges": edges})
    states = json.loads((told[1] or [""])[0] or "")
    assert {float(value): seconds for value, seconds in states.items()} == functions.time_by_state(readings)
    counts = json.loads((told[2] or [""])[0] or "")
    assert {float(value): count for value, count in counts.items()} == functions.value_counts(readings)


@examples(40)
@given(case=parts_of())
def test_a_function_over_all_readings_at_once_gives_the_oracles_answer(case: tuple[int | None, list[Readings]]) -> None:
    """What stands in for an oracle that is not written yet (tests/oracle/member_itself.py) says what a written one
    says."""
    scale, parts = case
    readings = naive(parts, scale, NODES)
    if not readings:
        return
    for aggregate in EVERY:
        want = central_computer.FUNCTIONS[aggregate.fn](readings, dict(aggregate.params))
        got = member_itself.answer(aggregate.fn, readings, dict(aggregate.params))
        assert (got is None) == (want is None), aggregate
        if got is not None and want is not None:
            power = 2 if aggregate.fn == "stddev" else 1
            assert_close(got**power, want**power, terms_of(aggregate, readings))


def test_sums_beyond_what_travels_have_no_answer_and_stay_so() -> None:
    """protocol 7.1: overflow is never an exception."""
    value = np.array([1e299, -1e299, 1e299, -1e299])
    part = Readings(np.arange(4), value, np.arange(4))
    asked = [Aggregate(fn, fn) for fn in ("skewness", "kurtosis", "avg")] + [Aggregate("moment", "m", (("order", 5),))]
    basis = basis_of(asked, None)
    row = combine(concat(lifted([part, part], basis, None)), basis)
    assert all(np.isfinite(column).all() for column in row.states.values())
    assert [bool(aggregates.lower(each, row.states, None).null[0]) for each in asked] == [True, True, False, True]


def test_a_parameter_without_examples_cannot_escape_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    quantile = aggregates.FUNCTIONS["quantile"]
    params = (("q", Param((), None, within=(0.0, 1.0))),)
    monkeypatch.setitem(aggregates.FUNCTIONS, "quantile", replace(quantile, params=params))
    with pytest.raises(AssertionError, match=r"quantile, q: say choices=\(...\), values that the laws are to try"):
        every_aggregate()
