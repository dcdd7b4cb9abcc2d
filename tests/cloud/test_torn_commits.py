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
from cloud_job.delta.integrity import durable_versions
from cloud_job.delta.integrity.torn_commits import HEADER, MAGIC, repair
from cloud_job.delta.lease import Lease
from cloud_job.delta.table_folders import vector_of
from cloud_job.delta.tables import Place
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


def test_the_file_of_a_deletion_vector_is_named_as_delta_names_it(tmp_path: Path) -> None:
    """The examples of Delta's PROTOCOL.md."""
    on_disk = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector_of(tmp_path, {"deletionVector": on_disk}) == tmp_path / "ab" / name
    on_disk["pathOrInlineDv"] = "^-aqEH.-t@S}K{vb[*k^"
    assert vector_of(tmp_path, {"deletionVector": on_disk}) == tmp_path / name
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
    for add in ({}, {"deletionVector": None}, {"deletionVector": inline}):
        assert vector_of(tmp_path, add) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_commit_whose_deletion_vector_is_torn_or_not_there_is_none(results: Path, damage: Damage) -> None:
    """Delta could not read the table: a user had switched them on."""
    content = bytes(range(40))
    about = {"storageType": "u", "pathOrInlineDv": "^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": len(content)}
    vector = vector_of(results, {"deletionVector": about})
    assert vector is not None
    framed = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    vector.write_bytes(b"\1" + framed)
    last = commit(results, 24)
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = {**about, "cardinality": 1}
    last.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    with_sums(last)
    assert repair(Place(str(results.parents[1]))) == 0
    damage(vector)
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


def flipped(path: Path) -> None:
    """One bit, in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def noted(results: Path, version: int) -> Place:
    """The tables, of which the last run has made this version of gold.results durable."""
    place = Place(str(results.parents[1]))
    durable_versions.write(place, {tables.RESULTS.name: version})
    return place


@pytest.mark.parametrize("damage", [flipped, *DAMAGES])
@pytest.mark.parametrize("of", [commit, added])
def test_a_commit_that_was_durable_is_not_torn(results: Path, damage: Damage, of: Callable[[Path, int], Path]) -> None:
    """protocol 8.1: later batches rely on it. It was set aside, with all whole commits after it."""
    place, path = noted(results, 24), of(results, 15)
    before = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(PortError, match=f"{path.name} is damaged or missing.*put this file back"):
            repair(place)
    assert not list(results.parents[1].rglob("*.torn-*"))
    path.write_bytes(before)
    assert repair(place) == 0
    assert batches(results) == list(range(25))


def test_no_table_is_changed_if_one_of_them_is_damaged(results: Path) -> None:
    place = noted(results, 24)
    other = Path(place.path(tables.MESSAGES))
    shutil.copytree(results, other)
    empty(commit(other, 24))
    flipped(commit(results, 20))
    with pytest.raises(PortError, match="is damaged or missing"):
        repair(place)
    assert commit(other, 24).exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_commits_after_those_that_were_durable_may_be_torn(results: Path, damage: Damage) -> None:
    place = noted(results, 22)
    damage(added(results, 23))
    assert repair(place) == 2
    assert batches(results) == list(range(23))


def test_a_table_that_ends_before_its_durable_version_is_an_older_copy(results: Path) -> None:
    """protocol 8.5: beside newer tables, rows would stay complete without their readings, or count twice."""
    place = noted(results, 24)
    for number in (23, 24):
        commit(results, number).unlink()
    for _ in range(2):
        with pytest.raises(PortError, match=r"ends before version 24.*older copy.*or delete .*\.root\.durable"):
            repair(place)
    durable_versions.path_of(place).unlink()  # as the line says
    assert repair(place) == 0
    assert batches(results) == list(range(23))


def test_a_table_without_a_log_is_deleted_or_new_and_no_older_copy(results: Path) -> None:
    """`deleted_tables` judges those that were deleted."""
    place = noted(results, 24)
    shutil.rmtree(results)
    assert repair(place) == 0


@pytest.mark.parametrize("damage", [empty, half, flipped])
def test_a_damaged_note_is_told_and_counts_as_none(
    results: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    place = noted(results, 24)
    damage(durable_versions.path_of(place))
    empty(commit(results, 24))
    assert repair(place) == 1
    assert "root.note_damaged" in [record.message for record in caplog.records]


def test_a_note_that_cannot_be_read_is_no_missing_note(results: Path) -> None:
    place = noted(results, 24)
    path = durable_versions.path_of(place)
    path.unlink()
    path.mkdir()
    with pytest.raises(PortError, match=r"cannot check the tables: .*\.root\.durable"):
        repair(place)


def test_a_log_whose_old_commits_were_deleted_is_whole(results: Path) -> None:
    """cloud_job/delta/log_files.py"""
    place = noted(results, 24)
    DeltaTable(results).create_checkpoint()
    for number in range(23):
        commit(results, number).unlink()
    assert repair(place) == 0
    assert batches(results) == list(range(25))


def test_a_damaged_commit_that_a_whole_checkpoint_covers_is_told_and_done_without(
    results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No reader of the newest version needs it."""
    place = noted(results, 24)
    DeltaTable(results, version=20).create_checkpoint()
    flipped(commit(results, 18))
    empty(commit(results, 24).with_name(f"{25:020d}.json"))
    assert repair(place) == 1
    assert batches(results) == list(range(25))
    assert "root.commit_damaged" in [record.message for record in caplog.records]
    half(next(log(results).glob("*20.checkpoint.parquet")))
    with pytest.raises(PortError, match="is damaged or missing"):
        repair(place)


