"""Some power cuts of a root in every run; 200 are `make powercut`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.slow
def test_what_has_landed_is_there_after_a_power_cut_of_the_root_and_counts_once(tmp_path: Path) -> None:
    """protocol 8.1, 8.5: whatever of Delta's own writes a cut has left."""
    from cloud_job import spark_session
    from cloud_job.delta import tables
    from tests.faults.powercut_root import Trial, run

    spark = spark_session.start("headwater-tests")
    tables.create(spark, tables.place(str(tmp_path / "empty")))
    found = run(spark, tmp_path, tmp_path / "empty", Trial(3, batches=4, share=0.25, takes=1))
    assert found.missing == []
    assert found.cuts > 8
    assert any(found.forgetful() for _ in range(5))
