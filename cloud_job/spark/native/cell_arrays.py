"""Cells on their way through Spark: a struct of flat arrays, each as bytes, brought together by `collect_list`.

Spark and Arrow turn an array of numbers over one by one at each of the four borders that a cell crosses; bytes they
copy as they are. Numbers are of 64 bits, little endian: int64, or float64 where the cell's owner says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array, Ints, Mask

FLOATS: Final = np.dtype("<f8")
INTS: Final = np.dtype("<i8")
WIDTH: Final = 8  # bytes of a number
MOST_BYTES: Final = 2**31 - 1  # of one column of bytes in Arrow
LIMIT: Final = 2**63 - 1  # what a number holds
TOO_WIDE: Final = -1  # in place of a count or a node: a value of this cell is beyond 64 bits, its row has no answer


def text(parts: Sequence[str]) -> str:
    """The Spark type of a cell with these parts."""
    return f"struct<{','.join(f'{part}:binary' for part in parts)}>"


def arrow_type(parts: Sequence[str]) -> pa.DataType:
    return pa.struct([(part, pa.binary()) for part in parts])


def number(scale: int | None) -> np.dtype[np.float64] | np.dtype[np.int64]:
    """What values are: scaled integers, or floats (None)."""
    return FLOATS if scale is None else INTS


def fitted(values: Array, mark: Ints) -> tuple[Array, Ints]:
    """Values of 64 bits, and `mark` with TOO_WIDE where a value is beyond: units of a coarser scale, made finer."""
    if values.dtype != object:
        return values, mark
    wide = (np.abs(values) > LIMIT).astype(bool)
    return np.where(wide, 0, values).astype(np.int64), np.where(wide, TOO_WIDE, mark)


def to_arrow(sizes: Ints, parts: dict[str, Array | None]) -> pa.Array:
    """Cells of these sizes, one after the other. parts: name -> flat array, None for null in all cells."""
    made = [pa.nulls(len(sizes), pa.binary()) if flat is None else to_bytes(flat, sizes) for flat in parts.values()]
    return pa.StructArray.from_arrays(made, names=list(parts))


def to_bytes(flat: Array, sizes: Ints) -> pa.Array:
    """A binary value a cell of a flat array; of one with two axes its rows are what sizes count."""
    row = WIDTH * (1 if flat.ndim == 1 else flat.shape[1])
    offsets = np.concatenate([[0], np.cumsum(sizes)]) * row
    if int(offsets[-1]) > MOST_BYTES:
        raise ValueError(f"{offsets[-1]} bytes in one column of cells")
    data = pa.py_buffer(np.ascontiguousarray(flat, flat.dtype.newbyteorder("<")))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int32)), data])


def opened(column: pa.Array, dtype: np.dtype[np.float64] | np.dtype[np.int64]) -> tuple[Array, Ints]:
    """(the numbers of all cells, the count of each): inverse of `to_bytes`. A null cell has none."""
    if not len(column):
        return np.zeros(0, dtype), np.zeros(0, np.int64)
    if pa.types.is_large_binary(column.type):  # a setting of Spark's
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.frombuffer(b"" if data is None else data, np.uint8)[edges[0] : edges[-1]]
    if content.ctypes.data % WIDTH:  # Arrow aligns a buffer, not where a slice of it begins
        content = content.copy()
    return content.view(dtype), np.diff(edges) // WIDTH


@dataclass(frozen=True, slots=True)
class MetCells:
    """Rows of cells that met. many: cells of each row. content: all cells, one after the other."""

    many: Ints
    content: pa.Array

    @classmethod
    def of(cls, rows: pa.Array) -> MetCells:
        """From lists of cells; a list that is null has none. A column of single cells is rows of one."""
        if pa.types.is_struct(rows.type):
            return cls(np.ones(len(rows), np.int64), rows)
        many = pc.fill_null(pc.list_value_length(rows), 0).to_numpy(zero_copy_only=False)
        return cls(many.astype(np.int64), rows.flatten())

    def opened(self, part: str, dtype: np.dtype[np.float64] | np.dtype[np.int64] = INTS) -> tuple[Array, Ints]:
        """As `opened`, of a part of the cells."""
        return opened(self.content.field(part), dtype)

    def whole(self, mark: str) -> Mask:
        """Which rows have cells, and only such as fit 64 bits. mark: the part that says TOO_WIDE."""
        told, sizes = self.opened(mark)
        found = self.many > 0
        if len(told) and int(told.min()) == TOO_WIDE:
            cell = np.repeat(np.arange(len(sizes)), sizes)[told == TOO_WIDE]
            found[np.repeat(np.arange(len(self.many)), self.many)[cell]] = False
        return found

    def sizes(self, sizes: Ints) -> Ints:
        """What each row holds. sizes: what each cell does."""
        upto = np.concatenate([[0], np.cumsum(sizes)])
        held: Ints = np.diff(upto[np.concatenate([[0], np.cumsum(self.many)])])
        return held
