"""One root at a time has a landing folder, wherever the tables are (no Spark)."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cloud_job.delta.lease import LOCK, Lease
from cloud_job.delta.tables import Place, place
from edge_agent.errors import PortError


@pytest.fixture
def landing(tmp_path: Path) -> str:
    folder = tmp_path / "landing"
    folder.mkdir()
    return str(folder)


def catalog(name: str) -> Place:
    return Place(f"{name}.", named=True, guarded=True)


def test_roots_with_other_tables_do_not_share_a_landing_folder_whatever_the_tables_are(
    tmp_path: Path, landing: str
) -> None:
    """protocol 8.5: with a catalog or a URI each lost the files that the other had taken."""
    first = Lease(catalog("main"), "first", landing)
    for other in (catalog("test"), place(f"file://{tmp_path}/tables"), place(f"{tmp_path}/tables")):
        with pytest.raises(PortError, match=rf"another root \(process {os.getpid()}\) reads the landing files"):
            Lease(other, "other", landing)
    first.release()
    Lease(catalog("test"), "other", landing).release()


def test_a_landing_folder_on_a_volume_without_locks_or_appends_is_read_all_the_same(
    landing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(_file: object, _how: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        Lease(catalog("main"), "first", landing).release()
    (Path(landing) / LOCK).unlink()
    (Path(landing) / LOCK).symlink_to("/dev/full")  # can be opened, and not be written
    Lease(catalog("main"), "first", landing).release()
    assert [record.message for record in caplog.records] == ["root.landing_not_locked"] * 2


def test_a_landing_folder_that_is_none_or_no_folder_is_not_locked(tmp_path: Path) -> None:
    for landing in ("", str(tmp_path / "none")):
        Lease(catalog("main"), "first", landing).release()
    assert list(tmp_path.iterdir()) == []
