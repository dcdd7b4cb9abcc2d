"""Keeps the tables small while the root runs: in small steps, between batches, in the root's own thread.

Upkeep is not a process of its own, because Delta loses commits when two JVMs write one folder. It does not run during a
batch, because of two writers in one JVM one fails. A step works on one table. A step that fails is logged, counted and
tried again later, while batches continue.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job.delta import driver_rows, log_files, retention, tables, vacuum
from cloud_job.delta.expiring import Expiring, expiring, over
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import MESSAGES, POSITIONS, TABLES, Place, Table
from cloud_job.spark.possible_work import jvm_is_gone
from edge_agent.algebra.frame import Gap
from edge_agent.root.decision import ops_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud_job.spark.job import Job

log = logging.getLogger("headwater.root")
SHARE: Final = 4  # pause after a step, in multiples of its duration: batches have four fifths of the time
RETRY_S: Final = 60.0  # delay after a failure; doubled with each further failure in a row
MOST_RETRY_S: Final = 3_600.0
VERSIONS: Final = 50  # commits of a table after which it is worth compacting
LONGEST_S: Final = 20.0  # about how long one step may merge files, because the next batch waits for it
LOOK_S: Final = 0.5  # interval at which a running merge is checked against this limit
TELL_S: Final = 86_400.0  # interval between two rows in ops.gaps about one failing step
FAILED: Final = "upkeep failed"  # reason in ops.gaps
MORE: Final = "more"  # key in a step's figures: the step is not finished, and its next part is due after the pause
LATER: Final = "later"  # the same, but the next part is due after another batch
MOST_EXPIRING: Final = 20_000  # (node, epoch, plan) handled by one step
HOUR_US: Final = 3_600_000_000
# Each run appends to bronze.messages under an id of its own, which Delta keeps in every checkpoint for ever unless told
# otherwise. The run needs it when it repeats an append, seconds later. One that was paused there for longer than this,
# while no other root ran, could append twice. The ids of all other tables are those of their steps: they are few, and
# that of ops.batches is the lease.
RUN_IDS_KEPT: Final = "interval 90 days"
Figures = Mapping[str, object]


@dataclass(slots=True)
class UpkeepStep:
    """A task repeated at an interval. act: returns figures for the log; None if there was nothing to do.

    after: the step is not due before a later batch than this.
    """

    name: str
    every_s: float
    act: Callable[[Job], Figures | None]
    due_s: float = 0.0
    after: int = -1
    failures: int = 0
    told_s: float | None = None  # when its failure was last written to ops.gaps


class Upkeep:
    """Runs the steps when they are due. done, failed: runs of steps since the start."""

    def __init__(
        self,
        kept: Kept,
        every_us: int,
        clock: Callable[[], float] = time.monotonic,
        steps: list[UpkeepStep] | None = None,
        note: Callable[[str, str], None] = lambda why, step: None,
    ) -> None:
        """every_us: shortest interval between two runs of a step. clock: seconds. steps: default `steps_of`. note: is
        called with the reason of a failure and the step.
        """
        self._clock, self._pause_until_s, self._note = clock, 0.0, note
        self.done = self.failed = 0
        self.steps = steps_of(kept, every_us) if steps is None else steps
        begin_s, order = clock(), random.sample(self.steps, len(self.steps))
        for at, step in enumerate(order):  # spread over the interval; a random order, so that all run despite restarts
            step.due_s = begin_s + every_us / 1e6 * (at + 1) / len(order)

    def between(self, root: Job) -> None:
        """Run the step that has been due for the longest time, if its time has come. Called between batches."""
        now_s = self._clock()
        if now_s < self._pause_until_s:
            return
        ready = [step for step in self.steps if step.due_s <= now_s and step.after < root.state.number]
        if ready:
            self._do(min(ready, key=lambda step: step.due_s), root, now_s)
            ended_s = self._clock()
            self._pause_until_s = ended_s + SHARE * (ended_s - now_s)

    def _do(self, step: UpkeepStep, root: Job, now_s: float) -> None:
        log.debug("upkeep.step", extra={"step": step.name})
        try:
            found = step.act(root)
            root.committed("upkeep")
        except Exception as err:  # a conflict, a full disk, whatever Spark raises: batches continue
            if jvm_is_gone(err):  # the root cannot continue; while no messages arrive, nothing else would notice
                raise
            self.failed += 1
            step.failures += 1
            again_s = min(RETRY_S * 2 ** min(step.failures - 1, 10), MOST_RETRY_S)
            step.due_s = self._clock() + again_s
            why = f"{type(err).__name__}: {(str(err).splitlines() or [''])[0][:200]}"
            log.warning(
                "upkeep.failed", extra={"step": step.name, "failed": self.failed, "again_s": again_s, "why": why}
            )
            self._note(why, f"{step.name}, {step.failures} in a row")
            self._declare(step, root, why)
            return
        self.done += 1
        later = found is not None and LATER in found
        more = found is not None and MORE in found
        step.after = root.state.number if later else -1  # then it comes first, because a root may not live for a round
        step.failures, step.due_s = 0, 0.0 if later else now_s if more else now_s + step.every_s
        took_s = round(self._clock() - now_s, 2)
        if found is None or found.keys() == {LATER}:
            log.debug("upkeep.nothing", extra={"step": step.name, "took_s": took_s})
        else:
            log.info("upkeep.done", extra={"step": step.name, "took_s": took_s, "steps": self.done, **found})

    def _declare(self, step: UpkeepStep, root: Job, why: str) -> None:
        """Write a row of 0 readings to ops.gaps, for users who see only the tables. At most one per step and day."""
        now_s = self._clock()
        if step.told_s is not None and now_s - step.told_s < TELL_S:
            return
        number = root.state.number
        gap = Gap((), 0, 0, 0, (), FAILED, detail=f"{step.name}, {step.failures} in a row: {why}")
        try:
            rows = driver_rows.rows(root.spark, tables.GAPS, [*ops_rows.gaps([("", gap)], number)])
            root.place.append(tables.GAPS, rows, f"upkeep {step.name}", number)
            root.committed("upkeep")
        except Exception as err:  # the cause of the step's failure may prevent this write too
            if jvm_is_gone(err):
                raise
            log.warning("upkeep.not_told", extra={"step": step.name, "why": type(err).__name__})
            return
        step.told_s = now_s


def steps_of(kept: Kept, every_us: int) -> list[UpkeepStep]:
    """The steps of a root.

    Steps that delete rows run seldom, because a deletion also rewrites the other rows of the same files.
    """
    every_s = every_us / 1e6
    hourly_s = max(every_us, min(HOUR_US, kept.versions_us // 4)) / 1e6
    daily_s = max(every_us, min(24 * HOUR_US, kept.ops_us // 32)) / 1e6
    steps = [
        UpkeepStep("expire", hourly_s, Expiry()),
        UpkeepStep("states", hourly_s, _silent(retention.states)),
        UpkeepStep("positions", hourly_s, WhenWritten(POSITIONS, retention.positions)),
        UpkeepStep("batches", daily_s, _silent(partial(retention.batches, kept=kept))),
        UpkeepStep("messages", daily_s, _silent(partial(retention.ops, kept=kept))),
        UpkeepStep("results", daily_s, _silent(partial(retention.results, kept=kept))),
    ]
    for table in TABLES:
        steps.append(UpkeepStep(f"compact {table.name}", every_s, Compaction(table, kept)))
        steps.append(UpkeepStep(f"clean {table.name}", hourly_s, Cleaning(table, kept)))
    return steps


@dataclass(slots=True)
class WhenWritten:
    """Runs an action on a table if the table was written to since the last time."""

    table: Table
    act: Callable[[Job], None]
    version: int | None = None

    def __call__(self, root: Job) -> Figures | None:
        if self.version != version_of(root.spark, root.place, self.table):
            self.act(root)
            self.version = version_of(root.spark, root.place, self.table)
        return None


@dataclass(slots=True)
class Expiry:
    """Deletes rows of readings that no result can need any more, at least one batch after they were found.

    The delay is needed because a start carries out the last decision again, which may still need these rows. It is one
    batch and not one interval, so that a root that restarts more often than the step runs deletes rows too. When the
    last row of an ended epoch is deleted, the epoch is removed from the state; runs of the job without rows are too.
    If the tables are no folder, no rows are deleted, and only the numbers of such epochs leave the state.

    number: the batch after which `found` was computed. done: (node, epoch, plan) -> rows before this time are deleted.
    """

    number: int = -1
    found: list[Expiring] = field(default_factory=list)
    done: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def __call__(self, root: Job) -> Figures | None:
        if root.place.guarded:  # a root on another machine may still read the rows, so only the state is relieved
            gone = over(root.decider, root.state, root.parts)[:MOST_EXPIRING]
            root.forget_epochs(gone, stored=True)
            return {"epochs": len(gone)} if gone else None
        rows = 0
        if self.found:
            if root.state.number <= self.number:
                return {LATER: True}
            now, self.found = self.found[:MOST_EXPIRING], self.found[MOST_EXPIRING:]
            rows = retention.expire(root, now, self.number)
            self.done.update({(node, epoch, plan): before_us for node, epoch, plan, before_us in now})
        else:
            self.number = root.state.number
            every = expiring(root.decider, root.state, root.parts)
            self.found = [each for each in every if self.done.get(each[:3]) != each[3]]
            self.done = {each[:3]: self.done[each[:3]] for each in every if each[:3] in self.done}
        if self.found:
            return {"rows": rows, MORE: True} if rows else {LATER: True}
        gone = retention.without_rows(root, over(root.decider, root.state, root.parts)[:MOST_EXPIRING])
        root.forget_epochs(gone)
        if len(root.state.owners) > 1:
            root.forget_runs(min(retention.first_batch(root), root.needed_from))
        return {"rows": rows, "epochs": len(gone)} if rows or gone else None


@dataclass(slots=True)
class Compaction:
    """Merges the small files of a table after every VERSIONS commits; very many files take several steps.

    version: the table's version after the last complete merge. longest_s: about how long one step may take.
    """

    table: Table
    kept: Kept
    version: int | None = None
    tuned: bool = False
    longest_s: float = LONGEST_S

    def __call__(self, root: Job) -> Figures | None:
        if not self.tuned:
            tune(root.spark, root.place, self.table, self.kept)
            self.tuned = True
        version = version_of(root.spark, root.place, self.table)
        if self.version is not None and version - self.version < VERSIONS:
            return None
        before, after, whole = compact(root.spark, root.place, self.table, self.longest_s)
        self.version = version_of(root.spark, root.place, self.table) if whole else None
        more = {} if whole else {MORE: True}
        return {"files": before, "files_after": after, **more} if before != after or more else None


@dataclass(slots=True)
class Cleaning:
    """Deletes files and commits of old versions of a table. Does nothing while the table has no old versions.

    clock: seconds. version: the newest version at the last run; seen_s: when this version was first seen. clean: no
    older version is left. after: the name of the file at which the last step stopped; '' if it finished. tuned: Delta
    knows how long files stay.
    """

    table: Table
    kept: Kept
    clock: Callable[[], float] = time.monotonic
    version: int | None = None
    seen_s: float = 0.0
    clean: bool = False
    after: str = ""
    tuned: bool = False

    def __call__(self, root: Job) -> Figures | None:
        if root.place.guarded and not self.tuned:  # else VACUUM refuses to delete what is younger than a week
            tune(root.spark, root.place, self.table, self.kept)
            self.tuned = True
        now_s, version = self.clock(), version_of(root.spark, root.place, self.table)
        if version != self.version:
            self.version, self.seen_s, self.clean = version, now_s, False
        if self.clean:
            return None
        began = self.after  # if not '', files that earlier steps looked at may have become too old since
        commits, self.after = clean(root, self.table, self.kept, began, vacuum.MOST_FILES)
        self.version = version_of(root.spark, root.place, self.table)  # on a cluster VACUUM itself adds commits
        whole = commits < log_files.MOST and not began and not self.after
        self.clean = whole and now_s - self.seen_s > self.kept.versions_us / 1e6
        more = {MORE: True} if self.after else {}
        return {"commits": commits, **more} if commits or more else None


def clean(root: Job, table: Table, kept: Kept, after: str = "", most: int | None = None) -> tuple[int, str]:
    """Delete files and commits of versions that are too old. Returns (number of commits deleted, `after` for the next
    call; '' if this one finished). after, most: see `vacuum`.
    """
    more = vacuum.vacuum(root, table, kept.versions_us / HOUR_US, after, most)
    root.committed("vacuum")
    if root.place.guarded:  # there Delta itself deletes old commits, in whole days
        return 0, more
    return log_files.cut(Path(root.place.path(table)), kept.versions_us), more


def compact(spark: SparkSession, place: Place, table: Table, longest_s: float | None = None) -> tuple[int, int, bool]:
    """Merge the small files of a table. Returns (files before, files after, whether all were merged).

    longest_s: after about this time, merging stops at the next commit; files merged by then stay merged. None: no
    limit.
    """
    before, whole = files_of(spark, place, table), True
    if before > 1 and longest_s is not None and not place.guarded:
        whole = _optimized(spark, place, table, longest_s)
    elif before > 1:
        spark.sql(f"OPTIMIZE {place.sql(table)}")
    return before, files_of(spark, place, table) if before > 1 else before, whole


def _optimized(spark: SparkSession, place: Place, table: Table, longest_s: float) -> bool:
    """Run OPTIMIZE for about `longest_s`. Returns whether it finished. OPTIMIZE blocks, so a second thread stops it."""
    ended, lock, stopped = threading.Event(), threading.Lock(), False
    folder = Path(place.path(table))
    first = log_files.newest(folder)

    def stop() -> None:
        nonlocal stopped
        ended.wait(longest_s)
        while not ended.wait(LOOK_S):  # stop after the first commit, so that every step makes progress
            with lock:
                if not ended.is_set() and log_files.newest(folder) > first:
                    stopped = True
                    spark.sparkContext.cancelAllJobs()  # between two batches there are no other jobs

    watch = threading.Thread(target=stop, name="upkeep", daemon=True)
    watch.start()
    try:
        spark.sql(f"OPTIMIZE {place.sql(table)}")
    except Exception:
        if not stopped:
            raise
        return False
    finally:
        with lock:
            ended.set()
        watch.join()
    return True


def files_of(spark: SparkSession, place: Place, table: Table) -> int:
    """The number of files in the newest version of the table."""
    return int(spark.sql(f"DESCRIBE DETAIL {place.sql(table)}").first()["numFiles"])  # type: ignore[index]


def version_of(spark: SparkSession, place: Place, table: Table) -> int:
    """The newest version of the table."""
    if not place.guarded:
        return log_files.newest(Path(place.path(table)))
    return int(spark.sql(f"DESCRIBE HISTORY {place.sql(table)} LIMIT 1").first()["version"])  # type: ignore[index]


def tune(spark: SparkSession, place: Place, table: Table, kept: Kept) -> None:
    """Set Delta's retention of its log and of deleted files to the root's `keep_versions`, if it differs, and that of
    the transaction ids of runs.
    """
    interval = f"interval {max(1, kept.versions_us // 1_000_000)} seconds"
    wanted = dict.fromkeys(("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"), interval)
    if place.guarded and table is MESSAGES:
        wanted["delta.setTransactionRetentionDuration"] = RUN_IDS_KEPT
    row = spark.sql(f"DESCRIBE DETAIL {place.sql(table)}").first()
    if {name: row["properties"].get(name) for name in wanted} != wanted:  # type: ignore[index]
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
        spark.sql(f"ALTER TABLE {place.sql(table)} SET TBLPROPERTIES ({properties})")


def _silent(act: Callable[[Job], None]) -> Callable[[Job], Figures | None]:
    def silent(root: Job) -> Figures | None:
        act(root)
        return None

    return silent
