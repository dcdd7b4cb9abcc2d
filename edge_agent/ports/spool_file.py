"""The file of a spool: its tables, its version and node, and the disk space that it reserves for receipts."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from edge_agent.errors import ConfigError
from edge_agent.ports.sqlite_file import PAGE_BYTES, WAL_BYTES, SqliteFile, UnusableError, real_path, sync_folder

VERSION: Final = 1  # of the tables below; a file with a higher version was written by a newer headwater

AHEAD_PAGES: Final = 16  # extra pages per allocation, so that not every commit allocates
MOST_PAGES: Final = 0xFFFFFFFE  # SQLite's own limit
LEAST_BYTES: Final = 64 * 1024  # smallest useful log: a commit of receipts fits

CHECK: Final = "check"  # a row of meta: the CRC-32 of version and node; files of earlier releases have none
LOST: Final = "lost"  # a row of meta: the past of the node was set aside, and no commit has followed

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE slots (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, sent INTEGER NOT NULL DEFAULT 0,
  crc INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (epoch, seq));
"""
OURS: Final = (b"CREATE TABLE slots (", b"CREATE TABLE frames (", b"TRIGGER slot_added")  # one survives a damaged page
HEAD_BYTES: Final = 64 * 1024  # they are on the first page of a file, or in the first frames of its log
USUAL_NAME: Final = "spool.db"
TRACES: Final = (".lock", ".reserve", ".malformed")  # of the names of files that a spool leaves beside it
USES: Final = (
    "SELECT id, epoch, seq, sent, crc, payload FROM frames",
    "INSERT INTO frames (epoch, seq, crc, payload) VALUES (0, 0, 0, 0) ON CONFLICT (epoch, seq) DO UPDATE SET crc = 0",
    "INSERT INTO slots VALUES (0, 0, 0) ON CONFLICT (name) DO UPDATE SET crc = 0, value = 0",
)

# The names of the slots, apart from the slots: a name that a flipped bit changed is not listed, and the listed one is
# missing. Each name is stored twice, so that a bit flipped here is harmless. SQLite's triggers keep the list, so that
# it is also true after commits by a headwater that does not know it.
NAMES: Final = (
    "CREATE TABLE slot_names (name TEXT NOT NULL, again TEXT NOT NULL)",
    "CREATE TRIGGER slot_added AFTER INSERT ON slots BEGIN INSERT INTO slot_names VALUES (NEW.name, NEW.name); END",
    """CREATE TRIGGER slot_deleted AFTER DELETE ON slots BEGIN
  DELETE FROM slot_names WHERE OLD.name IN (name, again); END""",
    """CREATE TRIGGER slot_renamed AFTER UPDATE OF name ON slots BEGIN
  UPDATE slot_names SET name = NEW.name, again = NEW.name WHERE OLD.name IN (name, again); END""",
    "INSERT INTO slot_names SELECT name, name FROM slots",
)


