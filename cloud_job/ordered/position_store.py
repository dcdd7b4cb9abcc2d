"""Assigns positions batch by batch, and keeps the current rows of silver.positions on the driver while they are few.

With this copy a small batch does not read the table. After a restart the copy is read from the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cloud_job.delta import driver_rows
from cloud_job.delta.tables import MESSAGES, POSITIONS, Place
from cloud_job.ingest.decode import Lookup
from cloud_job.ordered import ordered_windows as central
from cloud_job.ordered import position_rows, reading_chunks
from cloud_job.ordered.position_rows import PlaceOf
from cloud_job.spark.results import between, decoded
from edge_agent.root.decision.window_ranges import join
from edge_agent.root.decision.work import Ordering, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from edge_agent.algebra.query.query import Query

MOST_ROWS: Final = 100_000  # of all queries; with more rows or bytes, states are read from the table for each batch
MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OrderedRows:
    """The result of assigning positions.

    rows: of gold.results. states: rows of silver.positions without `batch`. None: no rows. here: `states` as an Arrow
    table, if they were computed on the driver.
    """

    rows: DataFrame | None = None
    states: DataFrame | None = None
    here: pa.Table | None = None


class OrderedQueries:
    """Assigns positions, batch by batch, during one run of the job."""

    def __init__(self, spark: SparkSession, place: Place, most_rows: int = MOST_ROWS) -> None:
        """most_rows: limit of the rows kept on the driver; 0: everything is computed in Spark."""
        self.spark, self.place = spark, place
        self._states = PositionStore(most_rows)
        self._done = -1  # the last batch whose states are in the table

    def open(self, number: int) -> None:
        """Read the rows of the table. number: of the last decision, which may not have been carried out."""
        table = self.place.read(self.spark, POSITIONS)
        latest = table.agg(F.max("batch")).collect()[0][0]
        self._done = number if latest == number else number - 1
        if latest is not None:
            self._states.read(table)

    def made(self, work: Work, lookup: Lookup, queries: Sequence[Query], parts: pa.Table | None) -> OrderedRows:
        """Carry out work.ordering. Returns empty rows if it was carried out before.

        queries: the definition for each ordering. parts: the columns READ of all parts in the ranges of the orderings,
        if they are on the driver.
        """
        if work.number <= self._done:
            return OrderedRows()
        raw = reading_chunks.chunks_of(lookup, work.ordering)
        before = self._states.before(work.ordering)
        if parts is not None and before is not None:
            made, states = central.advanced(
                [*raw(iter(parts.to_batches())), *before], work.ordering, queries, work.number
            )
            rows = central.shown(self._frame(made, central.MADE), work.number) if len(made) else None
            return OrderedRows(rows, self._frame(states, position_rows.STATES) if len(states) else None, states)
        ranges = join([(ordering.after_us, ordering.upto_us) for ordering in work.ordering], most=4)
        frames = self.place.read(self.spark, MESSAGES).transform(between, ranges)
        positions = self.place.read(self.spark, POSITIONS)
        gathered = central.together(
            frames.transform(decoded, raw, reading_chunks.COLUMNS), central.known(positions, work.ordering, work.number)
        )
        made_of, states_of = central.readers(work.ordering, queries, work.number)
        rows = gathered.mapInArrow(made_of, driver_rows.struct(central.MADE))
        return OrderedRows(
            central.shown(rows, work.number), gathered.mapInArrow(states_of, driver_rows.struct(position_rows.STATES))
        )

    def keep(self, made: OrderedRows, number: int) -> None:
        """Write the states of a batch whose rows are in gold.results."""
        if made.states is None:
            return
        batch = F.lit(number).cast("bigint").alias("batch")
        self.place.append(POSITIONS, made.states.select(*position_rows.STATES, batch), "positions", number)
        if made.here is not None:
            self._states.took(made.here, number)
        else:
            self._states.read(self.place.read(self.spark, POSITIONS))

    def _frame(self, table: pa.Table, columns: Mapping[str, str]) -> DataFrame:
        return driver_rows.frame(self.spark, table, driver_rows.struct(columns)).coalesce(1)


class PositionStore:
    """The current rows of silver.positions by query and node, or nothing if there are too many."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        """Empty at first, like a new table."""
        self._most_rows = most_rows
        self._tables: dict[PlaceOf, pa.Table] | None = {} if most_rows else None

    def read(self, positions: DataFrame) -> None:
        """Replace all rows by those of silver.positions."""
        self._tables = {} if self._most_rows else None
        if self._tables is None:
            return
        standing = central.standing(positions)
        size = standing.agg(F.count("*").alias("rows"), F.sum(F.octet_length("held")).alias("bytes")).first()
        if size is None or size["rows"] > self._most_rows or (size["bytes"] or 0) > MOST_BYTES:
            self._tables = None  # not read: the readings that one window holds may be more than the driver's memory
            return
        found = standing.toArrow()
        self._add(found.select(list(position_rows.STATES)), found["batch"])

    def before(self, orderings: Sequence[Ordering]) -> list[pa.RecordBatch] | None:
        """The states before a batch as chunks, numbered as by `known` in ordered_windows.py. None: read the table."""
        if self._tables is None:
            return None
        out: list[pa.RecordBatch] = []
        for place, name in enumerate(central.places(orderings)):
            table = self._tables.get(name)
            if table is not None:
                number = pa.array(np.full(len(table), -1 - place, np.int32))
                names = [position_rows.AS_CHUNKS.get(column, column) for column in reading_chunks.SCHEMA.names[1:]]
                out += pa.Table.from_arrays(
                    [number, *(table[name] for name in names)], schema=reading_chunks.SCHEMA
                ).to_batches()
        return out

    def took(self, states: pa.Table, number: int) -> None:
        """Add the states that a batch changed. states: columns STATES. number: of the batch."""
        self._add(states, pa.chunked_array([pa.array(np.full(len(states), number, np.int64))]))

    def _add(self, states: pa.Table, batch: pa.ChunkedArray) -> None:
        if self._tables is None or not len(states):
            return
        states = states.append_column("batch", batch)
        for name in states.select(["query", "node"]).group_by(["query", "node"]).aggregate([]).to_pylist():
            place = (name["query"], name["node"])
            mine, before = _of(states, place), self._tables.get(place)
            self._tables[place] = _standing(mine if before is None else pa.concat_tables([before, mine]))
        tables = self._tables.values()
        if sum(len(t) for t in tables) > self._most_rows or sum(t.nbytes for t in tables) > MOST_BYTES:
            self._tables = None


def _of(states: pa.Table, place: PlaceOf) -> pa.Table:
    query, node = place
    return states.filter(pc.and_(pc.equal(states["query"], query), pc.equal(states["node"], node)))


def _standing(states: pa.Table) -> pa.Table:
    """For every key the row of its latest batch, and the earlier rows whose readings this row needs."""
    code = states["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    batch, since = (states[name].to_numpy() for name in ("batch", "since"))
    last = np.zeros(int(code.max()) + 1, np.int64)
    order = np.argsort(batch, kind="stable")
    last[code[order]] = order  # numpy keeps the last assignment to an index: the latest batch
    return states.filter(pa.array(batch >= since[last][code])).combine_chunks()
