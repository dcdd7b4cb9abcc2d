"""The laws of lift, combine and lower, for every registered function, floats and scaled integers, by introspection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import (
    BUILT_IN,
    COLUMNS,
    COMPONENTS,
    FUNCTIONS,
    TEMPLATES,
    Readings,
    basis_of,
    components_of,
)
from edge_agent.algebra.aggregates.base import decimals
from edge_agent.algebra.bags import Bag
from edge_agent.algebra.partial import NOTHING, Column, Partials, combine, concat
from edge_agent.algebra.query import Aggregate
from edge_agent.algebra.segments import Segments
from edge_agent.algebra.series import Series
from edge_agent.errors import ConfigError
from tests import oracle, oracle_further, oracle_itself, strategies
from tests.tolerance import assert_close, assert_same_column

EVERY = strategies.every_aggregate()
INTEGERS = {"count", "time", "node", "order"}


def lifted(parts: list[Readings], basis: tuple[str, ...], scale: int | None) -> list[Partials]:
    """Each part as the partial of one slice [0, 1) of key 0; parts without readings give no row."""
    out = []
    for part in parts:
        k = len(part.time_us)
        groups = Segments.runs(np.zeros(min(k, 1), np.int64), k)
        states = aggregates.lift(part, groups, basis, scale)
        n = len(groups)
        out.append(Partials(np.zeros(n, np.int64), np.ones(n, np.int64), np.zeros(n, np.int64), states))
    return out


def reach(parts: list[Readings], column: str) -> float:
    """How large the squares of the values are together, of moments their powers: the scale of floats made of them."""
    power = max(2, COLUMNS[column].degree)
    return float(sum((np.abs(part.value.astype(np.float64)) ** power).sum() for part in parts))


def assert_same(got: Partials, want: Partials, parts: list[Readings]) -> None:
    for name in ("start", "end", "key"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist()
    assert set(got.states) == set(want.states)
    for name, column in want.states.items():
        assert_same_column(got.states[name], column, reach(parts, name))


def naive(parts: list[Readings], scale: int | None, nodes: list[str]) -> list[oracle.Reading]:
    out = []
    for part in parts:
        for i, (time_us, value, order) in enumerate(
            zip(part.time_us.tolist(), part.value.tolist(), part.order.tolist(), strict=True)
        ):
            number = value if scale is None else oracle.exact(value, scale)
            labels = {label: str(said[i]) for label, said in part.numbers.items()}
            out.append(oracle.Reading(time_us, number, nodes[part.node], order, labels))
    return sorted(out, key=lambda r: (r.time_us, r.node.encode(), r.order))


def _some(numbers: Mapping[str, Column], rows: Column) -> dict[str, Column]:
    return {label: said[rows] for label, said in numbers.items()}


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[int | None, list[Readings]]:
    """Readings of several nodes, a part each, some empty."""
    scale = draw(strategies.scales)
    count = draw(st.integers(1, 5))
    return scale, [draw(strategies.readings(scale, node)) for node in range(count)]


# node numbers order differently from node ids, so that a combine that ignores ranks is found out
NODES = ["n-e", "n-d", "n-c", "n-b", "n-a"]
RANKS = np.array([4, 3, 2, 1, 0])


@pytest.mark.parametrize("aggregate", EVERY, ids=lambda a: a.name)
@settings(deadline=None)  # every function at once, on a machine that does other things too
@given(case=parts_of(), random=st.randoms(use_true_random=False))
def test_lifting_parts_and_combining_them_in_any_order_and_grouping_gives_the_oracles_answer(
    aggregate: Aggregate, case: tuple[int | None, list[Readings]], random: Random
) -> None:
    """protocol 7.1, 7.2, 7.3"""
    scale, parts = case
    basis = basis_of([aggregate], scale)
    rows = lifted(parts, basis, scale)
    random.shuffle(rows)
    while len(rows) > 1:
        taken = [rows.pop() for _ in range(random.randint(2, len(rows)))]
        rows.insert(random.randint(0, len(rows)), combine(concat(taken), basis, ranks=RANKS))
    readings = naive(parts, scale, NODES)
    if not readings:
        assert not len(rows[0])
        return
    answer = aggregates.lower(aggregate, rows[0].states, scale)
    want = oracle.FUNCTIONS[aggregate.fn](readings, dict(aggregate.params))
    assert bool(answer.null[0]) == (want is None)
    assert bool(np.isnan(answer.value[0])) == (want is None)
    if want is None:
        return
    got = float(answer.value[0])
    if aggregate.fn == "stddev":  # a root enlarges the error of what is nearly 0
        got, want = got**2, want**2
    assert_close(got, want, terms_of(aggregate, readings))


def terms_of(aggregate: Aggregate, readings: list[oracle.Reading]) -> float:
    """How large the terms were that made an answer: what its error is relative to."""
    values = [float(r.value) for r in readings]
    largest = max(map(abs, values))
    away = max(abs(v - sum(values) / len(values)) for v in values)
    condition = largest / away if away else 1.0  # how much larger than their distances: what these have lost
    params = dict(aggregate.params)
    match aggregate.fn, params.get("kind"):
        case (
            (
                "time_of_min"
                | "time_of_max"
                | "time_of_first"
                | "time_of_last"
                | "count_if"
                | "share_if"
                | "resets"
                | "time_in_state"
                | "duration"
            ),
            _,
        ):
            return 0.0
        case (("rate" | "derivative" | "slope"), _):
            return largest * len(values) * 1e6  # times are microseconds here
        case "increase", _:
            return largest * len(values)
        case (("var" | "stddev" | "sum_of_squares"), _):
            return largest**2
        case "percent_change", _ if values[0]:
            return 100.0 * largest / abs(values[0])
        case "moment", "central":
            return float(largest ** int(str(params["order"])))
        case (("skewness" | "kurtosis" | "moment"), _):
            return 100.0 * len(values) ** 2 * condition**2
    return largest if aggregate.fn in oracle.WRITTEN else oracle_itself.terms(aggregate.fn, largest) * len(values)


@settings(deadline=None)  # every function at once, on a machine that does other things too
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


@settings(deadline=None)  # every function at once, on a machine that does other things too
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


@settings(deadline=None)  # every function at once, on a machine that does other things too
@given(case=parts_of())
def test_lift_of_coded_groups_equals_lift_of_each_group_alone(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    (part, *_) = parts
    basis = basis_of(EVERY, scale)
    k = len(part.time_us)
    codes = np.arange(k) % 3 * 2  # some codes do not occur
    got = aggregates.lift(part, Segments.coded(codes, 6), basis, scale)
    alone: dict[str, list[Column]] = {name: [np.zeros(0, got[name].dtype)] for name in basis}
    for code in np.unique(codes):
        mine = codes == code
        own = Readings(part.time_us[mine], part.value[mine], part.order[mine], part.node, _some(part.numbers, mine))
        states = aggregates.lift(own, Segments.runs(np.zeros(1, np.int64), int(mine.sum())), basis, scale)
        for name, column in states.items():
            alone[name].append(column)
    for name in basis:
        want = np.concatenate(alone[name])
        assert_same_column(got[name].astype(want.dtype), want, reach([part], name))


@settings(deadline=None)  # every function at once, on a machine that does other things too
@given(case=parts_of())
def test_what_can_be_inverted_takes_a_part_out_again_exactly(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    if scale is None:
        return  # floats drift: no claim
    basis = basis_of(EVERY, scale)
    rows = [row for row in lifted(parts, basis, scale) if len(row)]
    if len(rows) < 2:
        return
    rest = combine(concat(rows[1:]), basis, ranks=RANKS)
    whole = combine(concat(rows), basis, ranks=RANKS)
    invertible = [c for c in components_of(basis) if c.invert]
    assert invertible
    for component in invertible:
        assert component.invert is not None
        for name, column in component.invert(whole.states, rows[0].states).items():
            assert column.tolist() == rest.states[name].tolist()


@pytest.mark.parametrize("made", ["columns", "components", "functions", "templates"])
def test_no_name_of_a_family_is_also_that_of_another(made: str) -> None:
    names = [each.name for family in BUILT_IN for each in getattr(family, made)]
    assert sorted(names) == sorted(set(names))


def test_every_component_has_a_function_and_every_oracle_too() -> None:
    assert set(oracle.WRITTEN) <= set(FUNCTIONS)
    used = {c.name for a in EVERY for scale in (None, 0) for c in components_of(basis_of([a], scale))}
    assert {name for name in used if ":" not in name} == set(COMPONENTS)
    assert {name.partition(":")[0] for name in used if ":" in name} == set(TEMPLATES)
    owners = [column for component in COMPONENTS.values() for column in component.columns]
    assert sorted(owners) == sorted(COLUMNS)


@settings(deadline=None)  # every function at once, on a machine that does other things too
@given(case=parts_of())
def test_columns_have_the_types_their_kinds_promise(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    basis = basis_of(EVERY, scale)
    for row in lifted(parts, basis, scale):
        assert tuple(sorted(row.states)) == tuple(sorted(basis))
        for name, column in row.states.items():
            kind = COLUMNS[name].kind
            if kind in INTEGERS or (kind == "value" and scale is not None):
                assert column.dtype == np.int64, name
            elif kind == "bag":
                assert all(isinstance(bag, Bag) for bag in column.tolist()), name
            elif kind == "sketch":
                assert all(type(cell) is bytes for cell in column.tolist()), name
            elif kind == "series":
                assert all(isinstance(each, Series) for each in column.tolist()), name
            elif kind == "real" or scale is None:
                assert column.dtype == np.float64, name
            else:
                assert column.dtype in (np.int64, np.dtype(object)), name


@pytest.mark.parametrize("scale", [None, -1])
def test_a_basis_is_shared_and_in_one_order(scale: int | None) -> None:
    wanted = [Aggregate(fn, fn) for fn in ("stddev", "avg", "sum", "count")]
    squares = "m2" if scale is None else "sq"
    assert basis_of(wanted, scale) == basis_of(reversed(wanted), scale) == ("count", "sum", squares)
    assert basis_of([Aggregate("max", "max")], scale) == ("count", "max")


def test_half_a_component_is_no_basis() -> None:
    with pytest.raises(ValueError, match="argmin_time"):
        aggregates.components_of(("count", "argmin_value"))
    with pytest.raises(ValueError, match="sum"):
        aggregates.components_of(("count", "m2"))


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (Aggregate("averge", "a"), "averge"),
        (Aggregate("avg", "a", (("ddof", 1),)), "no parameter 'ddof'"),
        (Aggregate("sum", "a", (("ddof", 1),)), "it has none"),
        (Aggregate("var", "a", (("ddof", 2),)), "ddof is one of 0, 1, not 2"),
        (Aggregate("var", "a", (("ddof", True),)), "not True"),
        (Aggregate("avg", "a", (("rounding", "up"),)), "'truncate'"),
    ],
)
def test_wrong_aggregates_are_refused_in_one_clear_line(aggregate: Aggregate, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        aggregates.check(aggregate)
    assert "\n" not in str(caught.value)


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
        number = oracle.exact(unit, scale)
        assert answer.value[i] == float(number)
        detail = None if answer.details is None else answer.details[i]
        if abs(unit * 10 ** max(scale, 0)) > 2**53:
            assert detail is not None
            assert Fraction(detail) == number
        else:
            assert detail is None


@settings(deadline=None)  # every function at once, on a machine that does other things too
@given(part=strategies.readings(-1), finer=st.integers(0, 4))
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
    with pytest.raises(ValueError, match="no exact way"):
        aggregates.convert({}, -1, 0)
    with pytest.raises(ValueError, match="no exact way"):
        aggregates.convert({}, None, -1)


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
    assert json.loads((told[0] or [""])[0] or "") == oracle_further.histogram(readings, {"edges": edges})
    states = json.loads((told[1] or [""])[0] or "")
    assert {float(value): seconds for value, seconds in states.items()} == oracle_further.time_by_state(readings)
    counts = json.loads((told[2] or [""])[0] or "")
    assert {float(value): count for value, count in counts.items()} == oracle_further.value_counts(readings)


@settings(deadline=None, max_examples=40)  # every function at once, on a machine that does other things too
@given(case=parts_of())
def test_a_function_over_all_readings_at_once_gives_the_oracles_answer(case: tuple[int | None, list[Readings]]) -> None:
    """What stands in for an oracle that is not written yet (tests/oracle_itself.py) says what a written one says."""
    scale, parts = case
    readings = naive(parts, scale, NODES)
    if not readings:
        return
    for aggregate in EVERY:
        want = oracle.FUNCTIONS[aggregate.fn](readings, dict(aggregate.params))
        got = oracle_itself.answer(aggregate.fn, readings, dict(aggregate.params))
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


@pytest.mark.parametrize(
    "name", ["below:", "below:x", "below:1e9999", "upto:0x1", "weight:a b", "nothing:1", "count:1"]
)
def test_a_template_makes_nothing_of_what_is_no_argument_of_it(name: str) -> None:
    """A peer's plan may name any column: what is not known is refused, not computed."""
    assert name not in COLUMNS
    assert name not in COMPONENTS
    with pytest.raises(ValueError, match="not a basis"):
        components_of(("count", name))


@given(edge=st.floats(-1e300, 1e300))
def test_every_edge_has_one_column_that_says_it_exactly(edge: float) -> None:
    below = Aggregate("count_if", "a", (("op", "<"), ("value", edge)))
    bins = Aggregate("histogram", "b", (("edges", (edge,)),))
    (name,) = set(basis_of([below, bins], None)) - {"count"}
    assert name in COLUMNS
    assert float(name.partition(":")[2]) == edge
