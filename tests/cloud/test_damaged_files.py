"""Landing files that a disk changed, or that are not where they belong (docs/protocol.md 3.2).

What is intact counts, what is lost is declared, no row is complete without all of its readings, none has one twice, and
later files heal it. Without Spark: rows are decoded by the product and kept in lists.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import cbor2
import pytest

from cloud_job.spark import batch_guard
from edge_agent.errors import PortError
from edge_agent.wire import landing
from tests.support.cloud import damaged_files
from tests.support.cloud.child_frames import JOURNAL
from tests.support.cloud.damaged_files import AGAIN_S, LAST_S, LATE_S, RESTART_S, DamagedRoot, File, flipped

HEALED_S = 25  # from here on every row is complete, whatever happened to a file before the last births


@pytest.fixture(scope="module")
def written() -> list[File]:
    return damaged_files.written()


@pytest.fixture(scope="module")
def befores(written: list[File], tmp_path_factory: pytest.TempPathFactory) -> dict[int, DamagedRoot]:
    """Number of a file -> a root that has read those before it."""
    made = {}
    for number in (0, 1, 4, RESTART_S, LATE_S, LATE_S + 1):
        made[number] = DamagedRoot(tmp_path_factory.mktemp("before"))
        made[number].read(written[:number], at_once=9)
    return made


class After:
    """What a root makes of files behind those that it has read. lines: of its log, from `caplog`."""

    def __init__(self, before: DamagedRoot, folder: Path, caplog: pytest.LogCaptureFixture, files: list[File]) -> None:
        caplog.clear()
        self.root = before.twin(folder)
        self.root.read(files[:1])
        self.root.read(files[1:], at_once=4)
        self.lines = [record.message for record in caplog.records]

    def check(self, *, damaged: int | None = 1, healed: bool = True) -> list[int]:
        """Assert what holds for every damage. Returns the seconds whose row is not complete."""
        assert self.root.wrong() == []
        assert self.root.left_out == []
        lacking = self.root.lacking()
        assert damaged is None or self.lines.count("landing.damaged") == damaged
        assert not healed or not [second for second in lacking if second >= HEALED_S]
        assert not lacking or not healed or self.root.gaps(), "nothing declares it"
        return lacking


@pytest.fixture
def after(
    befores: dict[int, DamagedRoot],
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int, list[File]], After]:
    monkeypatch.setattr(batch_guard, "PAUSES_S", (0.0, 0.0))
    return lambda number, files: After(befores[number], tmp_path_factory.mktemp("after"), caplog, files)


Made = Callable[[int, list[File]], After]


def test_without_damage_every_row_is_complete(written: list[File], after: Made) -> None:
    assert after(0, written).check(damaged=0) == []


def test_a_changed_journal_in_the_landers_own_record_refuses_no_birth(written: list[File], after: Made) -> None:
    """protocol 3.7: births for the right journal were refused behind their receipts, and no row was complete again."""
    name, content = written[RESTART_S]
    at = content.index(JOURNAL.to_bytes(2, "big"))
    made = after(RESTART_S, [(name, flipped(content, 8 * at + 9)), *written[RESTART_S + 1 :]])
    assert made.check() == []
    assert made.root.quarantined() == [
        f"{name}: landing file damaged: record 0, the lander's own: tick: it fails its checksum"
    ]
    assert made.root.decider.parent.inbox.journal == JOURNAL


@pytest.mark.parametrize("number", [0, 1, RESTART_S, LATE_S, LATE_S + 1])
def test_any_changed_bit_is_declared_and_heals(written: list[File], after: Made, number: int) -> None:
    (name, content), random = written[number], Random(number)
    seen = set()
    for bit in random.sample(range(8 * len(content)), 8):
        made = after(number, [(name, flipped(content, bit)), *written[number + 1 :]])
        seen.add(bool(made.check()))
    assert True in seen, "none was in a frame"


@pytest.mark.parametrize("number", [1, RESTART_S, LATE_S])
def test_a_file_cut_anywhere_is_declared_and_heals(written: list[File], after: Made, number: int) -> None:
    (name, content), random = written[number], Random(number)
    for at in (0, 1, *random.sample(range(2, len(content)), 6)):  # behind the last frame nothing is lost
        assert after(number, [(name, content[:at]), *written[number + 1 :]]).check() or at > len(content) / 2


def in_its_place(content: bytes, random: Random) -> dict[str, bytes]:
    """What may stand in the place of a file."""
    size = len(content)
    return {
        "zeros, as after a power cut": bytes(size),
        "zeros at its end": content[: size // 2] + bytes(size - size // 2),
        "zeros behind it": content + bytes(512),
        "other bytes": random.randbytes(size),
        "text": b"no landing file\n" * 20,
        "deep nesting": b"\x81" * 100_000,
        "a length beyond all disks": b"\x83\x7b" + b"\xff" * 8 + content,
        "an indefinite length": b"\x9f" + content[1:],
    }


@pytest.mark.parametrize("number", [1, RESTART_S, LATE_S])
def test_what_is_no_landing_file_is_declared_and_heals(written: list[File], after: Made, number: int) -> None:
    name, content = written[number]
    for what, other in in_its_place(content, Random(number)).items():
        made = after(number, [(name, other), *written[number + 1 :]])
        assert made.check() or what == "zeros behind it"


@pytest.mark.parametrize("number", [1, 4, RESTART_S, LATE_S])
def test_files_that_come_twice_or_not_where_they_belong_count_once(
    written: list[File], after: Made, number: int
) -> None:
    """protocol 2.5, 3.2, 8.1: a copy repeats a file; if files change places, the time goes back."""
    name, content = written[number]
    rest = written[number + 1 :]
    assert after(number, rest).check(damaged=0), "it is gone"
    assert after(number, [*written[number:], ("99999999.cborseq", content)]).check(damaged=0) == []
    again = [(f"9{each}", bytes_) for each, bytes_ in written]
    assert after(number, [*written[number:], *again]).check(damaged=0) == []
    for by in (1, 5, 10):
        other_name, other = written[number + by]
        swapped = [(name, other), *rest[: by - 1], (other_name, content), *rest[by:]]
        after(number, swapped).check(damaged=0, healed=False)
        after(number, [(name, other), *rest]).check(damaged=0, healed=False)
    both = content + rest[0][1]
    after(number, [(name, both), *rest]).check()


@pytest.mark.parametrize("received_us", [-(2**62) - 1, 2**62 + 1, -(2**64), 2**64 - 1])
def test_a_time_that_no_table_holds_ends_no_root(written: list[File], after: Made, received_us: int) -> None:
    """Of a lander without checksums: the rows of the batch could not be made, and the root ended at each start."""
    name, content = written[4]
    (_, now_us, _), (topic, _, payload), *_ = landing.iterate(content)
    old = landing.encode_tick(now_us, JOURNAL, connected=True) + cbor2.dumps([topic, received_us, payload])
    assert after(4, [(name, old), *written[5:]]).check()


def test_the_births_of_both_children_are_in_one_file(written: list[File]) -> None:
    """What the tests above rely on."""
    assert len(written[AGAIN_S][1]) > 2 * len(written[AGAIN_S + 1][1])
    assert len(written) > LAST_S


def unreadable(patch: pytest.MonkeyPatch, code: int, *names: str) -> None:
    """Reading these files fails."""
    before = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name in names:
            raise OSError(code, os.strerror(code), str(path))
        return before(path)

    patch.setattr(Path, "read_bytes", read)


def test_a_file_on_a_bad_sector_is_set_aside_and_declared(
    written: list[File], befores: dict[int, DamagedRoot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root ended with it at each start, and no later file was read."""
    name, content = written[4]
    root = befores[1].twin(tmp_path)
    for each, bytes_ in written[1:8]:
        (tmp_path / each).write_bytes(bytes_)
    unreadable(monkeypatch, errno.EIO, name)
    root.turn()
    assert root.quarantined() == [f"cannot read landing file {tmp_path / name}: Input/output error"]
    assert [example for _, example in root.left_out] == [name]
    monkeypatch.undo()
    assert (tmp_path / "aside" / name).read_bytes() == content
    root.read(written[8:], at_once=4)
    assert not (tmp_path / name).exists()
    assert root.wrong() == []
    assert 4 in root.lacking()
    assert not [second for second in root.lacking() if second >= HEALED_S]
    assert root.gaps()


@pytest.mark.parametrize("how", [(errno.EIO, 99), (errno.EACCES, 1)])
def test_a_disk_that_gives_no_file_or_a_user_who_may_not_read_is_no_fault_of_a_file(
    written: list[File],
    befores: dict[int, DamagedRoot],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: tuple[int, int],
) -> None:
    """It ends with one line, and nothing is lost once the files can be read."""
    code, bad = how
    root = befores[4].twin(tmp_path)
    for each, bytes_ in written[4:8]:
        (tmp_path / each).write_bytes(bytes_)
    unreadable(monkeypatch, code, *[name for name, _ in written[4 : 4 + bad]])
    for _ in range(3):
        with pytest.raises(PortError, match=f"cannot read landing file .*: {os.strerror(code)}"):
            root.turn()
    monkeypatch.undo()
    root.read(written[8:], at_once=4)
    assert (root.wrong(), root.lacking(), root.quarantined()) == ([], [], [])
