"""The lander's journal: its id, the received sequence numbers, the revision numbers of definitions.

It is a SQLite file in the landing folder, hidden from Spark. If it is lost, frames are landed twice, and the root drops
one copy. The id has a second copy in the folder, and is in each landing file, so that children keep the same parent
(docs/protocol.md 3.7, 3.8 j).
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.ports.sqlite_file import SqliteFile, UnusableError, sync_folder
from edge_agent.wire import landing, snapshot

log = logging.getLogger("headwater.lander")
VERSION: Final = 1
NAME: Final = ".lander.db"
LOCK: Final = ".lander.lock"
SECOND_COPY: Final = ".lander.id"  # second copy of version, id and node
NEWEST_FILES: Final = 10  # newest landing files to search for the id: some may be damaged


class Journal:
    """The journal of a landing folder; a second process on the same folder is refused."""

    def __init__(self, folder: Path, node: str) -> None:
        """node: id of the root; the folder of another root is refused. Raises: ConfigError, PortError."""
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
        self.rebuilt = False  # whether the slots of an earlier run are lost
        if found is None:
            known = self._from_folder()
            self.rebuilt = known is not None
            about = known or self._about(secrets.randbits(63) | 1)
            self._check(about)
            db.execute("INSERT INTO slots VALUES ('about', ?)", (snapshot.dumps(about),))
            sync_folder(self.folder)  # receipts name the id of this journal: it must survive a power cut
        else:
            self._check(snapshot.loads(found[0]))
        self._file.trust()
        self._write_second_copy()
        db.execute("PRAGMA synchronous=NORMAL")  # later content may be lost

    def _about(self, journal: int) -> dict[str, Any]:
        return {"version": VERSION, "journal": journal, "node": self.node}

    def _from_folder(self) -> Mapping[str, Any] | None:
        """The `_about` of the former journal, from its second copy or a landing file; None: there was no journal.

        Raises: PortError if the disk cannot be read. A new id instead would be a new parent for every child.
        """
        about: Mapping[str, Any] | None = None
        try:
            with suppress(FileNotFoundError):
                about = _unsealed((self.folder / SECOND_COPY).read_bytes())
            files = () if about is not None else sorted(self.folder.glob(f"*{landing.SUFFIX}"))[-NEWEST_FILES:]
            for path in reversed(files):
                with suppress(WireError, StopIteration, FileNotFoundError):  # the root may have deleted it just now
                    topic, _, payload = next(landing.iterate(path.read_bytes()))
                    if topic == landing.TICK_TOPIC:
                        about = self._about(landing.tick(payload).journal)
                        break
        except OSError as err:
            raise PortError(f"cannot read the landing folder {self.folder}: {err.strerror}") from err
        if about is not None:
            log.warning("journal.rebuilt", extra={"journal": f"{about['journal']:016x}"})
        return about

    def _write_second_copy(self) -> None:
        """Write the second copy of the id. If the disk is full, only warn: the next start tries again."""
        path, content = self.folder / SECOND_COPY, _sealed(snapshot.dumps(self._about(self.id)))
        part = path.with_name(f"{SECOND_COPY}.tmp")
        try:
            if path.exists() and path.read_bytes() == content:
                return
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
            sync_folder(self.folder)
        except OSError as err:
            log.warning("journal.no_second_copy", extra={"why": err.strerror})
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _check(self, about: Mapping[str, Any]) -> None:
        if about["version"] > VERSION:
            raise ConfigError(
                f"{self.folder / NAME} is of version {about['version']}, this headwater reads up to {VERSION}: run the "
                "newer headwater, or set another [lander] folder (landing files in this one are then not read)"
            )
        if about["version"] != VERSION:
            raise WireError(f"journal of version {about['version']}: this lander reads version {VERSION}")
        if about["node"] != self.node:
            raise ConfigError(
                f"{self.folder} belongs to root {about['node']!r}, but this is root {self.node!r}: set another "
                "[lander] folder (landing files in this one are then not read)"
            )
        self.id = int(about["journal"])

    def slots(self, prefix: str) -> dict[str, Any]:
        """The slots whose names begin with the prefix: name without the prefix -> value."""
        found = self._file.db.execute("SELECT name, value FROM slots WHERE name GLOB ?", (f"{prefix}*",)).fetchall()
        return {name.removeprefix(prefix): snapshot.loads(value) for name, value in found}

    def keep(self, prefix: str, slots: Mapping[str, object | None]) -> None:
        """Write slots under prefix + name, in one transaction; None deletes a slot. Raises: PortError."""
        rows = [(prefix + name, snapshot.dumps(value)) for name, value in slots.items() if value is not None]
        gone = [(prefix + name,) for name, value in slots.items() if value is None]
        try:
            with self._file.db as db:
                db.execute("BEGIN")
                db.executemany("DELETE FROM slots WHERE name = ?", gone)
                db.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?)", rows)
        except sqlite3.Error as err:
            raise PortError(f"cannot write the journal {self.folder / NAME}: {err}") from err

    def close(self) -> None:
        self._file.close()


def _sealed(content: bytes) -> bytes:
    """Append a CRC-32. With one bit of the id changed, children would see another parent."""
    return content + zlib.crc32(content).to_bytes(4, "big")


def _unsealed(content: bytes) -> Mapping[str, Any] | None:
    if len(content) < 4 or zlib.crc32(content[:-4]) != int.from_bytes(content[-4:], "big"):
        return None
    about: Mapping[str, Any] = snapshot.loads(content[:-4])
    return about
