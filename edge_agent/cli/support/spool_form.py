"""Reads the form (version numbers) of a spool on the disk, without changing the spool."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from edge_agent.errors import WireError
from edge_agent.machines.checkpoint import slots
from edge_agent.ports import spool_file
from edge_agent.wire import snapshot

OWN = (spool_file.VERSION, slots.VERSION)  # the form that this version writes


def form_of(path: Path) -> tuple[int, int] | None:
    """(version of the file, version of its slots); None if there is no spool or it is damaged: then any version of the
    agent can start, with an empty spool.

    Call it as the user who owns the spool, because SQLite may create files beside it.
    """
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=10.0)) as db:
            ((version,),) = db.execute("SELECT value FROM meta WHERE name = 'version'")
            layout = db.execute("SELECT value FROM slots WHERE name = ?", (slots.LAYOUT.name,)).fetchall()
            return int(version), int(str(snapshot.loads(layout[0][0]))) if layout else 0
    except (sqlite3.Error, ValueError, WireError):
        return None
