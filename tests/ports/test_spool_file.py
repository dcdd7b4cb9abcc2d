"""The file of a spool: one process and one node have it, what cannot be used is set aside, a kill loses no commit."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import zlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.events import Commit
from edge_agent.ports import sqlite_file
from edge_agent.ports.spool import DamagedError, MalformedError, Spool
from edge_agent.ports.spool_file import SpoolFile
from tests.support.ports.small_disk import small_disk
from tests.support.ports.spools import EPOCH, encode, frames, keys, reopened


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


def test_a_folder_in_place_of_the_lock_is_named(path: Path) -> None:
    lock = path.with_name("spool.db.lock")
    lock.mkdir(parents=True)
    with pytest.raises(PortError, match=rf"cannot use {lock}, the lock of the spool {path}: Is a directory"):
        reopened(path).open()


def damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 400)


def damage_tree(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()


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


def used_until_it_fails(path: Path) -> str:
    """Open a spool and use it. Returns what it said when the file could not be used any more."""
    spool = reopened(path)
    try:
        restored = spool.open()
        if spool.notes:
            return "at the start"
        seqs = [seq for _, seq in keys(restored)]
        for seq in seqs:
            spool.payload(EPOCH, seq)
        after = max(seqs, default=0) + 1
        for n in range(50):
            spool.commit(Commit({"state": os.urandom(3_000)}, frames=frames(after + n), forget=((EPOCH, n),)))
    except MalformedError as err:
        return str(err)
    finally:
        spool.close()
    return "never"


@pytest.mark.parametrize("damage", [damage_header, damage_tree, cut_off])
def test_of_a_file_too_large_to_be_checked_as_a_whole_the_damage_shows_in_use_and_the_next_start_sets_it_aside(
    spool: Spool, path: Path, damage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.2: a start takes no longer with a long backlog, and what is damaged is set aside all the same."""
    monkeypatch.setattr(sqlite_file, "CHECKED_BYTES", 0)
    for n in range(30):
        spool.commit(Commit({"state": os.urandom(3000)}, frames=frames(n)))
    spool.close()
    assert callable(damage)
    damage(path)
    said = used_until_it_fails(path)
    assert said == "at the start" or said.endswith("the next start sets it aside")
    if said != "at the start":
        again = reopened(path)
        assert again.open().lost
        assert [note.name for note in again.notes] == ["spool.set_aside"]
        again.close()
    assert used_until_it_fails(path) == "never"


