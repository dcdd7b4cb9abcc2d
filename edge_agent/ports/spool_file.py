"""The file of a spool: taken for one process, begun or checked, and set aside when it cannot be used.

A file that cannot be used is never deleted: it gets another name, and a new one is begun.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from edge_agent.errors import ConfigError, PortError

VERSION: Final = 1  # of the tables below; a file with a higher one was written by a newer headwater
WAL_BYTES: Final = 4 * 1024 * 1024  # the log is cut back to this after a checkpoint
PAGE_BYTES: Final = 4096  # one page of flash; also SQLite's default, stated because the quota counts in pages

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE slots (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, sent INTEGER NOT NULL DEFAULT 0,
  crc INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (epoch, seq));
"""


class UnusableError(Exception):
    """The file is no spool of ours: why, and the word it is set aside under. Never leaves the spool."""

    def __init__(self, why: str, word: str = "corrupt") -> None:
        super().__init__(why)
        self.word = word


class SpoolFile:
    """One file and its lock. `take`, then `open`; after an UnusableError `set_aside`, then `open` again."""

    def __init__(self, path: Path, node: str, quota_bytes: int | None) -> None:
        """node: whose it is. quota_bytes: beyond it the file grows by `widen` only; None: no limit."""
        self.path = path
        self.node = node
        self.quota_bytes = quota_bytes
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """Raises: ValueError while it is not open."""
        if self._db is None:
            raise ValueError("the spool is not open")
        return self._db

    def take(self) -> None:
        """Keep other processes out. Raises: PortError if one has it, or the folder cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = self._locked()
        except OSError as err:
            raise PortError(f"cannot write the spool folder {self.path.parent}: {err.strerror}") from err

    def _locked(self) -> int:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise PortError(f"the spool {self.path} is in use by process {owner}: stop it first") from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        return lock

    def open(self) -> sqlite3.Connection:
        """The database, begun if there is none.

        Raises: UnusableError for what is no spool of ours, ConfigError for another node's, sqlite3.Error.
        """
        fresh = not self.path.exists()
        self._db = db = sqlite3.connect(self.path, isolation_level=None, cached_statements=32)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")  # one owner: no shared-memory file, no reader locks
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
        if self.quota_bytes is not None:
            limit = max(self.quota_bytes, self.path.stat().st_size) // PAGE_BYTES  # it may be over its quota already
            db.execute(f"PRAGMA max_page_count={max(limit, 16)}")
        if not fresh:
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise UnusableError(str(verdict).replace("\n", " "))
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
        _sync_folder(self.path.parent)

    def _check(self, meta: dict[str, str]) -> None:
        """Whether it is of this version and node."""
        version = int(meta["version"]) if meta.get("version", "").isdecimal() else 0
        if version != VERSION:
            raise UnusableError(
                f"version {meta.get('version')}, this program knows {VERSION}", "newer" if version else "corrupt"
            )
        if meta.get("node") != self.node:
            raise ConfigError(
                f"the spool {self.path} belongs to node {meta.get('node')!r}, this is {self.node!r}: "
                "choose another [spool] path, or move the file away"
            )

    def set_aside(self, word: str) -> Path:
        """Give it another name, with the word in it. Answers the name."""
        if self._db is not None:
            self._db.close()
            self._db = None
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.{word}-{number}")).exists():
            number += 1
        self.path.rename(aside)
        for tail in ("-wal", "-shm"):
            piece = self.path.with_name(self.path.name + tail)
            if piece.exists():
                piece.rename(aside.with_name(aside.name + tail))
        _sync_folder(self.path.parent)
        return aside

    def widen(self, needed_bytes: int) -> bool:
        """Let the file grow beyond its quota; False if it is the disk that is full.

        Refusing would stop the node for good: what makes room, a receipt, comes to disk by a commit too. A machine that
        keeps its quota (docs/protocol.md 3.5) never gets here.
        """
        db = self.db
        (pages,), (limit,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA max_page_count").fetchone()
        wanted = int(pages) + 2 * needed_bytes // PAGE_BYTES + 16  # rows, their indexes, and a leaf half empty
        if self.quota_bytes is None or wanted <= int(limit):
            return False
        db.execute(f"PRAGMA max_page_count={max(wanted, limit + limit // 8)}")
        return True

    def close(self) -> None:
        """Checkpoint and let go."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sync_folder(folder: Path) -> None:
    """A new or renamed file is durable only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
