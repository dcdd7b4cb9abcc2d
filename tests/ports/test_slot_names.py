"""The names of a spool's slots are listed apart from the slots: a changed or missing one is a damaged slot."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edge_agent.machines.events import Commit
from edge_agent.ports.spool import Spool
from tests.support.ports.spools import EPOCH, frames, keys, reopened

SLOTS = {"outbox_state": 1, "horizon": 5, "source/boiler": 3}


def flip(path: Path, name: bytes, nth: int, mask: int) -> bool:
    """Change one byte of the nth place where the file contains a name. Returns False if there is none."""
    content, at = bytearray(path.read_bytes()), -1
    for _ in range(nth + 1):
        if (at := content.find(name, at + 1)) < 0:
            return False
    content[at + len(name) // 2] ^= mask
    path.write_bytes(content)
    return True


@pytest.mark.parametrize("mask", [0x01, 0x80])  # another letter, and no UTF-8
@pytest.mark.parametrize("nth", range(6))
def test_a_bit_in_the_name_of_a_slot_never_makes_the_slot_vanish_in_silence(
    spool: Spool, path: Path, nth: int, mask: int
) -> None:
    spool.commit(Commit(dict(SLOTS), frames=frames(0)))
    spool.close()
    if not flip(path, b"outbox_state", nth, mask):
        return
    again = reopened(path)
    restored = again.open()
    assert restored.state == SLOTS or (restored.state == {} and restored.lost and again.notes)
    assert keys(restored) == [(EPOCH, 0)]
    again.close()


def test_a_slot_with_a_changed_name_is_damaged_until_the_next_commit(spool: Spool, path: Path) -> None:
    spool.commit(Commit(dict(SLOTS), frames=frames(0)))
    spool.close()
    rename_unlisted(path, "outbox_state", b"outbox\xffstate")
    for _ in range(2):
        again = reopened(path)
        restored = again.open()
        assert (restored.state, restored.lost) == ({}, True)
        assert [note.fields["slot"] for note in again.notes] == ["outbox_state"]
        again.close()
    again.open()
    again.commit(Commit({"outbox_state": 2}))
    again.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost, again.notes) == ({"outbox_state": 2}, False, [])
    again.close()


def test_a_dispensable_slot_with_a_changed_name_costs_itself_only(spool: Spool, path: Path) -> None:
    spool.commit(Commit(dict(SLOTS)))
    spool.close()
    rename_unlisted(path, "horizon", b"horizoo")
    again = reopened(path)
    restored = again.open()
    left = {name: value for name, value in SLOTS.items() if name != "horizon"}
    assert (restored.state, restored.lost) == (left, False)
    again.commit(Commit({"outbox_state": 2}))
    again.close()
    again = reopened(path)
    assert again.open().state == left | {"outbox_state": 2}
    assert again.notes == []
    again.close()


def test_a_name_changed_to_the_name_of_another_slot_is_damaged(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"numbers/0": 1, "numbers/1": 2}, frames=frames(0)))
    spool.close()
    rename_unlisted(path, "numbers/0", b"numbers/1")
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost) == ({}, True)
    again.commit(Commit({"numbers/1": 3}))
    again.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost, again.notes) == ({"numbers/1": 3}, False, [])
    assert keys(restored) == [(EPOCH, 0)]
    again.close()


def test_a_missing_slot_is_damaged(spool: Spool, path: Path) -> None:
    spool.commit(Commit(dict(SLOTS)))
    spool.commit(Commit({"source/boiler": None}))  # a deleted one is not missing
    spool.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TRIGGER slot_deleted")
        db.execute("DELETE FROM slots WHERE name = 'outbox_state'")
    db.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost) == ({}, True)
    assert [note.fields["slot"] for note in again.notes] == ["outbox_state"]
    again.close()


def test_a_damaged_row_of_the_list_costs_nothing(spool: Spool, path: Path) -> None:
    spool.commit(Commit(dict(SLOTS)))
    spool.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE slot_names SET name = 'horizoo' WHERE name = 'horizon'")
        db.execute("UPDATE slot_names SET again = 'outbox_stat' WHERE name = 'outbox_state'")
    db.close()
    again = reopened(path)
    assert (again.open().state, again.notes) == (SLOTS, [])
    again.commit(Commit({"horizon": None, "outbox_state": None}))
    again.close()
    restored = again.open()
    assert (restored.state, restored.lost, again.notes) == ({"source/boiler": 3}, False, [])
    again.close()


def test_the_spool_of_a_headwater_without_the_list_is_read_and_gets_one(spool: Spool, path: Path) -> None:
    spool.commit(Commit(dict(SLOTS)))
    spool.close()
    with sqlite3.connect(path) as db:
        for trigger in ("slot_added", "slot_deleted", "slot_renamed"):
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("DROP TABLE slot_names")
    db.close()
    again = reopened(path)
    assert again.open().state == SLOTS
    again.close()
    with sqlite3.connect(path) as db:  # what the headwater before does after a downgrade: it knows no list
        db.execute("DELETE FROM slots WHERE name = 'horizon'")
        db.execute("INSERT INTO slots SELECT 'more', crc, value FROM slots WHERE name = 'source/boiler'")
    db.close()
    again = reopened(path)
    restored = again.open()
    assert (restored.state, restored.lost) == ({"outbox_state": 1, "source/boiler": 3, "more": 3}, False)
    again.close()


def rename_unlisted(path: Path, name: str, into: bytes) -> None:
    """Change a name where the slot is, as a flipped bit does: neither the index nor the list follows."""
    with sqlite3.connect(path) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'slots'").fetchone()
    db.close()
    content = bytearray(path.read_bytes())
    at = content.index(name.encode(), (page - 1) * 4096, page * 4096)
    content[at : at + len(into)] = into
    path.write_bytes(content)
