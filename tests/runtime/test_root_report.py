"""What the root left out reaches `headwater status` through a file in the landing folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from edge_agent.cli.fleet.status import left_out
from edge_agent.runtime import root_report
from edge_agent.runtime.root_report import RootReport


def shown(folder: Path) -> list[str]:
    return left_out({"status": root_report.read(folder)})


def test_it_counts_by_reason_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    assert shown(tmp_path) == []
    for seq in (1, 2):
        RootReport(tmp_path).note(f"cannot be handled: RuntimeError: {seq}", f"record {seq}")
    (line,) = shown(tmp_path)
    assert (
        line == "LEFT OUT by the root, in ops.quarantine: 2 times: cannot be handled: RuntimeError: #; such as record 2"
    )
    assert (tmp_path / root_report.NAME).stat().st_mode & 0o777 == 0o600


def test_steps_of_upkeep_that_failed_are_shown_beside_what_was_left_out(tmp_path: Path) -> None:
    RootReport(tmp_path).note("cannot be handled", "record 1")
    for n in (1, 2):
        RootReport(tmp_path).upkeep_failed("OSError: No space left on device", f"clean gold.results, {n} in a row")
    first, second = shown(tmp_path)
    assert first == "LEFT OUT by the root, in ops.quarantine: 1 times: cannot be handled; such as record 1"
    failed = "OSError: No space left on device; such as clean gold.results, 2 in a row"
    assert second == f"UPKEEP of the root's tables failed: 2 times: {failed}"


def test_what_a_run_of_long_ago_left_out_is_no_news(tmp_path: Path) -> None:
    RootReport(tmp_path).note("why", "record 1")
    path = tmp_path / root_report.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "at_us": time.time_ns() // 1000 - 8 * 86_400_000_000}))
    RootReport(tmp_path).note("another", "record 2")
    assert [line.rpartition(": ")[2] for line in shown(tmp_path)] == ["another; such as record 2"]


@pytest.mark.parametrize("content", ["", "[]", '{"left_out": 5}', '{"left_out": {"a": 1}}', "{" * 100_000])
def test_a_file_of_anything_is_no_report(tmp_path: Path, content: str) -> None:
    (tmp_path / root_report.NAME).write_text(content)
    shown(tmp_path)
    RootReport(tmp_path).note("why", "record 1")
    assert "such as record 1" in shown(tmp_path)[-1]
