"""The record of a column kind, with all facts about it. Wire and Spark use only its form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from edge_agent.algebra.partials.arrays import Array, Ints

NUMBER_BYTES: Final = 9  # encoded size of a number of up to 64 bits, with its CBOR head


class Form(Enum):
    """The data type of a column's values. Every form is implemented by the wire and by Spark.

    See wire/columns/forms.py and cloud_job/spark/native/column_types.py.
    """

    INT = "int64"
    FLOAT = "float64"
    WIDE = "int64, or object with integers of up to 128 bits"
    NODE = "int64 indices of the owner's table of nodes; ids in Spark"
    MULTISET = "object with algebra.partials.multisets.Multiset"
    SERIES = "object with algebra.partials.series.Series"
    BYTES = "object with bytes"


# The letters that sketches.kind_of may return for a form: (for floats, for scaled integers).
LETTERS: Final[dict[Form, tuple[str, str]]] = {
    Form.INT: ("i", "i"),
    Form.FLOAT: ("f", "f"),
    Form.WIDE: ("iO", "iO"),
    Form.NODE: ("i", "i"),
    Form.MULTISET: ("B", "b"),
    Form.SERIES: ("S", "s"),
    Form.BYTES: ("HTK", "HTK"),
}
LETTER_WORDS: Final = {
    "i": "integers of 64 bits",
    "f": "floats",
    "O": "integers of up to 128 bits",
    "B": "multisets of floats",
    "b": "multisets of integers",
    "S": "series of floats",
    "s": "series of integers",
    "H": "HLL sketches",
    "T": "theta sketches",
    "K": "KLL sketches",
}


@dataclass(frozen=True, slots=True)
class RowSize:
    """Bytes, or bytes per second. expected: an estimate. most: an upper bound."""

    expected: float
    most: float

    def times(self, factor: float) -> RowSize:
        """The size of `factor` rows."""
        return RowSize(self.expected * factor, self.most * factor)


Size = Callable[[int, int | None, float], RowSize]  # (degree of the column, scale of the values, readings in the row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """All facts about one kind of state column. No field has a default, so that every kind states all of them.

    forms: (for floats, for scaled integers). bytes: upper bound of a cell's encoded size, without what `size` adds.
    size: expected: bytes of a cell; most: upper bound of its bytes beyond `bytes`, 0 if it does not grow. grows:
    whether a cell grows with its readings; packages cannot add columns of such a kind. of_reading: whether cells
    contain the time, node or arrival of a reading, which do not follow from its value. arrivals: whether cells contain
    arrival numbers, which lift then needs. rescale(column, degree, scale, to): the column at a finer scale, or as
    floats (to None); degree > 0. renumber(column, change): the column with other node codes, None if it has none;
    change maps codes and keeps the order of node ids.
    """

    name: str
    forms: tuple[Form, Form]
    bytes: int
    size: Size
    grows: bool
    of_reading: bool
    arrivals: bool
    rescale: Callable[[Array, int, int, int | None], Array]
    renumber: Callable[[Array, Callable[[Ints], Ints]], Array] | None

    def form(self, scale: int | None) -> Form:
        """The form of a column. scale: of the values, None for floats."""
        return self.forms[scale is not None]

    def letters(self, scale: int | None) -> str:
        """The letters that sketches.kind_of may return for a column of this kind."""
        return LETTERS[self.form(scale)][scale is not None]
