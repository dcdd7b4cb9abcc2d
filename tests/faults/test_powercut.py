"""Some power cuts of every store in every run; 200 of each are `make powercut`."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.faults.disk_image import Disk
from tests.faults.powercut import replay, traced
from tests.faults.trace import Moved, Named, Resize, Sync, SyncFolder, Write, strace
from tests.faults.traced import NODES


@pytest.mark.slow
@pytest.mark.parametrize("role", list(NODES))
def test_what_was_acknowledged_before_a_power_cut_is_there_after_it(role: str, tmp_path: Path) -> None:
    """protocol 3.1, 3.2, 3.4: acknowledgements, receipts, published frames; and nothing is there twice."""
    if why := strace():
        pytest.skip(why)
    operations = traced(role, tmp_path, seed=3, steps=20)
    count, found = replay(role, tmp_path, operations, 15, seed=5)
    assert count == 15
    assert found == []
    _, lost = replay(role, tmp_path, operations, 6, seed=5, trust_fsync=False)
    assert lost  # a control: on a disk that forgets every fsync the same cuts lose what was acknowledged


def images(disk: Disk, tmp_path: Path, count: int = 40) -> list[dict[str, bytes]]:
    out = []
    for seed in range(count):
        folder = tmp_path / str(seed)
        folder.mkdir()
        disk.image(folder, random.Random(seed))
        out.append({path.name: path.read_bytes() for path in folder.iterdir()})
    return out


def test_an_image_holds_what_was_synced_and_any_part_of_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for operation in (Named(Path("a"), 1), Write(1, 0, b"x" * 2000), Sync(1), SyncFolder(tmp_path.resolve())):
        disk.apply(operation)
    disk.apply(Write(1, 1000, b"y" * 3000))
    found = [image["a"] for image in images(disk, tmp_path)]
    assert all(content[:1000] == b"x" * 1000 for content in found)
    assert len({len(content) for content in found}) > 2
    assert {content[1500:1501] for content in found} == {b"x", b"y"}
    assert any(b"\0" in content for content in found)  # it grew without its content
    assert max(map(len, found)) == 4000


def test_names_that_were_not_synced_are_there_in_their_order_or_not_at_all(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for operation in (Named(Path(".a"), 1), Write(1, 0, b"whole"), Sync(1), Moved(Path(".a"), Path("a"), 1)):
        disk.apply(operation)
    found = {tuple(image.items()) for image in images(disk, tmp_path)}
    assert found == {(), ((".a", b"whole"),), (("a", b"whole"),)}
    disk.apply(Resize(1, 0))
    disk.apply(SyncFolder(tmp_path.resolve()))
    (tmp_path / "again").mkdir()
    assert {tuple(image.items()) for image in images(disk, tmp_path / "again")} == {
        (("a", b"whole"),),
        (("a", b""),),
    }


def test_the_sqlite_of_this_python_maps_nothing_and_syncs_each_commit(tmp_path: Path) -> None:
    """What a trace relies on: no write without a system call."""
    db = sqlite3.connect(tmp_path / "x.db")
    assert db.execute("PRAGMA mmap_size").fetchone() in (None, (0,))
    db.close()
