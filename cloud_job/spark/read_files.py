"""The landing files that a run has read: which ones the last decision names, and which ones the next one will.

Decisions that change no table are not written one by one. Their files wait for the next decision that is written; a new
run has to read them first. The files of a decision are deleted just before the next one is written (docs/protocol.md
8.1): by then it has been carried out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cloud_job.spark.state_log import File
from edge_agent.errors import PortError

IDLE_S: Final = 600.0  # after this time, so many files or bytes, a row of ops.batches is written even without changes
IDLE_FILES: Final = 1_000
IDLE_BYTES: Final = 1024 * 1024


class ReadFiles:
    """Names that are `in` it have been read. idle: files since the last decision, by the batch that read them."""

    def __init__(self, folder: Path) -> None:
        """folder: of the landing files."""
        self._folder = folder
        self._names: dict[str, None] = {}  # of the last decision, in order
        self.idle: list[tuple[File, ...]] = []
        self._idle_names: set[str] = set()
        self._idle_bytes, self._wrote_s = 0, time.monotonic()

    def __contains__(self, name: str) -> bool:
        return name in self._names or name in self._idle_names

    def resume(self, names: Iterable[str]) -> None:
        """Continue after a decision with these files."""
        self._names = dict.fromkeys(names)

    def may_wait(self) -> bool:
        """Whether a decision that changes no table need not be written yet."""
        if time.monotonic() - self._wrote_s > IDLE_S:
            return False
        return len(self._idle_names) < IDLE_FILES and self._idle_bytes < IDLE_BYTES

    def wait(self, files: tuple[File, ...]) -> None:
        """Keep the files of a decision that is not written."""
        self.idle.append(files)
        self._idle_names.update(name for name, _ in files)
        self._idle_bytes += sum(len(content) for _, content in files)

    def with_idle(self, files: Iterable[File]) -> list[str]:
        """The names that a decision about these files contains, in order."""
        return [name for each in (*self.idle, tuple(files)) for name, _ in each]

    def decided(self, names: Iterable[str]) -> None:
        """Note that a decision with these files has been written and carried out."""
        self.resume(names)
        self.idle, self._idle_names = [], set()
        self._idle_bytes, self._wrote_s = 0, time.monotonic()

    def delete(self) -> None:
        """Delete the files of the last decision. Raises: PortError if one stays."""
        for name in self._names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as err:
                raise PortError(f"cannot delete the landing file {self._folder / name}: {err.strerror}") from err
