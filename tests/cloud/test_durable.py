"""What the root wrote is on the disk before anything depends on it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.integrity import durable_versions, torn_commits
from cloud_job.delta.integrity.durable import DurableTables
from cloud_job.delta.tables import Place
from cloud_job.spark_session import MARK
from edge_agent.errors import PortError
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
    actions = [{"commitInfo": {"userMetadata": MARK}}, *({"add": {"path": file.replace(" ", "%20")}} for file in files)]
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    return [*(folder / file for file in files), folder, log, log.parent]


def noted(place: Place) -> dict[str, int]:
    """The versions in the note."""
    return {name: version for name, version in durable_versions.read(place).items() if name != durable_versions.MARKED}


def test_a_commit_is_on_the_disk_with_its_data_before_its_log_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1, 8.5"""
    place = Place(str(tmp_path))
    commit(place, 0, "old.parquet")
    durable, disk = DurableTables(place), Disk(monkeypatch)
    wanted = commit(place, 1, "a.parquet", "b c.parquet") + commit(place, 2, "d.parquet")
    note = durable_versions.path_of(place)
    before = note.stat().st_ino
    durable.sync()
    assert disk.synced == [*wanted, note.with_name(f"{note.name}.part")]
    assert note.stat().st_ino != before
    for _ in range(2):  # a step that wrote nothing writes no note
        before = note.stat().st_ino
        durable.sync()
        assert len(disk.synced) == len(wanted) + 1
        assert note.stat().st_ino == before


def test_the_folders_of_a_new_table_are_on_the_disk_before_the_note_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could take the table and leave the note: the root would take it for deleted."""
    place = Place(str(tmp_path))
    durable, disk = DurableTables(place), Disk(monkeypatch)
    wanted = commit(place, 0, "a.parquet")
    folder = Path(place.path(tables.RESULTS))
    durable.sync()
    note = durable_versions.path_of(place)
    assert disk.synced == [*wanted, folder, folder.parent, tmp_path, note.with_name(f"{note.name}.part")]


def test_the_newest_durable_version_of_each_table_is_noted(tmp_path: Path) -> None:
    """Found at the start, and after each step."""
    place = Place(str(tmp_path))
    commit(place, 7, "old.parquet")
    durable = DurableTables(place)
    assert noted(place) == {tables.RESULTS.name: 7}
    commit(place, 8, "a.parquet")
    commit(place, 9, "b.parquet")
    assert noted(place) == {tables.RESULTS.name: 7}
    durable.sync()
    assert noted(place) == {tables.RESULTS.name: 9}
    shutil.rmtree(tmp_path / "gold")
    DurableTables(place)  # a root that begins anew
    assert noted(place) == {}


def test_a_note_that_is_damaged_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A changed version would stop a root with good tables, or hide that a table is damaged."""
    place = Place(str(tmp_path))
    durable_versions.write(place, {tables.RESULTS.name: 7})
    note = durable_versions.path_of(place)
    whole = note.read_bytes()
    for damaged in (whole.replace(b":7", b":6"), whole[:-3], b"", b"[]", b'{"versions":{}}'):
        note.write_bytes(damaged)
        assert durable_versions.read(place) == {}
    assert [record.message for record in caplog.records] == ["root.note_damaged"] * 5
    note.write_bytes(whole)
    assert durable_versions.read(place) == {tables.RESULTS.name: 7}


