"""The file of a spool: one process and one node have it, what cannot be used is set aside, a kill loses no commit."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from edge_agent.errors import ConfigError, PortError
from edge_agent.machines.events import Commit
from edge_agent.ports import sqlite_file
from edge_agent.ports.spool import Spool
from edge_agent.ports.spool_file import SpoolFile
from tests.support.ports.damaged_spools import cut_off, damage_header, damage_tree, reopened_once
from tests.support.ports.small_disk import small_disk
from tests.support.ports.spools import encode, frames, keys, reopened


def test_a_second_process_is_refused_and_told_which_one_has_it(spool: Spool, path: Path) -> None:
    with pytest.raises(PortError, match=f"in use by process {os.getpid()}"):
        reopened(path).open()
    spool.commit(Commit({"n": 1}))
    spool.close()
    again = reopened(path)
    assert again.open().state == {"n": 1}
    again.close()


def test_the_spool_of_another_node_is_refused_with_both_names_and_left_alone(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    with pytest.raises(ConfigError, match=r"'gw-1'.*'gw-2'"):
        reopened(path, "gw-2").open()
    again = reopened(path)
    assert again.open().state == {"n": 1}
    again.close()


def test_a_path_through_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("not a folder")
    with pytest.raises(PortError, match=r"cannot write the folder .* of the spool"):
        reopened(tmp_path / "var" / "spool.db").open()


def test_links_in_a_circle_are_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    path.symlink_to(path)
    with pytest.raises(PortError, match=f"cannot use the spool {path}"):
        reopened(path).open()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_in_place_of_a_spool_is_named_and_nothing_is_left_beside_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A spool named /dev/null left a log and 4 MB in /dev at each start, and said `disk I/O error`."""
    path = tmp_path / "spool.db"
    make(path)
    with pytest.raises(PortError, match="is no plain file, but a folder, device or pipe"):
        reopened(path).open()
    assert [*tmp_path.iterdir()] == [path]


def another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()


@pytest.mark.parametrize("make", [lambda path: path.write_text("mine\n" * 3000), another_program])
def test_a_file_of_the_user_is_refused_at_each_start_and_nothing_is_left_beside_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A path in gateway.toml that named another file renamed it to `.corrupt-1`."""
    path = tmp_path / "notes.db"
    path.touch()
    make(path)
    content = path.read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"the spool {path} is another file, no spool of headwater: set another"):
            reopened(path).open()
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == content


def test_a_spool_of_any_name_is_known_by_what_is_beside_it_or_in_it(spool: Spool, path: Path) -> None:
    """Also one that is damaged, or was copied without its lock."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    copy = path.with_name("copy.sqlite")
    for tail in ("", "-wal"):
        shutil.copy(f"{path}{tail}", f"{copy}{tail}")
    assert reopened_once(copy) == []
    spool.close()
    damage_header(copy)
    assert reopened_once(copy) == ["spool.set_aside"], "its lock is there"
    copy.with_name("copy.sqlite.lock").unlink()
    for tail in ("-wal", ".reserve"):
        copy.with_name(f"copy.sqlite{tail}").unlink(missing_ok=True)
    copy.write_bytes(b"x" * 16 + copy.read_bytes()[16:])
    assert reopened_once(copy) == ["spool.set_aside"], "it has the schema"
    copy.write_bytes(b"")
    copy.with_name("copy.sqlite.lock").unlink()
    assert reopened_once(copy) == []


@pytest.mark.parametrize("damage", [damage_header, damage_tree, cut_off, another_program])
def test_an_unusable_file_is_set_aside_with_one_line_and_a_new_one_begun(
    spool: Spool, path: Path, damage: object
) -> None:
    """protocol 1.2: what came before is `lost`, and the node says so."""
    for n in range(30):
        spool.commit(Commit({"state": os.urandom(3000)}, frames=frames(n)))
    spool.close()
    assert callable(damage)
    damage(path)
    size = path.stat().st_size
    again = reopened(path)
    restored = again.open()
    assert restored.lost
    assert (restored.state, restored.frames) == ({}, ())
    aside = path.with_name("spool.db.corrupt-1")
    assert aside.stat().st_size == size
    (note,) = again.notes
    assert note.name == "spool.set_aside"
    assert note.fields["file"] == str(aside)
    again.commit(Commit({"n": 1}, frames=frames(0)))
    again.close()
    again = reopened(path)
    restored = again.open()
    assert not restored.lost
    assert restored.state == {"n": 1}
    again.close()
    damage_header(path)
    again = reopened(path)
    again.open()
    again.close()
    assert path.with_name("spool.db.corrupt-2").exists()


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_a_node_that_is_new_has_lost_nothing(path: Path) -> None:
    """protocol 1.2: else its parent declares a loss of all times."""
    for _ in range(2):
        spool = reopened(path)
        restored = spool.open()
        assert (restored.lost, restored.state, spool.notes) == (False, {}, [])
        spool.close()


