"""SQLite on flash: what a node may not lose (docs/protocol.md 3.1).

WAL with synchronous=FULL and one transaction a commit: a power cut costs at most what was not yet committed (with
NORMAL a cut can take every commit since the last checkpoint). Each row carries a CRC-32, checked when it is read. A
file that cannot be used is set aside, never deleted, and a new one is begun.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.events import Commit, Note, Restored, SpooledFrame
from edge_agent.wire import snapshot

VERSION: Final = 1  # of the tables below; a file with a higher one was written by a newer headwater
RECENT_BYTES: Final = 2 * 1024 * 1024  # frames just committed are published next: keep them, save a read
WAL_BYTES: Final = 4 * 1024 * 1024  # the log is cut back to this after a checkpoint
PAGE_BYTES: Final = 4096  # one page of flash; also SQLite's default, stated because the quota counts in pages

Rows = Sequence[tuple[int, int, bytes]]  # (epoch, seq, payload)
Keys = Sequence[tuple[int, int]]  # (epoch, seq)

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE slots (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, sent INTEGER NOT NULL DEFAULT 0,
  crc INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (epoch, seq));
"""


class _UnusableError(Exception):
    """The file is no spool of ours: why, and the word it is set aside under. Never leaves this module."""

    def __init__(self, why: str, word: str = "corrupt") -> None:
        super().__init__(why)
        self.word = word


class DamagedError(PortError):
    """A row whose CRC does not fit: its frame must be replaced by a gap record (docs/protocol.md 3.6)."""


