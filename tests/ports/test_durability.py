"""Settings of SQLite for power cuts. What a cut really leaves: tests/faults/test_powercut.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.machines.events import Commit
from edge_agent.ports.spool import Spool
from tests.support.ports.spools import frames, reopened

FULL = 2


def settings(spool: Spool) -> tuple[object, ...]:
    """Of the connection that commits."""
    db = spool._file.db
    return tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "locking_mode"))


def test_a_spool_commits_through_a_synced_log_whether_new_or_found(spool: Spool, path: Path) -> None:
    """protocol 3.1: with synchronous below FULL a power cut takes commits that were acknowledged."""
    assert settings(spool) == ("wal", FULL, "exclusive")
    spool.commit(Commit({"n": 1}, frames=frames(0)))
    assert settings(spool) == ("wal", FULL, "exclusive")
    spool.close()
    again = reopened(path)
    again.open()
    assert settings(again) == ("wal", FULL, "exclusive")
    again.close()


def test_a_new_spool_has_its_name_on_disk_once_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.1: a power cut would take the whole file, with frames that were acknowledged."""
    synced, fsync = list[str](), os.fsync

    def noted(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    spool = reopened(tmp_path / "new" / "spool.db")
    spool.open()
    assert str(tmp_path / "new") in synced
    spool.close()