@pytest.mark.parametrize("at", ["rename", "create", "commit"])
def test_a_process_killed_after_it_set_a_file_aside_does_not_hide_that_the_past_is_lost(
    spool: Spool, path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.2: until a commit contains it, each start says `lost`."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    damage_header(path)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "sync_folder", killed if at == "rename" else sqlite_file.sync_folder)
        patch.setattr(SpoolFile, "_begin", killed if at == "create" else SpoolFile._begin)
        again = reopened(path)
        with pytest.raises(Killed) if at != "commit" else nullcontext():
            assert again.open().lost
        again.close()
    if at != "commit":
        assert "not a database" in path.with_name("spool.db.malformed").read_text()
    for _ in range(2):
        again = reopened(path)
        assert again.open().lost
        again.close()
    again.open()
    again.commit(Commit({"n": 2}))
    again.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.lost, restored.state, again.notes) == (False, {"n": 2}, [])
    assert not path.with_name("spool.db.malformed").exists()
    again.close()


def test_the_spool_of_a_newer_version_is_refused_in_one_line_and_left_alone(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
        db.execute("UPDATE meta SET value = ? WHERE name = 'check'", (f"{zlib.crc32(b'99 gw-1'):08x}",))
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=r"spool\.db is of version 99, this headwater reads up to 1: run the newer headwater"
    ):
        reopened(path).open()
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*newer*"))


def test_a_full_disk_sets_nothing_aside(tmp_path: Path) -> None:
    """The file is good: nothing is known to be lost."""
    with small_disk(tmp_path / "disk", 512 * 1024) as disk:
        path = disk.folder / "spool.db"
        spool = reopened(path)
        spool.open()
        spool.commit(Commit({"n": 1}, frames=frames(0, 1)))
        spool.close()
        Path(f"{path}.lock").unlink()
        disk.fill()
        again = reopened(path)
        restored = again.open()
        assert (restored.state, restored.lost, len(keys(restored))) == ({"n": 1}, False, 2)
        again.close()
        disk.read_only(True)
        with pytest.raises(PortError, match="Read-only file system"):
            reopened(path).open()
        disk.read_only(False)
        assert not list(disk.folder.glob("*corrupt*"))


VICTIM = """
import sys
from pathlib import Path
from edge_agent.algebra.frame import Frame
from edge_agent.machines.events import Commit
from edge_agent.ports.spool import Spool

spool = Spool(Path(sys.argv[1]), "gw-1", lambda frame: b"%d" % frame.seq * 300)
restored = spool.open()
n = restored.state.get("n", -1) + 1
while True:
    spool.commit(Commit({"n": n, "pad": bytes(n % 5000)}, frames=(Frame(1, n),), forget=((1, n - 50),)))
    print(n, flush=True)
    n += 1
"""


def test_a_kill_in_the_middle_loses_no_commit_that_was_acknowledged(path: Path) -> None:
    """protocol 3.1: what `commit` returned from is durable, and what it did not is there whole or not at all."""
    last = -1
    for round_ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
        ) as victim:
            assert victim.stdout is not None
            for _ in range(5 + 23 * round_):
                last = int(victim.stdout.readline())
            victim.send_signal(signal.SIGKILL)
            last = max([last, *(int(line) for line in victim.stdout.read().splitlines())])
        spool = Spool(path, "gw-1", encode)
        restored = spool.open()
        assert not restored.lost
        n = restored.state["n"]
        assert isinstance(n, int)
        assert n in (last, last + 1)
        assert keys(restored) == [(1, seq) for seq in range(max(0, n - 49), n + 1)]
        assert all(spool.payload(1, seq) == b"%d" % seq * 300 for _, seq in keys(restored))
        spool.close()


