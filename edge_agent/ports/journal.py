"""The lander's journal: its id, the received sequence numbers, the revision numbers of definitions.

It is a SQLite file in the landing folder, hidden from Spark. If it is lost, frames are landed twice, and the root drops
one copy. The id has a second copy in the folder, and is in each landing file, so that children keep the same parent
(docs/protocol.md 3.7, 3.8 j).

SQLite does not notice a changed bit in a value, so each value ends with a CRC-32. Values that an earlier version wrote
have none; an earlier version ignores it.
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
from edge_agent.ports.sqlite_file import SqliteFile, UnusableError, from_outside, sync_folder
from edge_agent.wire import landing, snapshot

log = logging.getLogger("headwater.lander")
VERSION: Final = 1
NAME: Final = ".lander.db"
LOCK: Final = ".lander.lock"
SECOND_COPY: Final = ".lander.id"  # second copy of version, id and node
ABOUT: Final = b"about"  # slot with version, id and node
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
            except (UnusableError, sqlite3.DatabaseError, WireError, UnicodeDecodeError) as err:
                if from_outside(err):
                    raise PortError(f"cannot use the journal {folder / NAME}: {err}") from err
                aside = self._file.set_aside("unusable", str(err))
                log.error("journal.unusable", extra={"why": str(err), "kept_as": str(aside)})
                self._open()
        except (UnusableError, sqlite3.Error, OSError) as err:
            self.close()
            raise PortError(f"cannot use the journal {folder / NAME}: {err}") from err
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        db = self._file.open()
        db.execute("CREATE TABLE IF NOT EXISTS slots (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        found = db.execute("SELECT value FROM slots WHERE name = 'about'").fetchone()
        self.rebuilt = False  # whether slots of an earlier run are lost
        if found is None:
            known = self._from_folder(None)
            self.rebuilt = known is not None
            if known is not None:
                log.warning("journal.rebuilt", extra={"journal": f"{known['journal']:016x}"})
            about = known or self._about(secrets.randbits(63) | 1)
            self._check(about)
            db.execute("INSERT INTO slots VALUES ('about', ?)", (_sealed(snapshot.dumps(about), ABOUT),))
            sync_folder(self.folder)  # receipts name the id of this journal: it must survive a power cut
        else:
            about = self._trusted(found[0])
            self._check(about)
            sealed = _sealed(snapshot.dumps(about), ABOUT)
            if found[0] != sealed:
                with suppress(sqlite3.OperationalError):  # on a full disk the next start does the same again
                    db.execute("UPDATE slots SET value = ? WHERE name = 'about'", (sealed,))
        self._file.trust()
        self._write_second_copy()
        db.execute("PRAGMA synchronous=NORMAL")  # later content may be lost

    def _about(self, journal: int) -> dict[str, Any]:
        return {"version": VERSION, "journal": journal, "node": self.node}

    def _trusted(self, content: object) -> Mapping[str, Any]:
        """What the slot `about` says if its checksum fits, else what the folder says.

        content: of the slot. An earlier version wrote no checksum, so the id is compared with that in the folder: with
        one changed bit of it, every child would see another parent. Raises: WireError if no id is left. PortError.
        """
        about: Mapping[str, Any] | None = None
        with suppress(WireError, ValueError):
            about, checked = _read(content, ABOUT)
            if checked:
                return about
            about = about if _is_about(about) else None
        known = self._from_folder(about) or about
        if known is None:
            raise WireError("its id is damaged, and nothing in the folder has it")
        if known != about:
            log.error("journal.id_damaged", extra={"journal": f"{known['journal']:016x}"})
        return known

    def _from_folder(self, about: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The `_about` of this folder, from its second copy or a landing file; None: neither has it.

        about: what the journal says besides the id, which is all that landing files say. Raises: PortError if the disk
        cannot be read. A new id instead would be a new parent for every child.
        """
        try:
            with suppress(FileNotFoundError):
                if (copy := _unsealed((self.folder / SECOND_COPY).read_bytes())) is not None:
                    return copy
            for path in reversed(sorted(self.folder.glob(f"*{landing.SUFFIX}"))[-NEWEST_FILES:]):
                if not path.is_file():  # a folder, or a pipe, which would block
                    continue
                with suppress(WireError, StopIteration, FileNotFoundError):  # the root may have deleted it just now
                    topic, _, payload = next(landing.iterate(path.read_bytes()))
                    if topic == landing.TICK_TOPIC:
                        journal = landing.tick(payload).journal
                        return {**(about or self._about(journal)), "journal": journal}
        except OSError as err:
            named = err.filename or self.folder  # one file of the folder may be what cannot be read
            raise PortError(f"cannot read {named} of the landing folder {self.folder}: {err.strerror}") from err
        return None

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
        """The slots whose names begin with the prefix: name without the prefix -> value.

        A damaged slot is left out with a warning, and deleted: frames that it named land twice, and the root drops one
        copy.
        """
        db, out = self._file.db, dict[str, Any]()
        query = "SELECT CAST(name AS BLOB), value FROM slots WHERE name GLOB ?"  # a damaged name may be no text
        for raw, content in db.execute(query, (f"{prefix}*",)).fetchall():
            name = raw.decode("utf-8", "replace")
            try:
                out[name.removeprefix(prefix)], _ = _read(content, raw)
            except (WireError, ValueError) as err:
                self.rebuilt = True
                log.warning("journal.slot_damaged", extra={"slot": name, "why": str(err)})
                with suppress(sqlite3.Error):
                    db.execute("DELETE FROM slots WHERE CAST(name AS BLOB) = ?", (raw,))
        return out

    def keep(self, prefix: str, slots: Mapping[str, object | None]) -> None:
        """Write slots under prefix + name, in one transaction; None deletes a slot. Raises: PortError."""
        kept = {prefix + name: snapshot.dumps(value) for name, value in slots.items() if value is not None}
        rows = [(name, _sealed(value, name.encode())) for name, value in kept.items()]
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


def _sealed(content: bytes, name: bytes = b"") -> bytes:
    """Append a CRC-32 of the content and the name of its slot."""
    return content + zlib.crc32(name + content).to_bytes(4, "big")


def _fits(content: bytes, name: bytes = b"") -> bool:
    return len(content) >= 4 and zlib.crc32(name + content[:-4]) == int.from_bytes(content[-4:], "big")


def _unsealed(content: bytes) -> Mapping[str, Any] | None:
    if not _fits(content):
        return None
    about: Mapping[str, Any] = snapshot.loads(content[:-4])
    return about


def _read(content: object, name: bytes) -> tuple[Any, bool]:
    """Decode a slot. Returns (value, whether it has a checksum). Raises: WireError or ValueError if it is damaged."""
    if not isinstance(content, bytes):
        raise WireError("no bytes")
    if _fits(content, name):
        return snapshot.loads(content[:-4]), True
    value = snapshot.loads(content)  # as an earlier version wrote it; the decoder ignores what follows the value
    if snapshot.dumps(value) != content:
        raise WireError("its checksum does not fit")
    return value, False


def _is_about(value: object) -> bool:
    """Whether a value has the form of the slot `about`."""
    match value:
        case {"version": int(), "journal": int(), "node": str()}:
            return True
    return False
