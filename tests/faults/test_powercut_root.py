"""Some power cuts of a root in every run; 200 are `make powercut`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.slow
def test_what_has_landed_is_there_after_a_power_cut_of_the_root_and_counts_once(
    spark: SparkSession, empty_tables: Path, tmp_path: Path
) -> None:
    """protocol 8.1, 8.5: whatever of Delta's own writes a cut has left."""
    from tests.faults.powercut_root import Trial, run

    found = run(spark, tmp_path, empty_tables, Trial(3, batches=4, share=0.25, takes=1))
    assert found.missing == []
    assert found.cuts > 8
    assert any(found.forgetful() for _ in range(5))
