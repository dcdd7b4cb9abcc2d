"""The root: processes micro-batches from landing files to results.

A batch commits in this order (docs/protocol.md 8.1): frames to bronze.messages; the decision to ops.batches, which is
also the lease; results; revisions; other tables if they change. Its landing files are deleted just before the next
decision is written. Everything after the decision is a function of the tables and of the decision's row, and a step
that was done before is skipped. So after a crash the last decision is carried out again, and nothing counts twice.

One run owns the tables (cloud_job/delta/lease.py). Frames stored for a batch that another run decided do not count.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.integrity import torn_commits
from cloud_job.delta.integrity.deleted_tables import check_whole
from cloud_job.delta.integrity.durable import DurableTables
from cloud_job.delta.late_and_quarantine import late, parts_of, quarantined
from cloud_job.delta.lease import Lease
from cloud_job.delta.plugin_failures import PluginFailures
from cloud_job.delta.tables import BATCHES, MESSAGES, RESULTS, Place, Table
from cloud_job.ingest.decode_lookup import DecodeLookups
from cloud_job.ingest.intake import NOTHING, Intake, Leave
from cloud_job.ordered.position_store import OrderedRows
from cloud_job.spark import decision_checkpoint, islands, state_log
from cloud_job.spark.possible_work import REASON, Impossible, about, possible, raise_if_of_the_world
from cloud_job.spark.prepared_batch import Decided, decided, row_of
from cloud_job.spark.read_files import ReadFiles
from cloud_job.spark.row_sources import RowSources
from cloud_job.spark.state_log import BatchInput, File, Rules, StateLog
from cloud_job.spark.upsert import merge, merge_sessions, withdraw, withdraw_over
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.errors import ProtocolError
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.ops_rows import NodeRows
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import TableRow, Work
from edge_agent.wire.heads import Parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("headwater.root")
ONE_FILE_BYTES: Final = 1024 * 1024  # stored frames below this size become one file
FAILPOINT: Final = "HEADWATER_FAILPOINT"  # step:batch, for crash tests; the steps are those of `_done`


@dataclass(frozen=True, slots=True)
class JobSettings:
    """landing: folder of the landing files. grace_us: grace time of the children, by the lander's receive times.

    members: children expected before their first message; retired: nodes that will not return (protocol 4.5, 1.5).
    """

    landing: str
    grace_us: int = 60_000_000
    limits: RootLimits = field(default_factory=RootLimits)
    members: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()

    @property
    def rules(self) -> Rules:
        return Rules(self.limits, self.grace_us, self.members)


class Job:
    """One run of the job. Call `open`, then `process` with the landing files in order."""

    def __init__(self, spark: SparkSession, place: Place, settings: JobSettings) -> None:
        """Reads and writes nothing before `open`."""
        self.spark, self.place, self.settings = spark, place, settings
        self.owner = uuid.uuid4().hex[:16]
        self.decider, self.state, self.parts = self._fresh()
        self.steps: dict[str, float] = {}  # seconds of each step of the last batch
        self._since_s = 0.0
        self._lease: Lease | None = None
        self._durable: DurableTables | None = None
        self._rows = RowSources(spark, place)
        self._failures = PluginFailures(spark, place)
        self._nodes = NodeRows()
        self._log = StateLog(settings.rules)
        self._began_from = 0  # number of the row with the whole state from which this run began
        self._read = ReadFiles(Path(settings.landing))
        self.impossible: list[Impossible] = []  # parts of the previous run's last decision that cannot be carried out

    def open(self, owns: Callable[[], None] = lambda: None) -> None:
        """Take the lease, create missing tables, and complete the last decision.

        owns: is called once this run has the lease, before anything is changed.
        Raises: PortError if another root owns the tables or reads the landing files, if a table was deleted, is damaged
        or is an older copy, or if the tables cannot be created.
        """
        self._lease = Lease(self.place, self.owner, self.settings.landing)
        try:
            owns()
            self._open_tables()
        except BaseException:
            self.close()
            raise

    def _open_tables(self) -> None:
        torn_commits.repair(self.place)
        check_whole(self.spark, self.place)
        self._durable = DurableTables(self.place)  # before `create`: a table that was deleted has no version any more
        tables.create(self.spark, self.place)
        self._durable.sync()
        rows = self._last()
        if rows:
            self._resume(rows)
        self.decider.retire(self.settings.retired, self.state.decided_us)

    def _fresh(self) -> tuple[Decider, RootState, Parts]:
        """The state before the first decision."""
        decider = Decider(0, self.settings.grace_us, self.settings.members, self.settings.limits.overlap)
        # not connected, until a tick of the lander says that it has a broker connection (docs/protocol.md 4.4)
        decider.parent.children.link(0, up=False)
        return decider, RootState(self.settings.limits), {}

    def _last(self) -> list[dict[str, Any]]:
        """The rows of ops.batches from the last one with a whole state to the last decision."""
        batches = self.place.read(self.spark, BATCHES)
        rows = [row.asDict() for row in batches.orderBy("number", ascending=False).limit(1).collect()]
        base = state_log.base_of(bytes(rows[0]["state"]), rows[0]["number"]) if rows else 0
        if not rows or base == rows[0]["number"]:
            return rows
        later = batches.where(f"number >= {base}").collect()  # sorted here: Spark would run three jobs for it
        return sorted((row.asDict() for row in later), key=lambda row: int(row["number"]))

    @property
    def needed_from(self) -> int:
        """The number of the last row of ops.batches with a whole state: a start needs this row and all later ones."""
        return self._began_from if self._log.base < 0 else self._log.base

    def _recalled(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Decider, RootState, Parts]:
        """The state after these rows. rows: from `_last`."""
        return state_log.recall(rows, self.settings.rules) if rows else self._fresh()

    def _resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Continue after the last of these rows of ops.batches."""
        self.decider, self.state, self.parts = self._recalled(rows)
        last, self._began_from = rows[-1], int(rows[0]["number"])
        self._read.resume(last["files"])
        self._rows.resume(self.state, self.parts)
        self._carry_out(Work.loads(bytes(last["work"])))
        log.info("root.resumed", extra={"batch": self.state.number})

    def took(self, name: str) -> bool:
        """Whether a landing file has been read: the last decision names it, or the next one will."""
        return name in self._read

    @property
    def idle(self) -> list[File]:
        """Files read since the last decision that changed no table. A new run has to read them first."""
        return [file for files in self._read.idle for file in files]

    def process(self, files: Iterable[tuple[str, bytes]], left_out: Leave = NOTHING) -> None:
        """Process one micro-batch. files: names and content in order; files that have been read are skipped.

        left_out: records that are not handled. After an exception this run is unusable: close it and open another.
        """
        self._since_s = time.monotonic()
        intake = self._intake(left_out)
        new = tuple((name, content) for name, content in files if not self.took(name))
        for name, content in new:
            intake.read(content, name)
        self._done("read", intake.batch)
        if new:
            self._batch(intake, BatchInput(new, left_out=left_out))

    def attempt(
        self, files: Iterable[tuple[str, bytes]], left_out: Leave = NOTHING, most: int | None = None
    ) -> tuple[Intake, Exception | None]:
        """Try the part of `process` that needs no Spark, on a copy of the state. Returns (intake, exception or None).

        most: how many records to read; None: all.
        """
        decider, state, parts = self._recalled(self._last())
        decider.retire(self.settings.retired, state.decided_us)
        state_log.idle_again(decider, state, parts, self.owner, self._read.idle)
        number = state.number + 1
        intake = Intake(decider, parts, number, self.owner, state.decided_us, left_out=left_out, most=most)
        try:
            for name, content in files:
                intake.read(content, name)
            row_of(decided(intake, state), intake, (), decision_checkpoint.dumps(decider, state, parts))
        except Exception as err:  # the caller judges it
            return intake, err
        return intake, None

    def forget_work(self) -> None:
        """Clear the work of the last decision in its row, so that no start carries it out again. Only after `open`.

        The same commit writes the whole state into the row, because deciding again would not give the cleared work.
        """
        number, (*_, last) = self.state.number, self._last()
        state = decision_checkpoint.dumps(self.decider, self.state, self.parts)
        row = {**last, "work": Work(number).dumps(), "state": state}
        self.place.replace(BATCHES, driver_rows.rows(self.spark, BATCHES, [row]), f"number = {number}")
        self._log, self._began_from = StateLog(self.settings.rules), number

    def forget_epochs(self, lines: Sequence[EpochKey], *, stored: bool = False) -> None:
        """Remove ended epochs, whose rows no result needs, from the state. The next decision records it.

        stored: the tables still have their rows.
        """
        state_log.forget(self.decider, self.state, lines, stored=stored)
        self._log.forgotten(lines, stored=stored)
        self._rows.forget_epochs(lines)

    def forget_runs(self, first: int) -> None:
        """Remove runs of the job from the state whose batches are all before `first`: the tables have no rows of them.
        The next decision records it.
        """
        if len(self.state.owners) > 1:
            self.state.disown(first)
            self._log.without_rows(first)

    def committed(self, step: str) -> None:
        """Make a step outside a batch durable."""
        self._done(step, self.state.number)
        self.steps.pop(step)  # the times are reported per batch

    def finish(self) -> None:
        """Write deferred revisions (docs/protocol.md 8.3): at the end of --once and at an orderly stop."""
        if self.state.put_off or self._log.behind or self._read.idle:
            self._batch(self._intake(), BatchInput(flush=True))
        self._read.delete()
        self.close()

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _held(self) -> Lease:
        if self._lease is None:
            raise ProtocolError("a batch without a lease: call open() first")
        return self._lease

    def _intake(self, left_out: Leave = NOTHING) -> Intake:
        number = self.state.number + 1
        return Intake(self.decider, self.parts, number, self.owner, self.state.decided_us, left_out=left_out)

    def _batch(self, intake: Intake, given: BatchInput) -> None:
        """Take the decision on the messages of the intake and write the results. If no table would change, nothing is
        written, and the files are kept for a later decision.
        """
        number = intake.batch
        made = decided(intake, self.state, flush=given.flush)
        nodes = self._nodes.columns(made.decision, number)
        if nodes is None and self._may_wait(made, given):
            self.state.number -= 1
            self._read.wait(given.files)
            return
        given, names = given._replace(idle=tuple(self._read.idle)), self._read.with_idle(given.files)
        self._read.delete()
        row = row_of(made, intake, names, self._kept(number, given))
        self._done("decide", number)
        self._write(made, row, nodes)
        self._read.decided(names)
        log.info(
            "batch.done",
            extra={
                "batch": number,
                "frames": intake.messages,
                "again": intake.again,
                "closing": len(made.work.closing),
                "revising": len(made.work.revising),
                **{f"{step}_s": took_s for step, took_s in self.steps.items()},
            },
        )

    def _write(self, made: Decided, row: TableRow, nodes: dict[str, list[object]] | None) -> None:
        """Make all commits of a batch. nodes: columns of ops.nodes; None: no change."""
        work, number = made.work, made.work.number
        if made.stored is not None:
            self.place.append(MESSAGES, self._stored(made.stored), self.owner, number)
            self._rows.recent.add(made.stored)
        self._done("store", number)
        self._decide(row, number)
        self._done("decision", number)
        self._rows.take(made.stored, made.decision, made.applied, self.parts, self._lookups())
        self._perform(work)
        if nodes is not None:
            self._show(nodes, number)
        self._failures.report(filter(None, map(self.state.query, self.state.queries)), number)
        self._rows.forget(self.state.needed_us)

    def _may_wait(self, made: Decided, given: BatchInput) -> bool:
        """Whether a decision changes no table and need not be written yet."""
        return not given.flush and not given.left_out and made.changes_nothing and self._read.may_wait()

    def _kept(self, number: int, given: BatchInput) -> bytes:
        """The column `state` of a batch's row: the whole state, or the input of the batch."""
        took_s = self.steps.get("read", 0.0) + time.monotonic() - self._since_s
        return self._log.take(
            number,
            given,
            took_s,
            lambda: decision_checkpoint.dumps(self.decider, self.state, self.parts),
            last=given.flush,
        )

    def _decide(self, row: TableRow, number: int) -> None:
        self.place.append(BATCHES, driver_rows.rows(self.spark, BATCHES, [row]), "decision", number)
        self._held().check(self.spark, number)

    def _perform(self, work: Work, *, again: bool = False) -> None:
        """Carry out the decision. again: parts may have been done before a crash."""
        number, lookups = work.number, self._lookups()
        ordered = self._rows.ordered(work, lookups)
        self._append_results(work, lookups, ordered, again=again)
        self._done("results", number)
        self._rows.central.keep(ordered, number)
        self._done("positions", number)
        self._revise(work, lookups)
        self._done("revisions", number)
        self._append_others(work, lookups, again=again)
        self._done("tables", number)

    def _carry_out(self, work: Work) -> None:
        """Carry out a decision that may be partly done. Parts that raise are left out, and ops.gaps declares them."""
        try:
            self._perform(work, again=True)
        except Exception as err:
            raise_if_of_the_world(err)
            log.exception("decision.failed", extra={"batch": work.number})
            self._rows.resume(self.state, self.parts)
            work, self.impossible = possible(work, self._make)
            for found in self.impossible:
                log.error("rows.left_out", extra={"rows": found.name, "why": found.why})
            # first: a later start finds the other rows of the batch, and nothing that fails
            self._declare([found.row(self.state, work.number) for found in self.impossible], work.number)
            self._rows.resume(self.state, self.parts)
            self._perform(work, again=True)

    def _declare(self, rows: Iterable[TableRow], number: int) -> None:
        """Append to ops.gaps those of these rows, for what is left out of a batch, that an earlier start has not."""
        known = self.place.read(self.spark, tables.GAPS).where((F.col("batch") == number) & (F.col("reason") == REASON))
        there = {about(row.asDict()) for row in known.collect()}
        missing = [row for row in rows if about(row) not in there]
        if missing:  # the step is a new one each time, else Delta would ignore what an earlier start did not find
            declared = driver_rows.rows(self.spark, tables.GAPS, missing)
            self.place.append(tables.GAPS, declared, f"left out {len(there)}", number)
            self.committed("declared")

    def _make(self, work: Work) -> None:
        """Compute the rows of a decision without writing them."""
        lookups = self._lookups()
        self._rows.make(work, lookups)
        for rows in (self._quarantined(work), self._late(work, lookups)):
            if rows is not None:
                rows.write.format("noop").mode("overwrite").save()

    def _show(self, nodes: dict[str, list[object]], number: int) -> None:
        """Write ops.nodes. Its rows are in no decision: every run writes them again at its start."""
        self.place.overwrite(tables.NODES, driver_rows.of_columns(self.spark, tables.NODES, nodes), number)
        self._done("nodes", number)

    def _append_results(self, work: Work, lookups: DecodeLookups, ordered: OrderedRows, *, again: bool) -> None:
        ended = {i: at for i, at in islands.closing_ranges(work.islands).items() if not work.islands[i].meets}
        some = bool(work.closing or ended or ordered.rows is not None)
        if not some or (again and self._done_before(RESULTS, work.number)):
            return
        first = [self._rows.windows(work, work.closing, lookups)] if work.closing else []
        first += [self._rows.sessions(work, ended, lookups, revising=False)] if ended else []
        first += [ordered.rows] if ordered.rows is not None else []
        self.place.append(RESULTS, reduce(DataFrame.unionByName, first), "results", work.number)

    def _revise(self, work: Work, lookups: DecodeLookups) -> None:
        """Write the rows that replace or withdraw rows of gold.results."""
        if work.over:
            withdraw_over(self.spark, self.place, work.over, work.number)
        if work.revising:
            merge(self.spark, self.place, self._rows.windows(work, work.revising, lookups), work.revising)
        if work.gone:
            withdraw(self.spark, self.place, work.gone, work.number)
        meeting = {i: at for i, at in islands.closing_ranges(work.islands).items() if work.islands[i].meets}
        if meeting:
            rows = self._rows.sessions(work, meeting, lookups, revising=False)
            merge_sessions(self.spark, self.place, rows, None, islands.lowest_us(meeting))
        self._revise_sessions(work, lookups)

    def _revise_sessions(self, work: Work, lookups: DecodeLookups) -> None:
        if not any(found.revises for found in work.islands):
            return
        known = self.place.read(self.spark, RESULTS)
        ranges, longest = islands.revising_ranges(known, work.islands)
        for i, longest_us in longest.items():
            found = work.islands[i]
            place = QueryPlace(found.query, found.revision, found.node)
            self.state.sessions.stretch(place, longest_us)
            self._log.longest(place, longest_us)
        if ranges:
            made = self._rows.sessions(work, ranges, lookups, revising=True)
            gone = islands.withdrawn(known, made, [work.islands[i] for i in ranges], work.number)
            merge_sessions(self.spark, self.place, made, gone, islands.lowest_us(ranges))

    def _append_others(self, work: Work, lookups: DecodeLookups, *, again: bool) -> None:
        """Append rows to ops.coverage, gaps, queries, sensors, quarantine and late."""
        number = work.number
        coverage = self._not_covered(work.coverage) if self.state.covers_full else work.coverage
        for table, rows in (
            (tables.COVERAGE, coverage),
            (tables.GAPS, work.gaps),
            (tables.QUERIES, work.queries),
            (tables.SENSORS, work.sensors),
        ):
            if rows and not (again and self._done_before(table, number)):
                self.place.append(table, driver_rows.rows(self.spark, table, list(rows)), "rows", number)
        for table, found in ((tables.QUARANTINE, self._quarantined(work)), (tables.LATE, self._late(work, lookups))):
            if found is not None and not (again and self._done_before(table, number)):
                self.place.append(table, found, "rows", number)

    def _quarantined(self, work: Work) -> DataFrame | None:
        """Rows of ops.quarantine."""
        if not work.unread and not work.refused:
            return None
        return quarantined(self.place.read(self.spark, MESSAGES), work, self.state.owner_of(work.number))

    def _late(self, work: Work, lookups: DecodeLookups) -> DataFrame | None:
        """Rows of ops.late."""
        if not work.beyond:
            return None
        parts = parts_of(self.place.read(self.spark, MESSAGES), work.beyond, work.number)
        lines = {EpochKey(each.node, each.epoch) for each in work.beyond}
        pages = {line: page for line in lines if (page := lookups.page(line)) is not None}
        return driver_rows.one_file(self.spark, tables.LATE, late(parts, work, pages, lookups.bases(lines)))

    def _not_covered(self, rows: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
        """The rows whose coverage is not in ops.coverage yet. The state contains only the newest coverages."""
        if not rows:
            return rows
        ids = F.col("coverage_id").isin(sorted({str(row["coverage_id"]) for row in rows}))
        known = self.place.read(self.spark, tables.COVERAGE).where(ids).select("coverage_id").collect()
        there = {row["coverage_id"] for row in known}
        return tuple(row for row in rows if row["coverage_id"] not in there)

    def _done_before(self, table: Table, number: int) -> bool:
        """Whether a batch has written to a table. An append is complete or has no effect.

        Rows of ops.gaps for what was left out of the batch are an append of their own.
        """
        rows = self.place.read(self.spark, table).where(f"batch = {number}")
        if table is tables.GAPS:
            rows = rows.where(F.col("reason") != REASON)
        return not rows.isEmpty()

    def _stored(self, content: pa.Table) -> DataFrame:
        """Rows of bronze.messages. A large batch becomes several files, which can be read in parallel."""
        if content.nbytes < ONE_FILE_BYTES:
            return driver_rows.one_file(self.spark, MESSAGES, content)
        return driver_rows.frame(self.spark, content, driver_rows.schema(MESSAGES))

    def _lookups(self) -> DecodeLookups:
        return DecodeLookups(self.decider.parent.dictionaries, self.state)

    def _done(self, step: str, number: int) -> None:
        """Make a step durable and record its duration. Crash tests end the process here."""
        if self._durable is not None:
            self._durable.sync()
        now_s = time.monotonic()
        self.steps[step] = round(now_s - self._since_s, 2)
        self._since_s = now_s
        if os.environ.get(FAILPOINT) == f"{step}:{number}":
            os._exit(9)
