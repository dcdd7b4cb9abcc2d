"""Ensures that one run owns the tables (docs/protocol.md 8.5): by a file lock on this machine, else by the decision.

A lock is free, ends with its process and excludes all others from the start, so that writes need no guard. On a
cluster all owners append the decision of batch n under one transaction id. Delta accepts exactly one of them and
silently ignores the others, so each owner reads which one was accepted, and stops if it is not its own.
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
    """Held by one run of the job."""

    def __init__(self, place: Place, owner: str) -> None:
        """Raises: PortError where another root of this machine holds the folder."""
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
            raise PortError(f"another root owns the tables {self.place.root} since batch {number}; this one stops")

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
