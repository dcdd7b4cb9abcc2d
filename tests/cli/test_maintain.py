"""`headwater maintain` as typed: what it refuses, and whom its files are for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloud_job import spark_session
from cloud_job.sql import views
from edge_agent.cli.main import main
from edge_agent.errors import PortError


@pytest.mark.parametrize("hours", ["-1", "1.5", "x", "9" * 5000])
def test_hours_that_are_none_are_refused(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["maintain", "--tables", "t", f"--keep-hours={hours}"])
    assert left.value.code == 2
    assert "is not a number of hours" in capsys.readouterr().err


def test_what_it_writes_is_for_its_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = list[int]()

    def start(_name: str) -> None:
        masks.append(os.umask(0o022))
        raise PortError("no Spark in this test")

    monkeypatch.setattr(views, "tables_in", lambda folder: {})
    monkeypatch.setattr(spark_session, "start", start)
    before = os.umask(0o022)
    try:
        assert main(["maintain", "--tables", str(tmp_path)]) == 3
    finally:
        os.umask(before)
    assert masks == [0o077]