class SpoolFile(SqliteFile):
    """The SQLite file of one node's spool. Frames can be deleted even on a full disk, because the space is reserved.

    Every page of the database is allocated before the commit that adds it, so that a checkpoint needs no new space. The
    write-ahead log has its full size from the start. Deleting frames needs no other space, and frees pages for new
    frames. SQLite deletes the log when it closes the file; until the next start, `<path>.reserve` takes its space.
    """

    def __init__(self, path: Path, node: str) -> None:
        """node: id of the node that owns the spool."""
        what, path = f"the spool {path}", real_path(path)
        super().__init__(path, Path(f"{path}.lock"), what)
        self.node = node
        self.lost = False  # the past of the node was set aside, and no commit has followed
        self._aside = False  # this process has set the file aside
        self._reserve = Path(f"{path}.reserve")
        self._handle: int | None = None  # for posix_fallocate; closing it releases SQLite's locks, so it stays open

    def take(self) -> None:
        """Lock out other processes. Raises: as SqliteFile.take; ConfigError if the file is none of ours.

        A file that cannot be read is set aside, but only a spool: [spool] path may name a file of the user by mistake.
        """
        if self.path.is_file() and not self._is_ours():
            raise ConfigError(
                f"{self.what} is another file, no spool of headwater: set another [spool] path, or move the file away"
            )
        super().take()

    def _is_ours(self) -> bool:
        """Whether the file is a spool, damaged or not. Called before the lock is made, which says so from then on."""
        if self.path.name == USUAL_NAME or any(Path(f"{self.path}{tail}").exists() for tail in TRACES):
            return True
        try:
            if not self.path.stat().st_size:  # the disk was full when it began
                return True
            heads = [_head(self.path), _head(Path(f"{self.path}-wal"))]
        except OSError:  # `open` says what is wrong
            return True
        return any(text in head for text in OURS for head in heads)

    def open(self) -> sqlite3.Connection:
        """Open the database; create it if there is none.

        Raises: UnusableError if the file is not a spool, ConfigError if it belongs to another node or a newer version,
        sqlite3.Error.
        """
        db = super().open()
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise UnusableError("an SQLite database, but not a spool of headwater")
            self._begin(db)
        meta = dict(db.execute("SELECT name, value FROM meta"))
        self._check(meta)
        for use in USES:  # a changed bit in the text of the schema shows here, and not at each commit
            db.execute(f"EXPLAIN {use}").fetchall()
        if CHECK not in meta:
            with suppress(sqlite3.OperationalError):  # on a full disk the next start does the same again
                db.execute("INSERT INTO meta VALUES (?, ?)", (CHECK, _sum(meta)))
        self.lost = LOST in meta
        self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._reserve.unlink(missing_ok=True)
        _allocate(Path(f"{self.path}-wal"), WAL_BYTES)
        self._list_names(db)
        return db

    def _list_names(self, db: sqlite3.Connection) -> None:
        """Begin the list of slot names, in a new file or one of an older headwater."""
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'slot_names'").fetchone():
            return
        try:
            db.execute("BEGIN IMMEDIATE")
            for statement in NAMES:
                db.execute(statement)
            self.allocate_pages()
            db.execute("COMMIT")
        except (sqlite3.OperationalError, OSError):  # the disk is full: a later start begins the list
            if db.in_transaction:
                db.execute("ROLLBACK")

    def slot_names(self) -> list[tuple[bytes, bytes]]:
        """The listed names of the slots, each twice; they differ if one is damaged. Empty if there is no list yet."""
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'slot_names'").fetchone():
            return []
        return self.db.execute("SELECT CAST(name AS BLOB), CAST(again AS BLOB) FROM slot_names").fetchall()

    def delete_misnamed(self, rows: Iterable[int]) -> None:
        """Delete slots by row, in the open transaction, and list the others anew. Raises: sqlite3.Error"""
        self.db.execute("PRAGMA writable_schema=ON")  # a row that the index has under another name is then no error
        try:
            self.db.executemany("DELETE FROM slots WHERE rowid = ?", [(row,) for row in rows])
        finally:
            self.db.execute("PRAGMA writable_schema=OFF")
        self.db.execute("REINDEX slots")  # the index holds the former names
        if self.slot_names():
            self.db.execute("DELETE FROM slot_names")
            self.db.execute("INSERT INTO slot_names SELECT name, name FROM slots")

    def set_aside(self, word: str, why: str = "") -> Path:
        """Rename the file. The next `open` creates a new one, with a note that the past is lost."""
        self._aside = True
        return super().set_aside(word, why)

    def allocate_pages(self) -> None:
        """Allocate the pages that the open transaction added, before COMMIT. Raises: OSError if the disk is full."""
        ((pages,),) = self.db.execute("PRAGMA page_count")
        assert self._handle is not None
        if os.fstat(self._handle).st_size < pages * PAGE_BYTES:
            os.posix_fallocate(self._handle, 0, (pages + AHEAD_PAGES) * PAGE_BYTES)

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use, without free pages."""
        ((pages,),) = self.db.execute("PRAGMA page_count")
        ((free,),) = self.db.execute("PRAGMA freelist_count")
        return int(pages - free) * PAGE_BYTES

    def start_log_anew(self) -> None:
        """Checkpoint the log into the database, so that the next commit can use the whole log. Raises: sqlite3.Error"""
        self.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def has_pages_for(self, size_bytes: int) -> bool:
        """Whether size_bytes fit into the free pages; an estimate."""
        ((free,),) = self.db.execute("PRAGMA freelist_count")
        return size_bytes <= int(free) * PAGE_BYTES

    @contextmanager
    def without_log(self) -> Iterator[None]:
        """Replace the log by a rollback journal, for one commit that is larger than the log. Raises: sqlite3.Error

        With a rollback journal SQLite writes to free pages directly, and saves the former content of other pages only.
        The journal uses the space of the log. The commit is durable before it returns, as with the log.
        """
        self.start_log_anew()
        self.db.execute("PRAGMA journal_mode=DELETE").fetchall()
        ((pages,),) = self.db.execute("PRAGMA page_count")
        self.db.execute(f"PRAGMA max_page_count={pages}").fetchall()  # do not grow into the space of the log
        try:
            yield
        finally:
            self.db.execute(f"PRAGMA max_page_count={MOST_PAGES}").fetchall()
            self.db.execute("PRAGMA journal_mode=WAL").fetchall()
            _allocate(Path(f"{self.path}-wal"), WAL_BYTES)

    def _close_db(self) -> None:
        was_open = self._db is not None
        super()._close_db()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if was_open and not Path(f"{self.path}-wal").exists():
            _allocate(self._reserve, WAL_BYTES)

    def _begin(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for statement in TABLES.split(";"):
            db.execute(statement)
        meta = {"version": str(VERSION), "node": self.node}
        meta[CHECK] = _sum(meta)
        if self._aside or self._doubt.exists():  # the first commit deletes this note
            meta[LOST] = "a spool was set aside"
        db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        db.execute("COMMIT")
        with suppress(sqlite3.OperationalError):  # the first boot reads the node, as root, and so without the log
            self.start_log_anew()
        self.trust()
        sync_folder(self.path.parent)

    def _check(self, meta: dict[str, str]) -> None:
        """Refuse a file of another version or another node. Raises: UnusableError if it is damaged, ConfigError."""
        if meta.get(CHECK, sums := _sum(meta)) != sums:
            raise UnusableError("its version or its node is damaged")
        version = int(meta["version"]) if meta.get("version", "").isdecimal() else 0
        if version > VERSION:
            raise ConfigError(
                f"{self.what} is of version {version}, this headwater reads up to {VERSION}: run the newer headwater, "
                "or set another [spool] path (the frames in this spool are then not sent)"
            )
        if version != VERSION:
            raise UnusableError(f"its version is {meta.get('version')}, but this headwater reads version {VERSION}")
        if "node" not in meta:
            raise UnusableError("it names no node")
        if meta["node"] != self.node:
            raise ConfigError(
                f"{self.what} belongs to node {meta['node']!r}, but this is node {self.node!r}: "
                "set another [spool] path, or move the file away"
            )


def _head(path: Path) -> bytes:
    """The begin of a file; empty if there is none. Raises: OSError."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        return b""


def _sum(meta: Mapping[str, str]) -> str:
    """The row CHECK. Later versions have to write the same, so that an earlier one names the version it cannot read."""
    of = f"{meta.get('version')} {meta.get('node')}"
    return f"{zlib.crc32(of.encode()):08x}"


def _allocate(path: Path, size_bytes: int) -> None:
    """Allocate size_bytes for a file, or half, a quarter and so on if the disk has less space."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while size_bytes >= LEAST_BYTES:
                try:
                    os.posix_fallocate(handle, 0, size_bytes)
                    return
                except OSError:
                    size_bytes //= 2
        finally:
            os.close(handle)
