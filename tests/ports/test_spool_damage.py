"""Damage within a spool file: frames, slots, pages, the index and the schema."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.errors import WireError
from edge_agent.machines.events import Commit
from edge_agent.ports import sqlite_file
from edge_agent.ports.spool import DamagedError, MalformedError, Spool
from tests.support.ports.damaged_spools import cut_off, damage_header, damage_tree, reopened_once
from tests.support.ports.spools import EPOCH, encode, frames, keys, reopened


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
