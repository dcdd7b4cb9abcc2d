"""The parts of a family of aggregates: state columns, components that compute them, functions that read results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from edge_agent.algebra.aggregates.lowered import Lowered, answered
from edge_agent.algebra.columns.kind import Size
from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments

__all__ = ["Column", "Component", "Family", "Function", "Lowered", "Param", "Params", "Readings", "States", "answered"]

States = Mapping[str, Array]
Value = str | int | float | bool | tuple[float, ...]  # of a parameter
Params = Mapping[str, Any]  # values as its Param allows them

ANY: Final = (-1e300, 1e300)  # bounds of a parameter that may be any number


@dataclass(frozen=True, slots=True)
class Column:
    """One state column.

    kind: a kind of algebra/columns. degree: a scaled-integer column is in multiples of 10**(degree * scale).
    size: what readings add to a row in a frame, where the kind does not say it.
    """

    name: str
    kind: str
    degree: int = 0
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """The input of lift: readings of one node, sorted by (time, arrival).

    time_us: shape (k,), int64, non-decreasing. value: shape (k,), float64, finite, or int64 in multiples of
    10**scale with |value| < 2**61. order: shape (k,), int64 arrival numbers; may be empty if no column of a kind in
    NUMBERED is lifted. node: the code of this node. numbers: label name -> its value as a number: shape (k,), float64,
    NaN if the text is no number; labels that no reading has may be absent. k may be 0.
    """

    time_us: Ints
    value: Array
    order: Ints
    node: int = 0
    numbers: Mapping[str, Floats] = field(default_factory=dict)


Combine = Callable[[States, Segments, States, Ints | None], dict[str, Array]]
LiftColumn = Callable[[Readings, Segments, int | None], Array]
CombineColumn = Callable[[Segments, Array], Array]
_BY_FOLD: Final[dict[np.ufunc, CombineColumn]] = {
    np.add: Segments.sum,
    np.minimum: Segments.min,
    np.maximum: Segments.max,
}


@dataclass(frozen=True, slots=True)
class Component:
    """A family of columns that are lifted and combined together.

    lift(readings, segments, scale, lifted): its columns, a row per group; `lifted` holds the columns of `needs`.
    combine(states, segments, combined, ranks): its columns combined; `states` are all columns by row, `combined` the
    columns of `needs` by group, ranks the place of each node code in the bytewise order of ids (None: codes are it).
    invert(total, part): what is left of a total without a part of it, where all its columns are integers and that is
    exact; None where it cannot say. Overlapping windows are then differences of running totals
    (algebra/sliding/two_stacks.py). fold: its columns each combine alone by this ufunc (np.add, np.minimum, ...):
    overlapping windows are then formed several times faster (algebra/sliding/batch.py). None: by `combine` only,
    whatever it is. apart: its columns do not follow from the values of readings alone; a row of zeros is nothing to
    combine. commutative: False where the order of its readings matters. Its functions then need all readings in their
    global order, which it lifts at once (in_order.py); its combine is not asked.
    of_bag(column, scale): its columns for the readings in multisets, one row per multiset, if that is faster than to
    lift each value and combine it as often as it counts.
    """

    name: str
    columns: tuple[str, ...]
    lift: Callable[[Readings, Segments, int | None, States], dict[str, Array]]
    combine: Combine
    needs: tuple[str, ...] = ()
    invert: Callable[[States, States], dict[str, Array] | None] | None = None
    apart: bool = False
    fold: np.ufunc | None = None
    commutative: bool = True
    of_bag: Callable[[Array, int | None], dict[str, Array]] | None = None

    @classmethod
    def of_column(cls, name: str, lift: LiftColumn, combine: np.ufunc | CombineColumn, column: str = "") -> Component:
        """A component of one column, which is named like it. combine: np.add, np.minimum, np.maximum, or a function."""
        column = column or name
        fold = combine if isinstance(combine, np.ufunc) else None
        together: CombineColumn = _BY_FOLD[combine] if isinstance(combine, np.ufunc) else combine
        return cls(
            name,
            (column,),
            lambda readings, groups, scale, _lifted: {column: lift(readings, groups, scale)},
            lambda states, groups, _combined, _ranks: {column: together(groups, states[column])},
            fold=fold,
        )


@dataclass(frozen=True, slots=True)
class ComponentTemplate:
    """A component for every argument: `name:argument` is its name, and that of its one column.

    It combines by adding. arguments: pattern of the whole argument. make(argument): the component and its column.
    """

    name: str
    arguments: str
    make: Callable[[str], tuple[Component, Column]]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a function: one of `choices`. default: None if the parameter is required.

    within: any number in [low, high] is valid. most > 0: a list of up to `most` such numbers, increasing. text: any
    text that matches the pattern. With one of these, `choices` are only examples.
    """

    choices: tuple[Value, ...]
    default: Value | None
    within: tuple[float, float] | None = None
    most: int = 0
    text: str = ""

    def allows(self, value: object) -> bool:
        """Whether the value is valid."""
        if self.most:
            return isinstance(value, tuple) and self._rising(value)
        if self.within is not None:
            return self._number(value)
        if self.text:
            return isinstance(value, str) and re.fullmatch(self.text, value) is not None
        return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.choices)

    def _rising(self, values: tuple[Any, ...]) -> bool:
        allowed = 0 < len(values) <= self.most and all(map(self._number, values))
        return allowed and all(low < high for low, high in pairwise(values))

    def _number(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or self.within is None:
            return False
        return self.within[0] <= value <= self.within[1]  # false for NaN

    @property
    def wanted(self) -> str:
        """The valid values, for messages."""
        if self.most:
            return f"a list of 1 to {self.most} numbers, each greater than the one before"
        if self.within == ANY:
            return "a number"
        if self.within is not None and math.isinf(self.within[1]):
            return f"a number from {self.within[0]:g} on"
        if self.within is not None:
            return f"a number of {self.within[0]:g} to {self.within[1]:g}"
        if self.text:
            return "the name of a label"
        return f"one of {', '.join(map(repr, self.choices))}"


Lower = Callable[[States, int | None, Params], Lowered]


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function for queries.

    needs: components; `scaled` those for scaled-integer readings where they differ. params: name -> Param.
    lower(states, scale, params) -> Lowered; params holds every parameter, defaults filled in. One row a group, no
    row without a reading. about: one line for people. asks(params): further components, made from templates.
    gives: format of the result: 'count' (an integer), 'value' (an integer if the readings are), 'time' (us), 'details'
    (JSON only) or 'number'.
    """

    name: str
    needs: tuple[str, ...]
    lower: Lower
    about: str
    params: tuple[tuple[str, Param], ...] = ()
    scaled: tuple[str, ...] | None = None
    asks: Callable[[Params], tuple[str, ...]] | None = None
    gives: str = "number"

    def components(self, scale: int | None, params: Params) -> tuple[str, ...]:
        """The components that it needs for floats (scale None) or scaled integers."""
        plain = self.needs if scale is None or self.scaled is None else self.scaled
        return plain if self.asks is None else (*plain, *self.asks(params))


@dataclass(frozen=True, slots=True)
class Family:
    """The entries that one file adds to the registry."""

    columns: tuple[Column, ...]
    components: tuple[Component, ...]
    functions: tuple[Function, ...]
    templates: tuple[ComponentTemplate, ...] = ()
