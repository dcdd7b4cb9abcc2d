"""A process with a wall clock that is wrong (libfaketime)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# None: it is not installed
LIBRARY: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


class WrongClock:
    """The wall clock of a process, off by what a file says; its time since boot is true."""

    def __init__(self, file: Path, offset: str) -> None:
        """offset: as in `set`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self.set(offset)
        self.env = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        """Like "-3600" seconds or "-20000d"."""
        part = self._file.with_suffix(".part")
        part.write_text(offset + "\n")
        part.rename(self._file)
