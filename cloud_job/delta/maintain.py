"""Maintains the tables once, for `headwater maintain`, while no root runs.

A root that runs does all of this itself (cloud_job/delta/upkeep.py). In a folder of this machine the root's own lock
keeps it and other calls of this away (lease.py). At a URI there are no locks of files. There a file says who maintains
the tables: it is created only if it is not there, as far as the store can do that. A root leaves no sign before its
next decision, so the newest decision is looked at between two tables.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cloud_job.delta import retention, upkeep
from cloud_job.delta.expiring import expiring
from cloud_job.delta.retention import Kept
from cloud_job.delta.table_folders import hadoop
from cloud_job.delta.tables import BATCHES, MESSAGES, TABLES, Place, Table, exists
from cloud_job.spark import state_log
from cloud_job.spark.job import Job, JobSettings
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK: Final = ".maintain.lock"
MOST_BYTES: Final = 1_000  # of this file
START_FIELD: Final = 19  # field of /proc/PID/stat with the time of the start, counted after the name. Source: proc(5)
_held: Final[set[str]] = set()  # the locks that calls in this process hold
KEPT_HOURS: Final = 7 * 24  # how long old versions stay, for readers that have begun and for time travel


@dataclass(frozen=True, slots=True)
class Done:
    """The result of maintaining a table: its number of files before and after."""

    table: str
    files_before: int
    files_after: int


def maintain(
    spark: SparkSession,
    place: Place,
    say: Callable[[str], None],
    keep_hours: int = KEPT_HOURS,
    *,
    tables: Sequence[Table] = TABLES,
    warn: Callable[[str], None] | None = None,
) -> list[Done]:
    """Delete expired readings, then compact and vacuum these tables, as the root that owns them.

    say: receives one line of text per step. keep_hours: versions younger than this stay. warn: receives what the
    operator has to look at; default `say`.
    Raises: PortError if a root or another call of this is running: Delta's log is safe with one process only in a
    folder, and in a store like S3. At a URI, a root is noticed when it writes.
    """
    root = Job(spark, place, JobSettings(landing=""))
    done = []
    with _alone(spark, place, warn or say) as check:
        if place.guarded:
            say("readings stay: a root on another machine may need them")
        else:
            root.open()  # carries out the last decision: results that are not written yet need their readings
        try:
            if not place.guarded and root.state.number >= 0:
                _take_horizon(root)
                expire(root, say)
            retention.positions(root)
            root.committed("upkeep")
            for table in tables:
                check()
                done.append(_compacted(root, table, say, keep_hours))
        finally:
            root.close()
    return done


def _take_horizon(root: Job) -> None:
    """Give a run the correction horizon of the root that wrote the tables: no settings say it here.

    Rows of groups without members stay for two horizons, for members that return.
    """
    last = root.place.read(root.spark, BATCHES).where(f"number = {root.state.number}").select("state").collect()
    root.state.limits = replace(root.state.limits, horizon_us=state_log.horizon_us(bytes(last[0]["state"])))


def expire(root: Job, say: Callable[[str], None]) -> None:
    """Delete readings that no result can need any more, and states of old batches (docs/protocol.md 8.4).

    root: open, and between two batches.
    """
    number, found = root.state.number, expiring(root.decider, root.state, root.parts)
    if found:
        root.forget_work()  # else the next start would carry out the last decision again, which may need the readings
        root.committed("work")
        say(f"{MESSAGES.name}: {retention.expire(root, found, number)} rows expire")
        root.committed("expired")
    retention.states(root)


def _compacted(root: Job, table: Table, say: Callable[[str], None], keep_hours: int) -> Done:
    before, after, _whole = upkeep.compact(root.spark, root.place, table)
    if before:
        say(f"{table.name}: {before} files, now {after}")
        root.committed("upkeep")
        upkeep.clean(root, table, Kept(keep_hours * upkeep.HOUR_US, 0))
    return Done(table.name, before, after)


@contextmanager
def _alone(spark: SparkSession, place: Place, warn: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Hold the lock of the tables at a URI. Yields a check whether a root has written since.

    Nothing is locked where the tables are a folder or in a catalog. Raises: PortError, from the check too.
    """
    if not place.guarded or place.named:
        yield lambda: None
        return
    before = _decided(spark, place)

    def check() -> None:
        if (now := _decided(spark, place)) != before:
            raise PortError(
                f"a root has written batch {now} to {place.root} since this began; stop it first, or leave the upkeep "
                "to it"
            )

    try:
        files, lock = hadoop(spark, f"{place.root}/{LOCK}")
    except Exception:  # no JVM here, or not for us, as with Spark Connect
        warn(
            f"no lock is held at {place.root}, because this Spark session has no access to its files: make sure that "
            "no other headwater maintain runs"
        )
        yield check
        return
    name = f"{place.root}/{LOCK}"
    _take(files, lock, name)
    _held.add(name)
    try:
        yield check
    finally:
        _held.discard(name)
        with suppress(Exception):  # the line of the next call says what to do
            files.delete(lock, False)


