"""The record of a column kind, with every fact that other packages need. Wire and Spark use its form only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from edge_agent.algebra.partials.arrays import Array, Ints

NUMBER_BYTES: Final = 9  # of a number up to 64 bits with its head


class Form(Enum):
    """What the values of a column are made of. Wire and Spark implement each form once, in a file `forms.py` each."""

    INT = "int64"
    FLOAT = "float64"
    WIDE = "int64, or object with integers of up to 128 bits"
    NODE = "int64 codes of the holder's node table; ids in Spark"
    MULTISET = "object with algebra.partials.multisets.Multiset"
    SERIES = "object with algebra.partials.series.Series"
    BYTES = "object with bytes"


# The letters that sketches.kind_of gives such columns: (of floats, of scaled integers).
LETTERS: Final[dict[Form, tuple[str, str]]] = {
    Form.INT: ("i", "i"),
    Form.FLOAT: ("f", "f"),
    Form.WIDE: ("iO", "iO"),
    Form.NODE: ("i", "i"),
    Form.MULTISET: ("B", "b"),
    Form.SERIES: ("S", "s"),
    Form.BYTES: ("HTK", "HTK"),
}


@dataclass(frozen=True, slots=True)
class RowSize:
    """Bytes, or bytes per second. most: the upper bound for that many readings."""

    expected: float
    most: float

    def times(self, factor: float) -> RowSize:
        """The size of that many rows."""
        return RowSize(self.expected * factor, self.most * factor)


Size = Callable[[int, int | None, float], RowSize]  # (degree of the column, scale of the values, readings in the row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """All facts of one kind of state column. No field has a default, so that every kind states all of them.

    forms: of a column of floats, and of one of scaled integers.
    bytes: greatest size in a frame of a row without readings. size: bytes that readings add, expected and at most.
    grows: whether a cell grows with the readings in it. Packages cannot add columns of such a kind.
    of_reading: whether it holds the time, node or arrival of readings, which do not follow from their values.
    arrivals: whether it holds arrival numbers, so that readings must carry them when they are lifted.
    rescale(column, degree, scale, to): the column at a finer scale, or as floats (to None), degree > 0.
    renumber(column, change): the column with other node codes; None if it holds none. change keeps the order of ids.
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
        """The form of a column of values of this scale, None for floats."""
        return self.forms[scale is not None]

    def letters(self, scale: int | None) -> str:
        """The letters that sketches.kind_of may give a column of this kind."""
        return LETTERS[self.form(scale)][scale is not None]
