"""Starts that were killed with a landing file, files that a port cannot give, and the order of files (no Spark)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_job.spark import batch_guard
from cloud_job.spark.batch_guard import BatchGuard
from edge_agent.errors import PortError
from edge_agent.runtime.start_record import StartRecord, short_form
from tests.support.cloud.child_frames import SECOND, START, tick
from tests.support.cloud.guarded_roots import GuardedRoot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuardedRoot:
    monkeypatch.setattr(batch_guard, "PAUSES_S", (0.0, 0.0))
    return GuardedRoot(tmp_path)


class OftenKilled:
    """The record of starts that were killed with a file."""

    careful = True

    def __init__(self, fatal: str) -> None:
        self.fatal, self.named = short_form(fatal), list[str]()

    def is_fatal(self, what: str) -> bool:
        return self.fatal == short_form(what)

    def handling(self, what: str) -> None:
        self.named.append(what)


def test_a_file_that_starts_were_killed_with_is_moved_aside(root: GuardedRoot) -> None:
    first, bad, last = root.births(), root.second(0), root.second(1)
    for name, content in (first, bad, last):
        (root.folder / name).write_bytes(content)
    starts = OftenKilled(bad[0])
    guard = BatchGuard(root.run, lambda why, example: root.told.append((why, example)), starts)
    guard.process([first, bad, last])
    assert starts.named == [first[0], "", last[0], ""]
    aside = root.folder / batch_guard.ASIDE
    assert (aside / bad[0]).read_bytes() == bad[1]
    assert ((aside / bad[0]).stat().st_mode & 0o777, aside.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [why for _, _, why in root.quarantined()] == [f"{bad[0]}: {batch_guard.FATAL}"]
    assert root.told == [(f"{bad[0]}: {batch_guard.FATAL}", bad[0])]
    assert guard.took(last[0])


def test_a_fatal_file_with_a_long_name_is_moved_aside(root: GuardedRoot) -> None:
    """The record of starts contains a short form of a name that is longer than 200 characters."""
    root.guard.process([root.births()])
    name, content = root.second(0)
    bad = (f"{name}.{'x' * 200}", content)
    (root.folder / bad[0]).write_bytes(bad[1])
    guard = BatchGuard(root.run, root.note, OftenKilled(bad[0]))
    guard.process([bad])
    assert (root.folder / batch_guard.ASIDE / bad[0]).exists()


def test_after_some_good_files_a_killed_start_takes_several_at_once_again(root: GuardedRoot) -> None:
    """All that waited after a long outage came one by one, within one turn of the loop."""
    starts = OftenKilled("")
    guard = BatchGuard(root.run, root.note, starts)
    sizes, names = list[int](), list[str]()
    waiting = [root.births(), *(root.second(n) for n in range(99))]
    while waiting:
        most = guard.most_files
        assert most is not None
        files, waiting = waiting[:most], waiting[most:]
        guard.process(files)
        sizes.append(len(files))
        names.append(files[0][0])
    assert sizes == [1] * batch_guard.ONE_BY_ONE + [8, 16, 32, 36]
    assert starts.named == [name for first in names for name in (first, "")]
    starts.careful = False
    assert guard.most_files is None, "a minute has passed"


def test_files_without_a_decision_are_one_by_one_at_each_start(root: GuardedRoot) -> None:
    """Else the first file of a larger batch would be the same at each start, and be moved aside for another one."""
    root.guard.process([root.births()])
    guard = BatchGuard(root.run, root.note, OftenKilled(""))
    guard.process([root.file(tick(START + n)) for n in range(1, 20)])
    assert guard.job.idle
    assert guard.most_files == 1


def test_a_fatal_file_within_a_batch_is_found_and_the_files_after_it_are_not_one_by_one_for_ever(
    root: GuardedRoot,
) -> None:
    before, fatal = [root.births(), *(root.second(n) for n in range(9))], root.second(9)
    for name, content in (*before, fatal):
        (root.folder / name).write_bytes(content)
    starts = OftenKilled(fatal[0])
    starts.careful = False  # the process has run for a minute
    guard = BatchGuard(root.run, root.note, starts)
    guard.process([*before, fatal, root.second(10)])
    assert (root.folder / batch_guard.ASIDE / fatal[0]).exists()
    assert guard.most_files is None
    assert len(root.kept.batches) == len(before) - 1 + 2, "one batch of two files, and one each for the last two"


def test_starts_that_end_at_a_full_disk_were_not_killed_with_a_file(root: GuardedRoot) -> None:
    root.guard.process([root.births()])
    file, full = root.second(0), "java.io.IOException: No space left on device"
    (root.folder / file[0]).write_bytes(file[1])
    records, copy = root.folder / "root.starts.json", root.folder / "looked_at.json"

    def ends(why: str) -> str:
        """A start that ends with this error. Returns the file that the next one is to leave out."""
        starts = StartRecord(records, 5)
        root.kept.store = lambda _names, _rows: (_ for _ in ()).throw(RuntimeError(why))
        with pytest.raises(RuntimeError):
            BatchGuard(root.run, root.note, starts).process([file])
        starts.close()
        shutil.copy(records, copy)
        found = StartRecord(copy, 5)
        found.close()
        return found.fatal

    assert [ends(full) for _ in range(7)] == [""] * 7
    dies = "java.lang.OutOfMemoryError: Java heap space"
    assert file[0] in {ends(dies) for _ in range(7)}, "the file may be the cause"


def test_what_a_port_says_passes(root: GuardedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        raise PortError("another root owns the tables")

    root.kept.store = store
    with pytest.raises(PortError):
        root.guard.process([root.births()])


def test_files_of_a_quiet_time_come_before_the_one_that_failed(root: GuardedRoot) -> None:
    """They stand in no decision yet, and the run that took them is given up."""
    births, *quiet, last = (root.births(), *(root.file(tick(START + n * SECOND)) for n in (1, 2, 3)), root.second(5))
    for file in (births, *quiet):
        root.guard.process([file])
    assert [row["files"] for row in root.kept.batches] == [[births[0]]]
    fails = [True]

    def store(names: Sequence[str], _rows: list[dict[str, Any]]) -> None:
        if last[0] in names and fails:
            fails.clear()
            raise RuntimeError("a commit that failed")

    root.kept.store = store
    root.guard.process([last])
    assert [name for row in root.kept.batches for name in row["files"]] == [name for name, _ in (births, *quiet, last)]
    assert root.runs == 2
    assert root.applied("gw-good") == 1


def test_a_copy_is_on_disk_before_the_file_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut it would be empty or without its name, and the lander has no other."""
    file, copy, synced = tmp_path / "file", tmp_path / "copy", list[str]()
    file.write_bytes(b"frames")

    def noted(handle: int) -> None:
        assert os.fstat(handle).st_size, "what is synced has been written"
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    monkeypatch.setattr(os, "fsync", noted)
    batch_guard._copy(file, copy)
    assert synced == [str(copy), str(tmp_path)]
