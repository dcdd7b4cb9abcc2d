"""After a power cut a table has the rows of its whole commits, and can be read. No JVM: delta-rs writes the tables."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cloud_job.delta import tables
from cloud_job.delta.tables import Place
from cloud_job.delta.torn_commits import HEADER, MAGIC, repair
from edge_agent.errors import PortError

Damage = Callable[[Path], None]


def with_sums(path: Path) -> Path:
    """The checksums that Hadoop writes beside a file."""
    content = path.read_bytes()
    sums = b"".join(zlib.crc32(content[at : at + 512]).to_bytes(4, "big") for at in range(0, len(content), 512))
    beside = path.with_name(f".{path.name}.crc")
    beside.write_bytes(HEADER.pack(MAGIC, 512) + sums)
    return beside


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gold.results with a commit for each of 0 to 24, one row each."""
    base = tmp_path_factory.mktemp("written")
    folder = Path(Place(str(base)).path(tables.RESULTS))
    for batch in range(25):
        write_deltalake(folder, pa.table({"batch": pa.array([batch], pa.int64())}), mode="append")
    for path in [*folder.glob("*.parquet"), *log(folder).glob("*.json")]:
        with_sums(path)
    return base


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return Path(Place(str(tmp_path)).path(tables.RESULTS))


def log(folder: Path) -> Path:
    return folder / "_delta_log"


def commit(folder: Path, number: int) -> Path:
    return log(folder) / f"{number:020d}.json"


def added(folder: Path, number: int) -> Path:
    """The data file of a commit."""
    before, after = (set(DeltaTable(folder, version=each).file_uris()) for each in (number - 1, number))
    (new,) = after - before
    return Path(new.removeprefix("file://"))


