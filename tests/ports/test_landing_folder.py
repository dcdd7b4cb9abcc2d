"""Landing files and the lander's journal on disks that are full, cut a write short, or can only be read."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.errors import ConfigError, PortError
from edge_agent.ports.journal import LOCK, NAME, SECOND_COPY, Journal
from edge_agent.ports.landing_folder import LandingFolder
from edge_agent.wire import landing
from tests.support.ports.small_disk import no_file_beyond, small_disk

RECORDS = [landing.encode("hw/1/root/up/gw-1/f", n, bytes(1000)) for n in range(20)]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_was_cut_short_never_gets_its_name(tmp_path: Path) -> None:
    """protocol 3.2: a write that crosses the end of the disk succeeds, and says that it was less than asked for."""
    folder = LandingFolder(tmp_path)
    with no_file_beyond(10_000), pytest.raises(PortError, match=r"landing file .*: File too large"):
        folder.write(5, RECORDS)
    assert files(tmp_path) == []
    path = folder.write(5, RECORDS)
    assert path.read_bytes() == b"".join(RECORDS)


def test_a_write_in_pieces_is_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.2: what a system call took is looked at, and the rest is written too."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, bytes(content)[:777]))
    assert LandingFolder(tmp_path).write(5, RECORDS).read_bytes() == b"".join(RECORDS)


def test_a_full_disk_takes_no_part_of_a_file(tmp_path: Path) -> None:
    """protocol 3.2"""
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        folder = LandingFolder(disk.folder)
        kept = folder.write(1, RECORDS)
        disk.fill()
        for _ in range(3):
            with pytest.raises(PortError, match="No space left"):
                folder.write(2, RECORDS)
        assert files(disk.folder) == [kept.name, "filler"]
        disk.make_room()
        assert folder.write(2, RECORDS).read_bytes() == b"".join(RECORDS)


@pytest.mark.parametrize("digits", [16, 17, 18, 19, 20, 6])
def test_files_sort_in_the_order_of_writing_whatever_else_is_named_like_one(tmp_path: Path, digits: int) -> None:
    """Protocol 3.2: beside a file of 19 nines the names had 20 digits: two starts gave the same one, and once that file
    was gone later names sorted before these.
    """
    other, now_us = tmp_path / f"{'9' * digits}-0-0{landing.SUFFIX}", 1_795_000_000_000_000
    other.touch()
    written = [LandingFolder(tmp_path).write(now_us, RECORDS).name for _ in range(2)]
    other.unlink()
    written.append(LandingFolder(tmp_path).write(now_us, RECORDS).name)
    assert written == sorted(set(written))


def test_a_slot_of_a_journal_is_deleted_by_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "root")
    journal.keep("received/", {"gw-1/5": [7, []], "gw-1/6": [8, []]})
    journal.keep("received/", {"gw-1/5": None, "gw-1/7": [1, []]})
    journal.close()
    assert Journal(tmp_path, "root").slots("received/") == {"gw-1/6": [8, []], "gw-1/7": [1, []]}


def test_a_journal_on_a_full_disk_is_opened_as_it_is(tmp_path: Path) -> None:
    """protocol 3.7: a new id would be a new parent for every child."""
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        journal = Journal(disk.folder, "root")
        journal.keep("received/", {"gw-1/5": [7, []]})
        journal.close()
        (disk.folder / LOCK).unlink()
        disk.fill()
        again = Journal(disk.folder, "root")
        assert again.id == journal.id
        assert again.slots("received/") == {"gw-1/5": [7, []]}
        with pytest.raises(PortError, match=r"cannot write the journal .*: database or disk is full"):
            again.keep("received/", {f"gw-1/{n}": [8, [*range(1000)]] for n in range(100)})
        again.close()
        disk.make_room()
        assert Journal(disk.folder, "root").slots("received/") == {"gw-1/5": [7, []]}
        assert not [name for name in files(disk.folder) if "unusable" in name]


def test_a_journal_that_can_only_be_read_is_refused_and_not_set_aside(tmp_path: Path) -> None:
    """protocol 3.7: the disk is at fault, the journal is good."""
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        journal = Journal(disk.folder, "root")
        journal.close()
        before = files(disk.folder)
        disk.read_only(True)
        with pytest.raises(PortError, match="Read-only file system"):
            Journal(disk.folder, "root")
        disk.read_only(False)
        assert files(disk.folder) == before
        again = Journal(disk.folder, "root")
        assert again.id == journal.id
        again.close()


def test_a_journal_that_its_disk_does_not_open_is_not_set_aside(tmp_path: Path) -> None:
    """protocol 3.7: an error of the disk (full, I/O error, no write-ahead log) is no damage."""
    journal = Journal(tmp_path, "root")
    journal.close()
    in_the_way = tmp_path / f"{NAME}-wal"
    in_the_way.mkdir()
    with pytest.raises(PortError, match="cannot use the journal"):
        Journal(tmp_path, "root")
    in_the_way.rmdir()
    assert not [name for name in files(tmp_path) if "unusable" in name]
    again = Journal(tmp_path, "root")
    assert again.id == journal.id
    again.close()


def lose(folder: Path, *names: str) -> None:
    """The journal is deleted, and files beside it."""
    for name in (NAME, f"{NAME}-wal", *names):
        (folder / name).unlink(missing_ok=True)


def journal_id(folder: Path, node: str = "root") -> int:
    journal = Journal(folder, node)
    journal.close()
    return journal.id


def test_a_journal_that_is_deleted_keeps_its_id(tmp_path: Path) -> None:
    """protocol 3.8 (j): children go on with the same parent, and nothing is in doubt."""
    known = journal_id(tmp_path)
    lose(tmp_path)
    assert journal_id(tmp_path) == known
    lose(tmp_path)
    with pytest.raises(ConfigError, match="belongs to root 'root', but this is root 'other'"):
        Journal(tmp_path, "other")


def test_without_its_second_copy_the_id_is_in_the_newest_whole_landing_file(tmp_path: Path) -> None:
    """protocol 3.8 (j)"""
    known = journal_id(tmp_path)
    folder = LandingFolder(tmp_path)
    for at_us in (1, 2, 3):
        folder.write(at_us, [landing.encode_tick(at_us, known, RECORDS, connected=True), *RECORDS])
    damaged = folder.write(4, [b"damaged"])
    lose(tmp_path, SECOND_COPY)
    assert journal_id(tmp_path) == known
    assert (tmp_path / SECOND_COPY).exists()
    lose(tmp_path, SECOND_COPY, *(name for name in files(tmp_path) if name != damaged.name))
    assert journal_id(tmp_path) != known  # nothing is left that says it


def test_what_is_named_like_a_landing_file_and_is_none_is_not_read_for_the_id(tmp_path: Path) -> None:
    """A folder ended each start, and a pipe blocked the lander for ever."""
    known = journal_id(tmp_path)
    LandingFolder(tmp_path).write(1, [landing.encode_tick(1, known, [], connected=True)])
    lose(tmp_path, SECOND_COPY)
    (tmp_path / f"99999999999999998{landing.SUFFIX}").mkdir()
    os.mkfifo(tmp_path / f"99999999999999999{landing.SUFFIX}")
    assert journal_id(tmp_path) == known


@pytest.mark.parametrize("bit", [None, 0, 70, 100])
def test_a_damaged_journal_and_second_copy_cost_the_id_only_if_no_file_has_it(tmp_path: Path, bit: int | None) -> None:
    """protocol 3.8 (j): nor is a copy with one changed bit taken for good."""
    known = journal_id(tmp_path)
    content = bytearray() if bit is None else bytearray((tmp_path / SECOND_COPY).read_bytes())
    if bit is not None:
        content[bit // 8] ^= 1 << bit % 8
    LandingFolder(tmp_path).write(1, [landing.encode_tick(1, known, [], connected=True)])
    (tmp_path / NAME).write_bytes(b"no database" * 1000)
    (tmp_path / SECOND_COPY).write_bytes(content)
    assert journal_id(tmp_path) == known


def test_a_damaged_second_copy_is_written_again_and_a_good_one_is_not(tmp_path: Path) -> None:
    """protocol 3.8 (j): else the id is lost with the journal."""
    known = journal_id(tmp_path)
    copy = tmp_path / SECOND_COPY
    good, before = copy.read_bytes(), copy.stat().st_ino
    assert journal_id(tmp_path) == known
    assert copy.stat().st_ino == before
    copy.write_bytes(good[:-1])
    assert journal_id(tmp_path) == known
    assert copy.read_bytes() == good
    lose(tmp_path)
    assert journal_id(tmp_path) == known


def changed(folder: Path, name: str, change: Callable[[bytes], bytes]) -> bytes:
    """Change the value of a slot behind the journal's back. Returns the new value."""
    db = sqlite3.connect(folder / NAME)
    (value,) = db.execute("SELECT value FROM slots WHERE name = ?", (name,)).fetchone()
    db.execute("UPDATE slots SET value = ? WHERE name = ?", (change(value), name))
    db.commit()
    db.close()
    return change(value)


