"""The root's loop: lists landing files by name and passes them to the job, in micro-batches.

Only the job's decisions record which files have been read (docs/protocol.md 8.1). The loop itself keeps no state and
ignores file times. It skips files that the last decision names; the job deletes files of earlier decisions.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cloud_job.spark.batch_guard import BatchGuard
from cloud_job.spark.job import Job
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import PortError
from edge_agent.wire.landing import SUFFIX, tick_us

log = logging.getLogger("headwater.root")
MAX_BYTES: Final = 64 * 1024 * 1024  # of one batch; the driver needs about three times as much memory for it
PER_HORIZON: Final = 4  # batches, at least: a batch judges all its readings by the frontier at its end (protocol 4.2)
LEAST_SPAN_US: Final = 15_000_000  # of such a part: a batch may take seconds, and the root must keep pace
DAMAGED: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # a bad sector, or a checksum of the file system
POLL_S: Final = 0.5  # longest interval between two listings of a folder without new files


class LandingLoop:
    """Runs a job until `stop`, or, with `once`, until all existing files are read."""

    def __init__(
        self,
        job: Job | BatchGuard,
        *,
        once: bool = False,
        trigger_us: int = 1_000_000,
        max_bytes: int = MAX_BYTES,
        most_files: Callable[[], int | None] = lambda: None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """once: stop when the files that exist at the start are read. trigger_us: shortest interval between the starts
        of two micro-batches. max_bytes: no file is added to a batch of this size. most_files: how many files the next
        batch may have; None: any number. between: called after each batch, and about every POLL_S while there are no
        files; it may take some seconds.

        Raises: PortError if the landing folder cannot be listed.
        """
        self.job, self.once, self.trigger_us, self.max_bytes = job, once, trigger_us, max_bytes
        self._most_files, self._between = most_files, between
        self.folder = _folder(job.settings.landing)
        self._span_us = max(job.settings.limits.horizon_us // PER_HORIZON, LEAST_SPAN_US)
        self._stopping = threading.Event()
        self._others: frozenset[str] = frozenset()  # names of landing files that are no regular files, or no text

    def stop(self) -> None:
        """End after the current batch; may be called from a signal handler."""
        self._stopping.set()

    def run(self, alive: Callable[[], None] = lambda: None) -> None:
        """Run until the end, then write deferred revisions. alive: called about every POLL_S, but not during a batch.

        Raises: PortError.
        """
        there = frozenset(self._names()) if self.once else None  # a lander may keep writing: newer files are not read
        while not self._stopping.is_set():
            alive()
            due_s = time.monotonic() + self.trigger_us / 1e6
            names = [name for name in self._names() if there is None or name in there]
            taken = self.turn(names)
            if self.once and not taken:
                break
            if not self.once:
                self._between()
            if not self.once and taken == len(names):
                self._wait(due_s if taken else time.monotonic() + POLL_S, alive)
        self.job.finish()

    def _wait(self, until_s: float, alive: Callable[[], None]) -> None:
        while (rest_s := until_s - time.monotonic()) > 0 and not self._stopping.wait(min(rest_s, POLL_S)):
            alive()

    def turn(self, names: Sequence[str] | None = None) -> int:
        """Make one batch of as many of these files, in order, as fit in `max_bytes` and in a part of the correction
        horizon by the lander's time, and at least one. Else readings that were late when they came would be too late.

        names: None for all new files. Returns the number of files read. Raises: PortError.
        """
        files: list[tuple[str, bytes]] = []
        left, begin_us, most = self.max_bytes, None, self._most_files()
        names = self._names() if names is None else names
        for name in names:
            if (files and left <= 0) or len(files) == most:
                break
            try:
                content = self._content(name)
            except _DamagedError as err:
                if not files:
                    return self._without(name, names, err)
                break
            if (now_us := tick_us(content)) is not None:
                begin_us = now_us if begin_us is None else begin_us
                if now_us - begin_us > self._span_us:
                    break
            files.append((name, content))
            left -= len(content)
        if files:
            self.job.process(files)
        return len(files)

    def _names(self) -> list[str]:
        """Names of the new files, sorted; this is also the order in which they were written.

        What is no regular file, nor a link to one, is left and logged once: reading a pipe could block for ever. So is
        a file whose name is no text: no lander writes it, and no decision could name it.
        """
        try:
            with os.scandir(self.folder) as entries:  # `Path.glob` is silent about a folder that is gone
                there = [each for each in entries if each.name.endswith(SUFFIX) and not each.name.startswith(".")]
                found = {each.name: _is_text(each.name) and _is_file(each) for each in there}
        except OSError as err:
            raise PortError(f"cannot list the landing files in {self.folder}: {err.strerror}") from err
        others = frozenset(name for name, regular in found.items() if not regular)
        for name in sorted(others - self._others):
            log.warning("landing.not_a_file", extra={"file": str(self.folder / name)})
        self._others = others
        return sorted(name for name in found.keys() - others if not self.job.took(name))

    def _content(self, name: str) -> bytes:
        """Read a file. Raises: PortError; `_DamagedError` if its part of the disk is damaged."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as err:
            kind = _DamagedError if err.errno in DAMAGED else PortError
            raise kind(f"cannot read landing file {self.folder / name}: {err.strerror}") from err

    def _without(self, name: str, names: Sequence[str], error: _DamagedError) -> int:
        """Go on without a file that its disk does not give. Returns 1: it counts as read.

        Raises: `error`, unless the newest other file can be read: else the disk may be at fault as a whole, and not
        the file.
        """
        others = [other for other in names if other != name]
        if not others or not isinstance(self.job, BatchGuard):
            raise error
        self._content(others[-1])
        self.job.without(name, str(error))
        return 1


class _DamagedError(PortError):
    """A file is damaged on its disk."""


def _is_text(name: str) -> bool:
    """Whether the bytes of a name are UTF-8; Python has others as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a regular file or a link to one. Raises: OSError if the disk cannot say it."""
    try:
        return entry.is_file()
    except OSError as err:
        if err.errno == errno.ELOOP:  # links that name each other
            return False
        raise


def _folder(landing: str) -> Path:
    if is_uri(landing):
        raise PortError(
            f"landing files are read from a folder of the file system, and {landing} is not one: mount it (on "
            "Databricks /Volumes/… is mounted), and set its path as [lander] folder"
        )
    folder = Path(landing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PortError(f"cannot create the landing folder {folder}: {err.strerror}; name another folder") from err
    return folder
