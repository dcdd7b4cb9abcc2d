"""A lander on a full disk stays up, acknowledges nothing that is not stored, and goes on by itself (protocol 3.2)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.errors import PortError
from edge_agent.ports import landing_folder
from edge_agent.ports.journal import NAME, Journal
from edge_agent.runtime.lander import RECEIVED
from tests.support.ports.small_disk import SmallDisk, small_disk
from tests.support.runtime.landing_process import EPOCH, Lander

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")
Refuse = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def lander(tmp_path: Path) -> Iterator[Lander]:
    made = Lander(tmp_path / "landing")
    made.turns(2)
    yield made
    made.close()


def no_room(*_args: object, **_more: object) -> None:
    raise NO_ROOM


def no_open(patch: pytest.MonkeyPatch) -> None:
    before = os.open

    def refused(path: object, *args: int, **more: int) -> int:
        if str(path).endswith(".tmp"):
            raise NO_ROOM
        return before(path, *args, **more)  # type: ignore[arg-type]

    patch.setattr(os, "open", refused)


def half_a_write(patch: pytest.MonkeyPatch) -> None:
    before, left = os.write, [40]

    def some(handle: int, content: bytes) -> int:
        if not left[0]:
            raise NO_ROOM
        some_of_it, left[0] = bytes(content)[: left[0]], 0
        return before(handle, some_of_it)

    patch.setattr(os, "write", some)


STEPS: dict[str, Refuse] = {
    "open": no_open,
    "write": half_a_write,
    "fsync": lambda patch: patch.setattr(os, "fsync", no_room),
    "rename": lambda patch: patch.setattr(Path, "rename", no_room),
    "fsync of the folder": lambda patch: patch.setattr(landing_folder, "sync_folder", no_room),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_is_full_at_any_step_of_a_file_loses_nothing_and_lands_it_once(
    lander: Lander, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        STEPS[step](full)
        lander.hears(0, 1)
        lander.hears(2)
        assert (lander.receipts, lander.up.acked) == ([], [])
        assert not lander.loop.journal.slots(RECEIVED)
    lander.turns(4)
    assert lander.landed() == [0, 1, 2]
    assert lander.receipts[-1] == 3
    assert lander.up.acked == [100, 101, 102]
    assert not list(lander.folder.glob(".*.tmp"))
    assert lander.loop.journal.slots(RECEIVED) == {f"a/{EPOCH}": [3, []]}


@pytest.mark.parametrize("step", STEPS)
def test_a_lander_that_ends_while_its_disk_is_full_has_acknowledged_nothing_of_it(
    lander: Lander, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker and the child send it again to the next one; a file whose name is not durable may land twice."""
    lander.hears(0)
    with monkeypatch.context() as full:
        STEPS[step](full)
        lander.hears(1, 2)
        lander.close()
    assert lander.up.acked == [100]
    again = Lander(lander.folder)
    again.clock.us = lander.clock.pass_s(1.0)
    again.hears(1, 2)
    assert sorted(set(again.landed())) == [0, 1, 2]
    assert again.receipts[-1] == 3
    assert not list(lander.folder.glob(".*.tmp"))
    again.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 512 * 1024) as made:
        yield made


def on_its_own_disk(folder: Path, disk: SmallDisk) -> None:
    """The journal of a landing folder is a link to another disk."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).symlink_to(disk.folder / NAME)


def filled(disk: SmallDisk, journal: Journal) -> None:
    """Fill it so that not even the journal's log, which keeps its length, takes one more entry."""
    disk.fill()
    number = 0
    try:
        while True:
            number += 1
            journal.keep("other/", {str(number): os.urandom(3_000).hex()})
    except PortError:
        return


def test_what_a_full_disk_did_not_let_the_journal_note_is_noted_when_there_is_room(
    tmp_path: Path, disk: SmallDisk
) -> None:
    """protocol 3.2, 3.4: the next lander landed again whatever was repeated."""
    folder = tmp_path / "landing"
    on_its_own_disk(folder, disk)
    lander = Lander(folder)
    lander.hears(0)
    journal = lander.loop.journal
    filled(disk, journal)
    lander.hears(1, 2)
    assert (lander.landed(), lander.receipts[-1], lander.up.acked) == ([0, 1, 2], 3, [100, 101, 102])
    assert journal.slots(RECEIVED) == {f"a/{EPOCH}": [1, []]}
    disk.make_room()
    lander.turns(3)
    assert journal.slots(RECEIVED) == {f"a/{EPOCH}": [3, []]}
    lander.close()
    again = Lander(folder)
    again.clock.us = lander.clock.pass_s(1.0)
    again.hears(0, 1, 2, 3)
    assert again.landed() == [0, 1, 2, 3]
    assert again.receipts[-1] == 4
    again.close()
    assert not list(disk.folder.glob("*unusable*"))


def test_a_landing_folder_and_a_journal_that_are_full_at_once_drain_by_themselves(tmp_path: Path) -> None:
    with small_disk(tmp_path / "one", 512 * 1024) as one, small_disk(tmp_path / "other", 512 * 1024) as other:
        on_its_own_disk(one.folder, other)
        lander = Lander(one.folder)
        lander.hears(0)
        known = lander.loop.journal.id
        one.fill()
        filled(other, lander.loop.journal)
        lander.hears(1, 2)
        lander.turns(3)
        assert (lander.landed(), lander.up.acked) == ([0], [100])
        one.make_room()
        lander.turns(3)
        assert (lander.landed(), lander.receipts[-1], lander.up.acked) == ([0, 1, 2], 3, [100, 101, 102])
        other.make_room()
        lander.turns(3)
        lander.close()
        again = Lander(one.folder)
        again.clock.us = lander.clock.pass_s(1.0)
        again.hears(1, 2)
        assert again.loop.journal.id == known
        assert again.landed() == [0, 1, 2]
        again.close()
        assert not [*one.folder.glob("*unusable*"), *other.folder.glob("*unusable*")]


def test_a_lander_on_one_full_disk_drains_by_itself_and_keeps_its_journal(disk: SmallDisk) -> None:
    lander = Lander(disk.folder)
    lander.hears(0)
    for round_ in range(3):
        filled(disk, lander.loop.journal)
        first = 1 + 3 * round_
        lander.hears(first, first + 1)
        lander.hears(first + 2)
        assert lander.landed() == [*range(first)]
        assert len(lander.up.acked) == first
        disk.make_room()
        lander.turns(3)
        assert lander.landed() == [*range(first + 3)]
        assert lander.up.acked == [100 + seq for seq in range(first + 3)]
    lander.close()
    again = Lander(disk.folder)
    again.clock.us = lander.clock.pass_s(1.0)
    again.hears(*range(10))
    assert again.landed() == [*range(10)]
    again.close()
    assert not list(disk.folder.glob("*unusable*"))
