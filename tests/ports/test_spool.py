"""The spool: a commit is kept whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, Gap
from edge_agent.errors import PortError
from edge_agent.machines.events import Commit, SpooledFrame
from edge_agent.ports import spool as module
from edge_agent.ports.spool import Spool
from edge_agent.ports.sqlite_file import PAGE_BYTES, WAL_BYTES
from tests.support.effort import examples
from tests.support.ports.small_disk import small_disk
from tests.support.ports.spools import EPOCH, encode, frames, keys, reopened


def test_what_was_committed_is_there_after_reopening(spool: Spool, path: Path) -> None:
    """protocol 3.1: positions, open slices, finished frames and the frontier in one transaction."""
    state = {"slices": {"start": np.arange(5), "sum": np.array([10**30, 2], object)}, "frontier": -(2**62), "x": None}
    spool.commit(Commit(state, frames=frames(0, 1, 2), mark_sent=((EPOCH, 0),)))
    spool.close()
    again = reopened(path)
    restored = again.open()
    assert not restored.lost
    assert list(restored.state["slices"]["start"]) == [0, 1, 2, 3, 4]  # type: ignore[index]
    assert restored.state["slices"]["sum"][0] == 10**30  # type: ignore[index]
    assert restored.state["frontier"] == -(2**62)
    assert "x" not in restored.state
    assert restored.frames == (SpooledFrame(EPOCH, 0, True), SpooledFrame(EPOCH, 1, False, run=2))
    assert [again.payload(EPOCH, seq) for seq in (0, 1, 2)] == [encode(f) for f in frames(0, 1, 2)]
    assert list(again.unsent()) == [(EPOCH, 1), (EPOCH, 2)]
    again.close()


def test_frames_come_back_in_the_order_of_their_commits_not_of_their_epochs(spool: Spool, path: Path) -> None:
    spool.commit(Commit(frames=(Frame(9, 0), Frame(9, 1))))
    spool.commit(Commit(frames=(Frame(2, 0),)))
    spool.close()
    again = reopened(path)
    assert keys(again.open()) == [(9, 0), (9, 1), (2, 0)]
    again.close()


def test_a_gap_record_takes_the_place_of_what_it_replaces_and_keeps_its_turn(spool: Spool, path: Path) -> None:
    """protocol 3.5: it stands at the seq of the frame; protocol 3.3: what was sent stays sent."""
    spool.commit(Commit(frames=frames(0, 1, 2), mark_sent=((EPOCH, 1),)))
    gap = Frame(EPOCH, 1, gaps=(Gap((), 0, 1, 3, ("gw-1",), "quota"),))
    spool.commit(Commit(forget=((EPOCH, 0),), replace=(gap,)))
    assert spool.payload(EPOCH, 1) == encode(gap)
    counted = (spool.frames, spool.bytes)
    spool.close()
    again = reopened(path)
    assert [(f.seq, f.sent) for f in again.open().frames] == [(1, True), (2, False)]
    assert (again.frames, again.bytes) == counted
    assert again.payload(EPOCH, 1) == encode(gap)
    again.close()


KEYS = st.tuples(st.integers(0, 3), st.integers(0, 9))


@settings(examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sets(KEYS, max_size=6), st.sets(KEYS, max_size=6)), min_size=1, max_size=8))
def test_counts_bytes_and_contents_follow_every_commit(
    tmp_path: Path, steps: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]]
) -> None:
    file = tmp_path / f"{os.urandom(6).hex()}.db"
    spool = reopened(file)
    spool.open()
    model: dict[tuple[int, int], bytes] = {}
    for add, forget in steps:
        new = sorted(add - model.keys())
        spool.commit(Commit({"n": len(model)}, frames=tuple(Frame(*key) for key in new), forget=tuple(forget)))
        for key in forget:
            model.pop(key, None)
        model.update({key: encode(Frame(*key)) for key in new})
        assert (spool.frames, spool.bytes) == (len(model), sum(map(len, model.values())))
    assert {key: spool.payload(*key) for key in model} == model
    spool.close()
    spool = reopened(file)
    assert sorted(keys(spool.open())) == sorted(model)
    assert {key: spool.payload(*key) for key in model} == model
    spool.close()


def test_frames_that_no_longer_fit_in_memory_are_read_from_the_file(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECENT_BYTES", 500)
    spool.commit(Commit(frames=frames(*range(40))))
    assert [spool.payload(EPOCH, seq) for seq in range(40)] == [encode(f) for f in frames(*range(40))]
    assert sum(map(len, spool._recent.values())) == spool._recent_bytes <= 500
    spool.commit(Commit(forget=tuple((EPOCH, seq) for seq in range(40))))
    assert (spool._recent_bytes, len(spool._recent)) == (0, 0)


def test_an_unchanged_slot_is_not_written_again(spool: Spool, path: Path) -> None:
    """One page less of flash a second."""
    big = {"slices": b"x" * 100_000}
    spool.commit(Commit(big))
    db = spool._file.db
    db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    spool.commit(Commit(big, frames=frames(0)))
    ((_, pages, _),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    assert 0 < pages * PAGE_BYTES < 50_000
    spool.commit(Commit({"slices": b"y" * 100_000}))
    spool.close()
    again = reopened(path)
    assert again.open().state["slices"] == b"y" * 100_000
    again.close()


def test_the_log_does_not_grow_without_end(spool: Spool, path: Path) -> None:
    for n in range(150):
        spool.commit(Commit({"slices": os.urandom(100_000)}, frames=frames(n), forget=((EPOCH, n - 1),)))
    assert path.with_name("spool.db-wal").stat().st_size < 3 * WAL_BYTES
    assert path.stat().st_size < 2_000_000


def takes_two(spool: Spool, seq: int) -> bool:
    """Whether the disk has room for a commit with two frames."""
    try:
        spool.commit(Commit({"n": seq, "state": os.urandom(20_000)}, frames=frames(seq, seq + 1)))
    except PortError:
        return False
    return True


def test_a_full_disk_takes_receipts_and_the_pages_they_free_take_frames(tmp_path: Path) -> None:
    """protocol 3.1, 3.3: it drains by itself, with no byte of room on the disk."""
    with small_disk(tmp_path / "disk", 12 * 1024 * 1024) as disk:
        path = disk.folder / "spool.db"
        spool = Spool(path, "gw-1", lambda frame: os.urandom(3_000))
        spool.open()
        disk.fill(leaving=3 * 1024 * 1024)
        seq = 0
        while seq < 5_000 and takes_two(spool, seq):
            disk.fill(leaving=max(3 * 1024 * 1024 - seq * 3_000, 0), again=True)
            seq += 2
        disk.fill(again=True)
        assert (200 < seq < 5_000, disk.free_bytes) == (True, 0)
        for n in range(0, seq, 20):
            spool.commit(Commit(mark_sent=tuple((EPOCH, n + i) for i in range(20))))
        while takes_two(spool, seq):  # into the last free pages
            seq += 2
            assert seq < 5_000
        left = list(range(seq))
        while left:
            spool.commit(Commit(forget=tuple((EPOCH, n) for n in left[:10])))
            left = left[10:] + [seq, seq + 1] * (len(left) > 20)
            assert takes_two(spool, seq)
            seq += 2
        assert disk.free_bytes <= 4 * PAGE_BYTES
        held = spool.frames
        spool.close()
        disk.fill(again=True)
        again = Spool(path, "gw-1", lambda frame: os.urandom(3_000))
        assert (len(keys(again.open())), again.notes) == (held, [])
        again.commit(Commit({"n": 0}, forget=tuple((EPOCH, n) for n in range(seq))))
        again.commit(Commit({"n": 1}, frames=frames(seq)))
        again.close()


def left_room(spool: Spool, commit: Commit) -> bool:
    """Whether a full disk took it."""
    try:
        spool.commit(commit)
    except PortError:
        return False
    return True


def pages_of(generation: int) -> dict[str, object]:
    """7 MB of slots."""
    return {f"page/{n}": bytes([generation, n]) * 50_000 for n in range(70)}


def test_a_commit_larger_than_the_log_goes_through_on_a_full_disk_when_receipts_have_freed_its_pages(
    tmp_path: Path,
) -> None:
    """protocol 3.1, 3.3: it drains by itself; the room that is kept for receipts is there before and after."""
    with small_disk(tmp_path / "disk", 24 * 1024 * 1024) as disk:
        path = disk.folder / "spool.db"
        spool = Spool(path, "gw-1", lambda frame: os.urandom(3_000))
        spool.open()
        for n in range(0, 3_000, 20):
            spool.commit(Commit({"n": 0}, frames=frames(*range(n, n + 20))))
        disk.fill()
        size, seq = path.stat().st_size, 0
        while not left_room(spool, Commit({"n": 1, **pages_of(1)}, frames=frames(seq + 10_000))):
            spool.commit(Commit(forget=tuple((EPOCH, seq + n) for n in range(100))))
            seq += 100
            assert seq < 2_900
        assert seq > 1_000
        assert path.stat().st_size <= size
        disk.fill(again=True)
        spool.commit(Commit({"n": 2}, frames=frames(20_000), forget=((EPOCH, seq),)))
        spool.close()
        again = reopened(path)
        restored = again.open()
        assert (restored.lost, restored.state) == (False, {"n": 2, **pages_of(1)})
        assert keys(restored)[-2:] == [(EPOCH, seq + 10_000), (EPOCH, 20_000)]
        again.close()


KILLED: Final = """
import sys
from pathlib import Path
from edge_agent.machines.events import Commit
from edge_agent.ports.spool import Spool

