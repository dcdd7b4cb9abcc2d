"""What the lander keeps beside its files: its journal's id, the ranges received, the numbers given to definitions.

SQLite in the landing folder, hidden from Spark. Losing the last of it only lands a frame twice; losing all of it makes
a new journal, which children meet with a new epoch (docs/protocol.md 3.7).
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.wire import snapshot

log = logging.getLogger("headwater.lander")
VERSION: Final = 1
NAME: Final = ".lander.db"
LOCK: Final = ".lander.lock"


class Journal:
    """Open one for a landing folder; a second process on the same folder is refused."""

    def __init__(self, folder: Path, node: str) -> None:
        """node: id of the root; a folder of another one is refused. Raises: ConfigError, PortError."""
        self.folder, self.node = folder, node
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: TextIO = (folder / LOCK).open("w")
        except OSError as err:
            raise PortError(f"landing folder {folder} cannot be written: {err.strerror}; name another one") from err
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            self._lock.close()
            raise PortError(f"another lander writes to {folder}; stop it, or name another folder") from err
        try:
            self._db = self._opened()
        except BaseException:
            self._lock.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        path = self.folder / NAME
        try:
            return self._prepared(path)
        except (sqlite3.DatabaseError, WireError) as err:
            aside = self._aside(path)
            log.error("journal.unusable", extra={"why": str(err), "kept_as": str(aside)})
            return self._prepared(path)

    def _prepared(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)  # one thread at a time
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE IF NOT EXISTS slots (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
            about = db.execute("SELECT value FROM slots WHERE name = 'about'").fetchone()
            if about is None:
                self.id = secrets.randbits(63) | 1
                db.execute("INSERT INTO slots VALUES ('about', ?)", (self._about(),))
            else:
                self._check(snapshot.loads(about[0]))
            db.execute("PRAGMA synchronous = NORMAL")  # from here on only what may be lost is written
        except BaseException:
            db.close()
            raise
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # a receipt names this journal: it must not vanish with the power
        os.close(folder)
        return db

    def _about(self) -> bytes:
        return snapshot.dumps({"version": VERSION, "journal": self.id, "node": self.node})

    def _check(self, about: Mapping[str, Any]) -> None:
        if about["version"] != VERSION:
            raise WireError(f"journal of version {about['version']}: this lander reads version {VERSION}")
        if about["node"] != self.node:
            raise ConfigError(f"{self.folder} belongs to root {about['node']!r}, this is {self.node!r}")
        self.id = int(about["journal"])

    @staticmethod
    def _aside(path: Path) -> Path:
        number = 0
        while (aside := path.with_name(f"{path.name}.unusable-{number}")).exists():
            number += 1
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def slots(self, prefix: str) -> dict[str, Any]:
        """Slots by what follows the prefix."""
        found = self._db.execute("SELECT name, value FROM slots WHERE name GLOB ?", (f"{prefix}*",)).fetchall()
        return {name.removeprefix(prefix): snapshot.loads(value) for name, value in found}

    def keep(self, prefix: str, slots: Mapping[str, object]) -> None:
        """Write slots in one transaction. Raises: PortError."""
        rows = [(prefix + name, snapshot.dumps(value)) for name, value in slots.items()]
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?)", rows)
        except sqlite3.Error as err:
            raise PortError(f"journal of the lander: {err}") from err

    def close(self) -> None:
        """Let go of file and lock."""
        self._db.close()
        self._lock.close()
