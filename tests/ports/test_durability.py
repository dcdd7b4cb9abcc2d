"""What SQLite is told about power cuts. What a cut really leaves: tests/processes/test_powercut.py."""

from __future__ import annotations

from pathlib import Path

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
