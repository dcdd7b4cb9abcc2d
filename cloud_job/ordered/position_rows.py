"""Converts states of keys from and to rows of silver.positions.

In each batch a key gets a row with its new readings, now and then a row with all readings that it keeps. So a batch
writes and reads little, however many readings a window counts. A state consists of the rows since batch `since`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cloud_job.delta.tables import POSITIONS
from cloud_job.ordered.reading_chunks import FLOATS, Chunks, bodies, same, texts_of
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.root.positions import KeyPositions

PlaceOf = tuple[str, str]  # (query, node): positions are counted per key within such a pair
STATES: Final = {name: kind for name, (kind, _) in POSITIONS.columns.items() if name != "batch"}
AS_CHUNKS: Final = {  # column of a chunk -> column of silver.positions, if the names differ
    "epoch": "definition_revision",
    "seq": "position",
    "row": "base",
    "kept": "held_from",
    "body": "held",
}
CHAIN: Final = 32  # after so many rows of a key, a row repeats all its readings: a start reads no more rows than that


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The states in the table before a batch.

    positions: one row per key. rows, since, scale: for each key, the number of rows that its state consists of, the
    first batch of these rows, and the scale of its values.
    """

    positions: KeyPositions
    rows: Ints
    since: Ints
    scale: Ints

    def of(self, keys: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(position, rows, since, scale) of these keys; rows is 0 for a new key."""
        there = np.isin(keys, self.positions.key)
        place = np.searchsorted(self.positions.key, keys[there])
        out = np.zeros((4, len(keys)), np.int64)
        for row, column in enumerate((self.positions.position, self.rows, self.since, self.scale)):
            out[row, there] = column[place]
        return out[0], out[1], out[2], out[3]


def restored(chunks: Chunks) -> KnownStates:
    """Build states from their rows. States of unequal scales get the finest one."""
    chunks = chunks.take(np.lexsort((chunks.seq, chunks.key)))  # readings in the order of positions
    groups = Segments.equal(chunks.key)
    last, rows = groups.last(), groups.count()
    found = KeyPositions()
    for scale in np.unique(chunks.scale[last]).tolist():
        mine = np.flatnonzero(np.repeat(chunks.scale[last] == scale, rows))
        these = _of_one_scale(chunks.take(mine), scale)
        found = these if not len(found) else found.joined(these)
    return KnownStates(found, rows, chunks.since[last], chunks.scale[last])


def _of_one_scale(chunks: Chunks, scale: int) -> KeyPositions:
    groups = Segments.equal(chunks.key)
    last, rows = groups.last(), groups.count()
    first = chunks.seq - chunks.sizes  # position of the first reading of each row
    begin = np.cumsum(chunks.sizes) - chunks.sizes
    position = chunks.spread(first - begin) + np.arange(len(chunks.readings))
    kept = position >= chunks.spread(np.repeat(chunks.kept[last], rows))
    about = (chunks.key[last], chunks.epoch[last], chunks.row[last], chunks.seq[last])
    held = chunks.seq[last] - chunks.kept[last]
    value = chunks.values(scale)[kept]
    return KeyPositions(*about, held, chunks.readings[kept, 0], value, None if scale == FLOATS else scale)


def changed(known: KnownStates, now: KeyPositions, name: PlaceOf, keys: Sequence[str], number: int) -> pa.Table:
    """Rows of silver.positions for a batch: for each key its new readings, or all readings that it keeps.

    known: the states before batch `number`. now: the new states of the keys that changed. name: query and node. keys:
    key texts by code.
    """
    n, (query, node) = len(now), name
    before, rows, since, scale = known.of(now.key)
    came = now.position - before
    whole = (rows == 0) | (rows >= CHAIN) | (came >= now.held) | (scale != (FLOATS if now.scale is None else now.scale))
    many = np.where(whole, now.held, came)
    within = np.arange(int(now.held.sum())) - np.repeat(np.cumsum(now.held) - now.held, now.held)
    fresh = within >= np.repeat(now.held - many, now.held)
    value = now.value.view(np.int64) if now.value.dtype == np.float64 else now.value
    columns = {
        "query": same(query, n),
        "node": same(node, n),
        "key": texts_of(keys, now.key),
        "definition_revision": pa.array(now.revision),
        "base": pa.array(now.base),
        "position": pa.array(now.position),
        "held_from": pa.array(now.position - now.held),
        "since": pa.array(np.where(whole, number, since)),
        "scale": pa.array([now.scale] * n, pa.int32()),
        "held": bodies(np.stack([now.time_us, value], axis=1)[fresh], many),
    }
    return pa.table([columns[column] for column in STATES], list(STATES))
