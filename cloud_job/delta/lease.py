"""Ensures that only one run of the job writes the tables (docs/protocol.md 8.5).

On this machine a file lock does it: the lock costs nothing, ends with its process and excludes other roots from the
start, so that writes need no guard. The landing folder is locked too, wherever the tables are: two roots with different
tables would share out its files, and each would lose what the other one took.

On a cluster all runs append the decision of batch n under one transaction id. Delta accepts one of these appends and
silently ignores the others, so each run reads the accepted decision, and stops if another run wrote it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cloud_job.delta.tables import BATCHES, Place
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headwater.root")
LOCK: Final = ".root.lock"


class Lease:
    """The right of one run of the job to write the tables."""

    def __init__(self, place: Place, owner: str, landing: str = "") -> None:
        """landing: folder of the landing files, which one root reads and deletes; "": none.

        Raises: PortError if another root on this machine has locked one of the folders.
        """
        self.place, self.owner = place, owner
        self._locks: list[TextIO] = []
        folder = None if place.guarded else Path(place.root)
        try:
            if folder is not None:
                self._locks.append(_locked(folder / LOCK, "writes the tables"))
            if landing and Path(landing).is_dir() and (folder is None or Path(landing).resolve() != folder.resolve()):
                self._locks += _locked_if_possible(Path(landing) / LOCK, "reads the landing files")
        except PortError:
            self.release()
            raise

    def check(self, spark: SparkSession, number: int) -> None:
        """Verify that this run made the decision of batch `number`. Raises: PortError if another run did."""
        if not self.place.guarded:
            return
        found = self.place.read(spark, BATCHES).where(f"number = {number}").select("owner").collect()
        if not found:  # Delta ignored the row: RESTORE TABLE does not take its transactions back
            raise PortError(
                f"the tables {self.place.root} do not take batch {number}, because their log had a batch {number} "
                "before, as after RESTORE TABLE; copy their rows into new tables, and name those"
            )
        if [row["owner"] for row in found] != [self.owner]:
            raise PortError(f"another root owns the tables {self.place.root} since batch {number}; this root stops")

    def release(self) -> None:
        while self._locks:
            self._locks.pop().close()


def _locked(path: Path, does: str) -> TextIO:
    """does: what a root that has locked the file does in its folder. Raises: PortError."""
    try:
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            _write_number(lock)
        except OSError:
            with suppress(OSError):  # closing writes again what could not be written
                lock.close()
            raise
    except BlockingIOError as err:
        raise PortError(f"another root (process {_holder(path)}) {does} in {path.parent}; stop it first") from err
    except OSError as err:
        raise PortError(f"cannot lock {path}: {err.strerror}; a root needs a file system with file locks") from err
    return lock


def _write_number(lock: TextIO) -> None:
    """On a full disk only the message for another root lacks the number: the lock holds. Raises: OSError."""
    try:
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip() or "unknown"
    return "unknown"


def _locked_if_possible(path: Path, does: str) -> list[TextIO]:
    """As `_locked`; nothing on a file system without locks, as a mounted bucket may be."""
    try:
        return [_locked(path, does)]
    except PortError as err:
        if isinstance(err.__cause__, BlockingIOError):
            raise
        log.warning("root.landing_not_locked", extra={"folder": str(path.parent), "why": str(err)})
        return []
