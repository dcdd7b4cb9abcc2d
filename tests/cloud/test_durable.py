"""What the root wrote is on the disk before anything depends on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud_job.delta import tables
from cloud_job.delta.durable import DurableTables
from cloud_job.delta.tables import Place
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import Roots


class Disk:
    """Names of the files and folders that were fsynced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[Path] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._record)

    def _record(self, handle: int) -> None:
        self._fsync(handle)
        self.synced.append(Path(f"/proc/self/fd/{handle}").readlink())


def commit(place: Place, number: int, *files: str) -> list[Path]:
    """A commit of gold.results with these data files. Returns all of its files, and their folders."""
    folder = Path(place.path(tables.RESULTS))
    log = folder / "_delta_log" / f"{number:020d}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_bytes(b"rows")
    actions = [{"commitInfo": {}}, *({"add": {"path": file.replace(" ", "%20")}} for file in files)]
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    return [*(folder / file for file in files), folder, log, log.parent]


def test_a_commit_is_on_the_disk_with_its_data_before_its_log_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1, 8.5"""
    place = Place(str(tmp_path))
    commit(place, 0, "old.parquet")
    durable, disk = DurableTables(place), Disk(monkeypatch)
    wanted = commit(place, 1, "a.parquet", "b c.parquet") + commit(place, 2, "d.parquet")
    durable.sync()
    assert disk.synced == wanted
    durable.sync()
    assert disk.synced == wanted


def test_tables_that_are_no_folders_are_left_to_their_store(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    DurableTables(Place("main.", named=True, guarded=True)).sync()
    assert disk.synced == []


@pytest.mark.spark
def test_landing_files_go_when_the_tables_that_hold_them_are_on_the_disk(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.5: their children have let the frames go."""
    root = roots()
    disk, missing = Disk(monkeypatch), list[Path]()
    unlink = Path.unlink

    def looking(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".cborseq":
            written = [file for file in Path(root.place.root).rglob("*") if file.suffix in (".parquet", ".json")]
            missing.extend(set(written) - before - set(disk.synced))
        unlink(path, missing_ok=missing_ok)

    before = set(Path(root.place.root).rglob("*"))
    monkeypatch.setattr(Path, "unlink", looking)
    child = Child("gw-1", (query(),))
    first = root.land(tick(START), record(child, START, child.birth()))
    root.batch([first])
    root.take(
        tick(START + SECOND), record(child, START, child.rows(START + SECOND, np.array([START]), np.array([1.0])))
    )
    assert not first.exists()
    root.take(tick(START + 2 * SECOND))
    assert missing == []
    assert len(disk.synced) > 10
