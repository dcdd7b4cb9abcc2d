"""Folders of this machine in which a table is, or was to be created when the root was killed."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError

log = logging.getLogger("headwater.root")
FILE_URI: Final = re.compile(r"file://(?:localhost)?(/.*)", re.DOTALL)


def without_scheme(root: str) -> str:
    """The folder that a URI like file:///srv/tables names; other texts as they are. Like Hadoop, it reads no escapes."""
    found = FILE_URI.fullmatch(root)
    return root if found is None else "/" + found[1].lstrip("/")


def is_table(folder: Path) -> bool:
    """Whether the log of a folder has a commit or checkpoint. A root that is killed may leave a log without one."""
    log_folder = folder / "_delta_log"
    if any(path.stem.isdecimal() for path in log_folder.glob("*.json")):
        return True
    return any(path.suffix in (".parquet", ".json") for path in log_folder.glob("[0-9]*.checkpoint*"))


def clear(folder: Path) -> None:
    """Rename a folder that has files and no table: Delta takes it for a table, and does not create one there.

    Raises: PortError.
    """
    try:
        if not folder.is_dir() or not any(folder.iterdir()):
            return
        number = 1
        while (aside := folder.with_name(f"{folder.name}.torn-{number}")).exists():
            number += 1
        folder.rename(aside)
    except OSError as err:
        raise PortError(f"cannot create the table in {folder}: {err.strerror}") from err
    log.warning("root.table_begun_again", extra={"folder": str(folder), "aside": str(aside)})
