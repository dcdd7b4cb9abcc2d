"""Makes the files of tables in folders durable before anything depends on them.

Spark and Delta close their files without fsync. A power cut could therefore take a commit on which a later commit or a
deleted landing file relies (docs/protocol.md 8.1, 8.5). Object stores and volumes are durable when a write returns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from cloud_job.delta.integrity import durable_versions, foreign_commits
from cloud_job.delta.table_folders import commit_of, vector_of, versions_in
from cloud_job.delta.tables import TABLES, Place


class DurableTables:
    """Tracks which commits of each table are on the disk, makes new ones durable, and notes it for the next start."""

    def __init__(self, place: Place) -> None:
        """Treats all files that exist as durable: one call of `os.sync` makes them so.

        Raises: PortError if somebody else has changed rows since the last note; OSError if a commit cannot be read.
        """
        self._place = place
        self._next: dict[str, int] = {}  # name of a table -> its next commit
        self._folders: dict[str, Path] = {}
        if place.guarded:
            return
        os.sync()
        noted = durable_versions.read(place)
        for table in TABLES:
            folder = self._folders[table.name] = Path(place.path(table))
            numbers = versions_in(folder)
            self._next[table.name] = (numbers[-1] if numbers else -1) + 1
            for number in numbers if durable_versions.MARKED in noted and table.name in noted else ():
                if number > noted[table.name]:
                    commit = commit_of(folder, number)
                    with suppress(ValueError):  # not text, or cut short: torn_commits.py has looked at it
                        foreign_commits.check(place, table, commit, _lines(commit))
        self._note()

    def sync(self) -> None:
        """Fsync the files of all commits since the last call, the data before the log; then note them.

        Raises: PortError if one of them is somebody else's and has changed rows.
        """
        before = dict(self._next)
        for table in TABLES if self._folders else ():
            name, folder = table.name, self._folders[table.name]
            number = self._next[name]
            while (commit := commit_of(folder, number)).exists():
                lines = _lines(commit)
                foreign_commits.check(self._place, table, commit, lines)
                _sync_commit(folder, commit, lines)
                if number == 0:  # a new table: the note must not outlive its folder
                    for parent in (folder, folder.parent, Path(self._place.root)):
                        sync_path(parent)
                number += 1
            self._next[name] = number
        if self._next != before:
            self._note()

    def _note(self) -> None:
        durable = {name: number - 1 for name, number in self._next.items() if number}
        durable_versions.write(self._place, {**durable, durable_versions.MARKED: 1})


def _lines(commit: Path) -> list[str]:
    """The actions of a commit. Statistics in them have values of the data, perhaps with other ends of lines."""
    return commit.read_text("utf-8").split("\n")


def _sync_commit(folder: Path, commit: Path, lines: Iterable[str]) -> None:
    added = [json.loads(line).get("add") for line in lines if line.startswith('{"add"')]
    vectors = (vector_of(folder, add) for add in added)
    files = [*(folder / unquote(add["path"]) for add in added), *(path for path in vectors if path is not None)]
    for file in files:
        _sync_with_sums(file)
    for parent in {file.parent for file in files}:
        sync_path(parent)
    for checkpoint in commit.parent.glob(f"{commit.stem}.checkpoint*.parquet"):
        _sync_with_sums(checkpoint)
    _sync_with_sums(commit)
    sync_path(commit.parent)


def _sync_with_sums(path: Path) -> None:
    """Fsync a file and Hadoop's checksum file for it, because Hadoop compares both when it reads."""
    sync_path(path)
    sync_path(path.with_name(f".{path.name}.crc"))


def sync_path(path: Path) -> None:
    """Fsync a file, or a folder with the names in it; one that does not exist is passed over."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # there is no checksum file, or a later commit of the same step removed the file
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
