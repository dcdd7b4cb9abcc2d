"""The record of a column kind: every fact that other rooms ask for. Wire and Spark know the forms, not the kinds."""

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
        """So many of them."""
        return RowSize(self.expected * factor, self.most * factor)


Size = Callable[[int, int | None, float], RowSize]  # (degree of the column, scale of the values, readings in the row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """All facts of one kind of state column. No field has a default, so that none can be forgotten.

    forms: of a column of floats, and of one of scaled integers.
    bytes: the most that a row without readings takes of a frame; size: what the readings add, expected and at most.
    grows: whether a cell grows with the readings in it. Packages cannot add columns of such a kind.
    of_reading: whether it holds what a value alone does not say: the time, node or arrival of readings.
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
