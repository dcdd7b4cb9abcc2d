"""SQLite on flash: what a node may not lose (docs/protocol.md 3.1).

WAL with synchronous=FULL and one transaction a commit: a power cut costs at most what was not yet committed (with
NORMAL a cut can take every commit since the last checkpoint). Each row carries a CRC-32, checked when it is read. What
is done with the file as a whole: spool_file.py.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.damage import COSTS_THE_PAST, DISPENSABLE, remains
from edge_agent.machines.events import Commit, Note, Restored, SpooledFrame
from edge_agent.ports.spool_file import SpoolFile
from edge_agent.ports.sqlite_file import UnusableError
from edge_agent.wire import snapshot

MANY_FRAMES: Final = 100_000  # of more, the bytes are those of the pages in use: counting reads the whole file
RECENT_BYTES: Final = 2 * 1024 * 1024  # frames just committed are published next: keep them, save a read

FrameRows = Sequence[tuple[int, int, bytes]]  # (epoch, seq, payload)
FrameKeys = Sequence[tuple[int, int]]  # (epoch, seq)


class DamagedError(PortError):
    """A row whose CRC does not fit: its frame must be replaced by a gap record (docs/protocol.md 3.6)."""


class Spool:
    """One node's spool. Not thread-safe: one owner, the loop.

    node: whose it is; another node's file is refused. encode: Frame -> payload. dumps, loads: plain values <-> bytes of
    the slots.
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
        self.notes: list[Note] = []  # what an operator should read; whoever logs takes and clears them
        self.frames = 0
        self.bytes = 0
        self._encode, self._dumps, self._loads = encode, dumps, loads
        self._file = SpoolFile(path, node)
        self._recent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._recent_bytes = 0
        self._obsolete: set[str] = set()  # slots to delete with the next commit: damaged, or useless without those
        self._digests: dict[str, bytes] = {}  # of each slot as stored: an unchanged slot is not written again

    # --- opening ---------------------------------------------------------------------------------------------------

    def open(self) -> Restored:
        """Take the file for this process and say what it holds.

        `lost` where the past of the node is unknown: a former file had to be set aside, or a slot is damaged without
        which it cannot go on. In the second case the frames are still there, and the slots go with the next commit.
        Raises: ConfigError if the spool is another node's or of a newer version, PortError if it is in use or cannot be
        written.
        """
        self._file.take()
        try:
            try:
                return self._read(lost=False)
            except (UnusableError, sqlite3.DatabaseError) as err:
                if isinstance(err, sqlite3.OperationalError):  # disk full, read-only: the file itself may be good
                    raise
                aside = self._file.set_aside(err.word if isinstance(err, UnusableError) else "corrupt")
                self.notes.append(Note("spool.set_aside", {"file": str(aside), "why": str(err)}))
            return self._read(lost=True)
        except (UnusableError, sqlite3.Error, OSError) as err:
            self.close()
            raise PortError(f"cannot use the spool {self.path}: {err}") from err
        except BaseException:
            self.close()
            raise

    def _read(self, *, lost: bool) -> Restored:
        db = self._file.open()
        state, damaged = self._read_slots(db)
        for name, why in damaged.items():
            without = DISPENSABLE.get(name, COSTS_THE_PAST)
            self.notes.append(Note("spool.slot_damaged", {"slot": name, "why": why, "without_it": without}))
        left = remains(state, damaged)
        self._obsolete = set(left.obsolete)
        return Restored(left.state, tuple(self._read_frames(db)), lost or left.lost)

    def _read_slots(self, db: sqlite3.Connection) -> tuple[dict[str, object], dict[str, str]]:
        """(slots by name, what is wrong with those that are damaged)."""
        state: dict[str, object] = {}
        damaged: dict[str, str] = {}
        self._digests.clear()
        for name, crc, value in db.execute("SELECT name, crc, value FROM slots"):
            try:
                if zlib.crc32(value) != crc:
                    raise WireError("fails its checksum")
                state[name] = self._loads(value)
            except WireError as err:
                damaged[name] = str(err)
            else:
                self._digests[name] = _digest(value)
        return state, damaged

    def _read_frames(self, db: sqlite3.Connection) -> Iterator[SpooledFrame]:
        """Runs of frames, read from the indexes; payloads are read, and checked, when they are sent."""
        ((self.frames,),) = db.execute("SELECT count(*) FROM frames")
        if self.frames > MANY_FRAMES:
            self.bytes = self._file.used_bytes
        else:
            ((self.bytes,),) = db.execute("SELECT coalesce(sum(length(payload)), 0) FROM frames")
        self._recent.clear()
        self._recent_bytes = 0
        in_order = db.execute("SELECT epoch, seq, sent FROM frames ORDER BY id")
        sent = {(epoch, seq) for epoch, seq, _ in takewhile(itemgetter(2), in_order)}  # they are marked in order (3.3)
        epochs = db.execute("SELECT epoch, min(id) FROM frames GROUP BY epoch ORDER BY 2").fetchall()
        for epoch, _ in epochs:
            seqs = (seq for (seq,) in db.execute("SELECT seq FROM frames WHERE epoch = ? ORDER BY seq", (epoch,)))
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

    # --- writing ---------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Make everything in it durable, or nothing. Raises: PortError, and the commit may be tried again."""
        db = self._file.db
        slots = [(name, None if value is None else self._dumps(value)) for name, value in commit.state.items()]
        digests = {name: None if value is None else _digest(value) for name, value in slots}
        changed = [(name, value) for name, value in slots if digests[name] != self._digests.get(name)]
        changed += [(name, None) for name in self._obsolete - digests.keys()]
        frames = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.frames]
        instead = [(frame.epoch, frame.seq, self._encode(frame)) for frame in commit.replace]
        for again in (True, False):
            try:
                count, size = self._transact(changed, frames, instead, commit)
                break
            except (sqlite3.Error, OSError) as err:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(err, sqlite3.IntegrityError):
                    raise ValueError(f"a frame was committed twice: {err}") from err
                if not again or not self._makes_room(err):
                    raise PortError(f"the spool {self.path} cannot commit: {err}") from err
        self.frames, self.bytes = count, size
        self._obsolete = set()
        for name, digest in digests.items():
            if digest is None:
                self._digests.pop(name, None)
            else:
                self._digests[name] = digest
        self._remember(frames, instead, commit.forget)

    def _transact(
        self, slots: Sequence[tuple[str, bytes | None]], frames: FrameRows, instead: FrameRows, commit: Commit
    ) -> tuple[int, int]:
        """One transaction. Returns how many frames there are then, and their bytes."""
        db = self._file.db
        db.execute("BEGIN IMMEDIATE")
        _write_slots(db, slots)
        held = self._write_frames(db, frames, instead, commit.forget)
        db.executemany("UPDATE frames SET sent = 1 WHERE epoch = ? AND seq = ?", commit.mark_sent)
        self._file.allocate_pages()
        db.execute("COMMIT")
        return held

    def _makes_room(self, err: sqlite3.Error | OSError) -> bool:
        """Whether a commit that a full disk refused may fit now: into the whole of the log."""
        if isinstance(err, OSError) or err.sqlite_errorcode != sqlite3.SQLITE_FULL:
            return False
        try:
            self._file.start_log_anew()
        except sqlite3.Error:
            return False
        return True

    def _write_frames(
        self, db: sqlite3.Connection, frames: FrameRows, instead: FrameRows, forget: FrameKeys
    ) -> tuple[int, int]:
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
        """The bytes of a committed frame. Raises: DamagedError if they are not what was written, ValueError if none."""
        payload = self._recent.get((epoch, seq))
        if payload is not None:
            return payload
        try:
            row = self._file.db.execute(
                "SELECT crc, payload FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq)
            ).fetchone()
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
        row = self._file.db.execute("SELECT payload FROM frames WHERE epoch = ? AND seq = ?", (epoch, seq)).fetchone()
        return None if row is None else bytes(row[0])

    def unsent(self) -> Iterator[tuple[int, int]]:
        """(epoch, seq) of frames never marked as sent, in the order of their commits."""
        yield from self._file.db.execute("SELECT epoch, seq FROM frames WHERE sent = 0 ORDER BY id")

    @property
    def used_bytes(self) -> int:
        """What frames and slots take in the file, without pages that are free."""
        return self._file.used_bytes

    def close(self) -> None:
        """Checkpoint and let go; the file may be opened again, by this or another process."""
        self._file.close()


def _write_slots(db: sqlite3.Connection, slots: Sequence[tuple[str, bytes | None]]) -> None:
    db.executemany("DELETE FROM slots WHERE name = ?", [(name,) for name, value in slots if value is None])
    db.executemany(
        "INSERT INTO slots VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET crc=excluded.crc, value=excluded.value",
        [(name, zlib.crc32(value), value) for name, value in slots if value is not None],
    )


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
