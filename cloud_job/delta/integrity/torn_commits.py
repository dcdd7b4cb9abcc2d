"""Renames commits that a power cut has damaged ("torn" commits), so that Delta can read the tables again.

Delta cannot read a table whose newest commit is cut short or whose files are missing. Spark and Delta write without
fsync; durable.py makes the commits of each step durable before anything depends on them. So a torn commit belongs to
the last step and nothing depends on it: its landing files or its decision still exist, and the batch is repeated.

For the newest commits of each table (LOOKED_AT), this module checks the JSON, the size and the first and last bytes of
the added files, their deletion vectors, and Hadoop's checksums of these files. If a file has no checksums, it is read
as a whole.

A commit that the last run noted as durable (durable_versions.py) was not torn: if it is damaged, later commits rely on
it, so nothing is renamed and no root starts.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cloud_job.delta.integrity import durable_versions
from cloud_job.delta.integrity.durable import sync_path
from cloud_job.delta.table_folders import LOG, commit_of, vector_of, versions_in
from cloud_job.delta.tables import TABLES, Place, Table
from edge_agent.errors import PortError

log = logging.getLogger("headwater.root")

LAST: Final = "_last_checkpoint"
LOOKED_AT: Final = 20  # newest commits of a table that change rows are checked, and all between; a step makes fewer
SUMMED_BYTES: Final = 64 * 1024 * 1024  # of a larger file, only the size and the first and last bytes are checked
PARQUET: Final = b"PAR1"  # the first and the last bytes of a Parquet file
HEADER: Final = struct.Struct(">4si")  # of Hadoop's checksum files: magic, bytes per block; a CRC-32 per block follows
MAGIC: Final = b"crc\0"
CRC_BYTES: Final = 4  # of the size before a deletion vector, and of the CRC-32 after it


def repair(place: Place) -> int:
    """Rename the commits that a power cut has damaged, if the tables are folders of this machine. Returns how many.

    Raises: PortError if a file is there and cannot be read, as on a failing disk: this is no sign of a power cut. And
    if a commit that was durable is damaged, a table is an older copy, or the only checkpoint of a log without its old
    commits is damaged: then nothing is renamed.
    """
    if place.guarded:
        return 0
    try:
        durable = durable_versions.read(place)
        first = {table.name: _first_torn(place, table, durable.get(table.name, -1)) for table in TABLES}
        return sum(_repair(Path(place.path(table)), first[table.name]) for table in TABLES)
    except OSError as err:
        where = err.filename or place.root
        raise PortError(f"cannot check the tables: {where}: {err.strerror}; look at the disk") from err


def _first_torn(place: Place, table: Table, durable: int) -> int:
    """The lowest torn commit of a table; the next number if none is. Renames nothing.

    durable: a version that is noted as durable; -1: none. Raises: PortError as `repair`.
    """
    folder = Path(place.path(table))
    numbers = versions_in(folder)
    first, later, changes = numbers[-1] + 1 if numbers else 0, set[str](), 0
    if first <= durable and (folder / LOG).is_dir():  # a table without a folder was deleted: deleted_tables.py
        raise PortError(
            f"the table {folder} ends before version {durable}, which it had reached: it is an older copy; put all "
            f"tables back from the same copy, or delete {durable_versions.path_of(place)} to use them as they are"
        )
    for number in range(first - 1, numbers[0] - 1 if numbers else -1, -1):
        if changes == LOOKED_AT:
            break
        actions = _actions(commit_of(folder, number))  # None if the commit is missing too: Delta needs all numbers
        damaged = _damaged(folder, number, actions, later)
        if damaged is None:
            later |= {remove["path"] for remove in _of(actions or [], "remove")}
        elif number > durable:
            first, later = number, set()  # later commits go too, so the files that they removed must exist again
        elif actions is None and _covered(folder, number, first):
            log.warning("root.commit_damaged", extra={"file": str(damaged)})
            break  # Delta does not read it; which files it removed is not known, so those before are not looked at
        else:
            raise PortError(
                f"{damaged} is damaged or missing, and was whole on the disk before, so no power cut did it; put this "
                "file back from a copy, or all tables from the same copy (docs/operate.md, A damaged disk)"
            )
        changes += actions is not None and _changes_rows(actions)
    if numbers and numbers[0] > 0 and not _begins(folder, numbers[0], first):
        raise PortError(
            f"the table {folder} cannot be read: its log begins with version {numbers[0]} and has no whole checkpoint; "
            "put its checkpoints back from a copy, or all tables from the same copy (docs/operate.md, A damaged disk)"
        )
    return first


def _damaged(folder: Path, number: int, actions: list[dict[str, Any]] | None, later: set[str]) -> Path | None:
    """A damaged file of a commit, None if all are whole. later: paths of files that a later commit has removed."""
    if actions is None:
        return commit_of(folder, number)
    for add in _of(actions, "add"):
        if add["path"] in later:
            continue
        if not _whole(folder, add):
            return _data(folder, add)
        vector = vector_of(folder, add)
        if vector is not None and not _whole_vector(vector, add["deletionVector"]):
            return vector
    return None


def _covered(folder: Path, number: int, first: int) -> bool:
    """Whether a whole checkpoint before `first` has the content of a commit."""
    checkpoints = (folder / LOG / f"{each:020d}.checkpoint.parquet" for each in range(number, first))
    return any(path.exists() and _sound(path) and _has_ends(path) for path in checkpoints)


def _begins(folder: Path, oldest: int, first: int) -> bool:
    """Whether a whole checkpoint before `first` has what stood in the commits before `oldest`, which were deleted."""
    checkpoints = [path for path in (folder / LOG).glob("[0-9]*.checkpoint*") if path.suffix in (".parquet", ".json")]
    return any(oldest - 1 <= int(path.name[:20]) < first and _sound(path) and _has_ends(path) for path in checkpoints)


def _repair(folder: Path, first: int) -> int:
    """Rename the commits of a table from `first` on, and what belongs to them. Returns how many."""
    numbers = versions_in(folder)
    torn = [number for number in numbers if number >= first]
    _checkpoints(folder / LOG, first)
    _summaries(folder / LOG, first)
    for number in reversed(torn):
        _set_aside(commit_of(folder, number))
    for sums in (folder / LOG).glob(".*.crc"):  # checksums without a file: Hadoop would apply them to the next file
        if not sums.with_name(sums.name[1 : -len(".crc")]).exists():
            sums.unlink()
    if torn:
        log.warning("root.torn_commits", extra={"table": str(folder), "from": first, "commits": len(torn)})
        if len(torn) == len(numbers):  # no commit is left: the root creates the table again
            _set_aside(folder / LOG)
        sync_path(folder / LOG if (folder / LOG).exists() else folder)
    return len(torn)


def _checkpoints(folder: Path, first: int) -> None:
    """Rename checkpoints that are torn or belong to torn commits, and `_last_checkpoint` if its checkpoint is gone.

    Delta can read a table without these files.
    """
    for path in folder.glob("*.checkpoint*.parquet"):
        if int(path.name[:20]) >= first or not _sound(path) or not _has_ends(path):
            _set_aside(path)
    last = folder / LAST
    _drop_bad_sums(last)
    if last.exists():
        try:
            known = any(folder.glob(f"{json.loads(last.read_bytes())['version']:020d}.checkpoint*.parquet"))
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            _set_aside(last)


def _summaries(folder: Path, first: int) -> None:
    """Delete Delta's summaries of versions (`N.crc`) that are torn or have no commit: delta-rs refuses a table with
    such a file.
    """
    for path in folder.glob("[0-9]*.crc"):
        if path.stem.isdecimal() and (int(path.stem) >= first or not _sound(path) or not _is_json(path)):
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def _actions(path: Path) -> list[dict[str, Any]] | None:
    """The actions of a commit; None if the file is missing or damaged."""
    if not _sound(path):
        return None
    try:
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (ValueError, FileNotFoundError):
        return None
    return actions if actions and all(isinstance(action, dict) for action in actions) else None


def _changes_rows(actions: Iterable[dict[str, Any]]) -> bool:
    """Whether a commit changes rows, unlike those that merge files, of which a step may make any number."""
    return any(each.get("dataChange", True) for kind in ("add", "remove") for each in _of(actions, kind))


def _of(actions: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _data(folder: Path, add: dict[str, Any]) -> Path:
    return folder / unquote(add["path"])


def _whole(folder: Path, add: dict[str, Any]) -> bool:
    """Whether a file that a commit adds exists and is undamaged."""
    path = _data(folder, add)
    try:
        if path.stat().st_size != add["size"] or not _has_ends(path):
            return False
    except FileNotFoundError:
        return False
    return _sound(path) and (path.suffix != ".parquet" or _drop_bad_sums(path) is not None or _readable(path))


def _whole_vector(path: Path, about: dict[str, Any]) -> bool:
    """Whether a file has a deletion vector: at its offset the size, the bytes and their CRC-32. about: its descriptor.

    Source: PROTOCOL.md of Delta Lake, "Deletion Vector Format"; the numbers are big-endian.
    """
    size, at = about["sizeInBytes"], about.get("offset", 0)
    try:
        with path.open("rb") as file:
            file.seek(at)
            found = file.read(size + 2 * CRC_BYTES)
    except FileNotFoundError:
        return False
    content = found[CRC_BYTES:-CRC_BYTES]
    before, after = (number.to_bytes(CRC_BYTES, "big") for number in (size, zlib.crc32(content)))
    return found == before + content + after and _sound(path)


def _readable(path: Path) -> bool:
    """Whether a file of rows can be read. Called only for files without checksums."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    if path.stat().st_size > SUMMED_BYTES:
        return True
    try:
        ParquetFile(path).read()
    except (ArrowException, OSError):
        return False
    return True


