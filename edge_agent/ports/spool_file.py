"""The file of a spool: its tables, its version and node, its quota."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from edge_agent.errors import ConfigError
from edge_agent.ports.sqlite_file import PAGE_BYTES, SqliteFile, UnusableError, sync_folder

VERSION: Final = 1  # of the tables below; a file with a higher one was written by a newer headwater

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE slots (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, sent INTEGER NOT NULL DEFAULT 0,
  crc INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (epoch, seq));
"""


class SpoolFile(SqliteFile):
    """The file of one node's spool."""

    def __init__(self, path: Path, node: str, quota_bytes: int | None) -> None:
        """node: whose it is. quota_bytes: beyond it the file grows by `widen` only; None: no limit."""
        super().__init__(path, Path(f"{path}.lock"), f"the spool {path}")
        self.node = node
        self.quota_bytes = quota_bytes

    def open(self) -> sqlite3.Connection:
        """The database, begun if there is none.

        Raises: UnusableError for a file that is no spool of ours, ConfigError for another node's, sqlite3.Error.
        """
        db = super().open()
        if self.quota_bytes is not None:
            limit = max(self.quota_bytes, self.path.stat().st_size) // PAGE_BYTES  # it may be over its quota already
            db.execute(f"PRAGMA max_page_count={max(limit, 16)}")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise UnusableError("a database, but not of headwater")
            self._begin(db)
        self._check(dict(db.execute("SELECT name, value FROM meta")))
        return db

    def _begin(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.executemany("INSERT INTO meta VALUES (?, ?)", [("version", str(VERSION)), ("node", self.node)])
        db.execute("COMMIT")
        sync_folder(self.path.parent)

    def _check(self, meta: dict[str, str]) -> None:
        """Refuses another version and another node."""
        version = int(meta["version"]) if meta.get("version", "").isdecimal() else 0
        if version > VERSION:
            raise ConfigError(
                f"{self.what} is of version {version}, this headwater reads up to {VERSION}: run the newer one again, "
                "or choose another [spool] path (what this one holds is then lost)"
            )
        if version != VERSION:
            raise UnusableError(f"version {meta.get('version')}, this program knows {VERSION}")
        if meta.get("node") != self.node:
            raise ConfigError(
                f"{self.what} belongs to node {meta.get('node')!r}, this is {self.node!r}: "
                "choose another [spool] path, or move the file away"
            )

    def widen(self, needed_bytes: int) -> bool:
        """Let the file grow beyond its quota. Returns False if it is the disk that is full.

        Refusing would stop the node for good: receipts make room, and they come to disk by a commit too. A machine that
        keeps its quota (docs/protocol.md 3.5) never gets here.
        """
        db = self.db
        (pages,), (limit,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA max_page_count").fetchone()
        wanted = int(pages) + 2 * needed_bytes // PAGE_BYTES + 16  # rows, their indexes, and a leaf half empty
        if self.quota_bytes is None or wanted <= int(limit):
            return False
        db.execute(f"PRAGMA max_page_count={max(wanted, limit + limit // 8)}")
        return True
