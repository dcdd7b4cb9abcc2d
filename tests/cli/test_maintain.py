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


def test_a_file_uri_is_the_folder_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "start", lambda _name: pytest.fail("it starts nothing"))
    assert main(["maintain", "--tables", f"file://{tmp_path}"]) == 3
    assert f"no tables in {tmp_path}:" in capsys.readouterr().err


@pytest.mark.parametrize("inside", [False, True])
def test_tables_of_another_user_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inside: bool
) -> None:
    """As root it left files that the root's service cannot read."""
    table = tmp_path / "bronze.messages"
    table.mkdir()
    other, stat = (table if inside else tmp_path), Path.stat

    def owned(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = list(stat(path, follow_symlinks=follow_symlinks))
        found[4] += path == other
        return os.stat_result(found)

    monkeypatch.setattr(views, "tables_in", lambda folder: {})
    monkeypatch.setattr(spark_session, "start", lambda _name: pytest.fail("it starts nothing"))
    monkeypatch.setattr(Path, "stat", owned)
    assert main(["maintain", "--tables", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{other} belongs to user " in line
    assert f"headwater maintain --tables {tmp_path}" in line
