"""The folder into which the lander writes its files, and from which the root reads them (docs/protocol.md 3.2)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError
from edge_agent.ports.sqlite_file import sync_folder
from edge_agent.wire import landing

log = logging.getLogger("headwater.lander")

MOST_STAMP: Final = 9 * 10**16  # in the year 4821: a larger number in a file's name is not a lander's, nor sorts as one


class LandingFolder:
    """Writes whole files only: each gets a hidden name, is fsynced and renamed; then the folder is fsynced."""

    def __init__(self, folder: Path) -> None:
        """Deletes half-written files of an earlier run. Raises: PortError."""
        self.folder = folder
        self.count = 0
        self._last_us = max((_stamp(path) for path in folder.glob(f"*{landing.SUFFIX}")), default=0)
        for part in folder.glob(f".*{landing.SUFFIX}.tmp"):
            _remove(part)

    def write(self, now_us: int, records: Iterable[bytes]) -> Path:
        """Write one landing file. Raises: PortError; then no file was written.

        File names sort in the order of writing, even if the clock goes back. No name is used twice.
        """
        stamp_us = max(now_us, self._last_us + 1)
        name = f"{stamp_us:017d}-{os.getpid():07d}-{self.count:07d}{landing.SUFFIX}"
        part, whole = self.folder / f".{name}.tmp", self.folder / name
        try:
            _write(part, b"".join(records))
            part.rename(whole)
            sync_folder(self.folder)
        except OSError as err:
            _remove(part)  # the disk may be full; the partial file would take space
            raise PortError(f"landing file {name}: {err.strerror}") from err
        self.count, self._last_us = self.count + 1, stamp_us
        return whole


def _stamp(path: Path) -> int:
    """The time in the name of a landing file, in microseconds; 0 for any other file name."""
    head = path.name.partition("-")[0]
    digits = head.isascii() and head.isdecimal() and len(head) <= len(str(MOST_STAMP))
    return int(head) if digits and int(head) < MOST_STAMP else 0


def _write(path: Path, content: bytes) -> None:
    """Write all bytes and fsync. On a disk that is nearly full, os.write may write only a part. Raises: OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as err:  # a read-only disk: the file does no harm there
        log.warning("landing.not_removed", extra={"file": str(path), "why": err.strerror})
