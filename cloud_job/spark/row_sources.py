"""Computes the rows of gold.results that a decision requires, from the nearest copy of their parts.

Windows are computed from slices on the driver (cloud_job/spark/slice_cache.py) or from recently stored parts
(cloud_job/spark/recent_parts.py); sessions, count and state windows from recent parts. If these do not suffice,
bronze.messages is read. The rows do not depend on the source.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from cloud_job.delta.tables import MESSAGES, RESULTS, Place
from cloud_job.ingest.decode import Lookup, pieces_of
from cloud_job.ingest.decode_lookup import DecodeLookups
from cloud_job.ordered.position_store import OrderedQueries, OrderedRows
from cloud_job.spark import islands
from cloud_job.spark.recent_parts import RecentParts, no_parts, stored_end_us
from cloud_job.spark.results import between, decoded, local, ranges_of, results, results_of
from cloud_job.spark.slice_cache import READ_BACK, Applied, Sending, SliceCache, slices_of
from cloud_job.spark.slice_cache_plan import kept_plans
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.span import FAR_US
from edge_agent.errors import ProtocolError
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.window_ranges import Ranges, join
from edge_agent.root.decision.work import WindowRange, Work
from edge_agent.wire.heads import Parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from edge_agent.algebra.query.query import Query
    from edge_agent.root.completeness import Decision


class RowSources:
    """Computes rows, batch by batch, during one run of the job.

    recent, slices: copies on the driver. central: assigns positions for count and state windows.
    """

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark, self._place = spark, place
        self.recent, self.slices = RecentParts(NEVER_US), SliceCache()
        self.central = OrderedQueries(spark, place)

    def resume(self, state: RootState, parts: Parts) -> None:
        """Continue with existing tables. state: after the last decision. parts: heads of the parts of frames that have
        not taken effect.
        """
        self.recent = RecentParts(stored_end_us(state.extent.values(), parts))
        self.slices = SliceCache(state.plans)
        self.central.open(state.number)

    def take(
        self,
        stored: pa.Table | None,
        decision: Decision,
        applied: Applied,
        waiting: Container[Sending],
        lookups: DecodeLookups,
    ) -> None:
        """Add the frames that took effect with a decision, before its rows are computed. Arguments: as for
        SliceCache.take.
        """
        state = lookups.state
        if self.slices.keep(kept_plans(state, decision.groups), state.plans):
            lines = {EpochKey(node, epoch) for node, epoch, _seq in applied}
            pages = {line: page for line in lines if (page := lookups.page(line)) is not None}
            self.slices.take(stored, applied, waiting, lookups.known(pages))

    def forget_epochs(self, lines: Iterable[EpochKey]) -> None:
        """Drop the numbers of epochs whose rows no result needs."""
        for line in lines:
            self.slices.numbers.forget(line)

    def forget(self, needed_us: int) -> None:
        """After a batch, drop copies that no future row needs. needed_us: see RootState."""
        self.recent.forget(needed_us)
        self.slices.forget()

    def windows(self, work: Work, spans: tuple[WindowRange, ...], lookups: DecodeLookups) -> DataFrame:
        """The rows of these windows."""
        lookup = lookups.of_windows(work, spans)
        self._read_back(lookup, lookups)
        found, formed = self.slices.windows(lookup)
        if found:
            spans = tuple(replace(span, orders=()) if i in found else span for i, span in enumerate(spans))
            lookup = lookups.of_windows(work, spans)
        asked = ranges_of([span for span in spans if span.orders])
        parts = self.recent.within(asked) if asked or not found else no_parts()
        made = None if parts is None else results_of(parts, self._spark, work, lookup, formed)
        return results(self._messages(), work, lookup, formed) if made is None else made

    def sessions(
        self, work: Work, ranges: Mapping[int, Ranges], lookups: DecodeLookups, *, revising: bool
    ) -> DataFrame:
        """The rows of work.islands. ranges: index in work.islands -> event times of the pieces."""
        wanted: dict[int, Ranges] = {}
        for i, found in ranges.items():
            for number in work.islands[i].orders:
                wanted.setdefault(number, []).extend(found)
        return islands.sessions(self._pieces(lookups.of(work, wanted)), work, ranges, revising=revising)

    def ordered(self, work: Work, lookups: DecodeLookups) -> OrderedRows:
        """The rows of count and state windows, and the new states of their keys (docs/protocol.md 7.4)."""
        if not work.ordering:
            return OrderedRows()
        wanted: dict[int, Ranges] = {}
        for ordering in work.ordering:
            for number in ordering.orders:
                wanted.setdefault(number, []).append((ordering.after_us, ordering.upto_us))
        queries = [_query(lookups.state, ordering.query, ordering.revision) for ordering in work.ordering]
        parts = self.recent.within(join([span for found in wanted.values() for span in found], most=4))
        return self.central.made(work, lookups.of(work, wanted), queries, parts)

    def make(self, work: Work, lookups: DecodeLookups) -> None:
        """Compute the rows of a decision's windows without writing them."""
        rows = [self.windows(work, spans, lookups) for spans in (work.closing, work.revising) if spans]
        closing = islands.closing_ranges(work.islands)
        if closing:
            rows.append(self.sessions(work, closing, lookups, revising=False))
        if any(found.revises for found in work.islands):
            ranges, _ = islands.revising_ranges(self._place.read(self._spark, RESULTS), work.islands)
            rows += [self.sessions(work, ranges, lookups, revising=True)] if ranges else []
        ordered = self.ordered(work, lookups).rows
        for each in (*rows, *([] if ordered is None else [ordered])):
            each.write.format("noop").mode("overwrite").save()

    def _read_back(self, lookup: Lookup, lookups: DecodeLookups) -> None:
        """Read the slices that the windows need and that are not on the driver from the table."""
        missing = self.slices.missing(lookup)
        if missing:
            ranges = [(min(missing.values()), FAR_US)]
            wanted = self.slices.wanted(missing, lookups.known(lookups.pages(ranges)))
            frames = self._messages().transform(between, ranges)
            # partition by partition: all together may exceed the driver's memory
            self.slices.fill(missing, decoded(frames, slices_of(wanted), READ_BACK).toLocalIterator())

    def _pieces(self, lookup: Lookup) -> DataFrame:
        ranges = join([span for found in lookup.ranges.values() for span in found], most=4)
        parts = self.recent.within(ranges)
        if parts is not None:
            return local([*pieces_of(lookup)(iter(parts.to_batches()))], self._spark, lookup.pieces)
        return self._messages().transform(between, ranges).transform(decoded, pieces_of(lookup), lookup.pieces)

    def _messages(self) -> DataFrame:
        return self._place.read(self._spark, MESSAGES)


def _query(state: RootState, name: str, revision: int) -> Query:
    query = state.query(QueryKey(name, revision))
    if query is None:
        raise ProtocolError(f"query {name} revision {revision} has work but no definition")
    return query
