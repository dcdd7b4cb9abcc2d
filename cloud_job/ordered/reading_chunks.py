"""Packs raw readings into chunks, one per row of a frame. The state of a key is transported as a chunk too.

The readings of a chunk are words of 64 bits in one binary value, so that a shuffle moves few rows and numpy unpacks a
whole column of chunks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_job.delta.driver_rows import arrow
from cloud_job.ingest.decode import Counted, Lookup, Reader, counted
from cloud_job.spark.native import cell_arrays
from edge_agent import packages
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.root.decision.work import Ordering

COLUMNS: Final = {  # number: index of the ordering; below 0: a row of silver.positions (AS_CHUNKS names its columns)
    "number": "int",
    "key": "string",
    "epoch": "bigint",
    "seq": "bigint",
    "row": "bigint",
    "kept": "bigint",
    "since": "bigint",
    "scale": "int",
    "body": "binary",
}
SCHEMA: Final = arrow(", ".join(map(" ".join, COLUMNS.items())))
WORDS: Final = 4  # of a new reading: time, value (the bits of a float64 if scale is null), node's index, arrival
HELD_WORDS: Final = 2  # of a reading in a state: time, value
FLOATS: Final = -128  # used as the scale of floats
_OWN: Final = ("number", "key", "epoch", "seq", "row", "kept", "since", "scale")  # integer columns of Chunks
_LATE: Final = 2**32  # added to the row number of late readings: they follow the other rows of their frame
_MOST_WORDS: Final = 2 * 1024 * 1024  # in one batch of chunks: 16 MB


def chunks_of(lookup: Lookup, orderings: Sequence[Ordering]) -> Reader:
    """For mapInArrow: batches with the columns READ to chunks (COLUMNS). Numbers are indices in `orderings`."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        places = {node: place for place, node in enumerate(lookup.nodes)}
        nodes: dict[tuple[str, int], Ints] = {}
        fed: dict[int, list[tuple[int, Ordering]]] = {}
        for number, ordering in enumerate(orderings):
            for order in ordering.orders:
                fed.setdefault(order, []).append((number, ordering))
        chunks = _Open()
        for part in counted(lookup, batches):
            line = (part.sent.node, part.sent.epoch)
            if line not in nodes:
                nodes[line] = np.array([places[node] for node in part.page.nodes], np.int64)
            chunks.add(part, nodes[line], fed)
            if chunks.words > _MOST_WORDS:
                yield chunks.batch()
                chunks = _Open()
        if chunks.words:
            yield chunks.batch()

    return read


