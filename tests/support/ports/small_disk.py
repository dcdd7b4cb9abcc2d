"""A real file system of a fixed size, filled to its end; and files that may not grow."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

PIECES = (65_536, 4_096, 512, 1)  # bytes: a disk is full when not even one more goes onto it


class SmallDisk:
    """A tmpfs of its own. folder: where it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, *, leaving: int = 0, again: bool = False) -> None:
        """Write until nothing goes onto it any more. leaving: bytes that stay free. again: it was filled before."""
        assert again == self._filler.exists()
        with self._filler.open("ab", buffering=0) as file:
            for size in PIECES:
                self._append(file, bytes(size), leaving)

    def _append(self, file: FileIO, piece: bytes, leaving: int) -> None:
        while not leaving or self.free_bytes > leaving:
            try:
                file.write(piece)
            except OSError:
                return

    def make_room(self) -> None:
        """Take away what `fill` wrote."""
        self._filler.unlink()

    @property
    def filled(self) -> bool:
        """Whether `fill` has written something that is still there."""
        return self._filler.exists()

    @property
    def free_bytes(self) -> int:
        state = os.statvfs(self.folder)
        return state.f_bavail * state.f_frsize

    def read_only(self, on: bool) -> None:
        """Mount it read-only, or not."""
        options = f"remount,{'ro' if on else 'rw'}"
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True, timeout=20)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount one at `folder` for a while; the test is skipped where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "headwater-test", str(folder)]
    mounted = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system of a fixed size can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """As on a disk with that much room: the write that crosses the limit is cut short, the next one fails."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, previous)