spool = Spool(Path(sys.argv[1]), "gw-1", lambda frame: b"x" * 3_000)
spool.open()
generation = int(sys.argv[2])
print("open", flush=True)
while True:
    generation += 1
    spool.commit(Commit({"n": generation, **{f"page/{n}": bytes([generation, n]) * 50_000 for n in range(70)}}))
    print(generation, flush=True)
"""


def test_a_kill_in_such_a_commit_leaves_the_one_before_or_all_of_it(tmp_path: Path) -> None:
    """protocol 3.1: also while it goes past the log."""
    with small_disk(tmp_path / "disk", 32 * 1024 * 1024) as disk:
        path = disk.folder / "spool.db"
        spool = Spool(path, "gw-1", lambda frame: os.urandom(3_000))
        spool.open()
        spool.commit(Commit({"n": 0, **pages_of(0)}))
        spool.commit(Commit(frames=frames(*range(2_500))))
        spool.commit(Commit(forget=tuple((EPOCH, n) for n in range(2_500))))
        spool.close()
        disk.fill()
        last = 0
        for commits, milliseconds in ((0, 10), (1, 0), (2, 40)):
            words = [sys.executable, "-c", KILLED, str(path), str(last)]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "open\n"
                last = max([last, *(int(victim.stdout.readline()) for _ in range(commits))])
                time.sleep(milliseconds / 1_000)
                victim.send_signal(signal.SIGKILL)
                last = max([last, *(int(line) for line in victim.stdout.read().splitlines())])
            again = reopened(path)
            restored = again.open()
            n = restored.state["n"]
            assert isinstance(n, int)
            assert (restored.lost, n in (last, last + 1)) == (False, True)
            assert restored.state == {"n": n, **pages_of(n)}
            again.close()
            last = n
        assert last >= 3


def test_a_disk_that_is_full_refuses_the_commit_keeps_the_rest_and_takes_it_when_there_is_room(
    spool: Spool, path: Path
) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0, 1)))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 8192, limit[1]))
    try:
        with pytest.raises(PortError, match="cannot commit"):
            spool.commit(Commit({"n": 2, "big": os.urandom(500_000)}, frames=frames(2)))
        assert (spool.frames, spool.payload(EPOCH, 1)) == (2, encode(Frame(EPOCH, 1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, previous)
    spool.commit(Commit({"n": 2}, frames=frames(2)))
    spool.close()
    again = reopened(path)
    assert (again.open().state, again.frames) == ({"n": 2}, 3)
    again.close()


def test_a_frame_committed_twice_is_a_bug_and_nothing_of_that_commit_stays(spool: Spool) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    with pytest.raises(ValueError, match="twice"):
        spool.commit(Commit({"n": 2}, frames=frames(1, 0)))
    assert spool.frames == 1
    spool.commit(Commit({"n": 3}, frames=frames(1)))
    assert spool.frames == 2


def test_a_frame_that_was_never_committed_is_a_callers_mistake(spool: Spool) -> None:
    with pytest.raises(ValueError, match="not in the spool"):
        spool.payload(EPOCH, 5)


def test_a_slot_that_gets_a_former_value_back_has_it_after_a_restart(spool: Spool, path: Path) -> None:
    spool.commit(Commit({"n": 1}))
    spool.close()
    again = reopened(path)
    again.open()
    for value in (2, 1):
        again.commit(Commit({"n": value}))
    again.close()
    last = reopened(path)
    assert last.open().state == {"n": 1}
    last.close()
