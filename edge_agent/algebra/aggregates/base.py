"""The parts of a family of aggregates: state columns, components that compute them, functions that read results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from edge_agent.algebra.columns.kind import Size
from edge_agent.algebra.partials.arrays import Array, Floats, Ints, Mask
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import EXACT, as_floats, fits_floats

Cell = TypeVar("Cell")
States = Mapping[str, Array]
Value = str | int | float | bool | tuple[float, ...]  # of a parameter
Params = Mapping[str, Any]  # values as its Param allows them

HUGE: Final = 1e307  # sums of floats stop here, short of infinity: there is no answer then
WIDEST: Final = 10**38  # nor from an integer of so many digits: a decimal(38,0) does not hold it
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


@dataclass(frozen=True, slots=True)
class Lowered:
    """Results. value: shape (n,), float64, NaN where null. null: shape (n,), bool.

    details: JSON text per row, None for rows that need none; None instead of the list if no row needs one.
    """

    value: Floats
    null: Mask
    details: list[str | None] | None = None


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


def adding(column: str) -> Combine:
    """The `combine` of a component that adds up its one column."""

    def combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
        return {column: groups.sum(states[column])}

    return combine


def value_of(column: str) -> Lower:
    """The `lower` of a function whose answer is one column in multiples of 10**scale."""
    return lambda states, scale, _params: decimals(states[column], scale)


def time_of(column: str) -> Lower:
    """The `lower` of a function whose answer is one column of times."""
    return lambda states, _scale, _params: answered(states[column])


def answered(value: Array, null: Mask | None = None, details: list[str | None] | None = None) -> Lowered:
    """A Lowered from any numeric array: null rows become NaN."""
    floats = value.astype(np.float64)
    if null is None:
        return Lowered(floats, np.zeros(len(floats), np.bool_), details)
    if null.any():
        floats[null] = np.nan
    return Lowered(floats, null, details)


def by_row(items: Sequence[Cell], sizes: Ints) -> Iterator[Sequence[Cell]]:
    """The items of each row. items: those of all rows, row after row. sizes: how many each row has."""
    ends = np.cumsum(sizes).tolist()
    return (items[first:end] for first, end in zip([0, *ends], ends, strict=False))


def in_details(texts: Iterable[str]) -> Lowered:
    """A Lowered without numbers: one JSON text per row, in the details."""
    details: list[str | None] = list(texts)
    return Lowered(np.full(len(details), np.nan), np.ones(len(details), np.bool_), details)


def plain_numbers(units: Array, scale: int | None) -> list[Any]:
    """Values as Python numbers for JSON: integers if scale >= 0."""
    if scale is None or scale < 0:
        return list(decimals(units, scale).value.tolist())
    return [value * 10**scale for value in units.tolist()]


def decimals(units: Array, scale: int | None) -> Lowered:
    """Values or sums as numbers: units times 10**scale, correctly rounded; in full in details beyond 2**53 units.

    units: shape (n,), float64 if scale is None, else int64 or object. Divides by 10**-scale rather than multiplying
    by 0.1, so that 0.1-resolution values print like decimals.
    """
    power = 10 ** max(scale or 0, 0)
    if scale is None or units.dtype == np.float64 or fits_floats(units, power):
        return answered(as_floats(units, scale))
    exact, places = [int(unit) * power for unit in units.tolist()], max(-scale, 0)
    texts = [_decimal_text(unit, places) if abs(unit) > EXACT else None for unit in exact]
    return answered(as_floats(units, scale), None, texts)


def ratio(numerator: Array, denominator: Array) -> Floats:
    """Exact integers divided, rounded once. shape (n,), int64 or object; denominators positive."""
    small = numerator.dtype == np.int64 and denominator.dtype == np.int64 and len(numerator) > 0
    if small and max(-int(numerator.min()), int(numerator.max()), int(denominator.max())) <= EXACT:
        return numerator / denominator
    pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
    return np.array([above / below for above, below in pairs], np.float64)


def within_reach(sums: Array) -> Array:
    """Sums of floats, clipped to HUGE so that a state stays finite."""
    if not len(sums) or (np.isfinite(sums).all() and max(-sums.min(), sums.max()) <= HUGE):
        return sums
    near: Array = np.clip(np.nan_to_num(sums, nan=HUGE, posinf=HUGE, neginf=-HUGE), -HUGE, HUGE)
    return near


def out_of_reach(*sums: Array) -> Mask:
    """Rows without a result, because one of these sums is too large for a state or for a decimal(38,0)."""
    out = np.zeros(len(sums[0]), np.bool_)
    for column in sums:
        if column.dtype == object:
            out |= np.array([abs(value) >= WIDEST for value in column.tolist()], np.bool_)
        elif column.dtype == np.float64:
            out |= np.abs(column) >= HUGE
    return out


def difference(values: Array, others: Array) -> Array:
    """Values - others: integers exactly, int64 where that surely fits, else object. shape (n,) each."""
    if values.dtype == np.int64 and others.dtype == np.int64 and len(values):
        reach = max(-int(values.min()), int(values.max())) + max(-int(others.min()), int(others.max()))
        if reach >= 2**63:
            values = values.astype(object)
    less: Array = values - others
    return less


def number_name(value: float) -> str:
    """A number as the key of a JSON object: 1, not 1.0."""
    return str(int(value)) if value.is_integer() and abs(value) <= EXACT else repr(value)


def _decimal_text(units: int, places: int) -> str:
    digits = str(abs(units)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return ("-" if units < 0 else "") + whole + ("." + part if part else "")