def _take(files: Any, lock: Any, name: str) -> None:
    """files, lock: see `hadoop`. Raises: PortError if somebody has the lock, or the store does not take the file."""
    for _ in range(2):
        try:
            out = files.create(lock, False)
        except Exception as err:  # the file is there, or the store fails; the exceptions differ
            holder = _holder(files, lock)
            if holder is None:
                raise PortError(f"cannot create {name}: {(str(err).splitlines() or [''])[0][:200]}") from err
            if _ended(holder, name):
                files.delete(lock, False)
                continue
            raise PortError(
                f"headwater maintain runs on {holder.get('host', '?')} (process {holder.get('process', '?')}) since "
                f"{holder.get('since', '?')}, says {name}; if that process has ended, delete this file"
            ) from err
        since = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            out.write(bytearray(json.dumps({**_this_process(), "since": since}).encode()))
            out.close()  # a store like S3 refuses the file only here
        except Exception as err:
            with suppress(Exception):
                files.delete(lock, False)
            raise PortError(f"cannot create {name}: {(str(err).splitlines() or [''])[0][:200]}") from err
        return
    raise PortError(f"another headwater maintain has begun at the same time, says {name}")


def _holder(files: Any, lock: Any) -> dict[str, Any] | None:
    """What the file says; {} if it says nothing that can be read, None if there is none."""
    try:
        if not files.exists(lock):
            return None
        opened = files.open(lock)
        content = bytes(opened.readNBytes(MOST_BYTES))
        opened.close()
        found = json.loads(content)
    except Exception:  # damaged, cut short, or gone again
        return {}
    return found if isinstance(found, dict) else {}


def _this_process() -> dict[str, object]:
    """This process, as the lock names it. A text is '' if this system does not say it, as without /proc.

    Process ids are given again, and many machines have one name. So the ids of the machine, of its last start and of
    the container's processes stand with them, and when the process began.
    """
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "began": _began(os.getpid()),
        "machine": _line(Path("/etc/machine-id")),
        "boot": _line(Path("/proc/sys/kernel/random/boot_id")),
        "namespace": _link(Path("/proc/self/ns/pid")),
    }


def _ended(holder: Mapping[str, Any], name: str) -> bool:
    """Whether the process that holds a lock has certainly ended: only one of this machine can be looked up."""
    own, process = _this_process(), holder.get("process")
    same = {field for field, value in own.items() if value and holder.get(field) == value}
    if "boot" not in same:
        # started again since. Outside containers the namespace is the same at each start; the id of a machine in an
        # image of a container, and a fixed name, may be those of several machines
        return {"host", "machine", "namespace"} <= same and bool(own["boot"] and holder.get("boot"))
    if "namespace" not in same or not isinstance(process, int) or process <= 0:
        return False
    if {"process", "began"} <= same:
        return name not in _held  # this process could not delete it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    began = _began(process)
    return began > 0 and began != holder.get("began")


def _began(process: int) -> int:
    """When a process began, in ticks since the machine's last start; 0 if it is not known."""
    fields = _line(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()  # its name may have blanks and brackets
    return int(fields[START_FIELD]) if len(fields) > START_FIELD else 0


def _line(path: Path) -> str:
    """The first line of a file; '' if it cannot be read."""
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    """Where a link points to; '' if it cannot be read."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _decided(spark: SparkSession, place: Place) -> int:
    """The number of the newest decision; -1 if there is none."""
    if not exists(spark, place, BATCHES):
        return -1
    newest = place.read(spark, BATCHES).agg({"number": "max"}).collect()[0][0]
    return -1 if newest is None else int(newest)
