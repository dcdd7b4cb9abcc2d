"""Columns of partials as Arrow arrays, as the native plan reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cloud_job.spark.native import multisets, series
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import blocks as merged_at_once
from edge_agent.algebra.partials.multisets import is_bags
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import is_series

WIDE: Final = pa.decimal128(38, 0)
_LIMIT: Final = 10**38  # the first integer that decimal(38,0) does not hold
_LOW_BITS: Final = (1 << 64) - 1


def to_arrow(column: Array, kind: str, scale: int | None, nodes: Sequence[str]) -> pa.Array:
    """A state column of the registry as Spark reads it.

    kind: of the registry's Column. scale: None for floats. nodes: ids by node code. An integer beyond 38 digits becomes
    null: the answer is null then, never an error (docs/protocol.md 7.1).
    """
    if kind == "bag":
        return multisets.to_arrow(column)
    if kind == "series":
        return series.to_arrow(column, nodes)
    if kind == "sketch":
        return pa.array(column, pa.binary())
    if kind == "node":
        return pa.array(nodes, pa.string()).take(pa.array(column))
    if kind == "wide" and scale is not None:
        return _wide(column)
    return pa.array(column)


def blocks(rows: Partials) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold about as many values in cells as are merged at once; without cells one of all rows."""
    held = np.zeros(len(rows), np.int64)
    for column in rows.states.values():
        if is_bags(column):
            held += np.fromiter((len(cell.values) for cell in column.tolist()), np.int64, len(rows))
        elif is_series(column):
            held += np.fromiter((len(cell.time_us) for cell in column.tolist()), np.int64, len(rows))
    return merged_at_once(np.arange(len(rows)), held)


def _wide(column: Array) -> pa.Array:
    if column.dtype == np.int64:
        return pa.array(column).cast(pa.decimal128(19, 0)).cast(WIDE)
    values: Any = column
    fits = np.less(np.abs(values), _LIMIT).astype(bool)
    kept = np.where(fits, values, 0)
    limbs = np.empty((len(kept), 2), np.uint64)  # two's complement, little endian: Arrow's own layout
    limbs[:, 0] = (kept & _LOW_BITS).astype(np.uint64)
    limbs[:, 1] = ((kept >> 64) & _LOW_BITS).astype(np.uint64)
    validity = pa.array(fits).buffers()[1]
    return pa.Array.from_buffers(WIDE, len(kept), [validity, pa.py_buffer(limbs.tobytes())])
