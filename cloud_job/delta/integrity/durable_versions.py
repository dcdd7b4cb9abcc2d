"""Notes which version of each table is durable, in a small file beside the tables, for the next start of the root.

A commit up to its table's version was whole on the disk: if it is damaged, no power cut did it (torn_commits.py). A
table that ends before its version is an older copy. The note may lag behind the tables, because it only says what is at
least there. So a step that cannot write it goes on, and its name is not made durable: after a power cut the note before
is as true.

The note also says whether all later commits of a root have its mark, so that those of others are noticed
(foreign_commits.py). Versions that set no mark read the note too.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cloud_job.delta.tables import Place

log = logging.getLogger("headwater.root")
NOTE: Final = ".root.durable"
MARKED: Final = ".marked"  # stands in the note like a table, whose names have no leading dot


def path_of(place: Place) -> Path:
    """The file of the note. Only for tables that are folders."""
    return Path(place.root) / NOTE


def read(place: Place) -> dict[str, int]:
    """Name of a table -> a version that is durable; {} if there is no note. A damaged note is logged, and is none.

    Raises: OSError if the file is there and cannot be read.
    """
    path = path_of(place)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(content)
        versions = {str(name): int(version) for name, version in found["versions"].items()}
        whole = content == _written(versions)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if whole:
        return versions
    log.warning("root.note_damaged", extra={"file": str(path)})
    return {}


def write(place: Place, versions: Mapping[str, int]) -> None:
    """Replace the note. A failure is logged. versions: name of a table -> its newest durable version."""
    path = path_of(place)
    part = path.with_name(f"{NOTE}.part")
    try:
        with part.open("wb") as file:
            file.write(_written(versions))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as err:
        log.warning("root.note_not_written", extra={"file": str(path), "why": err.strerror})


def _written(versions: Mapping[str, int]) -> bytes:
    text = json.dumps(dict(sorted(versions.items())), separators=(",", ":"))
    return f'{{"versions":{text},"crc32":{zlib.crc32(text.encode())}}}\n'.encode()