def flipped(value: bytes, bit: int) -> bytes:
    out = bytearray(value)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def bits(value: bytes) -> range:
    return range(0, 8 * len(value), 5)


@pytest.mark.parametrize("sealed", [True, False], ids=["this version", "an earlier one"])
@pytest.mark.parametrize("left", ["both", "second copy", "landing file"])
def test_one_changed_bit_of_its_id_costs_neither_the_id_nor_what_the_journal_knows(
    tmp_path: Path, left: str, sealed: bool
) -> None:
    """protocol 3.8 (j): children saw another parent, and the good second copy was overwritten."""
    journal = Journal(tmp_path, "root")
    journal.keep("received/", {"gw-1/5": [7, []]})
    journal.close()
    if left != "second copy":
        LandingFolder(tmp_path).write(1, [landing.encode_tick(1, journal.id, [], connected=True)])
    good = changed(tmp_path, "about", lambda value: value if sealed else value[:-4])
    at = good.find(journal.id.to_bytes(8, "big"))
    for bit in bits(good) if sealed else range(8 * at, 8 * at + 64, 5):
        changed(tmp_path, "about", lambda _, bit=bit: flipped(good, bit))  # type: ignore[misc]
        if left == "landing file":
            (tmp_path / SECOND_COPY).unlink()
        again = Journal(tmp_path, "root")
        assert (again.id, again.rebuilt, again.slots("received/")) == (journal.id, False, {"gw-1/5": [7, []]})
        again.close()
    assert changed(tmp_path, "about", lambda value: value) == (
        good if sealed else good + zlib.crc32(b"about" + good).to_bytes(4, "big")
    )