def test_a_note_that_cannot_be_written_ends_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The note before stays true."""
    place = Place(str(tmp_path))
    commit(place, 0, "a.parquet")
    durable = DurableTables(place)
    note = durable_versions.path_of(place)
    note.with_name(f"{note.name}.part").mkdir()
    commit(place, 1, "b.parquet")
    durable.sync()
    assert noted(place) == {tables.RESULTS.name: 0}
    assert [record.message for record in caplog.records] == ["root.note_not_written"]


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


@pytest.mark.spark
def test_a_table_that_was_durable_and_is_damaged_or_older_stops_the_root(roots: Callable[..., Roots]) -> None:
    """protocol 8.1: a changed bit in a file of an earlier batch set up to 20 whole commits aside, and rows stayed
    complete without their readings; a table put back from an older copy was used without a word.
    """
    root = roots()
    child = Child("gw-1", (query(),))
    root.take(tick(START), record(child, START, child.birth()))
    folder, copy, notes = Path(root.place.path(tables.RESULTS)), root.base / "copy", list[bytes]()
    for second in range(1, 4):
        now_us = START + second * SECOND
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        notes.append(durable_versions.path_of(root.place).read_bytes())
        root.take(record(child, now_us, child.rows(now_us, np.array([now_us - SECOND]), np.array([float(second)]))))
    root.job.close()
    wanted, last = root.results(), max((folder / "_delta_log").glob("*.json"))
    assert len(wanted) == 3

    earlier = sorted((folder / "_delta_log").glob("*.json"))[-3]
    content = earlier.read_bytes()
    earlier.write_bytes(content.replace(b'"add"', b'"aed"', 1))
    with pytest.raises(PortError, match=f"{earlier.name} is damaged"):
        root.start()
    assert last.exists()
    earlier.write_bytes(content)

    newer = folder.rename(root.base / "newer")
    shutil.copytree(copy, folder)
    with pytest.raises(PortError, match=r"results ends before version .* older copy"):
        root.start()
    shutil.rmtree(folder)
    newer.rename(folder)

    durable_versions.path_of(root.place).write_bytes(notes[-1])  # as after a power cut before the last note
    last.write_bytes(last.read_bytes()[:40])
    root.start()
    assert {key: row["values"] for key, row in root.results().items()} == {k: r["values"] for k, r in wanted.items()}
    assert list((folder / "_delta_log").glob("*.torn-1"))


@pytest.mark.spark
def test_deletion_vectors_that_a_user_switches_on_are_on_the_disk_before_their_commit(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could take them, and Delta could not read the table any more."""
    root = roots()
    root.job.close()
    place, name = root.place, root.place.sql(tables.SENSORS)
    root.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    content = [{"sensor": sensor, "revision": 1, "batch": 0} for sensor in "abc"]
    place.append(tables.SENSORS, driver_rows.rows(root.spark, tables.SENSORS, content), "test", 0)
    durable, disk, folder = DurableTables(place), Disk(monkeypatch), Path(place.path(tables.SENSORS))
    root.spark.sql(f"DELETE FROM {name} WHERE sensor = 'b'")
    durable.sync()
    (vector,) = folder.rglob("deletion_vector_*.bin")
    commit = max((folder / "_delta_log").glob("*.json"))
    assert disk.synced.index(vector) < disk.synced.index(commit)
    assert torn_commits.repair(place) == 0
    vector.write_bytes(vector.read_bytes()[:-6])
    with pytest.raises(PortError, match=f"{vector.name} is damaged"):
        torn_commits.repair(place)
    durable_versions.path_of(place).unlink()
    assert torn_commits.repair(place) == 1
    assert len(root.rows(tables.SENSORS)) == len(content)


def others(place: Place, table: tables.Table, number: int, *actions: dict[str, object], mark: str = "") -> None:
    """A commit of a table; mark: of our sessions, or another."""
    told = {"operation": "DELETE", "engineInfo": "another", **({"userMetadata": mark} if mark else {})}
    log = Path(place.path(table)) / "_delta_log" / f"{number:020d}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"commitInfo": told}, *actions]
    log.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))


REMOVED: dict[str, object] = {"remove": {"path": "a.parquet", "dataChange": True}}
MERGED: dict[str, object] = {"remove": {"path": "a.parquet", "dataChange": False}}


@pytest.mark.parametrize("table", [tables.MESSAGES, tables.BATCHES, tables.POSITIONS, tables.RESULTS])
def test_rows_that_somebody_else_changes_stop_the_root_and_its_next_start(tmp_path: Path, table: tables.Table) -> None:
    """protocol 8.5: rows taken from a table of the root were not noticed, and later rows were complete without them."""
    place = Place(str(tmp_path))
    others(place, table, 0, REMOVED)
    durable = DurableTables(place)
    others(place, table, 1, REMOVED, mark=MARK)
    durable.sync()
    others(place, table, 2, REMOVED)
    refused = f"version 2 of the table .*{table.name.split('.')[1]} was not written by a root \\(DELETE by another\\)"
    for noticed in (durable.sync, durable.sync, lambda: DurableTables(place), lambda: DurableTables(place)):
        with pytest.raises(PortError, match=refused):
            noticed()
    durable_versions.path_of(place).unlink()  # as the line says
    DurableTables(place).sync()


