"""Deletes commits of a table's log that a checkpoint covers, in folders of this machine.

Delta deletes such commits too, but only in whole days and when it writes a checkpoint. At three commits a batch, the
log of one day has some hundred thousand files, and every reader lists all of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from cloud_job.delta.integrity.torn_commits import LOOKED_AT
from cloud_job.delta.table_folders import LOG, versions_in

DIGITS: Final = 20  # length of a version number in a file name
MOST: Final = 10_000  # versions that one call looks at
LEAST_AFTER: Final = 2 * LOOKED_AT  # newest commits may be torn: keep a checkpoint before them


def newest(folder: Path) -> int:
    """The newest version of the table in a folder; -1 if there is none."""
    return max(versions_in(folder), default=-1)


def cut(folder: Path, keep_us: int, most: int = MOST) -> int:
    """Delete the log files of old versions that a checkpoint covers. Returns how many versions were deleted.

    keep_us: versions younger than this stay. most: versions to look at.
    """
    log, versions = folder / LOG, set[int]()
    files: dict[int, list[Path]] = {}
    for path in log.iterdir():
        digits = path.name.lstrip(".")[:DIGITS]
        if len(digits) == DIGITS and digits.isdecimal():
            files.setdefault(int(digits), []).append(path)
            if path.suffix == ".json":
                versions.add(int(digits))
    last = max(versions, default=-1)
    # only checkpoints of a single file: of one with several files, some may be missing
    whole = [v for v, paths in files.items() if any(p.name == f"{v:020d}.checkpoint.parquet" for p in paths)]
    covered = max((v for v in whole if v <= last - LEAST_AFTER), default=-1)
    before_s = time.time() - keep_us / 1e6
    gone = 0
    for version in sorted(files)[:most]:
        commit = log / f"{version:020d}.json"
        if version >= covered or (commit.exists() and commit.stat().st_mtime > before_s):
            break
        for path in sorted(files[version], key=lambda path: path == commit):  # the commit last: its time is the age
            path.unlink(missing_ok=True)
        gone += 1
    return gone
