"""The root: one micro-batch after the other, from landing files to results.

A batch commits in this order (docs/protocol.md 8.1): frames to bronze.messages; the decision to ops.batches, which is
also the lease; results; revisions; other tables where they change; then the landing files of the batch before go.
Whatever follows the decision is a function of the tables and of that row, and each step is passed over where it has
been done: after a crash the last decision is carried out again, and nothing counts twice.

One run owns the tables (cloud_job/lease.py). Frames that a run stored for a batch it did not decide do not count.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from cloud_job import islands, tables
from cloud_job.aside import late, parts_of, quarantined
from cloud_job.central.positions import Central, Made
from cloud_job.decision import state
from cloud_job.decision.complete import Ledger, Limits
from cloud_job.decision.spans import join
from cloud_job.decision.work import Order, Row, Span, Work, identity
from cloud_job.decode import Lookup, Page, pieces_of
from cloud_job.failures import Failures
from cloud_job.intake import Intake, Parts
from cloud_job.lease import Lease
from cloud_job.native.plan import Shape, state_columns
from cloud_job.recent import Recent, no_parts, stored_end_us
from cloud_job.results import between, decoded, decoded_here, ranges_of, results, results_of
from cloud_job.revise import merge, merge_sessions, withdraw, withdraw_over
from cloud_job.slices import READ_BACK, Slices, kept_plans, slices_of
from cloud_job.tables import BATCHES, MESSAGES, RESULTS, Place, Table
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.span import FAR_US
from edge_agent.errors import ProtocolError
from edge_agent.machines.decider import Decider, Decision

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row as SparkRow
    from pyspark.sql import SparkSession

    from edge_agent.algebra.query import Query

log = logging.getLogger("headwater.root")
ONE_FILE_BYTES: Final = 1024 * 1024
FAILPOINT: Final = "HEADWATER_FAILPOINT"  # step:batch, for crash tests; the steps are those of `_done`


@dataclass(frozen=True, slots=True)
class Settings:
    """grace_us: of the children, on the lander's receive times. landing: folder of the landing files.

    members: children expected before they are heard; retired: nodes that will not come back (protocol 4.5, 1.5).
    """

    landing: str
    checkpoint: str
    grace_us: int = 60_000_000
    limits: Limits = field(default_factory=Limits)
    members: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()


class Job:
    """The state of one run. Make one, `open` it, hand `process` to foreachBatch."""

    def __init__(self, spark: SparkSession, place: Place, settings: Settings) -> None:
        """Nothing is read or written before `open`."""
        self.spark, self.place, self.settings = spark, place, settings
        self.owner = uuid.uuid4().hex[:16]
        self.decider = Decider(0, settings.grace_us, settings.members)
        # until a tick of the lander says that it hears its broker (docs/protocol.md 4.4)
        self.decider.parent.household.link(0, up=False)
        self.ledger = Ledger(settings.limits)
        self.parts: Parts = {}
        self.steps: dict[str, float] = {}  # seconds of each step of the last batch
        self._since_s = 0.0
        self._lease: Lease | None = None
        self._recent, self._slices = Recent(NEVER_US), Slices()
        self._central = Central(spark, place)
        self._failures = Failures(spark, place)
        self._files: frozenset[str] = frozenset()  # of the last decision: they go when the next batch comes

    def open(self) -> None:
        """Take the tables, make those that are missing, and carry the last decision out to its end.

        Raises: PortError where another root has them, or they cannot be made.
        """
        self._lease = Lease(self.place, self.owner)
        tables.create(self.spark, self.place)
        rows = self.place.read(self.spark, BATCHES).orderBy("number", ascending=False).limit(1).collect()
        if rows:
            self._resume(rows[0])
        for node in self.settings.retired:
            self.decider.parent.household.retire(node)

    def _resume(self, last: SparkRow) -> None:
        """Go on after the decision of that row of ops.batches."""
        self.decider, self.ledger, self.parts = state.loads(
            bytes(last["state"]), self.settings.limits, self.settings.grace_us, self.settings.members
        )
        self._files = frozenset(last["files"])
        self._recent = Recent(stored_end_us(self.ledger.extent.values(), self.parts))
        self._slices = Slices(self.ledger.plans)
        self._central.open(self.ledger.number)
        self._perform(Work.loads(bytes(last["work"])), again=True)
        log.info("root.resumed", extra={"batch": self.ledger.number})

    def process(self, files: DataFrame, _spark_batch: int) -> None:
        """One micro-batch. files: path and content. Spark's batch number is not used: it restarts with a checkpoint."""
        self._since_s = time.monotonic()
        content = files.select("path", "content").toArrow()
        intake = self._intake()
        names = []
        for path, body in sorted(zip(*(column.to_pylist() for column in content.columns), strict=True)):
            name = path.rsplit("/", 1)[-1]
            if name not in self._files:
                names.append(name)
                intake.read(body, name)
        self._done("read", intake.batch)
        if names:
            self._batch(intake, names)

    def finish(self) -> None:
        """Write what was put off (docs/protocol.md 8.3): at the end of --once and at an orderly stop."""
        if self.ledger.put_off:
            self._batch(self._intake(), [], flush=True)
        self._remove(self._files)
        self.close()

    def close(self) -> None:
        """Let another root have the tables."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _held(self) -> Lease:
        if self._lease is None:
            raise ProtocolError("a batch without a lease: open() comes first")
        return self._lease

    def _intake(self) -> Intake:
        number = self.ledger.number + 1
        return Intake(self.decider, self.parts, number, self.owner, self.ledger.decided_us)

    def _batch(self, intake: Intake, names: list[str], *, flush: bool = False) -> None:
        number, stored = intake.batch, None
        self._remove(self._files)  # Spark has committed that batch as well, or there would be no next one
        if intake.rows["batch"]:
            stored = intake.table()
            self.place.append(MESSAGES, self._stored(stored), self.owner, number)
            self._recent.add(stored)
        self._done("store", number)
        decision = self.decider.decide(intake.now_us)
        applied = {
            key: found for e in decision.effects if (found := self.parts.pop(key := (e.node, e.epoch, e.seq), None))
        }
        if not self.ledger.owners or self.ledger.owners[-1][1] != self.owner:
            self.ledger.owners.append((number, self.owner))
        work = self.ledger.step(
            decision, applied, self.decider.parent.books, self.decider.gaps, unread=intake.unread, flush=flush
        )
        self.decider.release(decision, self.settings.limits.horizon_us, self.ledger.reach)
        self._decide(decision, work, names, intake.messages)
        self._done("decision", number)
        if self._slices.keep(kept_plans(self.ledger, decision.groups), self.ledger.plans):
            lines = {(node, epoch) for node, epoch, _seq in applied}
            pages = {line: page for line in lines if (page := self._page(line)) is not None}
            self._slices.take(stored, applied, self.parts, self._known(pages))
        self._perform(work)
        self._failures.tell(filter(None, map(self.ledger.query, self.ledger.queries)), number)
        self._recent.forget(self.ledger.needed_us)
        self._slices.forget()
        self._files = frozenset(names)
        log.info(
            "batch.done",
            extra={
                "batch": number,
                "frames": intake.messages,
                "again": intake.again,
                "closing": len(work.closing),
                "revising": len(work.revising),
                **{f"{step}_s": took_s for step, took_s in self.steps.items()},
            },
        )

    def _decide(self, decision: Decision, work: Work, names: list[str], messages: int) -> None:
        row: Row = {
            "number": work.number,
            "owner": self.owner,
            "decided_us": decision.now_us,
            "files": names,
            "messages": messages,
            "effects": len(decision.effects),
            "frontiers": json.dumps(
                [
                    {"source": g.source, "where": g.where, "by": g.by, "frontier": view.frontier_us}
                    for g, view in decision.groups.items()
                ]
            ),
            "work": work.dumps(),
            "state": state.dumps(self.decider, self.ledger, self.parts),
        }
        self.place.append(BATCHES, tables.rows(self.spark, BATCHES, [row]), "decision", work.number)
        self._held().check(self.spark, work.number)

    def _perform(self, work: Work, *, again: bool = False) -> None:
        """Everything after the decision. again: some of it may have been done before a crash."""
        number = work.number
        closing = islands.closing_ranges(work.islands)
        ended = {i: ranges for i, ranges in closing.items() if not work.islands[i].meets}
        ordered = self._ordered(work)
        if (work.closing or ended or ordered.rows is not None) and not (again and self._done_before(RESULTS, number)):
            first = [self._rows(work, work.closing)] if work.closing else []
            first += [self._sessions(work, ended, revising=False)] if ended else []
            first += [ordered.rows] if ordered.rows is not None else []
            self.place.append(RESULTS, reduce(DataFrame.unionByName, first), "results", number)
        self._done("results", number)
        self._central.keep(ordered, number)
        self._done("positions", number)
        if work.over:
            withdraw_over(self.spark, self.place, work.over, number)
        if work.revising:
            merge(self.spark, self.place, self._rows(work, work.revising), work.revising)
        if work.gone:
            withdraw(self.spark, self.place, work.gone, number)
        meeting = {i: ranges for i, ranges in closing.items() if work.islands[i].meets}
        if meeting:
            low_us = min(low for found in meeting.values() for low, _ in found)
            merge_sessions(self.spark, self.place, self._sessions(work, meeting, revising=False), None, low_us)
        self._revise_sessions(work)
        self._done("revisions", number)
        for table, rows in (
            (tables.COVERAGE, work.coverage),
            (tables.GAPS, work.gaps),
            (tables.QUERIES, work.queries),
            (tables.SENSORS, work.sensors),
        ):
            if rows and not (again and self._done_before(table, number)):
                self.place.append(table, tables.rows(self.spark, table, list(rows)), "rows", number)
        if (work.unread or work.refused) and not (again and self._done_before(tables.QUARANTINE, number)):
            frames = self.place.read(self.spark, MESSAGES)
            self.place.append(tables.QUARANTINE, quarantined(frames, work, self._owner_of(number)), "rows", number)
        if work.beyond and not (again and self._done_before(tables.LATE, number)):
            parts = parts_of(self.place.read(self.spark, MESSAGES), work.beyond)
            bases = {digest: plan.basis for digest, (_group, plan) in self.ledger.plans.items()}
            rows_late = late(parts, work, self._pages(), bases)
            self.place.append(tables.LATE, tables.one_file(self.spark, tables.LATE, rows_late), "rows", number)
        if work.nodes is not None:
            self.place.overwrite(tables.NODES, tables.rows(self.spark, tables.NODES, list(work.nodes)))
        self._done("tables", number)

    def _done_before(self, table: Table, number: int) -> bool:
        """Whether a batch has written to a table: an append is there whole or not at all."""
        return bool(self.place.read(self.spark, table).where(f"batch = {number}").limit(1).count())

    def _stored(self, content: pa.Table) -> DataFrame:
        """Frames as rows; of a large batch as several files, which are read side by side."""
        if content.nbytes < ONE_FILE_BYTES:
            return tables.one_file(self.spark, MESSAGES, content)
        return tables.frame(self.spark, content, tables.schema(MESSAGES))

    def _rows(self, work: Work, spans: tuple[Span, ...]) -> DataFrame:
        lookup = self._window_lookup(work, spans)
        self._read_back(lookup)
        found, formed = self._slices.windows(lookup)
        if found:
            spans = tuple(replace(span, orders=()) if i in found else span for i, span in enumerate(spans))
            lookup = self._window_lookup(work, spans)
        asked = ranges_of([span for span in spans if span.orders])
        parts = self._recent.within(asked) if asked or not found else no_parts()
        if parts is not None:
            return results_of(parts, self.spark, work, lookup, formed)
        return results(self.place.read(self.spark, MESSAGES), work, lookup, formed)

    def _read_back(self, lookup: Lookup) -> None:
        """Slices that the windows need and that are not on the driver, from the table."""
        missing = self._slices.missing(lookup)
        if missing:
            ranges = [(min(missing.values()), FAR_US)]
            wanted = self._slices.wanted(missing, self._known(self._pages(ranges)))
            frames = self.place.read(self.spark, MESSAGES).transform(between, ranges)
            # part by part: together they may be more than the driver takes
            self._slices.fill(missing, decoded(frames, slices_of(wanted), READ_BACK).toLocalIterator())

    def _known(self, pages: Mapping[tuple[str, int], Page]) -> Lookup:
        """What counts of these epochs, and what their numbers mean."""
        return Lookup(pages, tuple(self.ledger.owners), {}, {}, {})

    def _ordered(self, work: Work) -> Made:
        """Raw readings that get their positions: rows of windows, and the states that follow (docs/protocol.md 7.4)."""
        if not work.ordering:
            return Made()
        wanted: dict[int, list[tuple[int, int]]] = {}
        for ordering in work.ordering:
            for number in ordering.orders:
                wanted.setdefault(number, []).append((ordering.after_us, ordering.upto_us))
        queries = [self._query(ordering.query, ordering.revision) for ordering in work.ordering]
        parts = self._recent.within(join([span for found in wanted.values() for span in found], most=4))
        return self._central.made(work, self._lookup(work, wanted), queries, parts)

    def _revise_sessions(self, work: Work) -> None:
        if not any(found.revises for found in work.islands):
            return
        known = self.place.read(self.spark, RESULTS)
        ranges, longest = islands.revising_ranges(known, work.islands)
        for i, longest_us in longest.items():
            found = work.islands[i]
            self.ledger.sessions.stretch((found.query, found.revision, found.node), longest_us)
        if ranges:
            made = self._sessions(work, ranges, revising=True)
            gone = islands.withdrawn(known, made, [work.islands[i] for i in ranges], work.number)
            low_us = min(low for found in ranges.values() for low, _ in found)
            merge_sessions(self.spark, self.place, made, gone, low_us)

    def _sessions(self, work: Work, ranges: Mapping[int, islands.Ranges], *, revising: bool) -> DataFrame:
        wanted: dict[int, list[tuple[int, int]]] = {}
        for i, found in ranges.items():
            for number in work.islands[i].orders:
                wanted.setdefault(number, []).extend(found)
        return islands.sessions(self._pieces(self._lookup(work, wanted)), work, ranges, revising=revising)

    def _pieces(self, lookup: Lookup) -> DataFrame:
        ranges = join([span for found in lookup.ranges.values() for span in found], most=4)
        parts = self._recent.within(ranges)
        if parts is not None:
            return decoded_here(parts, self.spark, pieces_of(lookup), lookup.pieces)
        frames = self.place.read(self.spark, MESSAGES).transform(between, ranges)
        return frames.transform(decoded, pieces_of(lookup), lookup.pieces)

    def _query(self, name: str, revision: int) -> Query:
        query = self.ledger.query((name, revision))
        if query is None:
            raise ProtocolError(f"query {name} revision {revision} has work but no definition")
        return query

    def _owner_of(self, number: int) -> str:
        return next(owner for first, owner in reversed(self.ledger.owners) if first <= number)

    def _pages(self, ranges: Sequence[tuple[int, int]] = ((NEVER_US, -NEVER_US),)) -> dict[tuple[str, int], Page]:
        """What the numbers of every epoch mean that has sent rows in the ranges."""
        pages = {}
        for line, (first_us, latest_us) in self.ledger.extent.items():
            if any(low < latest_us and first_us < high for low, high in ranges):
                page = self._page(line)
                if page is not None:
                    pages[line] = page
        return pages

    def _page(self, line: tuple[str, int]) -> Page | None:
        book, applied = self.decider.parent.books.get(line), self.ledger.applied.get(line)
        if book is None or applied is None:
            return None
        plans = {number: identity(group, plan) for number, (group, plan) in book.plans.items()}
        return Page(book.keys, book.nodes, plans, applied)

    def _window_lookup(self, work: Work, spans: tuple[Span, ...]) -> Lookup:
        found: dict[int, list[Span]] = {}
        for span in spans:
            for number in span.orders:
                found.setdefault(number, []).append(span)
        return self._lookup(work, {number: ranges_of(mine) for number, mine in found.items()}, spans)

    def _lookup(
        self, work: Work, ranges: Mapping[int, Sequence[tuple[int, int]]], spans: tuple[Span, ...] = ()
    ) -> Lookup:
        """ranges: where rows of each read order are wanted. spans: the windows that are made of them."""
        pages = self._pages([span for found in ranges.values() for span in found])
        orders: dict[bytes, tuple[Order, ...]] = {}
        for order in work.orders:
            if order.number in ranges:
                orders[order.plan] = (*orders.get(order.plan, ()), order)
        shapes = [Shape(aggregates, scale) for aggregates, scale in work.shapes]
        bases = tuple(shape.basis for shape in shapes)
        nodes = sorted({node for page in pages.values() for node in page.nodes}, key=str.encode)
        return Lookup(pages, tuple(self.ledger.owners), orders, ranges, state_columns(shapes), spans, bases, nodes)

    def _done(self, step: str, number: int) -> None:
        """A step has been committed: note how long it took; the place where crash tests end the process."""
        now_s = time.monotonic()
        self.steps[step] = round(now_s - self._since_s, 2)
        self._since_s = now_s
        if os.environ.get(FAILPOINT) == f"{step}:{number}":
            os._exit(9)

    def _remove(self, names: Iterable[str]) -> None:
        """Landing files of a committed batch that Spark has committed too."""
        folder = Path(self.settings.landing)
        for name in names:
            (folder / name).unlink(missing_ok=True)
