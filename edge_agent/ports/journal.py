"""The lander's journal: its id, the received sequence numbers, the revision numbers of definitions.

SQLite in the landing folder, hidden from Spark. Losing the last of it only lands a frame twice; losing all of it makes
a new journal, which children meet with a new epoch (docs/protocol.md 3.7).
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.ports.sqlite_file import SqliteFile, UnusableError, sync_folder
from edge_agent.wire import snapshot

log = logging.getLogger("headwater.lander")
VERSION: Final = 1
NAME: Final = ".lander.db"
LOCK: Final = ".lander.lock"


class Journal:
    """The journal of a landing folder; a second process on the same folder is refused."""

    def __init__(self, folder: Path, node: str) -> None:
        """node: id of the root; a folder of another one is refused. Raises: ConfigError, PortError."""
        self.folder, self.node = folder, node
        self._file = SqliteFile(folder / NAME, folder / LOCK, f"the landing folder {folder}")
        self._file.take()
        try:
            try:
                self._open()
            except (UnusableError, sqlite3.DatabaseError, WireError) as err:
                if isinstance(err, sqlite3.OperationalError):  # disk full, read-only: the journal itself may be good
                    raise PortError(f"cannot use the journal {folder / NAME}: {err}") from err
                aside = self._file.set_aside("unusable")
                log.error("journal.unusable", extra={"why": str(err), "kept_as": str(aside)})
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        db = self._file.open()
        db.execute("CREATE TABLE IF NOT EXISTS slots (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        found = db.execute("SELECT value FROM slots WHERE name = 'about'").fetchone()
        if found is None:
            self.id = secrets.randbits(63) | 1
            about = snapshot.dumps({"version": VERSION, "journal": self.id, "node": self.node})
            db.execute("INSERT INTO slots VALUES ('about', ?)", (about,))
            sync_folder(self.folder)  # a receipt names this journal: it must not vanish with the power
        else:
            self._check(snapshot.loads(found[0]))
        db.execute("PRAGMA synchronous=NORMAL")  # from here on only content that may be lost is written

    def _check(self, about: Mapping[str, Any]) -> None:
        if about["version"] > VERSION:
            raise ConfigError(
                f"{self.folder / NAME} is of version {about['version']}, this headwater reads up to {VERSION}: run the "
                "newer one again, or choose another [lander] folder"
            )
        if about["version"] != VERSION:
            raise WireError(f"journal of version {about['version']}: this lander reads version {VERSION}")
        if about["node"] != self.node:
            raise ConfigError(f"{self.folder} belongs to root {about['node']!r}, this is {self.node!r}")
        self.id = int(about["journal"])

    def slots(self, prefix: str) -> dict[str, Any]:
        """Slots by the rest of their name after the prefix."""
        found = self._file.db.execute("SELECT name, value FROM slots WHERE name GLOB ?", (f"{prefix}*",)).fetchall()
        return {name.removeprefix(prefix): snapshot.loads(value) for name, value in found}

    def keep(self, prefix: str, slots: Mapping[str, object]) -> None:
        """Write slots in one transaction. Raises: PortError."""
        rows = [(prefix + name, snapshot.dumps(value)) for name, value in slots.items()]
        try:
            with self._file.db as db:
                db.execute("BEGIN")
                db.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?)", rows)
        except sqlite3.Error as err:
            raise PortError(f"journal of the lander: {err}") from err

    def close(self) -> None:
        self._file.close()
