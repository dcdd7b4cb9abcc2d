"""Makes the files of tables in folders durable before anything depends on them.

Spark and Delta close their files without fsync. A power cut could therefore take a commit on which a later commit or a
deleted landing file relies (docs/protocol.md 8.1, 8.5). Object stores and volumes are durable when a write returns.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from cloud_job.delta.tables import TABLES, Place

LOG: Final = "_delta_log"


class DurableTables:
    """Tracks which commits of each table are on the disk, and makes new ones durable."""

    def __init__(self, place: Place) -> None:
        """Treats all files that exist as durable: one call of `os.sync` makes them so."""
        self._next: dict[Path, int] = {}  # folder of a table -> its next commit
        if place.guarded:
            return
        os.sync()
        for folder in (Path(place.path(table)) for table in TABLES):
            numbers = [int(path.stem) for path in (folder / LOG).glob("*.json") if path.stem.isdecimal()]
            self._next[folder] = max(numbers, default=-1) + 1

    def sync(self) -> None:
        """Fsync the files of all commits since the last call, the data before the log."""
        for folder, number in self._next.items():
            while (commit := folder / LOG / f"{number:020d}.json").exists():
                _sync_commit(folder, commit)
                number += 1
            self._next[folder] = number


def _sync_commit(folder: Path, commit: Path) -> None:
    added = [json.loads(line).get("add") for line in commit.read_text().splitlines() if line.startswith('{"add"')]
    files = [folder / unquote(add["path"]) for add in added]
    for file in files:
        _sync_with_sums(file)
    for parent in {file.parent for file in files}:
        _sync(parent)
    for checkpoint in commit.parent.glob(f"{commit.stem}.checkpoint*.parquet"):
        _sync_with_sums(checkpoint)
    _sync_with_sums(commit)
    _sync(commit.parent)


def _sync_with_sums(path: Path) -> None:
    """Fsync a file and Hadoop's checksum file for it, because Hadoop compares both when it reads."""
    _sync(path)
    _sync(path.with_name(f".{path.name}.crc"))


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # there is no checksum file, or a later commit of the same step removed the file
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
