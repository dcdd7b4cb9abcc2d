"""Folders in which a table is, or was to be created when the root was killed, and the files of a commit."""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge_agent.errors import PortError

log = logging.getLogger("headwater.root")
FILE_URI: Final = re.compile(r"file://(?:localhost)?(/.*)", re.DOTALL)
VECTOR: Final = "u"  # storage type of a deletion vector in a file whose name has a UUID; others have no file of ours
UUID_DIGITS: Final = 20  # of the UUID in Z85, after the name of the folder if there is one
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85: Final = bytes.maketrans(_Z85, _B85)


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


def vector_of(folder: Path, add: Mapping[str, Any]) -> Path | None:
    """The file with the deletion vector of a file that a commit adds; None if it has none.

    add: the action of the commit. Raises: ValueError if it is no such action. Source: PROTOCOL.md of Delta Lake,
    "Deletion Vector Descriptor Schema".
    """
    found = add.get("deletionVector")
    if not found or found["storageType"] != VECTOR:
        return None
    text = found["pathOrInlineDv"]
    inside, digits = text[:-UUID_DIGITS], text[-UUID_DIGITS:].encode("ascii")
    name = uuid.UUID(bytes=base64.b85decode(digits.translate(_AS_B85)))
    return folder / inside / f"deletion_vector_{name}.bin"
