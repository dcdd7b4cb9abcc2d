"""A root whose tables have three-part names in a catalog, in a session that others started, as on Databricks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cloud_job import spark_session
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import Place
from cloud_job.delta.upkeep import steps_of
from tests.faults.root_kills import Fleet, RowKey
from tests.support.cloud.jobs import Roots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG: Final = "spark_catalog"
SCHEMAS: Final = ("bronze", "silver", "gold", "ops")


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    """Schemas without tables, in a folder of this test."""
    for schema in SCHEMAS:
        spark.sql(f"create schema {CATALOG}.{schema} location '{tmp_path / 'warehouse' / schema}'")
    yield Place(f"{CATALOG}.", named=True, guarded=True)
    for schema in SCHEMAS:
        spark.sql(f"drop schema {CATALOG}.{schema} cascade")


def found(spark: SparkSession) -> dict[RowKey, tuple[dict[str, float], int]]:
    """Rows of gold.results as a user of the catalog reads them."""
    rows = spark.table(f"{CATALOG}.gold.results").where("not withdrawn").collect()
    assert len(rows) == len({(row["query"], row["key"], row["start"]) for row in rows})
    return {(row["query"], row["key"], row["start"]): (row["values"], row["readings"]) for row in rows}


@pytest.mark.spark
def test_rows_in_a_catalog_are_right_through_a_restart_and_every_step_of_upkeep(
    spark: SparkSession, catalog: Place, roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.5: with windows of a second, count windows, sessions, late readings and frames that come twice."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    root = roots()
    root.job.close()
    fleet = Fleet(root.landing, random.Random(3))
    session = spark_session.start()
    assert session is spark, "the session of the cluster is used"
    for last in (False, True):
        root.start(catalog)
        for _ in range(6):
            fleet.second()
        if last:
            fleet.rest()
        root.batch(root.landing.glob("*.cborseq"))
        if not last:
            for step in steps_of(Kept(1, 1), 1):
                step.act(root.job)
        else:
            root.job.finish()
        root.job.close()
    spark_session.stop(session)
    assert found(spark) == fleet.wanted()
