"""Every aggregate of the registry, in Spark and in numpy, on the same states."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import functions as F

from cloud_job.spark.native import column_types, lower, plan
from cloud_job.spark.native.column_types import form_of
from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COMPONENTS, FUNCTIONS, Readings
from edge_agent.algebra.columns.kind import Form
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NODES = ("gw-b", "gw-a", "gw-é", "gw-a2")
GROUPS = 40


def every_aggregate() -> tuple[Aggregate, ...]:
    """Each function with each choice of its parameters, named by them."""
    out = []
    for name, function in FUNCTIONS.items():
        choices = [[(key, choice) for choice in param.choices] for key, param in function.params]
        for number, params in enumerate(itertools.product(*choices)):
            out.append(Aggregate(name, f"{name}_{number}", tuple(params)))
    return tuple(out)


def values_of(kind: str, random: np.random.Generator, k: int) -> Any:
    """Values that have bitten: cancelling, tiny spread on a large mean, halves of 2^53, ties, signs."""
    if kind == "wide":
        return random.integers(-(2**53), 2**53, k)
    if kind == "units":
        return random.integers(-40, 1000, k)
    choices = (
        random.normal(20, 5, k),
        1e9 + random.integers(0, 3, k),
        random.choice([0.0, -0.0, 1.0], k),
        random.lognormal(0, 20, k),
        np.abs(random.normal(3, 1, k)) + 0.1,
    )
    return choices[int(random.integers(len(choices)))].astype(np.float64)


def lifted(kind: str, scale: int | None, basis: tuple[str, ...], random: np.random.Generator) -> tuple[Any, Any]:
    """Partials of GROUPS groups, 1 to 6 a group, each from 1 to 5 readings: (group of each row, states)."""
    group: list[int] = []
    rows: list[dict[str, Any]] = []
    for number in range(GROUPS):
        for _ in range(int(random.integers(1, 7))):
            k = int(random.integers(1, 6))
            time = np.sort(random.integers(0, 4, k))
            order, node = len(rows) * 9 + np.arange(k), int(random.integers(4))
            readings = Readings(time, values_of(kind, random, k), order, node, {"area": random.choice([0.0, 2.5], k)})
            rows.append(aggregates.lift(readings, Segments.runs(np.zeros(1, np.int64), k), basis, scale))
            group.append(number)
    states = {}
    for column in basis:
        parts = [row[column] for row in rows]
        dtype = object if any(part.dtype == object for part in parts) else parts[0].dtype
        states[column] = np.concatenate([part.astype(dtype) for part in parts])
    return np.array(group), states


@pytest.mark.parametrize(("kind", "scale"), [("floats", None), ("units", -1), ("units", 2), ("wide", -3), ("wide", 0)])
def test_spark_equals_numpy_for_the_whole_registry(spark: SparkSession, kind: str, scale: int | None) -> None:
    """protocol 7.1 and 7.2: integers bit-equal, floats within tolerance, m2 never as a difference of squares."""
    random = np.random.default_rng(7)
    shape = plan.Shape(every_aggregate(), scale)
    group, states = lifted(kind, scale, shape.basis, random)
    arrays = {plan.spark_name(c, scale): form_of(c, scale).to_arrow(a, NODES) for c, a in states.items()}
    rows = spark.createDataFrame(_table({"g": group, **arrays}))
    combined = plan.combine(rows, ["g"], [shape])
    values, details = lower.answers([shape], F.lit(0))
    found = combined.select("g", values.alias("values"), details.alias("details")).orderBy("g").collect()

    ranks = np.argsort(np.argsort([n.encode() for n in NODES]))
    wanted = aggregates.combine(states, Segments.coded(group, GROUPS), shape.basis, ranks)
    for aggregate in shape.aggregates:
        answer = aggregates.lower(aggregate, wanted, scale)
        for row in found:
            value = row["values"][aggregate.name]
            told = _plain(row["details"] or "{}").get(aggregate.name)
            at = (aggregate.name, row["g"])
            if answer.null[row["g"]]:
                assert value is None, at
            else:
                expected = answer.value[row["g"]]
                assert value is not None, at
                assert math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-9 if scale is None else 0), (
                    at,
                    value,
                    expected,
                )
            wanted_detail = None if answer.details is None else answer.details[row["g"]]
            assert told == (None if wanted_detail is None else _plain(wanted_detail)), at


def test_a_sum_that_has_left_the_floats_has_no_answer_in_spark_either(spark: SparkSession) -> None:
    """protocol 7.1: it was a number up to infinity, and the mean another one."""
    asked = (Aggregate("sum", "s"), Aggregate("avg", "a"), Aggregate("avg", "t", (("rounding", "truncate"),)))
    shape = plan.Shape(asked, None)
    states = {"count": np.array([2, 3, 1, 1]), "sum": np.array([9e306, 9e306, -1e307, 5e306])}
    rows = spark.createDataFrame(_table({"g": np.array([0, 0, 1, 2]), **states}))
    values, _details = lower.answers([shape], F.lit(0))
    found = plan.combine(rows, ["g"], [shape]).select("g", values.alias("values")).orderBy("g").collect()
    wanted = aggregates.combine(states, Segments.coded(np.array([0, 0, 1, 2]), 3), shape.basis)
    for aggregate in asked:
        answer = aggregates.lower(aggregate, wanted, None)
        expected = [None if null else value for value, null in zip(answer.value, answer.null, strict=True)]
        assert [row["values"][aggregate.name] for row in found] == expected == [None, None, 5e306]


@pytest.mark.parametrize(("kind", "scale"), [("floats", None), ("units", -1), ("wide", 0)])
def test_members_without_a_twin_are_combined_and_answered_by_numpy(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str, scale: int | None
) -> None:
    for name in set(plan.COMBINE) - {"count", "sum", "bag", "series"}:
        monkeypatch.delitem(plan.COMBINE, name)
    for name in ("avg", "range"):
        monkeypatch.delitem(lower.LOWER, name)
    test_spark_equals_numpy_for_the_whole_registry(spark, kind, scale)


def test_every_twin_is_of_a_member_of_the_registry() -> None:
    assert plan.COMBINE.keys() <= COMPONENTS.keys()
    assert lower.LOWER.keys() <= FUNCTIONS.keys()
    assert column_types.FORMS.keys() == set(Form)


def _plain(text: str) -> Any:
    """JSON with its numbers as they are written."""
    return json.loads(text, parse_float=str, parse_int=str)


def _table(columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.table(columns)