def batches(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pyarrow_table()["batch"].to_pylist())


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zeros(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path.write_bytes(content)


DAMAGES: list[Damage] = [empty, half, zeros, Path.unlink]


@pytest.mark.parametrize(("damage", "number"), [(empty, 24), (half, 22), (zeros, 24), (Path.unlink, 22)])
def test_a_torn_commit_and_those_after_it_are_set_aside(results: Path, damage: Damage, number: int) -> None:
    """protocol 8.1"""
    damage(commit(results, number))
    assert repair(Place(str(results.parents[1]))) == 25 - number - (damage is Path.unlink)
    assert batches(results) == list(range(number))
    assert not commit(results, 24).exists()
    assert repair(Place(str(results.parents[1]))) == 0


def merged(folder: Path) -> int:
    """Write each of the 25 files anew, a commit each, as OPTIMIZE does of a large table in one step. Returns the last
    commit.
    """
    for number in range(25):
        actions = [json.loads(line) for line in commit(folder, number).read_text().splitlines()]
        (add,) = (action["add"] for action in actions if "add" in action)
        path = f"merged-{add['path']}"
        shutil.copy(folder / add["path"], folder / path)
        made = [
            {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": False}},
            {"add": {**add, "path": path, "dataChange": False}},
            {"commitInfo": {"operation": "OPTIMIZE"}},
        ]
        commit(folder, 25 + number).write_text("".join(f"{json.dumps(action)}\n" for action in made))
        with_sums(folder / path)
        with_sums(commit(folder, 25 + number))
    return 49


@pytest.mark.parametrize(("damage", "number"), [(empty, 26), (half, 25), (Path.unlink, 40)])
def test_torn_commits_before_many_others_of_the_same_step_are_found(results: Path, damage: Damage, number: int) -> None:
    """`headwater maintain` merges a table in one step, in as many commits as it is large."""
    last = merged(results)
    damage(commit(results, number))
    assert repair(Place(str(results.parents[1]))) == last + 1 - number - (damage is Path.unlink)
    assert batches(results) == list(range(25))
    assert not commit(results, last).exists()
    assert repair(Place(str(results.parents[1]))) == 0


def test_a_torn_file_of_a_merge_is_found_and_no_damage_before_the_last_twenty_changes_of_rows(results: Path) -> None:
    """That would be no power cut, and later batches rely on it."""
    last = merged(results)
    (
        results / next(path.name for path in results.glob("merged-*") if path.name in commit(results, 25).read_text())
    ).unlink()
    empty(commit(results, 3))
    assert repair(Place(str(results.parents[1]))) == last + 1 - 25
    assert commit(results, 24).exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_commit_whose_files_are_torn_or_not_there_is_none(results: Path, damage: Damage) -> None:
    damage(added(results, 24))
    assert repair(Place(str(results.parents[1]))) == 1
    assert batches(results) == list(range(24))


def test_a_file_without_checksums_is_read(results: Path) -> None:
    """Found by `make powercut`: its size and its ends were right."""
    path = added(results, 24)
    for each in (path, added(results, 23)):
        with_sums(each).unlink()
    assert repair(Place(str(results.parents[1]))) == 0
    content = bytearray(path.read_bytes())
    content[4:-8] = bytes(len(content) - 12)
    path.write_bytes(content)
    assert repair(Place(str(results.parents[1]))) == 1
    assert batches(results) == list(range(24))


def test_a_file_cut_at_the_end_of_a_line_is_known_by_its_checksums(results: Path) -> None:
    path = commit(results, 24)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert repair(Place(str(results.parents[1]))) == 1


def test_checksums_that_are_cut_short_cost_themselves_only(results: Path) -> None:
    sums = [with_sums(commit(results, 24)), with_sums(added(results, 24))]
    for path in sums:
        half(path)
    assert repair(Place(str(results.parents[1]))) == 0
    assert not any(path.exists() for path in sums)
    assert batches(results) == list(range(25))


def test_checksums_of_a_commit_that_is_not_there_go_because_the_next_one_has_its_name(results: Path) -> None:
    """Found by `make powercut`: the root could not read its own next commit."""
    sums = with_sums(commit(results, 24))
    commit(results, 24).unlink()
    assert repair(Place(str(results.parents[1]))) == 0
    assert not sums.exists()


def test_notes_of_versions_that_are_torn_or_not_there_go(results: Path) -> None:
    """Found by `make powercut`: delta-rs refuses a table with a note of a version that is not there."""
    last = commit(results, 24)
    last.with_suffix(".crc").write_text("{}")
    last.unlink()
    half(with_sums(commit(results, 23)))
    commit(results, 23).with_suffix(".crc").write_text('{"tableSizeBytes":')
    repair(Place(str(results.parents[1])))
    assert not [path for path in log(results).iterdir() if path.suffix == ".crc" and path.stem.isdecimal()]
    assert batches(results) == list(range(24))


def test_a_file_that_a_later_commit_has_removed_may_be_gone(results: Path) -> None:
    gone = added(results, 24)
    write_deltalake(results, pa.table({"batch": pa.array([99], pa.int64())}), mode="overwrite")
    gone.unlink()
    assert repair(Place(str(results.parents[1]))) == 0
    assert batches(results) == [99]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_torn_checkpoint_and_what_names_it_are_done_without(results: Path, damage: Damage) -> None:
    DeltaTable(results).create_checkpoint()
    (checkpoint,) = log(results).glob("*24.checkpoint.parquet")
    with_sums(checkpoint)
    damage(checkpoint)
    assert repair(Place(str(results.parents[1]))) == 0
    assert batches(results) == list(range(25))
    half(log(results) / "_last_checkpoint") if (log(results) / "_last_checkpoint").exists() else None
    repair(Place(str(results.parents[1])))
    assert batches(results) == list(range(25))


def test_a_table_of_which_no_commit_is_whole_is_made_again(tmp_path: Path) -> None:
    folder = Path(Place(str(tmp_path)).path(tables.RESULTS))
    write_deltalake(folder, pa.table({"batch": pa.array([1], pa.int64())}))
    empty(commit(folder, 0))
    assert repair(Place(str(tmp_path))) == 1
    assert not log(folder).exists()
    assert log(folder).with_name("_delta_log.torn-1").is_dir()


def test_tables_that_are_no_folders_are_left_alone() -> None:
    assert repair(Place("main.", named=True, guarded=True)) == 0


def test_a_file_that_is_there_and_cannot_be_read_is_no_torn_commit(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1: a failing disk is no power cut; the commits may be whole."""
    data, stat = added(results, 22), Path.stat

    def failing(path: Path, **options: bool) -> os.stat_result:
        if path == data:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", failing)
    with pytest.raises(PortError, match="Input/output error"):
        repair(Place(str(results.parents[1])))
    monkeypatch.undo()
    assert batches(results) == list(range(25))