@pytest.mark.parametrize("damage", [flipped, half, Path.unlink])
def test_the_only_checkpoint_of_a_log_without_its_old_commits_is_not_set_aside(results: Path, damage: Damage) -> None:
    """Delta could not read the table any more, and said so in a long traceback."""
    place = Place(str(results.parents[1]))
    DeltaTable(results).create_checkpoint()
    (checkpoint,) = log(results).glob("*24.checkpoint.parquet")
    with_sums(checkpoint)
    for number in range(20):
        commit(results, number).unlink()
    before = checkpoint.read_bytes()
    damage(checkpoint)
    with pytest.raises(PortError, match=r"cannot be read: its log begins with version 20.*no whole checkpoint"):
        repair(place)
    assert not list(results.parents[1].rglob("*.torn-*"))
    checkpoint.write_bytes(before)
    assert repair(place) == 0
    assert batches(results) == list(range(25))


def test_what_a_commit_that_goes_has_removed_must_be_there(results: Path) -> None:
    """protocol 8.1: the commits before it need the file again."""
    DeltaTable(results).delete("batch = 20")
    gone = added(results, 20)
    half(commit(results, 24))
    gone.unlink()
    assert repair(Place(str(results.parents[1]))) == 6
    assert batches(results) == list(range(20))


def test_a_whole_checkpoint_of_a_commit_that_goes_goes_too(results: Path) -> None:
    """protocol 8.1: Delta would read it instead of the commits."""
    DeltaTable(results).create_checkpoint()
    half(commit(results, 24))
    assert repair(Place(str(results.parents[1]))) == 1
    assert batches(results) == list(range(24))
    assert not [*log(results).glob("*24.checkpoint.parquet")]


def test_checksums_of_the_last_checkpoint_that_are_cut_short_go(results: Path) -> None:
    DeltaTable(results).create_checkpoint()
    beside = with_sums(log(results) / "_last_checkpoint")
    beside.write_bytes(beside.read_bytes()[:6])
    assert repair(Place(str(results.parents[1]))) == 0
    assert not beside.exists()


def test_a_checkpoint_from_before_commits_that_were_deleted_is_no_beginning_of_a_log(results: Path) -> None:
    """protocol 8.1: what is in between is nowhere."""
    DeltaTable(results, version=10).create_checkpoint()
    for number in range(20):
        commit(results, number).unlink()
    with pytest.raises(PortError, match="no whole checkpoint"):
        repair(Place(str(results.parents[1])))


def test_a_log_has_no_hole_when_a_start_ends_between_two_torn_commits(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1: Delta would refuse the table, and the next start would not know which commits were torn."""
    half(commit(results, 21))
    rename, renamed = Path.rename, list[str]()

    def ends(path: Path, target: Path) -> Path:
        if path.suffix == ".json" and path.stem.isdecimal():
            if len(renamed) == 2:
                raise OSError(errno.EIO, "the power fails")
            renamed.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", ends)
    with pytest.raises(PortError):
        repair(Place(str(results.parents[1])))
    monkeypatch.undo()
    assert [number for number in range(25) if not commit(results, number).exists()] == [23, 24]
    assert repair(Place(str(results.parents[1]))) == 2
    assert batches(results) == list(range(21))


def test_two_roots_with_tables_of_their_own_do_not_share_a_landing_folder(tmp_path: Path) -> None:
    """protocol 8.5: each would lose what the other one took."""
    one, other, landing = (tmp_path / name for name in ("one", "other", "landing"))
    for folder in (one, other, landing):
        folder.mkdir()
    first = Lease(Place(str(one)), "x", str(landing))
    with pytest.raises(PortError, match="reads the landing files"):
        Lease(Place(str(other)), "y", str(landing))
    first.release()
    Lease(Place(str(other)), "y", str(landing)).release()
