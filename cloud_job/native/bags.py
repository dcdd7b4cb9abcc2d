"""Bags in Spark: two arrays a row, joined natively; one call of numpy a batch of windows merges them and answers.

Spark's own `percentile` would explode every value into a row of its own first, half as fast, and has no twin of every
function; here the algebra of the edge itself lowers what Spark brought together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_job.native.answers import Found
from edge_agent.algebra import bags
from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.bags import Flat

if TYPE_CHECKING:
    from edge_agent.algebra.partial import Column as Array

FLOATS, UNITS = "struct<v:array<double>,c:array<bigint>>", "struct<v:array<bigint>,c:array<bigint>>"
FLOATS_ARROW: Final = pa.struct([("v", pa.list_(pa.float64())), ("c", pa.list_(pa.int64()))])
UNITS_ARROW: Final = pa.struct([("v", pa.list_(pa.int64())), ("c", pa.list_(pa.int64()))])
HOLISTIC: Final = frozenset(name for name, function in FUNCTIONS.items() if "bag" in function.needs)
_TOO_WIDE: Final = -1  # a count that says: a value of this row is beyond 64 bits, there is no answer
_LIMIT: Final = 2**63 - 1


def to_arrow(column: Array) -> pa.Array:
    """A column of bags as struct<v, c>."""
    found = bags.flat(column)
    values, counts = found.values, np.array(found.counts)
    if values.dtype == object:  # units of a coarser scale, made finer
        wide = np.abs(values) > _LIMIT
        counts[wide.astype(bool)] = _TOO_WIDE
        values = np.where(wide, 0, values).astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(found.sizes)]).astype(np.int32))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(flat)) for flat in (values, counts)]
    return pa.StructArray.from_arrays(lists, names=["v", "c"])


def merged(rows: pa.Array) -> Found:
    """(row numbers, their states) of struct<v, c> cells, equal values still several times; none for empty ones."""
    values, counts = (rows.field(name) for name in ("v", "c"))
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.flatnonzero(sizes)
    if not len(place):
        return
    flat_values, flat_counts = (part.flatten().to_numpy(zero_copy_only=False) for part in (values, counts))
    full = Flat(flat_values, flat_counts, sizes[place])
    least = np.minimum.reduceat(full.counts, full.starts)
    starts = [*full.starts.tolist(), len(full.values)]
    for first, last in bags.blocks(np.arange(len(place)), full.sizes):
        part = slice(starts[first], starts[last])
        owner = np.repeat(np.arange(last - first), full.sizes[first:last])
        counted = full.counts[part]
        counted = counted[:0] if int(counted.max()) == 1 else counted  # different floats: quicker without
        column = bags.tally(full.values[part], owner, counted, last - first).column()
        sound = least[first:last] > 0
        yield place[first:last][sound], {"bag": column[sound]}
