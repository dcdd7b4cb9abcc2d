"""Leaves out records and landing files that make a batch fail, so that all others are processed.

If a batch raises, the run of the job ends and another run begins from the last decision, as after a kill. Then:

- Records that raise when read, or with which no decision can be taken, are found by trying on copies of the state. The
  batch is repeated without them: their bytes go to ops.quarantine, and their frames are settled as unusable, so that
  their content is declared lost (docs/protocol.md 3.6).
- A batch that fails for another reason is repeated, then processed file by file. A file that fails alone is left out.
- If a decision was written and cannot be carried out, its parts that raise are left out (possible_work.py).
- If the cause is outside the data (a disk, a store, a network, a cluster, the JVM), the process ends and systemd
  starts it again.
- After a start that was killed, files are processed one by one, and after some good ones in batches that grow: what
  waits after a long outage would take hours else. If five starts in a row were killed during one file, or ended because
  the JVM did, that file is moved to the folder `aside`. So is a file that its disk does not give.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from cloud_job.delta.integrity.durable import sync_path
from cloud_job.ingest.intake import Intake, LeftOut, RecordError
from cloud_job.spark.job import Job, JobSettings
from cloud_job.spark.possible_work import REASON, jvm_has_died, raise_if_of_the_world, text_of
from cloud_job.spark.state_log import File
from edge_agent.wire import landing

log = logging.getLogger("headwater.root")

PAUSES_S: Final = (0.5, 2.0)  # between the three tries of a batch of several files, and of one file
MOST_OF_TOPIC: Final = 5  # failing records of one topic; with more, all its records are left out of the batch
MOST_IN_A_ROW: Final = 3  # whole files left out in a row; with more, the cause is not in the files
ONE_BY_ONE: Final = 8  # files that change a table, after a start that was killed; then as many at once as were good
ASIDE: Final = "aside"  # subfolder of the landing folder
FATAL: Final = "several starts in a row were killed while it was processed"
Note = Callable[[str, str], None]


class Starts(Protocol):
    """The files with which earlier starts were killed (edge_agent/runtime/start_record.py)."""

    @property
    def careful(self) -> bool: ...

    @property
    def fatal(self) -> str: ...

    def is_fatal(self, what: str) -> bool: ...

    def handling(self, what: str) -> None: ...


class BatchGuard:
    """Runs jobs over the same tables, one after another. The landing loop uses it like a job."""

    def __init__(
        self, make: Callable[[], Job], note: Note = lambda why, example: None, starts: Starts | None = None
    ) -> None:
        """make: returns a new, open run. note: is called with (reason, name) of everything that is left out."""
        self._make, self._note, self._starts = make, note, starts
        self.job = self._begun()
        self._in_a_row = 0
        self._fatal = starts is not None and bool(starts.fatal)  # whether such a file may still come
        self._good = 0  # files that this start has processed with care, up to a decision

    @property
    def settings(self) -> JobSettings:
        return self.job.settings

    @property
    def most_files(self) -> int | None:
        """How many files the next batch may have; None: any number.

        Only files with a decision count: all others are the first again after a start. So the first file of a larger
        batch that is killed is processed alone then, and only the file that is the cause is named in five starts.
        """
        if self._starts is None or not (self._starts.careful or self._fatal):
            return None
        return 1 if self._good < ONE_BY_ONE else self._good

    def took(self, name: str) -> bool:
        """Whether the last decision names a landing file."""
        return self.job.took(name)

    def finish(self) -> None:
        self.job.finish()

    def close(self) -> None:
        self.job.close()

    def without(self, name: str, why: str) -> None:
        """Take a file as read that its disk does not give, and move it to `aside`. Its content is declared lost once
        the lander states that it was received. Raises: PortError.
        """
        file = Path(self.settings.landing) / name
        left_out: dict[landing.Record | str, LeftOut] = {name: LeftOut(why)}
        self.job.process([(name, b"")], left_out)
        try:
            (file.parent / ASIDE).mkdir(mode=0o700, exist_ok=True)
            file.rename(file.parent / ASIDE / name)
        except OSError as err:
            log.warning("landing.not_moved", extra={"file": str(file), "why": err.strerror})
        self._report(left_out)

    def process(self, files: Iterable[File]) -> None:
        """Process one batch like `Job.process`. Raises: errors outside the data, and errors that every file causes."""
        rest = list(files)
        while rest:
            most, starts = self.most_files, self._starts
            if most is None or starts is None:
                self._process(rest)
                return
            names = [name for name, _ in rest[:most]] if self._fatal else []
            fatal = next((at for at, name in enumerate(names) if starts.is_fatal(name)), None)
            if fatal == 0:
                self._move_aside(rest[0][0], f"{rest[0][0]}: {FATAL}")
                self._fatal, rest = False, rest[1:]
                continue
            files, rest = rest[: fatal or most], rest[fatal or most :]
            self._carefully(files, starts)

    def _carefully(self, files: list[File], starts: Starts) -> None:
        """Process a batch, and record the name of its first file while it lasts."""
        decided = self.job.state.number
        starts.handling(files[0][0])
        try:
            self._process(files)
        except Exception as err:
            if not jvm_has_died(err):  # the process ends by itself: it was not killed, and not with this file
                starts.handling("")
            raise
        starts.handling("")
        self._good += len(files) if self.job.state.number > decided else 0

    def _process(self, found: list[File]) -> None:
        error = self._tried(found)
        if error is None:
            return
        if len(found) > 1:
            for file in found:
                self._process([file])
            return
        self._without(found[0], error)

    def _tried(self, files: Sequence[File]) -> Exception | None:
        """Try one batch several times. Returns the exception of the last try, None if one succeeded."""
        left_out: dict[landing.Record | str, LeftOut] = {}
        error: Exception | None = None
        for pause_s in (*PAUSES_S, None):
            try:
                self.job.process(files, left_out)
            except Exception as err:
                error = err
                _raise_if_of_the_world(err)
                log.warning(
                    "batch.failed", extra={"files": len(files), "first": files[0][0], "why": text_of(err)}, exc_info=err
                )
            else:
                self._passed(left_out)
                return None
            self._begin_again()
            if all(self.job.took(name) for name, _ in files):  # the decision was written, and the new run completed it
                self._passed(left_out)
                return None
            self._search(files, left_out)
            if pause_s is not None and not left_out:
                time.sleep(pause_s)
        return error

    def _begun(self) -> Job:
        """Begin a run, which carries out the last decision, and report the parts that could not be carried out."""
        job = self._make()
        for found in job.impossible:
            self._note(f"{REASON}: {found.why}", found.name)
        return job

    def _begin_again(self) -> None:
        idle = self.job.idle
        self.job.close()
        self.job = self._begun()
        if idle:  # these files precede those of this batch
            self._process(idle)

    def _passed(self, left_out: dict[landing.Record | str, LeftOut]) -> None:
        self._in_a_row = 0
        self._report(left_out)

    def _report(self, left_out: dict[landing.Record | str, LeftOut]) -> None:
        for record, out in left_out.items():
            name = record if isinstance(record, str) else f"{record[0]}, {len(record[2])} bytes, received {record[1]}"
            log.error("record.left_out", extra={"record": name, "why": out.why})
            self._note(out.why, name)

    # --- find the records that fail ------------------------------------------------------------------------------

    def _search(self, files: Sequence[File], left_out: dict[landing.Record | str, LeftOut]) -> None:
        """Leave out records until the part of a batch that needs no Spark succeeds with these files."""
        while True:
            intake, error = self.job.attempt(files, left_out)
            if error is None:
                return
            _raise_if_of_the_world(error)
            if isinstance(error, RecordError):
                record, why = error.record, str(error)
            else:
                record, why = self._last_of_shortest(files, left_out, intake, error), f"no decision: {text_of(error)}"
            _leave_out(left_out, record, why, error)

    def _last_of_shortest(
        self, files: Sequence[File], left_out: dict[landing.Record | str, LeftOut], whole: Intake, error: Exception
    ) -> landing.Record:
        """The first record of these files with which no decision can be taken, found by binary search.

        whole: the intake of all records. Raises: `error`, if it occurs without any record.
        """
        fits, fails = 0, whole.count
        if self.job.attempt(files, left_out, 0)[1] is not None or whole.last is None:
            raise error
        record = whole.last
        while fails - fits > 1:
            most = (fits + fails) // 2
            intake, found = self.job.attempt(files, left_out, most)
            if found is None:
                fits = most
            else:
                fails, record = most, intake.last or record
        return record

    # --- a whole file --------------------------------------------------------------------------------------------

    def _without(self, file: File, error: Exception) -> None:
        """Process a file that fails alone: only the lander's own records in it are handled."""
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            raise error
        why = f"{file[0]} cannot be processed: {text_of(error)}"
        left_out: dict[landing.Record | str, LeftOut] = {topic: LeftOut(why) for topic in _topics(file[1])}
        try:
            self.job.process([file], left_out)
        except Exception as err:
            _raise_if_of_the_world(err)
            self._begin_again()
            self._move_aside(file[0], why)
        else:
            self._report(left_out)

    def _move_aside(self, name: str, why: str) -> None:
        """Copy a file to `aside` and take it as read. Its content is declared lost once the lander states that it was
        received.

        The job deletes the file itself after its decision, as it does with every file. If no decision can be written,
        nothing has changed.
        """
        file = Path(self.settings.landing) / name
        copy = file.parent / ASIDE / name
        copy.parent.mkdir(mode=0o700, exist_ok=True)
        sync_path(file.parent)
        if file.exists():
            _copy(file, copy)
        left_out: dict[landing.Record | str, LeftOut] = {name: LeftOut(why)}
        try:
            self.job.process([(name, b"")], left_out)
        except Exception:
            if file.exists():
                copy.unlink(missing_ok=True)
            raise
        self._report(left_out)


