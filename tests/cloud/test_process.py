"""`headwater root` as a process: killed in the middle of a batch, started again, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import IO

import pytest

from cloud_job.sql import delta_rs
from tests.support.cloud import recorded_fleets
from tests.support.cloud.recorded_fleets import wanted_of
from tests.support.simulation.faults import lossy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
CONFIG = """\
[node]
id = "root"
role = "root"
[lower]
broker = "mqtt://127.0.0.1:1"
grace = "20s"
[lander]
folder = "landing"
[root]
tables = "tables"
revise_every = "0s"
"""
ROWS = 'select query, key, start, "values", readings, revision, complete from gold.results'


def command(folder: Path, *options: str, failpoint: str = "", errors: IO[str] | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "HEADWATER_FAILPOINT": failpoint}
    words = [sys.executable, "-m", "edge_agent", "root", *options, str(folder / "root.toml")]
    return subprocess.Popen(words, env=environment, stderr=errors or subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def test_a_killed_root_goes_on_where_it_was_and_an_orderly_stop_leaves_nothing_undone(tmp_path: Path) -> None:
    """protocol 8.1, 8.2, 8.3, 8.5: over the landing files that it saw."""
    fleet, files = recorded_fleets.fleet(5, lossy(Random(5)))
    journal = fleet.world.hosts["root"].journal  # type: ignore[union-attr]
    landing = tmp_path / "landing"
    (tmp_path / "root.toml").write_text(CONFIG)
    half = len(files) // 2
    recorded_fleets.write(files[:half], journal, landing)
    code, errors = ended(command(tmp_path, "--once", failpoint="decision:0"))
    assert code == 9, errors[-2000:]
    with (tmp_path / "log").open("w") as log:
        process = command(tmp_path, errors=log)
        try:
            eventually((tmp_path / "tables/gold/results/_delta_log/00000000000000000001.json").exists, 240)
            other = ended(command(tmp_path, "--once"))
            assert other[0] == 3
            assert other[1].strip().splitlines()[-1].startswith("headwater: another root")
            recorded_fleets.write(files[half:], journal, landing, half)
            written = sorted(path.name for path in landing.glob("*.cborseq"))
            eventually(lambda: "batch=1" in (tmp_path / "log").read_text(), 240)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait(30)
    left = sorted(path.name for path in landing.glob("*.cborseq"))  # it took the files one by one, after the kill
    assert left == written[len(written) - len(left) :], "what it has read is done"
    code, errors = ended(command(tmp_path, "--once"))
    assert code == 0, errors[-2000:]
    assert list(landing.glob("*.cborseq")) == []
    answer = delta_rs.ask(ROWS, str(tmp_path / "tables"))
    found = {(q, key, start): (values, readings) for q, key, start, values, readings, *_ in answer.rows}
    wanted = wanted_of(recorded_fleets.plain_rows([files], journal))
    assert found == {key: (row["values"], row["readings"]) for key, row in wanted.items()}
    assert all(row[-1] for row in answer.rows)


def test_tables_that_cannot_be_written_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "root.toml").write_text(CONFIG)
    (tmp_path / "tables").write_text("a file stands where the folder should be")
    code, errors = ended(command(tmp_path, "--once"))
    assert code == 3
    assert "cannot write the tables to" in errors.strip().splitlines()[-1]


def test_no_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    (tmp_path / "root.toml").write_text(CONFIG)
    code, errors = ended(command(tmp_path, "--once"))
    assert code == 3
    line = errors.strip().splitlines()[-1]
    assert line.startswith("headwater: no Java found at JAVA_HOME=")
    assert "install Java 17" in line
