"""Packs cells for Spark: a cell is a struct of flat arrays, each stored as bytes. `collect_list` collects cells.

Spark and Arrow would convert arrays number by number at each of the four borders between JVM and Python; bytes are
copied as they are. Numbers have 64 bits, little endian: int64, or float64 for cells of floats.
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
LIMIT: Final = 2**63 - 1  # largest number
TOO_WIDE: Final = -1  # stored as a count or node: a value of the cell exceeds 64 bits, so its row has no result


def text(parts: Sequence[str]) -> str:
    """The Spark type of a cell with these parts."""
    return f"struct<{','.join(f'{part}:binary' for part in parts)}>"


def arrow_type(parts: Sequence[str]) -> pa.DataType:
    return pa.struct([(part, pa.binary()) for part in parts])


def number(scale: int | None) -> np.dtype[np.float64] | np.dtype[np.int64]:
    """The type of the values: scaled integers, or floats if the scale is None."""
    return FLOATS if scale is None else INTS


def fitted(values: Array, mark: Ints) -> tuple[Array, Ints]:
    """Convert values to 64 bits. Returns (values, mark), with TOO_WIDE in mark for values that do not fit."""
    if values.dtype != object:
        return values, mark
    wide = (np.abs(values) > LIMIT).astype(bool)
    return np.where(wide, 0, values).astype(np.int64), np.where(wide, TOO_WIDE, mark)


def to_arrow(sizes: Ints, parts: dict[str, Array | None]) -> pa.Array:
    """A column of cells. sizes: numbers in each cell. parts: name -> the numbers of all cells; None: null in all."""
    made = [pa.nulls(len(sizes), pa.binary()) if flat is None else to_bytes(flat, sizes) for flat in parts.values()]
    return pa.StructArray.from_arrays(made, names=list(parts))


def to_bytes(flat: Array, sizes: Ints) -> pa.Array:
    """One binary value per cell. flat: the numbers of all cells; if it has two axes, `sizes` count rows."""
    row = WIDTH * (1 if flat.ndim == 1 else flat.shape[1])
    offsets = np.concatenate([[0], np.cumsum(sizes)]) * row
    if int(offsets[-1]) > MOST_BYTES:
        raise ValueError(f"a column of cells has {offsets[-1]} bytes, more than {MOST_BYTES}")
    data = pa.py_buffer(np.ascontiguousarray(flat, flat.dtype.newbyteorder("<")))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int32)), data])


def opened(column: pa.Array, dtype: np.dtype[np.float64] | np.dtype[np.int64]) -> tuple[Array, Ints]:
    """The inverse of `to_bytes`: (numbers of all cells, how many each cell has). A null cell has no numbers."""
    if not len(column):
        return np.zeros(0, dtype), np.zeros(0, np.int64)
    if pa.types.is_large_binary(column.type):  # depends on a setting of Spark
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.frombuffer(b"" if data is None else data, np.uint8)[edges[0] : edges[-1]]
    if content.ctypes.data % WIDTH:  # a slice of an aligned buffer may begin anywhere
        content = content.copy()
    return content.view(dtype), np.diff(edges) // WIDTH


@dataclass(frozen=True, slots=True)
class MetCells:
    """The cells collected for each row. many: number of cells per row. content: the cells of all rows in order."""

    many: Ints
    content: pa.Array

    @classmethod
    def of(cls, rows: pa.Array) -> MetCells:
        """From a column of lists of cells (null: no cells), or a column with one cell per row."""
        if pa.types.is_struct(rows.type):
            return cls(np.ones(len(rows), np.int64), rows)
        many = pc.fill_null(pc.list_value_length(rows), 0).to_numpy(zero_copy_only=False)
        return cls(many.astype(np.int64), rows.flatten())

    def opened(self, part: str, dtype: np.dtype[np.float64] | np.dtype[np.int64] = INTS) -> tuple[Array, Ints]:
        """`opened` for one part of the cells."""
        return opened(self.content.field(part), dtype)

    def whole(self, mark: str) -> Mask:
        """Mask of the rows that have cells and whose values all fit 64 bits. mark: the part with TOO_WIDE."""
        told, sizes = self.opened(mark)
        found = self.many > 0
        if len(told) and int(told.min()) == TOO_WIDE:
            cell = np.repeat(np.arange(len(sizes)), sizes)[told == TOO_WIDE]
            found[np.repeat(np.arange(len(self.many)), self.many)[cell]] = False
        return found

    def sizes(self, sizes: Ints) -> Ints:
        """The sum of the sizes of each row's cells."""
        upto = np.concatenate([[0], np.cumsum(sizes)])
        held: Ints = np.diff(upto[np.concatenate([[0], np.cumsum(self.many)])])
        return held