def test_what_changes_no_row_and_tables_on_which_no_row_relies_are_anybodys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(str(tmp_path))
    for table in (tables.MESSAGES, tables.QUARANTINE):
        others(place, table, 0, REMOVED)
    durable = DurableTables(place)
    others(place, tables.MESSAGES, 1, MERGED, {"metaData": {"id": "x"}})
    others(place, tables.QUARANTINE, 1, MERGED)
    durable.sync()
    assert not caplog.records
    others(place, tables.QUARANTINE, 2, REMOVED)
    durable.sync()
    assert [record.message for record in caplog.records] == ["root.changed_by_others"]


@pytest.mark.parametrize("content", [b'{"commitInfo":{"oper', b'{"add":', b"\xff\xfe"])
def test_a_damaged_commit_is_not_judged_here(tmp_path: Path, content: bytes) -> None:
    """Where the note lags far behind, one may be left that Delta does not read, because a checkpoint covers it."""
    place = Place(str(tmp_path))
    others(place, tables.MESSAGES, 0, REMOVED)
    DurableTables(place)
    others(place, tables.MESSAGES, 1, REMOVED, mark=MARK)
    others(place, tables.MESSAGES, 2, REMOVED, mark=MARK)
    (Path(place.path(tables.MESSAGES)) / "_delta_log" / f"{1:020d}.json").write_bytes(content)
    DurableTables(place)
    assert noted(place) == {tables.MESSAGES.name: 2}


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_a_key_with_an_end_of_a_line_hides_no_commit_and_ends_no_batch(tmp_path: Path, end: str) -> None:
    """Delta writes it as it is, in the least and greatest key of a file: the line was cut there."""
    place = Place(str(tmp_path))
    others(place, tables.POSITIONS, 0, REMOVED)
    durable = DurableTables(place)
    added: dict[str, object] = {"add": {"path": "a.parquet", "dataChange": True, "stats": f"site={end}"}}
    log = Path(place.path(tables.POSITIONS)) / "_delta_log"
    for number, mark in enumerate((MARK, ""), 1):
        others(place, tables.POSITIONS, number, added, mark=mark)
        commit = log / f"{number:020d}.json"
        commit.write_text(commit.read_text().replace(json.dumps(end)[1:-1], end), "utf-8")
        if mark:
            durable.sync()
    for noticed in (durable.sync, lambda: DurableTables(place)):
        with pytest.raises(PortError, match=r"version 2 of the table .*positions was not written by a root"):
            noticed()


def test_commits_of_a_version_without_a_mark_are_not_taken_for_those_of_others(tmp_path: Path) -> None:
    """Its note may lag behind the tables, as after a kill."""
    place = Place(str(tmp_path))
    others(place, tables.MESSAGES, 0, REMOVED)
    durable_versions.write(place, {tables.MESSAGES.name: 0})
    others(place, tables.MESSAGES, 1, REMOVED)
    DurableTables(place)
    assert durable_versions.read(place) == {tables.MESSAGES.name: 1, durable_versions.MARKED: 1}


@pytest.mark.spark
def test_every_commit_of_a_root_has_its_mark_and_one_of_another_session_stops_it(roots: Callable[..., Roots]) -> None:
    """protocol 8.5"""
    root = roots()
    child = Child("gw-1", (query(),))
    root.take(tick(START), record(child, START, child.birth()))
    now_us = START + SECOND
    root.take(record(child, now_us, child.rows(now_us, np.array([START]))), tick(now_us + SECOND))
    assert len(root.results()) == 1
    root.spark.sql(f"OPTIMIZE {root.place.sql(tables.RESULTS)}")
    for log in Path(root.place.root).rglob("_delta_log/*.json"):
        assert json.loads(log.read_text().splitlines()[0])["commitInfo"]["userMetadata"] == MARK
    root.start()
    setting = "spark.databricks.delta.commitInfo.userMetadata"
    root.spark.conf.set(setting, "a notebook")
    try:
        root.spark.sql(f"DELETE FROM {root.place.sql(tables.MESSAGES)} WHERE part > 0")
    finally:
        root.spark.conf.set(setting, MARK)
    with pytest.raises(PortError, match=r"bronze/messages was not written by a root \(DELETE by Apache-Spark"):
        root.take(tick(now_us + 2 * SECOND), record(child, now_us, child.rows(now_us + SECOND, np.array([now_us]))))
    with pytest.raises(PortError, match=r"bronze/messages was not written by a root"):
        root.start()
