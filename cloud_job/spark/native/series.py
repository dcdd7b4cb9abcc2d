"""Series in Spark: cells of readings, sorted with one call of numpy per batch of windows.

This works as in multisets.py. Readings of a window are sorted by (event time, node, arrival). So a cell contains the
rank of each node in the bytewise order of ids, which is the same in all tasks of a query (Lookup.nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cloud_job.spark.native import cell_arrays
from cloud_job.spark.native.answers import Found
from edge_agent.algebra.partials import series

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array

PARTS: Final = ("t", "v", "n", "o")  # event time, value, rank of the node, arrival
MARK: Final = "n"  # the part that is TOO_WIDE if a value does not fit 64 bits


def to_arrow(column: Array, nodes: Sequence[str]) -> pa.Array:
    """A column of series as cells. nodes: ids by node number, the same list in all tasks."""
    found = series.flat(column)
    values, place = cell_arrays.fitted(found.value, _places(nodes)[found.node])
    return cell_arrays.to_arrow(found.sizes, {"t": found.time_us, "v": values, "n": place, "o": found.order})


def _places(nodes: Sequence[str]) -> Any:
    order = sorted(range(len(nodes)), key=lambda code: nodes[code].encode())
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def ordered(given: pa.Array, scale: int | None) -> Found:
    """Yields (row numbers, their states) from lists of cells in any order. Leaves out rows without readings, or with a
    value beyond 64 bits.
    """
    rows = cell_arrays.MetCells.of(given)
    time, each = rows.opened("t")
    value, _ = rows.opened("v", cell_arrays.number(scale))
    (node, _), (order, _) = rows.opened("n"), rows.opened("o")
    sizes = rows.sizes(each)
    whole = rows.whole(MARK)
    place = np.flatnonzero(whole)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if len(place) < np.count_nonzero(sizes):
        time, value, node, order, owner = (flat[whole[owner]] for flat in (time, value, node, order, owner))
    at = np.lexsort((order, node, time, owner))
    found = series.FlatSeries(time[at], value[at], node[at], order[at], sizes[place])
    if len(place):
        yield place, {"series": found.column(), "count": found.sizes}
