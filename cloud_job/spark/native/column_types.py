"""Spark and Arrow types of each form of state column, and conversions from and to numpy. FORMS has an entry per form.

Cells (multisets, series) are unpacked in blocks that fit into memory. Rows without cells, or with an integer beyond 64
bits, have no states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_job.spark.native import cell_arrays, multisets, series
from cloud_job.spark.native.answers import Found
from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import Form
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import blocks as merged_at_once
from edge_agent.algebra.partials.multisets import is_bags
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import is_series

WIDE: Final = pa.decimal128(38, 0)
_LIMIT: Final = 10**38  # the smallest integer that does not fit decimal(38,0)
_LOW_BITS: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SparkForm:
    """How Spark stores one form. spark, arrow: its types.

    to_arrow(column, node ids by number). from_arrow(array, scale): returns a column of the algebra; only for rows that
    have states. mark: of cells, the part with TOO_WIDE if a value exceeds 64 bits.
    """

    spark: str
    arrow: pa.DataType
    to_arrow: Callable[[Array, Sequence[str]], pa.Array]
    from_arrow: Callable[[pa.Array, int | None], Array]
    mark: str = ""

    def valid(self, array: pa.Array) -> Any:
        """Mask of the rows that have states."""
        if self.mark:
            return cell_arrays.MetCells.of(array).whole(self.mark)
        return pc.is_valid(array).to_numpy(zero_copy_only=False)


def form_of(column: str, scale: int | None) -> SparkForm:
    """The form of a state column of the registry."""
    return FORMS[KINDS[COLUMNS[column].kind].form(scale)]


def blocks(rows: Partials) -> Iterator[tuple[int, int]]:
    """Split rows into ranges (first, last) whose cells have about as many values as are merged at once. Without cells:
    one range.
    """
    held = np.zeros(len(rows), np.int64)
    for column in rows.states.values():
        if is_bags(column):
            held += np.fromiter((len(cell.values) for cell in column.tolist()), np.int64, len(rows))
        elif is_series(column):
            held += np.fromiter((len(cell.time_us) for cell in column.tolist()), np.int64, len(rows))
    return merged_at_once(np.arange(len(rows)), held)


def _numbers(array: pa.Array, _scale: int | None) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


def _wide_to_arrow(column: Array) -> pa.Array:
    """Integers beyond 38 digits become null, so that the result is null and not an error (docs/protocol.md 7.1)."""
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


def _wide(array: pa.Array, _scale: int | None) -> Array:
    units = [int(unit) for unit in array.to_pylist()]
    return np.array(units, np.int64 if all(abs(unit) < 2**62 for unit in units) else object)


def _ids(column: Array, nodes: Sequence[str]) -> pa.Array:
    return pa.array(nodes, pa.string()).take(pa.array(column))


def _codes(array: pa.Array, _scale: int | None) -> Array:
    """Replace node ids by their ranks in bytewise order, which serve as node numbers."""
    _, codes = np.unique([text.encode() for text in array.to_pylist()], return_inverse=True)
    return codes.astype(np.int64)


def _opened(merged: Callable[[pa.Array, int | None], Found], name: str) -> Callable[[pa.Array, int | None], Array]:
    def column(array: pa.Array, scale: int | None) -> Array:
        out = np.empty(len(array), object)
        for place, states in merged(array, scale):
            out[place] = states[name]
        return out

    return column


FORMS: Final = {
    Form.INT: SparkForm("bigint", pa.int64(), lambda column, nodes: pa.array(column), _numbers),
    Form.FLOAT: SparkForm("double", pa.float64(), lambda column, nodes: pa.array(column), _numbers),
    Form.WIDE: SparkForm("decimal(38,0)", WIDE, lambda column, nodes: _wide_to_arrow(column), _wide),
    Form.NODE: SparkForm("string", pa.string(), _ids, _codes),
    Form.BYTES: SparkForm("binary", pa.binary(), lambda column, nodes: pa.array(column, pa.binary()), _numbers),
    Form.MULTISET: SparkForm(
        cell_arrays.text(multisets.PARTS),
        cell_arrays.arrow_type(multisets.PARTS),
        lambda column, nodes: multisets.to_arrow(column),
        _opened(multisets.merged, "bag"),
        multisets.MARK,
    ),
    Form.SERIES: SparkForm(
        cell_arrays.text(series.PARTS),
        cell_arrays.arrow_type(series.PARTS),
        series.to_arrow,
        _opened(series.ordered, "series"),
        series.MARK,
    ),
}
