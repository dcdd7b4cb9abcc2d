"""One Spark session for all tests of a process: starting one takes ten seconds (two processes of three: two_sparks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.cloud.jobs import Roots


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from cloud_job import spark_session

    started = spark_session.start("headwater-tests")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables without rows: a job takes half a second to make each."""
    from cloud_job.delta import tables

    folder = tmp_path_factory.mktemp("empty")
    tables.create(spark, tables.place(str(folder)))
    return folder


@pytest.fixture
def roots(spark: SparkSession, empty_tables: Path, tmp_path: Path) -> Iterator[Callable[..., Roots]]:
    """Starts roots over tables of their own: roots(revise_every_us=...)."""
    from tests.support.cloud.jobs import Roots

    made: list[Roots] = []

    def start(**limits: int) -> Roots:
        base = tmp_path / f"root-{len(made)}"
        base.mkdir()
        made.append(Roots(spark, base, empty_tables, **limits))
        return made[-1]

    yield start
    for each in made:
        each.job.close()
