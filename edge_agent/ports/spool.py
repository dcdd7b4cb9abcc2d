"""The spool stores the frames and checkpoint slots of a node durably, in SQLite on flash (docs/protocol.md 3.1).

It uses a write-ahead log with synchronous=FULL and one transaction per commit, so that a power cut loses no commit.
(With NORMAL it could lose every commit since the last SQLite checkpoint.) Each row has a CRC-32, checked when it is
read. Operations on the whole file are in spool_file.py.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.damage import COSTS_THE_PAST, DISPENSABLE, remains
from edge_agent.machines.events import Commit, Note, Restored, SpooledFrame
from edge_agent.ports.spool_file import LOST, SpoolFile
from edge_agent.ports.sqlite_file import WAL_BYTES, UnusableError, from_outside
from edge_agent.wire import snapshot

log = logging.getLogger("headwater")

MANY_FRAMES: Final = 100_000  # with more frames `bytes` is taken from the pages in use: a sum reads the whole file
RECENT_BYTES: Final = 2 * 1024 * 1024  # cache of frames just committed, because they are published next

BYTES_A_ROW: Final = 64  # overhead of a frame or slot: columns, index

FrameRows = Sequence[tuple[int, int, bytes]]  # (epoch, seq, payload)
FrameKeys = Sequence[tuple[int, int]]  # (epoch, seq)


class DamagedError(PortError):
    """A row whose CRC does not match: a gap record must replace its frame (docs/protocol.md 3.6)."""


class MalformedError(PortError):
    """The file is damaged, so trying again cannot help. The loop ends, and the next `open` sets the file aside."""


class Spool:
    """The spool of one node. Not thread-safe: only the loop uses it.

    node: id of the owner; the file of another node is refused. encode: Frame -> payload. dumps, loads: encode and
    decode the values of slots. frames, bytes: number and total size of the frames in the spool.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        encode: Callable[[Frame], bytes],
        *,
        dumps: Callable[[object], bytes] = snapshot.dumps,
        loads: Callable[[bytes], object] = snapshot.loads,
    ) -> None:
        self.path = path
        self.node = node
        self.notes: list[Note] = []  # notes for the operator; the caller logs and clears them
        self.frames = 0
        self.bytes = 0
        self._encode, self._dumps, self._loads = encode, dumps, loads
        self._file = SpoolFile(path, node)
        self._recent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._recent_bytes = 0
        self._obsolete: set[str] = set()  # damaged slots and slots useless without them: the next commit deletes them
        self._misnamed: list[int] | None = None  # rows whose names are damaged: the next commit deletes them
        self._digests: dict[str, bytes] = {}  # slot -> digest of its stored value: an unchanged slot is not rewritten

    # --- opening ---------------------------------------------------------------------------------------------------

    def open(self) -> Restored:
        """Lock the file for this process and return its content.

        `lost` is set if the past of the node is unknown: the file was unusable and had to be set aside, now or by a
        start without a commit, or a slot that the node needs to continue is damaged. In the last case the frames are
        intact, and the next commit deletes the slots. Raises: ConfigError if the spool belongs to another node, or its
        file has a newer version (spool_file.VERSION; slots of a newer version are refused by the node, see
        slots.check_version), PortError if it is in use or cannot be written.
        """
        self._file.take()
        try:
            try:
                return self._read()
            except (UnusableError, sqlite3.DatabaseError, UnicodeDecodeError) as err:
                if from_outside(err):
                    raise
                aside = self._file.set_aside(err.word if isinstance(err, UnusableError) else "corrupt", str(err))
                told = {"file": str(aside), "why": str(err)}
            try:
                restored = self._read()
            except BaseException:
                log.warning("spool.set_aside", extra=told)  # nobody will log the notes
                raise
            self.notes.insert(0, Note("spool.set_aside", told))
            return restored
        except (UnusableError, sqlite3.Error, OSError) as err:
            self.close()
            raise PortError(f"cannot use the spool {self.path}: {err}") from err
        except BaseException:
            self.close()
            raise

    def _read(self) -> Restored:
        db = self._file.open()
        state, damaged = self._read_slots(db)
        for name, why in damaged.items():
            without = DISPENSABLE.get(name, COSTS_THE_PAST)
            self.notes.append(Note("spool.slot_damaged", {"slot": name, "why": why, "without_it": without}))
        left = remains(state, damaged)
        self._obsolete = set(left.obsolete)
        return Restored(left.state, tuple(self._read_frames(db)), self._file.lost or left.lost)

    def _read_slots(self, db: sqlite3.Connection) -> tuple[dict[str, object], dict[str, str]]:
        """Returns (name -> value of each good slot, name -> error of each damaged slot)."""
        state: dict[str, object] = {}
        damaged: dict[str, str] = {}
        self._digests.clear()
        listed = self._file.slot_names()  # as bytes: a damaged name may be no text
        found = Counter(raw for (raw,) in db.execute("SELECT CAST(name AS BLOB) FROM slots NOT INDEXED"))
        missing = [name for name, again in listed if name not in found and again not in found]
        known = {name for pair in listed for name in pair}
        misnamed: list[int] = []
        for row, raw, crc, value in db.execute("SELECT rowid, CAST(name AS BLOB), crc, value FROM slots"):
            name = raw.decode("utf-8", "replace")
            if raw not in known and missing:  # it is the missing slot, or belongs to none
                misnamed.append(row)
                continue
            try:
                if name.encode() != raw or found[raw] > 1:  # no text, or changed to the name of another slot
                    misnamed.append(row)
                    raise WireError("its name is damaged")
                if zlib.crc32(value) != crc:
                    raise WireError("fails its checksum")
                state[name] = self._loads(value)
            except WireError as err:
                damaged[name] = str(err)
            else:
                self._digests[name] = _digest(value)
        damaged |= {raw.decode("utf-8", "replace"): "is missing, or its name is damaged" for raw in missing}
        self._misnamed = misnamed if misnamed or missing else None
        return state, damaged

    def _read_frames(self, db: sqlite3.Connection) -> Iterator[SpooledFrame]:
        """Yields the frames as runs of sequence numbers, from the indexes. Payloads are read and checked when sent."""
        ((self.frames,),) = db.execute("SELECT count(*) FROM frames")
        if self.frames > MANY_FRAMES:
            self.bytes = self._file.used_bytes
        else:
            ((self.bytes,),) = db.execute("SELECT coalesce(sum(length(payload)), 0) FROM frames")
        self._recent.clear()
        self._recent_bytes = 0
        epochs = db.execute("SELECT epoch, min(id) FROM frames GROUP BY epoch ORDER BY 2").fetchall()
        sent: set[tuple[int, int]] = set()
        for epoch, _ in epochs:  # only within an epoch marks are in order (3.3): another may be of a former parent
            in_order = db.execute("SELECT epoch, seq, sent FROM frames WHERE epoch = ? ORDER BY seq", (epoch,))
            sent.update((epoch, seq) for epoch, seq, _ in takewhile(itemgetter(2), in_order))
        begun: dict[int, int] = {}  # epoch -> its last sent seq + 1
        for epoch, seq in sent:
            begun[epoch] = max(begun.get(epoch, 0), seq + 1)
        for epoch, _ in epochs:
            rest = max(begun.get(epoch, 0), 1)  # seq 0 is the birth; what follows is often one run, found by its ends
            ((low, high, count),) = db.execute(
                "SELECT min(seq), max(seq), count(*) FROM frames WHERE epoch = ? AND seq >= ?", (epoch, rest)
            )
            whole = count > 0 and high - low + 1 == count
            counted = "SELECT seq FROM frames WHERE epoch = ? AND (seq < ? OR ?) ORDER BY seq"
            seqs = (seq for (seq,) in db.execute(counted, (epoch, rest, not whole)))
            first = run = 0
            for seq in seqs:
                if (epoch, seq) not in sent and run and seq == first + run:
                    run += 1
                    continue
                if run:
                    yield SpooledFrame(epoch, first, False, run=run)
                    run = 0
                if seq == 0 or (epoch, seq) in sent:
                    yield SpooledFrame(epoch, seq, (epoch, seq) in sent)
                else:
                    first, run = seq, 1
            if run:
                yield SpooledFrame(epoch, first, False, run=run)
            if whole:
                yield SpooledFrame(epoch, low, False, run=count)

    # --- writing ---------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Make a commit durable, as a whole or not at all.

        Raises: PortError if the commit may be tried again, MalformedError if not.
        """
        slots = [(name, None if value is None else self._dumps(value)) for name, value in commit.state.items()]
        digests = {name: None if value is None else _digest(value) for name, value in slots}
        changed = [(name, value) for name, value in slots if digests[name] != self._digests.get(name)]
        changed += [(name, None) for name in self._obsolete - digests.keys()]
        frames = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.frames]
        instead = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.replace]
        rows = (*(value for _, value in changed), *(payload for *_, payload in (*frames, *instead)))
        size_bytes = sum(len(row or b"") + BYTES_A_ROW for row in rows)
        transact = partial(self._transact, changed, frames, instead, commit)
        try:
            count, size = self._with_room(transact, size_bytes)
        except sqlite3.IntegrityError as err:
            raise ValueError(f"a frame was committed twice: {err}") from err
        except (sqlite3.Error, OSError) as err:
            raise self._failed(err, "cannot commit") from err
        self.frames, self.bytes = count, size
        self._obsolete, self._misnamed, self._file.lost = set(), None, False
        for name, digest in digests.items():
            if digest is None:
                self._digests.pop(name, None)
            else:
                self._digests[name] = digest
        self._remember(frames, instead, commit.forget)

    def _transact(
        self,
        slots: Sequence[tuple[str, bytes | None]],
        frames: FrameRows,
        instead: FrameRows,
        commit: Commit,
        *,
        past_log: bool = False,
    ) -> tuple[int, int]:
        """Run one transaction. Returns (number, total bytes) of the frames after it."""
        db = self._file.db
        try:
            db.execute("BEGIN IMMEDIATE")
            if self._misnamed is not None:
                self._file.delete_misnamed(self._misnamed)
            (_write_slots_beside if past_log else _write_slots)(db, slots)
            held = self._write_frames(db, frames, instead, commit.forget)
            db.executemany("UPDATE frames SET sent = 1 WHERE epoch = ? AND seq = ?", commit.mark_sent)
            if self._file.lost:
                db.execute("DELETE FROM meta WHERE name = ?", (LOST,))
            self._file.allocate_pages()
            db.execute("COMMIT")
        except (sqlite3.Error, OSError):
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return held

    def _with_room(self, transact: Callable[..., tuple[int, int]], size_bytes: int) -> tuple[int, int]:
        """Run a transaction. If the disk is full, run it again with an empty log, and then without the log."""
        try:
            return transact()
        except sqlite3.OperationalError as err:
            if err.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
        self._file.start_log_anew()
        try:
            return transact()
        except sqlite3.OperationalError as err:
            if err.sqlite_errorcode != sqlite3.SQLITE_FULL or size_bytes < WAL_BYTES // 2:
                raise
            if not self._file.has_pages_for(size_bytes):  # receipts must first allow frames to be deleted
                raise
        with self._file.without_log():
            return transact(past_log=True)

    def _failed(self, err: sqlite3.Error | OSError, what: str) -> PortError:
        if isinstance(err, sqlite3.Error) and self._file.doubt(err):
            return self._malformed(str(err))
        return PortError(f"the spool {self.path} {what}: {err}")

    def _malformed(self, why: str) -> MalformedError:
        return MalformedError(f"the spool {self.path} is damaged ({why}): the next start sets it aside")

    def _write_frames(
        self, db: sqlite3.Connection, frames: FrameRows, instead: FrameRows, forget: FrameKeys
    ) -> tuple[int, int]:
        """Delete, append and replace frames. Returns (number, total bytes) of the frames afterwards."""
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

    def _remember(self, frames: FrameRows, instead: FrameRows, forget: FrameKeys) -> None:
        for key in forget:
            self._recent_bytes -= len(self._recent.pop(key, b""))
        for epoch, seq, payload in (*frames, *instead):
            self._recent_bytes += len(payload) - len(self._recent.pop((epoch, seq), b""))
            self._recent[epoch, seq] = payload
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    # --- reading ---------------------------------------------------------------------------------------------------

    def payload(self, epoch: int, seq: int) -> bytes:
        """The payload of a committed frame. Raises: as `_missing`, DamagedError if its checksum fails."""
        payload = self._recent.get((epoch, seq))
        if payload is not None:
            return payload
        try:
            row = self._file.db.execute(
                "SELECT crc, payload FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq)
            ).fetchone()
        except sqlite3.Error as err:
            raise self._failed(err, "cannot be read") from err
        if row is None:
            raise self._missing(epoch, seq)
        crc, payload = row
        if zlib.crc32(payload) != crc:
            self.notes.append(Note("spool.damaged", {"epoch": epoch, "seq": seq, "size_bytes": len(payload)}))
            raise DamagedError(f"frame ({epoch}, {seq}) of the spool {self.path} fails its checksum")
        return bytes(payload)

    def _missing(self, epoch: int, seq: int) -> Exception:
        """Returns the error for a frame that is not found: MalformedError if an index is damaged, else ValueError."""
        found = f"frame ({epoch}, {seq}) is not found"
        self._file.suspect(found)  # the check of a large file may outlast the process
        with suppress(sqlite3.Error):
            ((verdict,),) = self._file.db.execute("PRAGMA integrity_check(1)")
            if verdict == "ok":
                self._file.trust()
                return ValueError(f"frame ({epoch}, {seq}) is not in the spool")
        return self._malformed(found)

    def raw(self, epoch: int, seq: int) -> bytes | None:
        """The stored payload of a frame, maybe damaged, for the quarantine; None: no such frame. Raises: PortError."""
        query = "SELECT payload FROM frames WHERE epoch = ? AND seq = ?"
        try:
            row = self._file.db.execute(query, (epoch, seq)).fetchone()
        except sqlite3.Error as err:
            raise self._failed(err, "cannot be read") from err
        return None if row is None else bytes(row[0])

    def unsent(self) -> Iterator[tuple[int, int]]:
        """Yields (epoch, seq) of the frames that were never marked as sent, in the order of their commits."""
        yield from self._file.db.execute("SELECT epoch, seq FROM frames WHERE sent = 0 ORDER BY id")

    @property
    def used_bytes(self) -> int:
        """Bytes of frames and slots in the file, without free pages."""
        return self._file.used_bytes

    def close(self) -> None:
        """Checkpoint and unlock the file. This or another process may open it again."""
        self._file.close()


def _write_slots(db: sqlite3.Connection, slots: Sequence[tuple[str, bytes | None]]) -> None:
    db.executemany("DELETE FROM slots WHERE name = ?", [(name,) for name, value in slots if value is None])
    db.executemany(
        "INSERT INTO slots VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET crc=excluded.crc, value=excluded.value",
        [(name, zlib.crc32(value), value) for name, value in slots if value is not None],
    )


def _write_slots_beside(db: sqlite3.Connection, slots: Sequence[tuple[str, bytes | None]]) -> None:
    """Write slots to free pages, because a rollback journal would save the content of the pages of former values.

    New values get a temporary name of the same length. SQLite can then rename a slot in place, without rewriting its
    value.
    """
    kept = [(name, value) for name, value in slots if value is not None]
    rows = [(chr(ord(name[0]) ^ 0x60) + name[1:], zlib.crc32(value), value) for name, value in kept]
    db.executemany("INSERT INTO slots VALUES (?, ?, ?)", rows)
    db.executemany("DELETE FROM slots WHERE name = ?", [(name,) for name, _ in slots])
    names = [(name, beside) for (name, _), (beside, _, _) in zip(kept, rows, strict=True)]
    db.executemany("UPDATE slots SET name = ? WHERE name = ?", names)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