def test_no_new_file_begins_beside_the_log_of_one_that_was_set_aside(path: Path) -> None:
    """SQLite would take what is in that log for commits of the new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for tail in ("", "-wal", "-journal"):
        path.with_name(path.name + tail).write_bytes(b"old")
    aside = SpoolFile(path, "gw-1").set_aside("corrupt")
    assert not [found.name for found in path.parent.glob("spool.db*") if found.name.startswith("spool.db-")]
    assert {aside.with_name(aside.name + tail).read_bytes() for tail in ("", "-wal", "-journal")} == {b"old"}
    assert not path.exists()


def test_the_files_beside_a_linked_spool_are_on_the_disk_of_the_spool(tmp_path: Path) -> None:
    disk, beside = tmp_path / "disk", tmp_path / "beside"
    disk.mkdir()
    beside.mkdir()
    link = beside / "spool.db"
    link.symlink_to(disk / "spool.db")
    spool = reopened(link)
    spool.open()
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    assert {file.name for file in disk.iterdir()} == {"spool.db", "spool.db-wal", "spool.db.lock"}
    with pytest.raises(PortError, match="in use by process"):
        reopened(disk / "spool.db").open()
    spool.close()
    assert (disk / "spool.db.reserve").exists()
    damage_header(link)
    spool.open()
    assert (disk / "spool.db.corrupt-1").exists()
    spool.close()
    assert [file.name for file in beside.iterdir()] == ["spool.db"]
    assert link.is_symlink()


def test_of_the_files_set_aside_the_newest_three_stay(path: Path) -> None:
    """On a card that fails they would fill the disk."""
    for number in range(1, 6):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"this is no database at all" * 400 + bytes([number]))
        assert reopened_once(path) == ["spool.set_aside"]
    kept = sorted(found.name for found in path.parent.glob("spool.db.corrupt-*"))
    assert kept == [f"spool.db.corrupt-{number}" for number in (3, 4, 5)]
    assert path.with_name(kept[-1]).read_bytes()[-1] == 5


@pytest.mark.parametrize("leaving", [0, 8_192, 16_384, 32_768])
def test_starts_on_a_full_disk_leave_no_more_empty_files(
    tmp_path: Path, leaving: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With some room the new file was not empty, so that the fourth start deleted the file that was set aside."""
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        path = disk.folder / "spool.db"
        damage_header(path)
        content = path.read_bytes()
        disk.fill()
        filler = disk.folder / "filler"
        os.truncate(filler, filler.stat().st_size - leaving)
        for _ in range(5):
            with pytest.raises(PortError, match="cannot use the spool"):
                reopened(path).open()
        assert [found.name for found in disk.folder.glob("*corrupt*")] == ["spool.db.corrupt-1"]
        assert path.with_name("spool.db.corrupt-1").read_bytes() == content
        assert [record.message for record in caplog.records] == ["spool.set_aside"], "said at once"
        disk.make_room()
        again = reopened(path)
        assert again.open().lost
        again.close()


def test_a_folder_in_place_of_the_lock_is_named(path: Path) -> None:
    lock = path.with_name("spool.db.lock")
    lock.mkdir(parents=True)
    with pytest.raises(PortError, match=rf"cannot use {lock}, the lock of the spool {path}: Is a directory"):
        reopened(path).open()


def test_a_young_spool_that_is_suspected_is_set_aside_with_its_commits(spool: Spool, path: Path) -> None:
    """It is as small as a file whose beginning failed, but it has rows."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    os.truncate(path, 15 * 4096)  # without the pages ahead, below the size of such files
    path.with_name("spool.db.malformed").touch()  # its reason did not fit
    again = reopened(path)
    assert again.open().lost
    (note,) = again.notes
    assert note.fields["why"] == "an earlier start found it damaged"
    again.close()
    assert path.with_name("spool.db.corrupt-1").exists()


def test_of_the_files_set_aside_the_newest_three_remain(spool: Spool, path: Path) -> None:
    """On a card that fails they would fill the disk."""
    spool.close()
    for _ in range(5):
        damage_header(path)
        reopened_once(path)
    found = {each.name for each in path.parent.iterdir() if "corrupt" in each.name}
    assert found == {f"spool.db.corrupt-{number}" for number in (3, 4, 5)}
