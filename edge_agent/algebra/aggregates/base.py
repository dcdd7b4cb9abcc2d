"""What a family of aggregates is made of: state columns, components that fill them, functions that answer from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.partial import Column as Array
    from edge_agent.algebra.partial import Ints

    States = Mapping[str, Array]

EXACT: Final = 2**53  # integers up to here are float64 without loss


@dataclass(frozen=True, slots=True)
class Column:
    """One state column.

    kind: 'count' (int64), 'time' (int64, us), 'value' (float64, or int64 multiples of 10**scale), 'wide' (float64, or
    an exact integer: int64, object beyond 64 bits), 'real' (float64), 'node' (int64 code of the holder's node table),
    'order' (int64 arrival number), 'bag' (object array of algebra.bags.Bag: values as of kind 'value').
    degree: a scaled-integer column is in multiples of 10**(degree * scale).
    """

    name: str
    kind: str
    degree: int = 0


@dataclass(frozen=True, slots=True)
class Readings:
    """What lift takes: readings of one node in the order of (time, arrival).

    time_us: shape (k,), int64, non-decreasing. value: shape (k,), float64, finite, or int64 in multiples of
    10**scale with |value| <= 2**53. order: shape (k,), int64 arrival numbers; may be empty if no column of kind
    'order' is lifted. node: the code of this node. k may be 0.
    """

    time_us: Ints
    value: Array
    order: Ints
    node: int = 0


@dataclass(frozen=True, slots=True)
class Component:
    """A family of columns that are lifted and combined together.

    lift(readings, segments, scale, lifted): its columns, a row per group; `lifted` holds the columns of `needs`.
    combine(states, segments, combined, ranks): its columns combined; `states` are all columns by row, `combined` the
    columns of `needs` by group, ranks the place of each node code in the bytewise order of ids (None: codes are it).
    invert(total, part): what is left of total without part; only where that is exact for integers.
    """

    name: str
    columns: tuple[str, ...]
    lift: Callable[[Readings, Segments, int | None, States], dict[str, Array]]
    combine: Callable[[States, Segments, States, Ints | None], dict[str, Array]]
    needs: tuple[str, ...] = ()
    invert: Callable[[States, States], dict[str, Array]] | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a function: one of `choices`, `default` if not given (None: it must be).

    within: any number of [low, high] is allowed; `choices` are then only examples.
    """

    choices: tuple[str | int | float | bool, ...]
    default: str | int | float | bool | None
    within: tuple[float, float] | None = None

    def allows(self, value: object) -> bool:
        """Whether a value may be given."""
        if self.within is not None:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and self.within[0] <= value <= self.within[1]  # type: ignore[operator]
        return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.choices)

    @property
    def wanted(self) -> str:
        """What it may be, for people."""
        if self.within is not None:
            return f"a number of {self.within[0]:g} to {self.within[1]:g}"
        return f"one of {', '.join(map(repr, self.choices))}"


@dataclass(frozen=True, slots=True)
class Lowered:
    """Answers. value: shape (n,), float64, NaN where null. null: shape (n,), bool.

    details: JSON text a row, None where `value` says all; the whole list None if that is so for every row.
    """

    value: NDArray[np.float64]
    null: NDArray[np.bool_]
    details: list[str | None] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate people can ask for.

    needs: components; `scaled` those for scaled-integer readings where they differ. params: name -> Param.
    lower(states, scale, params) -> Lowered; params holds every parameter, defaults filled in. One row a group, no
    row without a reading. about: one line for people.
    """

    name: str
    needs: tuple[str, ...]
    lower: Callable[[States, int | None, Mapping[str, str | int | float | bool]], Lowered]
    about: str
    params: tuple[tuple[str, Param], ...] = ()
    scaled: tuple[str, ...] | None = None

    def components(self, scale: int | None) -> tuple[str, ...]:
        """What it needs for floats (scale None) or scaled integers."""
        return self.needs if scale is None or self.scaled is None else self.scaled


@dataclass(frozen=True, slots=True)
class Family:
    """What one file adds to the registry."""

    columns: tuple[Column, ...]
    components: tuple[Component, ...]
    functions: tuple[Function, ...]


def answered(value: Array, null: NDArray[np.bool_] | None = None, details: list[str | None] | None = None) -> Lowered:
    """A Lowered from any numeric array: null rows become NaN."""
    floats = value.astype(np.float64)
    if null is None:
        return Lowered(floats, np.zeros(len(floats), np.bool_), details)
    if null.any():
        floats[null] = np.nan
    return Lowered(floats, null, details)


def decimals(units: Array, scale: int | None) -> Lowered:
    """Values or sums as numbers: units times 10**scale, correctly rounded; in full in details beyond 2**53 units.

    units: shape (n,), float64 if scale is None, else int64 or object. Divides by 10**-scale rather than multiplying
    by 0.1, so that 0.1-resolution values print like decimals.
    """
    if scale is None or units.dtype == np.float64:
        return answered(units)
    power = 10 ** max(scale, 0)
    if len(units) == 0 or (units.dtype == np.int64 and max(-int(units.min()), int(units.max())) * power <= EXACT):
        return answered(units * power if scale > 0 else units / 10.0**-scale)
    exact = [int(unit) * power for unit in units.tolist()]
    divisor = 10 ** max(-scale, 0)
    value = np.array([unit / divisor for unit in exact], np.float64)
    return answered(value, None, [_decimal_text(unit, max(-scale, 0)) if abs(unit) > EXACT else None for unit in exact])


def ratio(numerator: Array, denominator: Array) -> NDArray[np.float64]:
    """Exact integers divided, rounded once. shape (n,), int64 or object; denominators positive."""
    small = numerator.dtype == np.int64 and denominator.dtype == np.int64 and len(numerator) > 0
    if small and max(-int(numerator.min()), int(numerator.max()), int(denominator.max())) <= EXACT:
        return numerator / denominator
    pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
    return np.array([above / below for above, below in pairs], np.float64)


def times(values: Array, factor: int) -> Array:
    """Exact integers times a positive factor: int64 where that surely fits, else object."""
    if factor == 1 or (values.dtype == np.int64 and len(values) == 0):
        return values
    if values.dtype == np.int64 and max(-int(values.min()), int(values.max())) * factor < 2**63:
        return values * factor
    return values.astype(object) * factor


def _decimal_text(units: int, places: int) -> str:
    digits = str(abs(units)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return ("-" if units < 0 else "") + whole + ("." + part if part else "")
