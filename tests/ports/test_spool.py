"""The spool: a commit is kept whole or not at all, and no file it cannot use stops a node."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.events import Commit, SpooledFrame
from edge_agent.ports import spool as module
from edge_agent.ports.spool import DamagedError, Spool

EPOCH = 0xFEEDBEEF


def encode(frame: Frame) -> bytes:
    """Not the real bytes, but as different for different frames."""
    return b"%d/%d " % (frame.epoch, frame.seq) * (10 + frame.seq % 7) + (b"gap" if frame.gaps else b"")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "spool.db"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    opened = Spool(path, "gw-1", encode)
    opened.open()
    yield opened
    opened.close()


def frames(*seqs: int) -> tuple[Frame, ...]:
    return tuple(Frame(EPOCH, seq) for seq in seqs)


def reopened(path: Path, node: str = "gw-1") -> Spool:
    return Spool(path, node, encode)


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
    assert restored.frames == tuple(
        SpooledFrame(EPOCH, seq, seq == 0, len(encode(Frame(EPOCH, seq)))) for seq in (0, 1, 2)
    )
    assert [again.payload(EPOCH, seq) for seq in (0, 1, 2)] == [encode(f) for f in frames(0, 1, 2)]
    assert list(again.unsent()) == [(EPOCH, 1), (EPOCH, 2)]
    again.close()


def test_frames_come_back_in_the_order_of_their_commits_not_of_their_epochs(spool: Spool, path: Path) -> None:
    spool.commit(Commit(frames=(Frame(9, 0), Frame(9, 1))))
    spool.commit(Commit(frames=(Frame(2, 0),)))
    spool.close()
    again = reopened(path)
    assert [(f.epoch, f.seq) for f in again.open().frames] == [(9, 0), (9, 1), (2, 0)]
    again.close()


def test_a_gap_record_takes_the_place_of_what_it_replaces_and_keeps_its_turn(spool: Spool, path: Path) -> None:
    """protocol 3.5: it stands at the seq of the frame; protocol 3.3: what was sent stays sent."""
    spool.commit(Commit(frames=frames(0, 1, 2), mark_sent=((EPOCH, 1),)))
    from edge_agent.algebra.frame import Gap

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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
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
    assert {(f.epoch, f.seq) for f in spool.open().frames} == model.keys()
    assert {key: spool.payload(*key) for key in model} == model
    spool.close()


def test_frames_that_no_longer_fit_in_memory_are_read_from_the_file(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECENT_BYTES", 500)
    spool.commit(Commit(frames=frames(*range(40))))
    assert [spool.payload(EPOCH, seq) for seq in range(40)] == [encode(f) for f in frames(*range(40))]


def test_an_unchanged_slot_is_not_written_again(spool: Spool, path: Path) -> None:
    """One page less of flash a second."""
    big = {"slices": b"x" * 100_000}
    spool.commit(Commit(big))
    log = path.with_name("spool.db-wal")
    before = log.stat().st_size
    spool.commit(Commit(big, frames=frames(0)))
    assert log.stat().st_size - before < 50_000
    spool.commit(Commit({"slices": b"y" * 100_000}))
    spool.close()
    again = reopened(path)
    assert again.open().state["slices"] == b"y" * 100_000
    again.close()


def test_the_log_does_not_grow_without_end(spool: Spool, path: Path) -> None:
    for n in range(150):
        spool.commit(Commit({"slices": os.urandom(100_000)}, frames=frames(n), forget=((EPOCH, n - 1),)))
    assert path.with_name("spool.db-wal").stat().st_size < 3 * module.WAL_BYTES
    assert path.stat().st_size < 2_000_000


def test_a_spool_over_its_quota_says_so_and_goes_on(tmp_path: Path) -> None:
    """Stopping would be for good: the receipt that makes room comes to disk by a commit too."""
    spool = Spool(tmp_path / "s.db", "gw-1", lambda frame: os.urandom(20_000), quota_bytes=1_000_000)
    spool.open()
    for seq in range(100):
        spool.commit(Commit({"n": seq}, frames=(Frame(EPOCH, seq),)))
    assert spool.frames == 100
    assert 2 <= len(spool.notes) <= 12
    assert {note.name for note in spool.notes} == {"spool.over_quota"}
    spool.close()
    spool = Spool(tmp_path / "s.db", "gw-1", lambda frame: os.urandom(20_000), quota_bytes=1_000_000)
    assert len(spool.open().frames) == 100
    spool.commit(Commit({"n": 100}, frames=tuple(Frame(EPOCH, seq) for seq in range(100, 140))))
    assert spool.frames == 140
    spool.close()


def test_a_disk_that_is_full_refuses_the_commit_keeps_the_rest_and_takes_it_when_there_is_room(
    spool: Spool, path: Path
) -> None:
    spool.commit(Commit({"n": 1}, frames=frames(0, 1)))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("spool.db-wal").stat().st_size + 8192, limit[1]))
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


# --- whose it is -----------------------------------------------------------------------------------------------------


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
    with pytest.raises(PortError, match="cannot write the spool folder"):
        reopened(tmp_path / "var" / "spool.db").open()


# --- what cannot be used ---------------------------------------------------------------------------------------------


def damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 400)


def damage_tree(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def damage_slot(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE slots SET value = x'0102'")
    db.close()


def damage_slot_and_checksum(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE slots SET value = ?, crc = ?", (b"\x01", zlib.crc32(b"\x01")))
    db.close()


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    db.close()


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (damage_header, "corrupt"),
        (damage_tree, "corrupt"),
        (damage_slot, "corrupt"),
        (damage_slot_and_checksum, "corrupt"),
        (cut_off, "corrupt"),
        (another_program, "corrupt"),
        (newer, "newer"),
    ],
)
def test_an_unusable_file_is_set_aside_with_one_line_and_a_new_one_begun(
    spool: Spool, path: Path, damage: object, word: str
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
    aside = path.with_name(f"spool.db.{word}-1")
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
    assert path.with_name("spool.db.corrupt-2" if word == "corrupt" else "spool.db.corrupt-1").exists()


def test_one_damaged_frame_is_named_and_its_neighbours_stay(spool: Spool, path: Path) -> None:
    """protocol 2.1: the CRC belongs to the spool row, checked at reading; protocol 3.6: a gap record replaces it."""
    spool.commit(Commit({"n": 1}, frames=frames(0, 1, 2)))
    spool.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE frames SET payload = x'00' WHERE seq = 1")
    db.close()
    again = reopened(path)
    restored = again.open()
    assert [bool(f.damaged) for f in restored.frames] == [False, True, False]
    assert restored.state == {"n": 1}
    with pytest.raises(DamagedError):
        again.payload(EPOCH, 1)
    assert again.raw(EPOCH, 1) == b"\x00"
    assert again.payload(EPOCH, 2) == encode(Frame(EPOCH, 2))
    assert {note.name for note in again.notes} == {"spool.damaged"}
    again.commit(Commit(replace=frames(1)))
    assert again.payload(EPOCH, 1) == encode(Frame(EPOCH, 1))
    again.close()


def test_a_slot_of_an_unknown_format_sets_the_file_aside(path: Path) -> None:
    spool = reopened(path)
    spool.open()
    spool.commit(Commit({"n": 1}))
    spool.close()

    def refuse(content: bytes) -> object:
        raise WireError("snapshot of version 9")

    again = Spool(path, "gw-1", encode, loads=refuse)
    assert again.open().lost
    again.close()


# --- kill -9 ---------------------------------------------------------------------------------------------------------

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
        assert [f.seq for f in restored.frames] == list(range(max(0, n - 49), n + 1))
        assert all(spool.payload(1, f.seq) == b"%d" % f.seq * 300 for f in restored.frames)
        spool.close()
