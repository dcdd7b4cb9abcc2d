"""Series in Spark: arrays a row, joined natively; one call of numpy a batch of windows puts them in order and answers.

As bags.py does for bags. Readings of one window order by (event time, node, arrival), so a cell carries the
place of each node in the bytewise order of ids: the same in all tasks of a query (Lookup.nodes), comparable anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_job.native.answers import Found
from edge_agent.algebra import series
from edge_agent.algebra.aggregates import FUNCTIONS

if TYPE_CHECKING:
    from edge_agent.algebra.partial import Column as Array

PARTS: Final = ("t", "v", "n", "o")  # event time, value, place of the node, arrival
FLOATS: Final = "struct<t:array<bigint>,v:array<double>,n:array<bigint>,o:array<bigint>>"
UNITS: Final = "struct<t:array<bigint>,v:array<bigint>,n:array<bigint>,o:array<bigint>>"
ORDERED: Final = frozenset(name for name, function in FUNCTIONS.items() if "series" in function.needs)
_TOO_WIDE: Final = -1  # a place that says: this value is beyond 64 bits, its row has no answer
_LIMIT: Final = 2**63 - 1


def arrow_type(value: pa.DataType) -> pa.DataType:
    """Of a column of series with such values."""
    kinds = {**dict.fromkeys(PARTS, pa.int64()), "v": value}
    return pa.struct([(name, pa.list_(kind)) for name, kind in kinds.items()])


def to_arrow(column: Array, nodes: Sequence[str]) -> pa.Array:
    """A column of series as struct<t, v, n, o>. nodes: ids by node code, the same list in all tasks."""
    found = series.flat(column)
    values, place = found.value, _places(nodes)[found.node]
    if values.dtype == object:  # units of a coarser scale, made finer
        wide = (np.abs(values) > _LIMIT).astype(bool)
        values, place = np.where(wide, 0, values).astype(np.int64), np.where(wide, _TOO_WIDE, place)
    offsets = pa.array(np.concatenate([[0], np.cumsum(found.sizes)]).astype(np.int32))
    flats = (found.time_us, values, place, found.order)
    lists = [pa.ListArray.from_arrays(offsets, pa.array(flat)) for flat in flats]
    return pa.StructArray.from_arrays(lists, names=list(PARTS))


def _places(nodes: Sequence[str]) -> Any:
    order = sorted(range(len(nodes)), key=lambda code: nodes[code].encode())
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def ordered(rows: pa.Array) -> Found:
    """(row numbers, their states) of struct<t, v, n, o> cells, in any order; none for those without readings."""
    sizes = pc.fill_null(pc.list_value_length(rows.field("t")), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.flatnonzero(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    time, value, node, order = (rows.field(name).flatten().to_numpy(zero_copy_only=False) for name in PARTS)
    wide = np.unique(owner[node == _TOO_WIDE])
    if len(wide):
        place = np.setdiff1d(place, wide, assume_unique=True)
        sound = ~np.isin(owner, wide)
        time, value, node, order, owner = (flat[sound] for flat in (time, value, node, order, owner))
    at = np.lexsort((order, node, time, owner))
    found = series.Flat(time[at], value[at], node[at], order[at], sizes[place])
    if len(place):
        yield place, {"series": found.column(), "count": found.sizes}
