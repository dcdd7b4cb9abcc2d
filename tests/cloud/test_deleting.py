"""Files that cannot be deleted, and files that were deleted by others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cloud_job.spark.read_files import ReadFiles
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_landing_file_that_cannot_be_deleted_is_named_in_one_line(tmp_path: Path) -> None:
    """Each start of the root deletes the files of the last decision: it ended with a traceback."""
    read = ReadFiles(tmp_path)
    stuck = tmp_path / "00000001.cborseq"
    stuck.mkdir()  # for an administrator too, a folder is no file to delete
    (tmp_path / "00000002.cborseq").touch()
    read.resume(["00000002.cborseq", "00000003.cborseq", stuck.name])
    with pytest.raises(PortError, match=f"cannot delete the landing file {stuck}: "):
        read.delete()
    assert [path.name for path in tmp_path.iterdir()] == [stuck.name]


@pytest.mark.spark
def test_a_table_that_lacks_a_data_file_is_not_read_without_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A result of the remaining rows would look complete."""
    for number in range(2):
        write_deltalake(tmp_path / "t", pa.table({"batch": pa.array([number], pa.int64())}), mode="append")
    next((tmp_path / "t").glob("*.parquet")).unlink()
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|FAILED_READ_FILE"):
        spark.read.format("delta").load(str(tmp_path / "t")).collect()
