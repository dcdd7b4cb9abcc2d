"""Deletes files of versions that are too old, in steps short enough that the next batch does not wait long.

Without an inventory, VACUUM looks at all files of a table. With an inventory it looks only at the files listed there.
So each step passes the next files of the folder, in the order of their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job.delta.driver_rows import arrow, small

if TYPE_CHECKING:
    from cloud_job.delta.tables import Table
    from cloud_job.spark.job import Job

MOST_FILES: Final = 10_000  # files that one step looks at
VIEW: Final = "headwater_inventory"
_INVENTORY: Final = arrow("path string, length bigint, isDir boolean, modificationTime bigint")


def vacuum(root: Job, table: Table, hours: float, after: str = "", most: int | None = None) -> str:
    """Delete files of versions older than `hours`. Returns the last name looked at, for `after` of the next call; '' if
    none are left.

    after: look only at files whose names sort after this one. most: number of files to look at; None: all.
    """
    retain = f"RETAIN {hours:.6f} HOURS"
    found = [] if most is None or root.place.guarded else data_files(Path(root.place.path(table)))
    if most is None or len(found) <= most:
        root.spark.sql(f"VACUUM {root.place.sql(table)} {retain}")
        return ""
    ahead = [entry for entry in found if entry.path > after]
    rows = [
        (entry.path, (about := entry.stat()).st_size, False, about.st_mtime_ns // 1_000_000) for entry in ahead[:most]
    ]
    small(root.spark, [(f"file:{path}", *rest) for path, *rest in rows], _INVENTORY).createOrReplaceTempView(VIEW)
    try:
        root.spark.sql(f"VACUUM {root.place.sql(table)} USING INVENTORY (SELECT * FROM {VIEW}) {retain}")  # noqa: S608 - our own names
    finally:
        root.spark.catalog.dropTempView(VIEW)
    return ahead[most - 1].path if len(ahead) > most else ""


def data_files(folder: Path) -> list[os.DirEntry[str]]:
    """Data files of a table, sorted by name. They all lie in its own folder, because our tables have no partitions."""
    with os.scandir(folder) as entries:
        return sorted((each for each in entries if each.is_file()), key=lambda each: each.path)