def test_damage_deep_in_a_large_file_is_no_reason_to_try_for_ever(
    spool: Spool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "CHECKED_BYTES", 0)
    spool.commit(Commit({"n": 1}, frames=frames(*range(2_000))))
    spool.close()
    with sqlite3.connect(path) as db:
        ((page,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'frames'")
    db.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    said = [used_until_it_fails(path), used_until_it_fails(path), used_until_it_fails(path)]
    assert said[-1] == "never"
    assert path.with_name("spool.db.corrupt-1").exists()
    assert not path.with_name("spool.db.malformed").exists()


def test_one_damaged_frame_is_named_and_its_neighbours_stay(spool: Spool, path: Path) -> None:
    """protocol 2.1: the CRC belongs to the spool row, checked at reading; protocol 3.6: a gap record replaces it."""
    spool.commit(Commit({"n": 1}, frames=frames(0, 1, 2)))
    spool.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE frames SET payload = x'00' WHERE seq = 1")
    db.close()
    again = reopened(path)
    restored = again.open()
    assert (keys(restored), restored.state) == ([(EPOCH, 0), (EPOCH, 1), (EPOCH, 2)], {"n": 1})
    with pytest.raises(DamagedError):
        again.payload(EPOCH, 1)
    assert again.raw(EPOCH, 1) == b"\x00"
    assert again.payload(EPOCH, 2) == encode(Frame(EPOCH, 2))
    assert {note.name for note in again.notes} == {"spool.damaged"}
    again.commit(Commit(replace=frames(1)))
    assert again.payload(EPOCH, 1) == encode(Frame(EPOCH, 1))
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


def damage(path: Path, slot: str) -> None:
    """One bit of one slot."""
    with sqlite3.connect(path) as db:
        ((value,),) = db.execute("SELECT value FROM slots WHERE name = ?", (slot,)).fetchall()
        db.execute("UPDATE slots SET value = ? WHERE name = ?", (bytes([value[0] ^ 1]) + value[1:], slot))
    db.close()


def test_a_damaged_slot_that_can_be_done_without_costs_itself_only(spool: Spool, path: Path) -> None:
    """protocol 1.2: machines/checkpoint/damage.py declares which, and what the node does without it."""
    spool.commit(Commit({"horizon": 5, "outbox": 1}, frames=frames(0)))
    spool.close()
    damage(path, "horizon")
    for _ in range(2):  # as it is until the next commit
        again = reopened(path)
        restored = again.open()
        assert (restored.state, restored.lost, len(restored.frames)) == ({"outbox": 1}, False, 1)
        (note,) = again.notes
        assert note.fields == {
            "slot": "horizon",
            "why": "fails its checksum",
            "without_it": "the longest horizon until the next receipt",
        }
        again.close()
    again.open()
    again.commit(Commit({"outbox": 2}))
    again.close()
    again = reopened(path)
    assert again.open().state == {"outbox": 2}
    assert again.notes == []
    again.close()


def test_another_damaged_slot_is_the_end_of_the_past_but_not_of_the_frames(spool: Spool, path: Path) -> None:
    """protocol 1.2: the node says `lost`, and what it had made is sent."""
    spool.commit(Commit({"outbox": 1, "source/a": 2, "source/b": 3}, frames=frames(0, 1), mark_sent=((EPOCH, 0),)))
    spool.close()
    damage(path, "source/a")
    for _ in range(2):
        again = reopened(path)
        restored = again.open()
        assert (restored.state, restored.lost) == ({}, True)
        assert [(f.seq, f.sent) for f in restored.frames] == [(0, True), (1, False)]
        again.close()
    again.open()
    again.commit(Commit({"outbox": 9}, frames=frames(2)))
    again.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost) == ({"outbox": 9}, False), "no slot of the past comes back"
    assert keys(restored) == [(EPOCH, 0), (EPOCH, 1), (EPOCH, 2)]
    assert not list(path.parent.glob("*corrupt*"))
    again.close()


def test_a_damaged_slot_with_the_journal_id_costs_nothing(spool: Spool, path: Path) -> None:
    """protocol 3.7: the id stands in a second slot."""
    for first, second in (("journal", "journal_again"), ("journal_again", "journal")):
        spool.commit(Commit({"journal": 7, "journal_again": 7, "outbox": 1}))
        spool.close()
        damage(path, first)
        again = reopened(path)
        restored = again.open()
        assert (restored.state, restored.lost) == ({second: 7, "outbox": 1}, False)
        again.close()
        spool.open()
    spool.close()
    damage(path, "journal")  # journal_again is damaged already
    again = reopened(path)
    assert again.open().lost
    again.close()


def test_a_slot_of_an_unknown_format_is_damaged(path: Path) -> None:
    spool = reopened(path)
    spool.open()
    spool.commit(Commit({"n": 1}))
    spool.close()

    def refuse(content: bytes) -> object:
        raise WireError("snapshot of version 9")

    again = Spool(path, "gw-1", encode, loads=refuse)
    assert again.open().lost
    again.close()


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


def test_a_damaged_page_that_is_found_when_it_is_read_is_known_to_the_next_start(spool: Spool, path: Path) -> None:
    """protocol 3.1: else each start would end there again."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    assert spool._file.doubt(error)
    spool.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.lost, restored.state, keys(restored)) == (True, {}, [])
    assert list(path.parent.glob("spool.db.corrupt-*"))
    again.close()


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


def reopened_once(path: Path) -> list[str]:
    """The names of the notes of a start."""
    spool = reopened(path)
    spool.open()
    names = [note.name for note in spool.notes]
    spool.close()
    return names


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


INDEX_LEAF = 10  # first byte of such a page of SQLite


def test_a_frame_that_a_damaged_index_hides_is_damage_of_the_file(spool: Spool, path: Path) -> None:
    """The node ended with a traceback at each start, when it came to this frame."""
    spool.commit(Commit({"n": 1}, frames=frames(*range(8))))
    spool.close()
    content = bytearray(path.read_bytes())
    key = EPOCH.to_bytes(6, "big") + bytes([5])
    page = next(
        at for at in range(0, len(content), 4096) if content[at] == INDEX_LEAF and key in content[at : at + 4096]
    )
    content[content.index(key, page) + 6] ^= 1  # the index has frame 4 twice now, and no frame 5
    path.write_bytes(content)
    again = reopened(path)
    assert not again.open().lost
    with pytest.raises(MalformedError, match="the next start sets it aside"):
        again.payload(EPOCH, 5)
    again.close()
    assert reopened_once(path) == ["spool.set_aside"]


def test_a_frame_that_was_never_committed_casts_no_doubt_on_a_good_file(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0, 1)))
    with pytest.raises(ValueError, match="is not in the spool"):
        spool.payload(EPOCH, 7)
    spool.close()
    assert reopened_once(path) == []


@pytest.mark.parametrize(
    ("text", "at", "bit"),
    [
        (b"crc INTEGER NOT NULL, payload", 1, 0),
        (b"UNIQUE (epoch, seq)", 9, 0),
        (b"epoch INTEGER", 2, 7),
        (b"value BLOB", 0, 0),
        (b"version1", 7, 1),
        (b"nodegw-1", 7, 0),
        (b"nodegw-1", 1, 0),
        (b"nodegw-1", 5, 7),
    ],
)
def test_a_changed_bit_in_the_schema_or_in_version_and_node_sets_the_file_aside(
    spool: Spool, path: Path, text: bytes, at: int, bit: int
) -> None:
    """The node ended at each start, or named another node or a newer version."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    content = bytearray(path.read_bytes())
    content[content.rindex(text) + at] ^= 1 << bit
    path.write_bytes(content)
    assert reopened_once(path) == ["spool.set_aside"]


def test_a_spool_of_an_earlier_release_gets_the_sum_of_its_version_and_node(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    db = sqlite3.connect(path)
    with db:
        db.execute("DELETE FROM meta WHERE name = 'check'")
    db.close()
    assert reopened_once(path) == []
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM meta WHERE name = 'check'").fetchone() == (1,)
    db.close()


def test_a_spool_of_an_earlier_release_whose_owner_cannot_be_found_is_set_aside(spool: Spool, path: Path) -> None:
    """It was refused as that of node None, at each start."""
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    spool.close()
    db = sqlite3.connect(path)
    with db:
        db.execute("DELETE FROM meta WHERE name = 'check'")
        db.execute("UPDATE meta SET name = 'ndde' WHERE name = 'node'")
    db.close()
    assert reopened_once(path) == ["spool.set_aside"]