def test_a_journal_whose_id_is_damaged_and_nowhere_else_is_set_aside(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "root")
    journal.close()
    (tmp_path / SECOND_COPY).unlink()
    changed(tmp_path, "about", lambda value: flipped(value, 100))
    assert journal_id(tmp_path) != journal.id
    assert f"{NAME}.unusable-1" in files(tmp_path)


def test_a_damaged_slot_is_left_out_and_the_others_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """protocol 3.2: its frames land twice; the lander did not start any more."""
    journal = Journal(tmp_path, "root")
    slots: dict[str, object] = {"gw-1/5": [300, [[310, 311]]], "gw-1/6": [8, []]}
    journal.keep("received/", slots)
    journal.close()
    good = changed(tmp_path, "received/gw-1/5", lambda value: value)
    for bit in bits(good):
        changed(tmp_path, "received/gw-1/5", lambda _, bit=bit: flipped(good, bit))  # type: ignore[misc]
        again = Journal(tmp_path, "root")
        assert again.slots("received/") == {"gw-1/6": [8, []]}
        assert again.rebuilt
        again.keep("received/", slots)
        assert again.slots("received/") == slots
        again.close()
    assert caplog.messages.count("journal.slot_damaged") == len(bits(good))


def test_a_slot_under_a_damaged_name_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "root")
    journal.keep("received/", {"gw-1/5": [300, []]})
    journal.close()
    db = sqlite3.connect(tmp_path / NAME)
    for name in (b"received/gw-1/7", b"received/gw-1/\xb5"):
        db.execute("UPDATE slots SET name = CAST(? AS TEXT) WHERE name != 'about'", (name,))
        db.commit()
        again = db.execute("SELECT value FROM slots WHERE name != 'about'").fetchone()
        db.close()
        journal = Journal(tmp_path, "root")
        assert journal.slots("received/") == {}
        journal.close()
        db = sqlite3.connect(tmp_path / NAME)
        assert db.execute("SELECT count(*) FROM slots").fetchone() == (1,)
        db.execute("INSERT INTO slots VALUES ('received/x', ?)", again)
    db.close()


