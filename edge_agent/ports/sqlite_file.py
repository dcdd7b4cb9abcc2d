"""A SQLite file of one process: locked, opened with a write-ahead log, set aside when it cannot be used.

An unusable file is never deleted: it is renamed, and a new one is created. A small file is checked completely when it
is opened. For a large file the check would delay the start too long, so damaged pages are found when they are read. The
process then writes a file `<name>.malformed` beside it, and the next start sets the SQLite file aside.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError

WAL_BYTES: Final = 4 * 1024 * 1024  # the log is cut back to this after a checkpoint
PAGE_BYTES: Final = 4096  # one page of flash; also SQLite's default
CHECKED_BYTES: Final = 32 * 1024 * 1024  # larger files are not checked; a slow card reads this in 2 s
TAILS: Final = ("-wal", "-shm", "-journal", "")  # of the names of a database's files
BEGUN_BYTES: Final = 64 * 1024  # smaller files may be successors that a full disk did not let begin
NO_REASON: Final = "an earlier start found it damaged"
KEPT_ASIDE: Final = 3  # files set aside that remain: on a card that fails they would fill the disk
OUTSIDE: Final = (  # errors of the disk, the system or another process: the file itself may be good
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
)
MALFORMED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)  # the file is damaged: trying again cannot help


def real_path(path: Path) -> Path:
    """The path without links. Of links in a circle some stay, and whoever opens the file meets the OSError.

    `Path.resolve` raises a RuntimeError there before Python 3.13.
    """
    return Path(os.path.realpath(path))


class UnusableError(Exception):
    """The file cannot be used. Only the ports raise and catch this."""

    def __init__(self, why: str, word: str = "corrupt") -> None:
        """word: part of the new name of the file."""
        super().__init__(why)
        self.word = word


class SqliteFile:
    """One file and its lock. Call `take`, then `open`; after an UnusableError `set_aside`, then `open` again."""

    def __init__(self, path: Path, lock: Path, what: str) -> None:
        """what: how messages name the file, like 'the spool /var/lib/headwater/spool.db'."""
        path = real_path(path)  # SQLite's log is beside the target of a link, so all other files must be too
        self.path, self.what = path, what
        self._lock_path = lock
        self._doubt = path.with_name(f"{path.name}.malformed")  # contains the error
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """The open database. Raises: ValueError if it is not open."""
        if self._db is None:
            raise ValueError(f"{self.what} is not open")
        return self._db

    def take(self) -> None:
        """Lock out other processes.

        Raises: PortError if one uses the file, folder or lock cannot be written, or the path is no plain file.
        """
        if os.path.exists(self.path) and not os.path.isfile(self.path):  # noqa: PTH110, PTH113 - they raise nothing
            # SQLite says `disk I/O error` of a device, and a log and reserve would lie beside it, in /dev
            raise PortError(f"{self.what} is no plain file, but a folder, device or pipe: choose another path")
        try:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = self._locked()
        except OSError as err:
            if os.path.exists(self._lock_path):  # noqa: PTH110 - it raises nothing
                raise PortError(f"cannot use {self._lock_path}, the lock of {self.what}: {err.strerror}") from err
            raise PortError(f"cannot write the folder {self.path.parent} of {self.what}: {err.strerror}") from err

    def _locked(self) -> int:
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise PortError(f"{self.what} is in use by process {owner}: stop it, or choose another path") from None
        with suppress(OSError):  # on a full disk only the error message for the next process lacks our number
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
        return lock

    def open(self) -> sqlite3.Connection:
        """Open the database. Raises: UnusableError if it is damaged, sqlite3.Error."""
        fresh = not self.path.exists() or not self.path.stat().st_size  # empty: the disk was full when it began
        if self._doubt.exists() and not fresh and self._has_rows():
            raise UnusableError(self._doubt.read_text("utf-8", "replace").strip() or NO_REASON)
        # one process, though several threads; no other process reads it, so no shared-memory file is needed
        self._db = db = sqlite3.connect(self.path, isolation_level=None, cached_statements=32, check_same_thread=False)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA secure_delete=OFF")  # Debian's default ON overwrites each deleted frame
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
        small = not fresh and self.path.stat().st_size <= CHECKED_BYTES
        verdict = str(db.execute("PRAGMA quick_check(1)").fetchone()[0]) if small else "ok"
        if verdict != "ok":
            raise UnusableError(verdict.replace("\n", " "))
        return db

    def doubt(self, err: sqlite3.Error) -> bool:
        """Whether an error shows that the file is damaged. If so, the next start sets the file aside."""
        if err.sqlite_errorcode & 0xFF not in MALFORMED:
            return False
        self.suspect(str(err))
        return True

    def suspect(self, why: str) -> None:
        """Let the next start set the file aside, unless `trust` is called before."""
        with suppress(OSError):
            self._doubt.write_text(f"{why}\n", "utf-8")

    def _has_rows(self) -> bool:
        """Whether the file may have rows. If not, it is the successor of one set aside, and the disk was full when it
        began; `open` goes on with it.

        Raises: sqlite3.Error if the disk fails.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        if max(file.stat().st_size for file in (self.path, log) if file.exists()) >= BEGUN_BYTES:
            return True
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                return True
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return any(db.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for name in names)  # noqa: S608 - its own
        except sqlite3.Error as err:
            if from_outside(err):
                raise
            return True
        finally:
            db.close()

    def set_aside(self, word: str, why: str = "") -> Path:
        """Rename the file to `<name>.<word>-<number>`. Returns that path. Call `trust` when its successor is complete.

        Of the files set aside the newest KEPT_ASIDE remain. Until `trust` is called `<name>.malformed` remains, with
        the reason, so that a process that is killed before does not hide what happened.
        """
        self._close_db()
        if not self._doubt.exists() or not self._doubt.stat().st_size:
            self.suspect(
                why
            )  # on a full disk it has no reason, or a kill before the successor is complete is not noticed
        begin = f"{self.path.name}.{word}-"
        ends = (path.name.removeprefix(begin) for path in self.path.parent.iterdir() if path.name.startswith(begin))
        numbers = sorted(int(end) for end in ends if end.isdecimal())
        aside = self.path.with_name(f"{begin}{numbers[-1] + 1 if numbers else 1}")
        for tail in TAILS:  # no new file beside an old log
            piece = self.path.with_name(self.path.name + tail)
            if piece.exists():
                piece.rename(aside.with_name(aside.name + tail))
        for number in numbers[: 1 - KEPT_ASIDE]:
            for tail in TAILS:
                with suppress(OSError):
                    self.path.with_name(f"{begin}{number}{tail}").unlink(missing_ok=True)
        sync_folder(self.path.parent)
        return aside

    def trust(self) -> None:
        """Note that the file is good: it is the complete successor of one set aside, or a suspicion was wrong."""
        self._doubt.unlink(missing_ok=True)

    def close(self) -> None:
        self._close_db()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_db(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def from_outside(err: Exception) -> bool:
    """Whether an error of SQLite may be none of the file. A table or column that is gone, or no UTF-8, is damage."""
    code = getattr(err, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # Python's own errors have none
    return isinstance(err, sqlite3.OperationalError) and code & 0xFF in OUTSIDE


def from_disk(err: Exception) -> bool:
    """Whether an error is of the disk, the system or a damaged file, and of nothing that was to be written."""
    code = getattr(err, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    damaged = isinstance(err, sqlite3.DatabaseError) and code & 0xFF in MALFORMED
    return isinstance(err, PortError) or damaged or from_outside(err)


def sync_folder(folder: Path) -> None:
    """Fsync a folder: a new or renamed file is durable only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