class _Open:
    """Collects chunks of one batch."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in COLUMNS if name != "body"}
        self._sizes: list[Ints] = []
        self._readings: list[Ints] = []
        self.words = 0

    def add(self, part: Counted, nodes: Ints, fed: Mapping[int, Sequence[tuple[int, Ordering]]]) -> None:
        """Add the readings of a part that get their positions now, one chunk per row.

        nodes: a node's number in the epoch -> its index in lookup.nodes. fed: number of a read request -> the orderings
        that need its rows, with their numbers.
        """
        if not any(order.number in fed for order in part.orders):
            return
        found = series.flat(part.rows.states["series"])
        first_row = _LATE if part.sent.late else 0
        for order in part.orders:
            for number, ordering in fed.get(order.number, ()):
                inside = (found.time_us >= ordering.after_us) & (found.time_us < ordering.upto_us)
                sizes = np.bincount(found.rows[inside], minlength=len(part.rows))
                full = np.flatnonzero(sizes)
                same = {"number": number, "epoch": part.sent.epoch, "seq": part.sent.seq, "scale": order.scale}
                for name, value in {**same, "kept": 0, "since": 0}.items():
                    self._rows[name] += [value] * len(full)
                self._rows["key"] += [part.page.keys[code] for code in part.rows.key[full].tolist()]
                self._rows["row"] += (first_row + full).tolist()
                self._sizes.append(sizes[full])
                columns = (found.time_us, _bits(found.value), nodes[found.node], found.order)
                self._readings.append(np.stack([column[inside] for column in columns], axis=1))
                self.words += WORDS * len(self._readings[-1])

    def batch(self) -> pa.RecordBatch:
        columns = [pa.array(rows, SCHEMA.field(name).type) for name, rows in self._rows.items()]
        body = bodies(np.concatenate(self._readings), np.concatenate(self._sizes))
        return pa.RecordBatch.from_arrays([*columns, body], schema=SCHEMA)


def bodies(readings: Ints, sizes: Ints) -> pa.Array:
    """One binary value per chunk. readings: shape (n, words). sizes: number of readings in each chunk."""
    return cell_arrays.to_bytes(readings, sizes)


def opened(column: pa.Array, words: int) -> tuple[Ints, Ints]:
    """The inverse of `bodies`: (readings of all chunks one after the other, number of readings in each chunk)."""
    flat, sizes = cell_arrays.opened(column, cell_arrays.INTS)
    return flat.reshape(-1, words), sizes // words


def _bits(value: Array) -> Ints:
    return value.view(np.int64) if value.dtype == np.float64 else value


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks as columns: one row per chunk, and the readings of all chunks one after the other.

    number: see COLUMNS. key: index of each chunk's key in `keys`. epoch, seq, row: of the frame's row; of a state, see
    position_rows.AS_CHUNKS. kept: of a state, position of the first reading that the key keeps. since: of a state, the
    first batch whose rows it consists of. Both are 0 for new readings. scale: FLOATS for floats. sizes: number of
    readings in each chunk. readings: shape (n, WORDS); of states (n, HELD_WORDS).
    """

    keys: list[str]
    number: Ints
    key: Ints
    epoch: Ints
    seq: Ints
    row: Ints
    kept: Ints
    since: Ints
    scale: Ints
    sizes: Ints
    readings: Ints

    def only(self, number: int) -> Chunks:
        """The chunks with this number, in the order of (epoch, seq, row)."""
        mine = np.flatnonzero(self.number == number)
        return self.take(mine[np.lexsort((self.row[mine], self.seq[mine], self.epoch[mine]))])

    def take(self, rows: Ints) -> Chunks:
        """The chunks at these indices, in the order of the indices."""
        sizes = self.sizes[rows]
        first = (np.cumsum(self.sizes) - self.sizes)[rows] - (np.cumsum(sizes) - sizes)
        readings = self.readings[np.repeat(first, sizes) + np.arange(int(sizes.sum()))]
        own = {name: getattr(self, name)[rows] for name in _OWN}
        return Chunks(self.keys, **own, sizes=sizes, readings=readings)

    def spread(self, column: Ints) -> Ints:
        """Repeat a value of each chunk for each of its readings."""
        return np.repeat(column, self.sizes)

    def values(self, scale: int) -> Array:
        """The values of all readings. scale: the one scale of all chunks."""
        value = np.ascontiguousarray(self.readings[:, 1])
        return value.view(np.float64) if scale == FLOATS else value


def met(batches: Sequence[pa.RecordBatch]) -> tuple[Chunks, Chunks]:
    """Split batches with the columns SCHEMA into (readings, states). Both share one list of keys."""
    table = pa.Table.from_batches([batch.cast(SCHEMA) for batch in batches], SCHEMA)
    keys = table["key"].combine_chunks().dictionary_encode()
    texts, codes = keys.dictionary.to_pylist(), keys.indices.to_numpy().astype(np.int64)
    table = table.append_column("code", pa.array(codes))
    below = pc.less(table["number"], 0)
    return _chunks(table.filter(pc.invert(below)), texts, WORDS), _chunks(table.filter(below), texts, HELD_WORDS)


def _chunks(table: pa.Table, keys: list[str], words: int) -> Chunks:
    scales = pc.fill_null(table["scale"], FLOATS)
    table = table.drop_columns(["key", "scale"]).append_column("scale", scales).rename_columns({"code": "key"})
    own = {name: table[name].to_numpy().astype(np.int64) for name in _OWN}
    found = [opened(column, words) for column in table["body"].chunks]
    readings = np.concatenate([np.zeros((0, words), np.int64), *(part for part, _ in found)])
    sizes = np.concatenate([np.zeros(0, np.int64), *(part for _, part in found)])
    return Chunks(keys, **own, sizes=sizes, readings=readings)


def same(text: str, n: int) -> pa.Array:
    return texts_of([text], np.zeros(n, np.int64))


def texts_of(texts: Sequence[str], codes: Ints) -> pa.Array:
    """A column of texts by their codes."""
    return pa.array(texts, pa.string()).take(pa.array(codes))