def test_slots_that_an_earlier_version_wrote_are_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "root")
    journal.keep("received/", {"gw-1/5": [7, [[9, 9]]]})
    journal.close()
    for name in ("about", "received/gw-1/5"):
        changed(tmp_path, name, lambda value: value[:-4])
    (tmp_path / SECOND_COPY).unlink()
    again = Journal(tmp_path, "root")
    assert (again.id, again.rebuilt, again.slots("received/")) == (journal.id, False, {"gw-1/5": [7, [[9, 9]]]})
    again.close()


def test_a_journal_of_a_newer_version_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("edge_agent.ports.journal.VERSION", 99)
        journal = Journal(tmp_path, "root")
        journal.close()
    content = (tmp_path / NAME).read_bytes()
    with pytest.raises(
        ConfigError, match=r"\.lander\.db is of version 99, this headwater reads up to 1: run the newer"
    ):
        Journal(tmp_path, "root")
    assert (tmp_path / NAME).read_bytes() == content


def test_a_first_start_on_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        disk.fill()
        with pytest.raises(PortError, match=r"cannot use the journal .*: database or disk is full"):
            Journal(disk.folder, "root")
        disk.make_room()
        Journal(disk.folder, "root").close()
        assert files(disk.folder) == [NAME, SECOND_COPY, LOCK]


def test_names_sort_in_the_order_of_writing_whatever_the_clock_says(tmp_path: Path) -> None:
    """protocol 8.1: also across a restart of the lander, while files lie there."""
    first = LandingFolder(tmp_path)
    written = [first.write(us, RECORDS) for us in (5_000, 9_000, 1_000)]
    again = LandingFolder(tmp_path)
    written += [again.write(us, RECORDS) for us in (2_000, 1, 10_000)]
    assert sorted(written) == written


def test_what_a_killed_lander_had_half_written_goes_with_the_next_start(tmp_path: Path) -> None:
    part = tmp_path / f".00000000000000005-0000001-0000000{landing.SUFFIX}.tmp"
    part.write_bytes(RECORDS[0][:100])
    LandingFolder(tmp_path)
    assert files(tmp_path) == []


def test_a_lander_whose_folder_cannot_be_read_begins_no_journal_with_another_id(tmp_path: Path) -> None:
    """protocol 3.7: it would be a new parent for every child."""
    Journal(tmp_path, "root").close()
    (tmp_path / NAME).unlink()
    (tmp_path / SECOND_COPY).unlink()
    (tmp_path / SECOND_COPY).mkdir()  # reading it fails, as on a bad disk
    with pytest.raises(
        PortError, match=rf"cannot read {tmp_path / SECOND_COPY} of the landing folder {tmp_path}: Is a"
    ):
        Journal(tmp_path, "root")


def test_the_second_copy_of_the_id_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.7: a power cut must not leave an empty one."""
    synced, fsync = set[int](), os.fsync

    def noted(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    Journal(tmp_path, "root").close()
    assert (tmp_path / SECOND_COPY).stat().st_ino in synced


@pytest.mark.parametrize("leaving", [0, 16_384, 20_480])
def test_a_damaged_journal_on_a_full_disk_is_one_clear_line(tmp_path: Path, leaving: int) -> None:
    """There is no room for its successor; it is set aside once."""
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        (disk.folder / NAME).write_bytes(b"this is no database at all" * 400)
        disk.fill()
        filler = disk.folder / "filler"
        os.truncate(filler, filler.stat().st_size - leaving)
        for _ in range(5):
            with pytest.raises(PortError, match="cannot use the journal"):
                Journal(disk.folder, "root")
        assert [name for name in files(disk.folder) if "unusable" in name] == [f"{NAME}.unusable-1"]


@pytest.mark.parametrize(("text", "at", "bit"), [(b"value BLOB", 0, 0), (b"name TEXT", 1, 7), (b"slots (", 1, 1)])
def test_a_changed_bit_in_the_schema_of_a_journal_sets_it_aside(tmp_path: Path, text: bytes, at: int, bit: int) -> None:
    """The lander ended at each start. The id is in the second copy."""
    known = journal_id(tmp_path)
    content = bytearray((tmp_path / NAME).read_bytes())
    content[content.rindex(text) + at] ^= 1 << bit
    (tmp_path / NAME).write_bytes(content)
    assert journal_id(tmp_path) == known
