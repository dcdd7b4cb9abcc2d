"""One owner of the tables (docs/protocol.md 8.5): a lock where they are folders of this machine, else the decision.

A lock costs nothing, ends with its process and shuts out every other one from the first moment, so writes need no
guard. On a cluster the decision of batch n is appended under one txn id for all owners: Delta takes exactly one and
passes over the others without a word, so the owner reads whose it took, and who lost stops.
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
        """Whether the decision with that number is ours. Raises: PortError if not."""
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