def _has_ends(path: Path) -> bool:
    if path.suffix != ".parquet":
        return True
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(len(PARQUET))
        file.seek(max(size - len(PARQUET), 0))
        return begin == PARQUET == file.read()


def _sound(path: Path) -> bool:
    """Whether the file agrees with its checksum file. True if there are no usable checksums."""
    sums = _drop_bad_sums(path)
    if sums is None:
        return True
    each, content = HEADER.unpack_from(sums)[1], path.read_bytes()
    found = b"".join(zlib.crc32(content[at : at + each]).to_bytes(4, "big") for at in range(0, len(content), each))
    return found == sums[HEADER.size :]


def _drop_bad_sums(path: Path) -> bytes | None:
    """Returns the content of a file's checksum file; None if there is none or the file is large.

    Deletes a checksum file that is cut short, because Hadoop would trust it.
    """
    beside = path.with_name(f".{path.name}.crc")
    try:
        size = path.stat().st_size
        if size > SUMMED_BYTES:
            return None
        sums = beside.read_bytes()
    except OSError:
        return None
    if len(sums) >= HEADER.size:
        magic, each = HEADER.unpack_from(sums)
        if magic == MAGIC and each > 0 and len(sums) >= HEADER.size + -(-size // each) * 4:
            return sums  # perhaps of more blocks than the file has: then the file is cut short, and `_sound` says so
    beside.unlink(missing_ok=True)
    return None


def _set_aside(path: Path) -> None:
    """Rename a file to a name that Delta does not read, and delete its checksum file."""
    number = 1
    while (aside := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    with suppress(FileNotFoundError):
        path.rename(aside)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
