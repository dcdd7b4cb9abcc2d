"""Ensures that only one run of the job writes the tables (docs/protocol.md 8.5).

On this machine a file lock does it: the lock costs nothing, ends with its process and excludes other roots from the
start, so that writes need no guard. On a cluster all runs append the decision of batch n under one transaction id.
Delta accepts one of these appends and silently ignores the others, so each run reads the accepted decision, and stops
if another run wrote it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cloud_job.delta.tables import BATCHES, Place
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK: Final = ".root.lock"


class Lease:
    """The right of one run of the job to write the tables."""

    def __init__(self, place: Place, owner: str) -> None:
        """Raises: PortError if another root on this machine has locked the folder."""
        self.place, self.owner = place, owner
        self._lock: TextIO | None = None
        if not place.guarded:
            self._lock = _locked(Path(place.root) / LOCK)

    def check(self, spark: SparkSession, number: int) -> None:
        """Verify that this run made the decision of batch `number`. Raises: PortError if another run did."""
        if not self.place.guarded:
            return
        found = self.place.read(spark, BATCHES).where(f"number = {number}").select("owner").collect()
        if [row["owner"] for row in found] != [self.owner]:
            raise PortError(f"another root owns the tables {self.place.root} since batch {number}; this root stops")

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(path: Path) -> TextIO:
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise PortError(f"another root (process {holder}) writes the tables in {path.parent}; stop it first") from err
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
