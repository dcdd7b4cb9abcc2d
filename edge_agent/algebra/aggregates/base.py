"""The parts of a family of aggregates: state columns, components that compute them, functions that give results."""

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
Value = str | int | float | bool | tuple[float, ...]  # type of a parameter's value
Params = Mapping[str, Any]  # name of a parameter -> valid value

ANY: Final = (-1e300, 1e300)  # Param.within of a parameter that may be any number


@dataclass(frozen=True, slots=True)
class Column:
    """One state column.

    kind: name of a kind in algebra/columns. degree: if readings are scaled integers, values of the column are multiples
    of 10**(degree * scale); 0: independent of the scale. size: overrides the size of the kind.
    """

    name: str
    kind: str
    degree: int = 0
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """The input of lift: readings of one node, sorted by (time, arrival).

    time_us: shape (k,), int64, non-decreasing; k may be 0. value: shape (k,), float64, finite, or int64 in multiples of
    10**scale with |value| < 2**61. order: shape (k,), int64, arrival numbers; may be empty unless a column of a kind in
    NUMBERED is lifted. node: code of this node. numbers: name of a label -> its value as a number for each reading:
    shape (k,), float64, NaN if the text is no number; labels that no reading has may be absent.
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
    """State columns that are lifted and combined together.

    needs: names of the components whose columns lift or combine reads.

    lift(readings, segments, scale, lifted): its columns, one row per group. `lifted` has the columns of `needs`.

    combine(states, segments, combined, ranks): its columns, one row per group. `states` has all columns before
    combining, `combined` those of `needs` after it. ranks: as in aggregates.combine.

    invert(total, part): optional; the state of the readings of `total` that are not in `part`. Used only if all its
    columns are integers; must be exact, or return None. Overlapping windows are then differences of running totals
    (algebra/sliding/two_stacks.py).

    fold: optional; the ufunc (np.add, np.minimum, ...) by which `combine` combines each of its columns. Overlapping
    windows are then formed several times faster (algebra/sliding/two_stacks.py).

    apart: whether its columns depend on more than the values of readings. A row of zeros must then be an identity of
    `combine`.

    commutative: False if the order of readings matters. `combine` is then not called: the root lifts all readings of a
    window at once, in their global order (non_commutative.py).

    of_bag(column, scale): optional; its columns for a column of multisets, one row per multiset. Declared if that is
    faster than lifting each value and combining it as often as it counts.
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
        """A component of one column. column: its name; '' for `name`. combine: a ufunc in `_BY_FOLD`, or a function."""
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
    """Makes a component for every argument. `name:argument` is the name of the component and of its only column.

    The component must combine by adding. arguments: pattern that the whole argument must match. make(argument): returns
    the component and its column.
    """

    name: str
    arguments: str
    make: Callable[[str], tuple[Component, Column]]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a function. choices: its valid values. default: None if the parameter is required.

    With one of the following, choices are only examples. within: any number in [low, high] is valid. most > 0: an
    increasing list of up to `most` such numbers is valid. text: any text that matches this pattern is valid.
    """

    choices: tuple[Value, ...]
    default: Value | None
    within: tuple[float, float] | None = None
    most: int = 0
    text: str = ""

    def allows(self, value: object) -> bool:
        """Whether a value is valid."""
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
        """The valid values as text, for messages."""
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

    needs: names of components. scaled: replaces `needs` for scaled-integer readings; None: no difference. asks(params):
    names of further components, which templates make. params: (name, Param). lower(states, scale, params): the results,
    one per row; every row has a reading, and params has every parameter. about: description for users, one line. gives:
    format of the result: 'count' (an integer), 'value' (an integer if the readings are integers), 'time' (us),
    'details' (JSON only) or 'number'.
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
        """Names of the components that the function needs. scale: of the readings, None for floats."""
        plain = self.needs if scale is None or self.scaled is None else self.scaled
        return plain if self.asks is None else (*plain, *self.asks(params))


@dataclass(frozen=True, slots=True)
class Family:
    """The entries that one file or package adds to the registry."""

    columns: tuple[Column, ...]
    components: tuple[Component, ...]
    functions: tuple[Function, ...]
    templates: tuple[ComponentTemplate, ...] = ()
