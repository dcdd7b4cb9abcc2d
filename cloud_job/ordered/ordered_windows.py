"""Count and state windows: joins chunks of readings with the state of their key, and assigns positions.

Rules: docs/protocol.md 7.4. edge_agent/root/positions.py orders readings and forms windows, with one call per task and
query for all keys; the numpy root uses it too. This module passes the readings to it and turns its results into rows.
The state of a key is in silver.positions (cloud_job/ordered/position_rows.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cloud_job.delta.driver_rows import arrow, small
from cloud_job.ingest.decode import Reader
from cloud_job.ordered.position_rows import AS_CHUNKS, PlaceOf, changed, restored
from cloud_job.ordered.reading_chunks import COLUMNS, FLOATS, Chunks, met, same, texts_of
from cloud_job.spark.results import RESULT_COLUMNS, labels
from edge_agent import packages
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.root.decision.work import CoverageCell, Ordering
from edge_agent.root.positions import OrderedWindows as Windows
from edge_agent.root.positions import UnorderedReadings, advance, meet
from edge_agent.root.work_rows import cells_of

if TYPE_CHECKING:
    from edge_agent.algebra.query.query import Query

MADE: Final = {
    "query": "string",
    "definition_revision": "bigint",
    "node": "string",
    "key": "string",
    "start": "bigint",
    "end": "bigint",
    "first": "bigint",
    "until": "bigint",
    "values": "map<string, double>",
    "details": "string",
    "readings": "bigint",
    "coverage_id": "string",
    "expected": "int",
    "received": "int",
    "complete": "boolean",
}
_NO_ROWS: Final = arrow(", ".join(f"{name} {kind.replace(' ', '')}" for name, kind in MADE.items())).empty_table()
_ROWS: Final = 65_536  # rows of one batch that is returned to Spark
_PLACES: Final = arrow("of_query string, of_node string, number int")


def places(orderings: Sequence[Ordering]) -> list[PlaceOf]:
    """The (query, node) pairs of these orderings, sorted. All revisions of a query share the positions of a pair."""
    return sorted({(ordering.query, ordering.node) for ordering in orderings})


def known(positions: DataFrame, orderings: Sequence[Ordering], number: int) -> DataFrame:
    """The states before batch `number`, as chunks. A chunk's own number is -1 - (index in `places`).

    positions: silver.positions.
    """
    found = places(orderings)
    rows = [(query, node, -1 - i) for i, (query, node) in enumerate(found)]
    asked = F.broadcast(small(positions.sparkSession, rows, _PLACES))
    near = positions.where(F.col("query").isin([query for query, _ in found]) & (F.col("batch") < number))
    here = (F.col("query") == F.col("of_query")) & (F.col("node") == F.col("of_node"))
    joined = standing(near).join(asked, here, how="inner")
    return joined.select(*(F.col(AS_CHUNKS.get(name, name)).alias(name) for name in COLUMNS))


def standing(positions: DataFrame) -> DataFrame:
    """The current rows of silver.positions: for every key the row of its latest batch, and the earlier rows whose
    readings this row needs.
    """
    since = F.max_by("since", "batch").over(Window.partitionBy("query", "node", "key"))
    return positions.withColumn("needed", since).where(F.col("batch") >= F.col("needed")).drop("needed")


def together(raw: DataFrame, states: DataFrame) -> DataFrame:
    """Bring all chunks and the state of a key into one task."""
    return raw.unionByName(states).repartition("key")


def shown(rows: DataFrame, batch: int) -> DataFrame:
    """Turn rows with the columns MADE into rows of gold.results."""
    made = {
        "labels": labels(F.col("key")),
        "window_start": F.timestamp_micros("first"),
        "window_end": F.timestamp_micros("until"),
        "revision": F.lit(0),
        "late": F.lit(0).cast("bigint"),
        "withdrawn": F.lit(False),
        "batch": F.lit(batch).cast("bigint"),
    }
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in RESULT_COLUMNS))


def readers(orderings: Sequence[Ordering], queries: Sequence[Query], number: int) -> tuple[Reader, Reader]:
    """Two functions for mapInArrow after `together`: one returns rows with the columns MADE, one with STATES."""

    def made_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        yield from advanced(list(batches), orderings, queries, number)[0].to_batches(_ROWS)
        packages.complain()

    def states_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        yield from advanced(list(batches), orderings, queries, number)[1].to_batches(_ROWS)

    return made_of, states_of


def advanced(
    batches: Sequence[pa.RecordBatch], orderings: Sequence[Ordering], queries: Sequence[Query], number: int
) -> tuple[pa.Table, pa.Table]:
    """Returns (windows with the columns MADE, changed states with the columns STATES).

    batches: chunks of readings and states. number: of the batch.
    """
    raw, held = met(batches)
    made, states = [], []
    for place, name in enumerate(places(orderings)):
        stood = restored(held.only(-1 - place))
        before, touched = stood.positions, NO_INTS
        turns = [i for i, ordering in enumerate(orderings) if (ordering.query, ordering.node) == name]
        for i in sorted(turns, key=lambda i: orderings[i].revision):
            came, query = _raw(raw.only(i), orderings[i].target), queries[i]
            if not len(came.key):
                continue
            mine = np.isin(before.key, came.key)
            after, windows = advance(query, before.take(mine), came, raw.keys)
            before, touched = before.take(~mine).joined(after), np.union1d(touched, came.key)
            made.append(_rows(windows, orderings[i], query, raw.keys))
        states.append(changed(stood, before.take(np.isin(before.key, touched)), name, raw.keys, number))
    return pa.concat_tables([_NO_ROWS, *made]), pa.concat_tables(states)


def _raw(chunks: Chunks, target: int | None) -> UnorderedReadings:
    """Readings at the target scale, in order of arrival; as floats if a value exceeds 64 bits."""
    scales = np.unique(chunks.scale).tolist()
    parts = [chunks.take(np.flatnonzero(chunks.scale == scale)) for scale in scales] if len(scales) > 1 else [chunks]
    values = [part.values(scale) for part, scale in zip(parts, scales, strict=False)]
    own = [None if scale == FLOATS else scale for scale in scales]
    found, target = meet(list(zip(values, own, strict=True)), target)
    value = np.concatenate([np.zeros(0, np.float64 if target is None else np.int64), *found])
    readings = np.concatenate([part.readings for part in parts])
    key = np.concatenate([part.spread(part.key) for part in parts])
    if len(parts) > 1:  # restore the order of (epoch, seq, row)
        came = [np.repeat(np.flatnonzero(chunks.scale == s), p.sizes) for p, s in zip(parts, scales, strict=True)]
        order = np.argsort(np.concatenate(came), kind="stable")
        value, readings, key = value[order], readings[order], key[order]
    return UnorderedReadings(key, readings[:, 0], value, readings[:, 2], readings[:, 3], target)


def _rows(made: Windows, ordering: Ordering, query: Query, keys: Sequence[str]) -> pa.Table:
    n = len(made.key)
    cell = cells_of(ordering.cells, made.first_us, made.last_us)
    positions = query.central.positions
    columns = {
        "query": same(query.id, n),
        "definition_revision": pa.array(np.full(n, query.revision, np.int64)),
        "node": same(ordering.node, n),
        "key": texts_of(keys, made.key),
        "start": pa.array(made.start),
        "end": pa.array(made.end),
        "first": pa.array(made.first_us if positions else made.start),
        "until": pa.array(made.last_us + 1 if positions else made.end),
        "values": _values(made, n),
        "details": _details(made, n),
        "readings": pa.array(made.readings),
        **{name: _coverage(ordering.cells, name, cell) for name in ("coverage_id", "expected", "received", "complete")},
    }
    return pa.table([columns[name] for name in MADE], list(MADE))


def _coverage(cells: Sequence[CoverageCell], name: str, cell: Ints) -> pa.Array:
    """A column of coverage. cell: index in `cells` of each row."""
    kinds = {"coverage_id": pa.string(), "complete": pa.bool_()}
    return pa.array([getattr(each, name) for each in cells], kinds.get(name, pa.int32())).take(pa.array(cell))


def _values(made: Windows, n: int) -> pa.Array:
    """Aggregate name -> value of each row."""
    names, answers = list(made.answers), list(made.answers.values())
    value = np.stack([answer.value for answer in answers], axis=1).ravel() if n else np.zeros(0)
    null = np.stack([answer.null for answer in answers], axis=1).ravel() if n else np.zeros(0, np.bool_)
    offsets = pa.array((np.arange(n + 1) * len(names)).astype(np.int32))
    keys = pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(len(names)), n)))
    return pa.MapArray.from_arrays(offsets, keys, pa.array(value, mask=null))


def _details(made: Windows, n: int) -> pa.Array:
    """Results that a double cannot represent, as a JSON object per row; null if there are none."""
    texts: list[str | None] = [None] * n
    for name, answer in made.answers.items():
        for row, text in enumerate(answer.details or ()):
            if text is not None:
                member = f"{json.dumps(name)}: {text}"
                texts[row] = member if texts[row] is None else f"{texts[row]}, {member}"
    return pa.array([None if text is None else f"{{{text}}}" for text in texts], pa.string())
