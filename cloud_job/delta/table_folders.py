"""Folders in which a table is, or was to be created when the root was killed, and the files of a commit."""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headwater.root")
LOG: Final = "_delta_log"
FILE_URI: Final = re.compile(r"file:(?://(?:localhost)?|(?!//))(/.*)", re.DOTALL)
VECTOR: Final = "u"  # storage type of a deletion vector in a file whose name has a UUID; others have no file of ours
UUID_DIGITS: Final = 20  # of the UUID in Z85, after the name of the folder if there is one
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85: Final = bytes.maketrans(_Z85, _B85)


def without_scheme(root: str) -> str:
    """The folder that file:/srv/tables or file:///srv/tables names; other texts as they are. As in Hadoop, % is no
    escape.
    """
    found = FILE_URI.fullmatch(root)
    return root if found is None else "/" + found[1].lstrip("/")


def is_table(folder: Path) -> bool:
    """Whether the log of a folder has a commit or checkpoint. A root that is killed may leave a log without one."""
    return any(_begins_a_table(path.name) for path in (folder / LOG).glob("[0-9]*"))


def is_table_at(spark: SparkSession, uri: str) -> bool | None:
    """The same for a table at a URI; None: this session gives no access to its files, as with Spark Connect."""
    try:
        files, log_folder = hadoop(spark, f"{uri}/{LOG}")
        if not files.exists(log_folder):
            return False
        found = files.listStatusIterator(log_folder)  # one by one: the first of thousands may suffice
        while found.hasNext():
            if _begins_a_table(str(found.next().getPath().getName())):
                return True
    except Exception:  # no JVM here, or not for us; if the store fails, Delta says so too
        return None
    return False


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


def clear_at(spark: SparkSession, uri: str) -> None:
    """Rename the folder at a URI if it has a log without a commit. Other files are no table of ours, and stay.

    If a root on another machine is creating the table now, its creation fails, and its next start creates it.
    """
    if is_table_at(spark, uri) is not False:
        return
    files, folder = hadoop(spark, uri)
    if not files.exists(hadoop(spark, f"{uri}/{LOG}")[1]):
        return
    number = 1
    while files.exists(hadoop(spark, f"{uri}.torn-{number}")[1]):
        number += 1
    aside = f"{uri}.torn-{number}"
    if not files.rename(folder, hadoop(spark, aside)[1]):
        raise PortError("its log has no commit, and it cannot be moved away")
    log.warning("root.table_begun_again", extra={"folder": uri, "aside": aside})


def hadoop(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Hadoop's file system of a URI, and the URI as its path. Raises: AttributeError with Spark Connect."""
    session: Any = spark  # which has no public way to the files
    path = session._jvm.org.apache.hadoop.fs.Path(uri)  # noqa: SLF001
    return path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), path  # noqa: SLF001


def _begins_a_table(name: str) -> bool:
    """Whether a file of a log is a commit or a checkpoint."""
    path = Path(name)
    if path.suffix == ".json" and path.stem.isdecimal():
        return True
    return name[:1].isdecimal() and ".checkpoint" in name and path.suffix in (".parquet", ".json")


def versions_in(folder: Path) -> list[int]:
    """The versions of the table in a folder whose commits are there, from the oldest."""
    return sorted(int(path.stem) for path in (folder / LOG).glob("*.json") if path.stem.isdecimal())


def commit_of(folder: Path, version: int) -> Path:
    """The file of a commit of the table in a folder."""
    return folder / LOG / f"{version:020d}.json"


def vector_of(folder: Path, add: Mapping[str, Any]) -> Path | None:
    """The file with the deletion vector of a file that a commit adds; None if it has none.

    add: the action of the commit. Raises: ValueError if it is no such action. Source: PROTOCOL.md of Delta Lake,
    "Deletion Vector Descriptor Schema".
    """
    found = add.get("deletionVector")
    if not found or found["storageType"] != VECTOR:
        return None
    text = str(found["pathOrInlineDv"])
    inside, digits = text[:-UUID_DIGITS], text[-UUID_DIGITS:].encode("ascii")
    name = uuid.UUID(bytes=base64.b85decode(digits.translate(_AS_B85)))
    return folder / inside / f"deletion_vector_{name}.bin"