class Spool:
    """One node's spool. Not thread-safe: one owner, the loop.

    node: whose it is; another node's file is refused. encode: Frame -> payload. quota_bytes: beyond it the file
    grows in steps, each with a line (None: no limit). dumps, loads: plain values <-> bytes of the slots.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        encode: Callable[[Frame], bytes],
        *,
        quota_bytes: int | None = None,
        dumps: Callable[[object], bytes] = snapshot.dumps,
        loads: Callable[[bytes], object] = snapshot.loads,
    ) -> None:
        self.path = path
        self.node = node
        self.notes: list[Note] = []  # what an operator should read; whoever logs takes and clears them
        self.frames = 0
        self.bytes = 0
        self._encode, self._dumps, self._loads = encode, dumps, loads
        self._quota_bytes = quota_bytes
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._recent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._recent_bytes = 0
        self._digests: dict[str, bytes] = {}  # of each slot as stored: an unchanged slot is not written again

    # --- opening ---------------------------------------------------------------------------------------------------

    def open(self) -> Restored:
        """Take the file for this process and say what it holds; `lost` if a former file had to be set aside.

        Raises: ConfigError if the spool is another node's, PortError if it is in use or cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as err:
            raise PortError(f"cannot write the spool folder {self.path.parent}: {err.strerror}") from err
        try:
            try:
                return self._read(lost=False)
            except (_UnusableError, sqlite3.DatabaseError) as err:
                if isinstance(err, sqlite3.OperationalError):  # disk full, read-only: the file itself may be good
                    raise
                self._set_aside(str(err), err.word if isinstance(err, _UnusableError) else "corrupt")
            return self._read(lost=True)
        except (_UnusableError, sqlite3.Error, OSError) as err:
            self.close()
            raise PortError(f"cannot use the spool {self.path}: {err}") from err
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise PortError(f"the spool {self.path} is in use by process {owner}: stop it first") from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    def _read(self, *, lost: bool) -> Restored:
        fresh = not self.path.exists()
        self._db = db = sqlite3.connect(self.path, isolation_level=None, cached_statements=32)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")  # one owner: no shared-memory file, no reader locks
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
        if self._quota_bytes is not None:
            limit = max(self._quota_bytes, self.path.stat().st_size) // PAGE_BYTES  # it may be over its quota already
            db.execute(f"PRAGMA max_page_count={max(limit, 16)}")
        if not fresh:
            self._check(db)
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise _UnusableError("a database, but not of headwater")
            db.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", [("version", str(VERSION)), ("node", self.node)])
            db.execute("COMMIT")
            _sync_folder(self.path.parent)
        meta = dict(db.execute("SELECT name, value FROM meta"))
        version = int(meta["version"]) if meta.get("version", "").isdecimal() else 0
        if version != VERSION:
            raise _UnusableError(
                f"version {meta.get('version')}, this program knows {VERSION}", "newer" if version else "corrupt"
            )
        if meta.get("node") != self.node:
            raise ConfigError(
                f"the spool {self.path} belongs to node {meta.get('node')!r}, this is {self.node!r}: "
                "choose another [spool] path, or move the file away"
            )
        return Restored(self._read_slots(db), tuple(self._read_frames(db)), lost)

    @staticmethod
    def _check(db: sqlite3.Connection) -> None:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise _UnusableError(str(verdict).replace("\n", " "))

    def _read_slots(self, db: sqlite3.Connection) -> dict[str, object]:
        state: dict[str, object] = {}
        self._digests.clear()
        for name, crc, value in db.execute("SELECT name, crc, value FROM slots"):
            if zlib.crc32(value) != crc:  # without its dedupe marks a node would count twice: none is better than some
                raise _UnusableError(f"slot {name!r} fails its checksum")
            try:
                state[name] = self._loads(value)
            except WireError as err:
                raise _UnusableError(f"slot {name!r}: {err}") from err
            self._digests[name] = _digest(value)
        return state

    def _read_frames(self, db: sqlite3.Connection) -> Iterator[SpooledFrame]:
        self.frames = self.bytes = 0
        self._recent.clear()
        self._recent_bytes = 0
        for epoch, seq, sent, crc, payload in db.execute(
            "SELECT epoch, seq, sent, crc, payload FROM frames ORDER BY id"
        ):
            self.frames += 1
            self.bytes += len(payload)
            damaged = "" if zlib.crc32(payload) == crc else "fails its checksum"
            if damaged:
                self.notes.append(Note("spool.damaged", {"epoch": epoch, "seq": seq, "size_bytes": len(payload)}))
            yield SpooledFrame(epoch, seq, bool(sent), len(payload), damaged=damaged)

    def _set_aside(self, why: str, word: str) -> None:
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
        self.notes.append(Note("spool.set_aside", {"file": str(aside), "why": why}))

    # --- writing ---------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Make everything in it durable, or nothing. Raises: PortError, and the commit may be tried again."""
        db = self._open_db()
        slots = [(name, None if value is None else self._dumps(value)) for name, value in commit.state.items()]
        digests = {name: None if value is None else _digest(value) for name, value in slots}
        changed = [(name, value) for name, value in slots if digests[name] != self._digests.get(name)]
        frames = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.frames]
        instead = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.replace]
        needed = sum(len(value) for _, value in changed if value) + sum(len(row[2]) for row in (*frames, *instead))
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                _write_slots(db, changed)
                count, size = self._write_frames(db, frames, instead, commit.forget)
                db.executemany("UPDATE frames SET sent = 1 WHERE epoch = ? AND seq = ?", commit.mark_sent)
                db.execute("COMMIT")
                break
            except sqlite3.Error as err:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(err, sqlite3.IntegrityError):
                    raise ValueError(f"a frame was committed twice: {err}") from err
                if err.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._widen(db, needed):
                    raise PortError(f"the spool {self.path} cannot commit: {err}") from err
        self.frames, self.bytes = count, size
        for name, digest in digests.items():
            if digest is None:
                self._digests.pop(name, None)
            else:
                self._digests[name] = digest
        self._remember(frames, instead, commit.forget)

    def _write_frames(self, db: sqlite3.Connection, frames: Rows, instead: Rows, forget: Keys) -> tuple[int, int]:
        """Delete, append and replace; answers how many frames there are then, and their bytes."""
        count, size = self.frames + len(frames), self.bytes + sum(len(payload) for _, _, payload in frames)
        for key in forget:
            for (length,) in db.execute(
                "DELETE FROM frames WHERE epoch = ? AND seq = ? RETURNING length(payload)", key
            ):
                count, size = count - 1, size - length
        db.executemany(
            "INSERT INTO frames (epoch, seq, crc, payload) VALUES (?, ?, ?, ?)",
            [(epoch, seq, zlib.crc32(payload), payload) for epoch, seq, payload in frames],
        )
        for epoch, seq, payload in instead:
            old = db.execute("SELECT length(payload) FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq)).fetchone()
            count, size = count + (old is None), size + len(payload) - (old[0] if old else 0)
            db.execute(
                "INSERT INTO frames (epoch, seq, crc, payload) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (epoch, seq) DO UPDATE SET crc=excluded.crc, payload=excluded.payload",
                (epoch, seq, zlib.crc32(payload), payload),
            )
        return count, size

    def _widen(self, db: sqlite3.Connection, needed_bytes: int) -> bool:
        """Let the file grow beyond its quota, and say so; False if it is the disk that is full.

        Refusing would stop the node for good: what makes room, a receipt, comes to disk by a commit too. A machine that
        keeps its quota (docs/protocol.md 3.5) never gets here.
        """
        (pages,), (limit,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA max_page_count").fetchone()
        wanted = int(pages) + 2 * needed_bytes // PAGE_BYTES + 16  # rows, their indexes, and a leaf half empty
        if self._quota_bytes is None or wanted <= int(limit):
            return False
        db.execute(f"PRAGMA max_page_count={max(wanted, limit + limit // 8)}")
        held = {"quota_bytes": self._quota_bytes, "frames": self.frames, "frame_bytes": self.bytes}
        self.notes.append(Note("spool.over_quota", {"file": str(self.path), **held}))
        return True

    def _remember(
        self,
        frames: Rows,
        instead: Rows,
        forget: Keys,
    ) -> None:
        for key in forget:
            self._recent_bytes -= len(self._recent.pop(key, b""))
        for epoch, seq, payload in (*frames, *instead):
            self._recent_bytes += len(payload) - len(self._recent.pop((epoch, seq), b""))
            self._recent[epoch, seq] = payload
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    # --- reading ---------------------------------------------------------------------------------------------------

    def payload(self, epoch: int, seq: int) -> bytes:
        """The bytes of a committed frame. Raises: DamagedError if they are not what was written, ValueError if none."""
        payload = self._recent.get((epoch, seq))
        if payload is not None:
            return payload
        try:
            row = (
                self._open_db()
                .execute("SELECT crc, payload FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq))
                .fetchone()
            )
        except sqlite3.Error as err:
            raise PortError(f"the spool {self.path} cannot be read: {err}") from err
        if row is None:
            raise ValueError(f"frame ({epoch}, {seq}) is not in the spool")
        crc, payload = row
        if zlib.crc32(payload) != crc:
            self.notes.append(Note("spool.damaged", {"epoch": epoch, "seq": seq, "size_bytes": len(payload)}))
            raise DamagedError(f"frame ({epoch}, {seq}) of the spool {self.path} fails its checksum")
        return bytes(payload)

    def raw(self, epoch: int, seq: int) -> bytes | None:
        """The stored bytes even if damaged, for the quarantine; None if there are none."""
        row = self._open_db().execute("SELECT payload FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq)).fetchone()
        return None if row is None else bytes(row[0])

    def unsent(self) -> Iterator[tuple[int, int]]:
        """(epoch, seq) of frames never marked as sent, in the order of their commits."""
        yield from self._open_db().execute("SELECT epoch, seq FROM frames WHERE sent = 0 ORDER BY id")

    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise ValueError("the spool is not open")
        return self._db

    def close(self) -> None:
        """Checkpoint and let go; the file may be opened again, by this or another process."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _write_slots(db: sqlite3.Connection, slots: Sequence[tuple[str, bytes | None]]) -> None:
    db.executemany("DELETE FROM slots WHERE name = ?", [(name,) for name, value in slots if value is None])
    db.executemany(
        "INSERT INTO slots VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET crc=excluded.crc, value=excluded.value",
        [(name, zlib.crc32(value), value) for name, value in slots if value is not None],
    )


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _sync_folder(folder: Path) -> None:
    """A new or renamed file is durable only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
