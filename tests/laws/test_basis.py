"""The registry of functions: which columns each needs, of which types, and what is no function."""

from __future__ import annotations

import pytest
from hypothesis import given
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
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.sketches import kind_of
from edge_agent.errors import ConfigError
from tests.oracle import central_computer
from tests.support.laws.split_readings import EVERY, lifted, parts_of


@pytest.mark.parametrize("made", ["columns", "components", "functions", "templates"])
def test_no_name_of_a_family_is_also_that_of_another(made: str) -> None:
    names = [each.name for family in BUILT_IN for each in getattr(family, made)]
    assert sorted(names) == sorted(set(names))


def test_every_component_has_a_function_and_every_oracle_too() -> None:
    assert set(central_computer.WRITTEN) <= set(FUNCTIONS)
    used = {c.name for a in EVERY for scale in (None, 0) for c in components_of(basis_of([a], scale))}
    assert {name for name in used if ":" not in name} == set(COMPONENTS)
    assert {name.partition(":")[0] for name in used if ":" in name} == set(TEMPLATES)
    owners = [column for component in COMPONENTS.values() for column in component.columns]
    assert sorted(owners) == sorted(COLUMNS)


@given(case=parts_of())
def test_columns_have_the_types_their_kinds_promise(case: tuple[int | None, list[Readings]]) -> None:
    scale, parts = case
    basis = basis_of(EVERY, scale)
    for row in lifted(parts, basis, scale):
        assert tuple(sorted(row.states)) == tuple(sorted(basis))
        for name, column in row.states.items():
            assert not len(column) or kind_of(column) in KINDS[COLUMNS[name].kind].letters(scale), name


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
