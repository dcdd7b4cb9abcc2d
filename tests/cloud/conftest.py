"""What tests of the root may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.cloud.jobs import Roots


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
