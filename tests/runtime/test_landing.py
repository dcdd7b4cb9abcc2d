"""The lander's receipts stand on files that survive a power cut (docs/protocol.md 3.2)."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.algebra.frame import Birth, Frame
from edge_agent.config import topics
from edge_agent.machines.downlink.epochs import frames_ahead
from edge_agent.machines.downlink.line_watch import TWO_DEVICES, WENT_BACK
from edge_agent.ports.journal import NAME
from edge_agent.runtime.lander import TELL_EVERY_US
from edge_agent.wire import frames, landing
from tests.support.runtime.landing_process import EPOCH, Lander


@pytest.fixture
def lander(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lander]:
    made, fsync = Lander(tmp_path / "landing"), os.fsync

    def recorded(file: int) -> None:
        fsync(file)
        state = os.fstat(file)
        folder = Path(f"/proc/self/fd/{file}")
        made.synced[state.st_ino] = {path.name for path in folder.iterdir()} if folder.is_dir() else state.st_size

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "fdatasync", recorded)
    yield made
    made.close()


def when_receipted(lander: Lander, look: Callable[[], list[str]]) -> list[list[str]]:
    """What `look` finds at every receipt from here on."""
    found: list[list[str]] = []
    publish = lander.up.publish

    def watched(topic: str, payload: bytes, **more: object) -> int:
        if topic == topics.ack("a"):
            found.append(look())
        return publish(topic, payload, **more)  # type: ignore[arg-type]

    lander.up.publish = watched  # type: ignore[method-assign]
    return found


def test_a_file_is_whole_and_named_on_disk_before_its_frames_are_receipted(lander: Lander) -> None:
    """protocol 3.2: fsync of the file, its name, fsync of the folder, then the receipt."""
    found = when_receipted(lander, lander.undurable)
    lander.hears(0, 1)
    lander.hears(2)
    assert lander.receipts[-1] == 3
    assert lander.landed() == [0, 1, 2]
    assert found
    assert not any(found)


def test_a_file_that_cannot_be_written_is_neither_receipted_nor_acknowledged_until_it_can(
    lander: Lander, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.2: the broker and the child keep what no disk has."""
    lander.turns(2)
    with monkeypatch.context() as full:

        def no_room(file: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(os, "fsync", no_room)
        full.setattr(os, "fdatasync", no_room)
        lander.hears(0, 1)
        assert (lander.receipts, lander.up.acked, lander.landed()) == ([], [], [])
    lander.turns(4)
    assert lander.landed() == [0, 1]
    assert lander.receipts[-1] == 2
    assert lander.up.acked == [100, 101]


def test_a_disk_that_takes_a_part_of_a_write_gets_the_rest(lander: Lander, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.2: a file has its name only with all of its frames."""
    write = os.write

    def a_part(file: int, content: bytes) -> int:
        return write(file, memoryview(content)[:7])

    monkeypatch.setattr(os, "write", a_part)
    lander.hears(0, 1, 2)
    assert lander.landed() == [0, 1, 2]


def test_what_the_disk_refused_stays_one_file_and_later_frames_have_their_own(
    lander: Lander, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.2: no frame is in two files, none is receipted with another's file."""
    lander.turns(2)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        lander.hears(0)
        lander.hears(1)
    lander.turns(6)
    assert lander.landed() == [0, 1]
    assert lander.receipts[-1] == 2


def test_a_frame_that_comes_again_lands_once_and_is_receipted_again_also_by_the_next_lander(lander: Lander) -> None:
    """protocol 3.2, 3.4: the marks against duplicates are stored beside the files."""
    lander.hears(0, 0)
    lander.hears(0, 2)
    assert lander.landed() == [0, 2]
    assert lander.receipts[-1] == 1
    lander.close()
    again = Lander(lander.folder)
    again.clock.us = lander.clock.pass_s(1.0)
    again.hears(0, 2)
    assert again.receipts == [1, 1]
    again.hears(1)
    assert again.landed() == [0, 2, 1]
    assert again.receipts[-1] == 3
    again.close()


def test_two_devices_with_one_id_are_in_the_landers_status_at_once(lander: Lander) -> None:
    """protocol 1.4: the second one's birth names the same predecessor, or none."""

    def said(epoch: int, before: tuple[int, int] | None) -> dict[str, str]:
        birth = Birth(epoch << 32, lander.loop.journal.id, before, "1")
        lander.up.message(topics.frames("a", "root"), frames.encode(Frame(epoch, 0, birth)), 1_000 + epoch)
        lander.turns(1)
        found: dict[str, str] = json.loads(lander.up.sent(topics.status("root"))[-1]).get("alarms", {})
        return found

    lander.loop.connection.publish(topics.status("root"), b"{}")
    lander.hears(0, 1, 2)
    assert said(6, (EPOCH, 2)) == {}, "a restart"
    assert said(6, (EPOCH, 2)) == {}, "its birth came twice"
    assert said(7, (6, 0)) == {}
    assert said(8, (EPOCH, 2)) == {"a": TWO_DEVICES}
    assert said(9, (8, 0)) == {"a": TWO_DEVICES}


@pytest.mark.parametrize("before", [None, (EPOCH, 0)])
def test_a_spool_that_was_lost_or_is_an_older_copy_is_in_the_landers_status(
    lander: Lander, before: tuple[int, int] | None
) -> None:
    """protocol 1.2, 1.3"""
    lander.hears(0, 1, 2)
    birth = Birth(6 << 32, lander.loop.journal.id, before, "1")
    lander.up.message(topics.frames("a", "root"), frames.encode(Frame(6, 0, birth)), 999)
    lander.turns(1)
    assert json.loads(lander.up.sent(topics.status("root"))[-1])["alarms"] == {"a": WENT_BACK}


def test_a_birth_for_another_journal_says_nothing_of_a_second_device(lander: Lander) -> None:
    """protocol 1.4, 3.7: it was written for a former parent, and does not take effect here."""
    lander.hears(0, 1, 2)
    birth = Birth(6 << 32, lander.loop.journal.id ^ 1, None, "1")
    lander.up.message(topics.frames("a", "root"), frames.encode(Frame(6, 0, birth)), 999)
    lander.turns(1)
    assert not any(b"alarms" in payload for payload in lander.up.sent(topics.status("root")))


def test_a_file_tells_definitions_that_changed_and_from_time_to_time_all_of_them(lander: Lander) -> None:
    """protocol 6.5: a root that missed a file learns them from a later one."""
    text = b'{"source": "s", "window": {"type": "tumbling", "length": "1m"}, "aggregates": ["sum"], "revision": 3}'

    def told() -> list[str]:
        ticks = [next(landing.iterate(path.read_bytes())) for path in lander.files()]
        return [each[1] for _, _, payload in ticks for each in landing.tick(payload).published]

    lander.up.message(topics.definition("query", "x"), text, 5)
    for seq in range(3):
        lander.hears(seq)
    assert told() == ["x"]
    lander.clock.pass_s(TELL_EVERY_US / 1e6)
    lander.hears(3)
    lander.hears(4)
    assert told() == ["x", "x"]


def test_a_deleted_journal_stops_no_child_and_births_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.8 (j), 2.2: what comes next is ahead of no hole; an epoch waits as a whole for the one it names."""
    monkeypatch.setattr(frames_ahead, "MOST_FRAMES", 3)
    lander = Lander(tmp_path)
    lander.hears(*range(9))
    lander.close()
    for name in (NAME, f"{NAME}-wal"):
        (tmp_path / name).unlink(missing_ok=True)
    lander = Lander(tmp_path)
    lander.hears(*range(9, 30))
    assert lander.landed() == list(range(30))
    birth = Birth(8 << 32, lander.loop.journal.id, (EPOCH, 30), "1")
    for seq in range(9):
        payload = frames.encode(Frame(8, seq, birth if seq == 0 else None))
        lander.up.message(topics.frames("a", "root"), payload, 200 + seq)
    lander.turns(3)
    assert lander.landed() == [*range(30), 0, 1, 2]
    lander.close()