def _copy(file: Path, to: Path) -> None:
    """Copy a landing file so that a power cut cannot take the copy when the file is deleted."""
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(file.read_bytes())
        out.flush()
        os.fsync(out.fileno())
    sync_path(to.parent)


def _leave_out(
    left_out: dict[landing.Record | str, LeftOut], record: landing.Record, why: str, error: Exception
) -> None:
    """Add a record to `left_out`. If it is there already and still fails, it is no longer settled as unusable (see
    LeftOut). Raises: `error`, if it fails even then.
    """
    for known in (record, record[0]):
        out = left_out.get(known)
        if out is not None:
            if not out.settled:
                raise error
            left_out[known] = LeftOut(out.why, settled=False)
            return
    same = [known for known in left_out if isinstance(known, tuple) and known[0] == record[0]]
    if len(same) >= MOST_OF_TOPIC and record[0] != landing.TICK_TOPIC:
        left_out[record[0]] = LeftOut(f"{len(same)} records of {record[0]} could not be handled")
    else:
        left_out[record] = LeftOut(why)


def _topics(content: bytes) -> list[str]:
    """The topics of a file's records, without the lander's own."""
    found: dict[str, None] = {}
    try:
        for topic, _, _ in landing.iterate(content):
            found[topic] = None
    except Exception:  # damaged bytes: the topics of the records before them are known
        log.warning("landing.damaged", extra={"size_bytes": len(content)})
    return [topic for topic in found if topic != landing.TICK_TOPIC]


def _raise_if_of_the_world(error: Exception) -> None:
    """Raise the error again if its cause is outside the data."""
    raise_if_of_the_world(error, error.__cause__ if isinstance(error, RecordError) else None)
