"""Results of functions: numbers, nulls and JSON details; and helpers that make them from states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from edge_agent.algebra.partials.arrays import Array, Floats, Ints, Mask
from edge_agent.algebra.partials.units import EXACT, as_floats, fits_floats, number_name

Cell = TypeVar("Cell")

APART: Final = 10**15  # floats of decimals of at most 15 digits differ; 9007199254740.990 and .991 are the same float


@dataclass(frozen=True, slots=True)
class Lowered:
    """Results of a function for n rows. value: shape (n,), float64, NaN where null. null: shape (n,), bool.

    details: a JSON text per row, None for rows without; None instead of the list if no row has one.
    """

    value: Floats
    null: Mask
    details: list[str | None] | None = None


def value_of(column: str) -> Callable[[Mapping[str, Array], int | None, Any], Lowered]:
    """A `lower` whose result is one column in multiples of 10**scale."""
    return lambda states, scale, _params: decimals(states[column], scale)


def plain(column: str) -> Callable[[Mapping[str, Array], int | None, Any], Lowered]:
    """A `lower` whose result is one column without conversion, such as counts or times."""
    return lambda states, _scale, _params: answered(states[column])


def answered(value: Array, null: Mask | None = None, details: list[str | None] | None = None) -> Lowered:
    """A Lowered from any numeric array. null: mask of null rows, whose value becomes NaN; None: no row."""
    floats = value.astype(np.float64)
    if null is None:
        return Lowered(floats, np.zeros(len(floats), np.bool_), details)
    if null.any():
        floats[null] = np.nan
    return Lowered(floats, null, details)


def by_row(items: Sequence[Cell], sizes: Ints) -> Iterator[Sequence[Cell]]:
    """Yield the items of each row. items: those of all rows, row after row. sizes: number of items per row."""
    ends = np.cumsum(sizes).tolist()
    return (items[first:end] for first, end in zip([0, *ends], ends, strict=False))


def in_details(texts: Iterable[str]) -> Lowered:
    """A Lowered without numbers. texts: the JSON details of each row."""
    details: list[str | None] = list(texts)
    return Lowered(np.full(len(details), np.nan), np.ones(len(details), np.bool_), details)


def plain_numbers(units: Array, scale: int | None) -> list[Any]:
    """Values as Python numbers for JSON: integers if scale >= 0, else floats. units: as in `decimals`."""
    if scale is None or scale < 0:
        return list(decimals(units, scale).value.tolist())
    return [value * 10**scale for value in units.tolist()]


def value_names(units: Array, scale: int | None) -> list[str]:
    """Values as texts for the keys of a JSON object; different values have different texts. units: as in `decimals`."""
    values = as_floats(units, scale).tolist()
    if scale is None or units.dtype == np.float64:
        return [number_name(value) for value in values]
    power, places = 10 ** max(scale, 0), max(-scale, 0)
    exact = [int(unit) * power for unit in units.tolist()]
    return [
        number_name(value) if abs(unit) < APART else _decimal_text(unit, places)
        for value, unit in zip(values, exact, strict=True)
    ]


def decimals(units: Array, scale: int | None) -> Lowered:
    """Values or sums as numbers: units times 10**scale, correctly rounded. Beyond 2**53 the details have all digits.

    units: shape (n,), float64 if scale is None, else int64 or object. Divides by 10**-scale rather than multiplying by
    0.1, so that 0.1-resolution values print like decimals.
    """
    power = 10 ** max(scale or 0, 0)
    if scale is None or units.dtype == np.float64 or fits_floats(units, power):
        return answered(as_floats(units, scale))
    exact, places = [int(unit) * power for unit in units.tolist()], max(-scale, 0)
    texts = [_decimal_text(unit, places) if abs(unit) > EXACT else None for unit in exact]
    return answered(as_floats(units, scale), None, texts)


def _decimal_text(units: int, places: int) -> str:
    digits = str(abs(units)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return ("-" if units < 0 else "") + whole + ("." + part if part else "")
