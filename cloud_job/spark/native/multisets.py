"""Multisets in Spark: cells of values and counts, merged with one call of numpy per batch of windows.

Spark's own `percentile` would first turn every value into a row, and Spark lacks some of the functions. Instead, the
edge's algebra computes results from the cells that Spark collects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cloud_job.spark.native import cell_arrays
from cloud_job.spark.native.answers import Found
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.multisets import FlatMultisets

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array, Ints

PARTS: Final = ("v", "c")  # values, counts: null where all are 1
MARK: Final = "c"  # the part that is TOO_WIDE if a value does not fit 64 bits


def to_arrow(column: Array) -> pa.Array:
    """A column of multisets as cells."""
    found = multisets.flat(column)
    values, counts = cell_arrays.fitted(found.values, found.counts)
    single = counts.strides == (0,) or bool((counts == 1).all())
    return cell_arrays.to_arrow(found.sizes, {"v": values, "c": None if single else counts})


def merged(given: pa.Array, scale: int | None) -> Found:
    """Yields (row numbers, their states) from lists of cells, except rows without values or with one beyond 64 bits."""
    rows = cell_arrays.MetCells.of(given)
    values, sizes = rows.opened("v", cell_arrays.number(scale))
    counts = _counts(rows, sizes)
    totals = rows.sizes(sizes)
    place = np.flatnonzero(totals)
    if not len(place):
        return
    totals, alone, sound = totals[place], rows.many[place] == 1, rows.whole(MARK)[place]
    starts = np.cumsum(totals) - totals
    for first, last in multisets.blocks(np.arange(len(place)), totals):
        part = slice(int(starts[first]), int(starts[last - 1] + totals[last - 1]))
        held, counted = totals[first:last], counts[part]
        if alone[first:last].all():  # one cell each: its values are sorted and distinct
            found = FlatMultisets(values[part], counted if len(counted) else multisets.ones(len(values[part])), held)
        else:
            found = multisets.tally(values[part], np.repeat(np.arange(last - first), held), counted, last - first)
        good = sound[first:last]
        yield place[first:last][good], {"bag": found.column()[good]}


def _counts(rows: cell_arrays.MetCells, sizes: Ints) -> Ints:
    """The counts of all values; empty if all are 1, which is faster for floats that do not repeat."""
    told, many = rows.opened("c")
    if not len(told):
        return told
    counts = np.ones(int(sizes.sum()), np.int64)
    counts[np.repeat(many > 0, sizes)] = told
    return counts
