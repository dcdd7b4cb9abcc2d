"""Sketches in Spark: united by its own functions to what numpy makes of them, and read by its own readers."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from cloud_job.spark.native import lower, plan
from cloud_job.spark.native.column_types import form_of
from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import Readings
from edge_agent.algebra.partials.arrays import NO_INTS, Array
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.sketches import hll, kll, theta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ASKED = (
    Aggregate("approx_distinct", "few"),
    Aggregate("theta_distinct", "theta"),
    Aggregate("approx_median", "middle"),
    Aggregate("approx_quantile", "most", (("q", 0.99),)),
    Aggregate("top_k", "top", (("k", 5),)),
    Aggregate("distinct", "exact"),
)
# stretches [first, first + k) of whole numbers of each group's partials: at every change of form, alone and together
GROUPS = (
    [(0, 1)],
    [(0, 7)],
    [(0, 7), (7, 1)],
    [(0, 200), (200, 184)],
    [(0, 384)],
    [(0, 384), (384, 1)],
    [(0, 385)],
    [(0, 4_096), (1_000, 1)],
    [(0, 4_097)],
    [(0, 9_000), (4_000, 9_000), (100, 3)],
    [(0, 40_000), (20_000, 40_000)],
)


def lifted() -> tuple[Array, dict[str, Array], tuple[str, ...]]:
    """(group of each row, states by column, basis)."""
    basis = aggregates.basis_of(ASKED, None)
    rows = []
    for stretches in GROUPS:
        for first, k in stretches:
            values = np.random.default_rng(first).permutation(np.arange(first, first + k) * 0.5)
            readings = Readings(np.zeros(k, np.int64), values, NO_INTS)
            rows.append(aggregates.lift(readings, Segments.runs(np.zeros(1, np.int64), k), basis, None))
    group = np.repeat(np.arange(len(GROUPS)), [len(stretches) for stretches in GROUPS])
    return group, {name: np.concatenate([row[name] for row in rows]) for name in basis}, basis


def table(spark: SparkSession, group: Array, states: dict[str, Array]) -> DataFrame:
    arrays = {name: form_of(name, None).to_arrow(column, ()) for name, column in states.items()}
    return spark.createDataFrame(pa.table({"g": group, **arrays}))


def test_spark_says_what_numpy_says_to_the_last_bit(spark: SparkSession) -> None:
    group, states, basis = lifted()
    shape = plan.Shape(ASKED, None)
    combined = plan.combine(table(spark, group, states), ["g"], [shape])
    values, details = lower.answers([shape], F.lit(0))
    found = combined.select("g", values.alias("v"), details.alias("d")).orderBy("g").collect()
    made = aggregates.combine(states, Segments.coded(group, len(GROUPS)), basis)
    for aggregate in ASKED:
        answer = aggregates.lower(aggregate, made, None)
        assert [row["v"][aggregate.name] for row in found] == answer.value.tolist(), aggregate.name
        if answer.details is not None:
            told = [json.loads(row["d"])[aggregate.name] for row in found]
            assert told == [json.loads(text or "null") for text in answer.details], aggregate.name


def test_sparks_own_readers_take_every_sketch(spark: SparkSession) -> None:
    """Also what no union has touched: as it stands in the details of a result, or in frames."""
    group, states, _ = lifted()
    readers = {
        "hll": F.hll_sketch_estimate("hll"),
        "theta": F.theta_sketch_estimate("theta"),
        "n": F.expr("kll_sketch_get_n_double(kll)"),
        "middle": F.expr("kll_sketch_get_quantile_double(kll, 0.5D)"),
    }
    rows = table(spark, group, states).select(*(column.alias(name) for name, column in readers.items())).collect()
    assert [row["n"] for row in rows] == states["count"].tolist()
    assert [row["middle"] for row in rows] == kll.quantiles(states["kll"], 0.5).tolist()
    assert [row["theta"] for row in rows] == theta.estimates(states["theta"]).tolist()
    for row, estimate in zip(rows, hll.estimates(states["hll"]).tolist(), strict=True):
        assert row["hll"] == pytest.approx(estimate, rel=0.03)  # another estimator of the same registers


def test_theta_sketches_of_results_are_there_for_set_operations(spark: SparkSession) -> None:
    """As docs/query.md says it."""
    one = Segments.runs(np.zeros(1, np.int64), 3_000)
    cells = [theta.lift(np.linspace(first, first + 2_999, 3_000), one) for first in (0, 2_000)]
    texts = [json.dumps({"machines": base64.b64encode(cell[0]).decode()}) for cell in cells]
    rows = spark.createDataFrame([tuple(texts)], "a string, b string")
    found = rows.selectExpr(
        """theta_sketch_estimate(theta_intersection(
            unbase64(get_json_object(a, '$.machines')), unbase64(get_json_object(b, '$.machines')))) as both""",
        """theta_sketch_estimate(theta_difference(
            unbase64(get_json_object(a, '$.machines')), unbase64(get_json_object(b, '$.machines')))) as only""",
    ).collect()
    assert (found[0]["both"], found[0]["only"]) == (1_000, 2_000)
