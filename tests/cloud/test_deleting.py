"""What the job says of a landing file that it cannot delete."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.spark.job import Job
from edge_agent.errors import PortError


def test_a_landing_file_that_cannot_be_deleted_is_named_in_one_line(tmp_path: Path) -> None:
    """Each start of the root deletes the files of the last decision: it ended with a traceback."""
    job: Any = SimpleNamespace(settings=SimpleNamespace(landing=str(tmp_path)))
    stuck = tmp_path / "00000001.cborseq"
    stuck.mkdir()  # for an administrator too, a folder is no file to delete
    (tmp_path / "00000002.cborseq").touch()
    with pytest.raises(PortError, match=f"cannot delete the landing file {stuck}: "):
        Job._remove(job, ["00000002.cborseq", "00000003.cborseq", stuck.name])
    assert [path.name for path in tmp_path.iterdir()] == [stuck.name]
