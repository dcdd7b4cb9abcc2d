"""Arithmetic with scaled integers: converts units of a scale to a finer scale or to floats, rounding once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Array, Floats, Mask

HUGE: Final = 1e307  # sums of floats are clipped here, short of infinity; their result is then null
WIDEST: Final = 10**38  # integers from here on do not fit Spark's decimal(38,0); their result is null, too
EXACT: Final = 2**53  # float64 represents all integers up to here exactly


def fits_floats(units: Array, power: int) -> bool:
    """Whether float64 represents all units times `power` exactly. units: shape (n,), int64 or object."""
    return len(units) == 0 or (units.dtype == np.int64 and max(-int(units.min()), int(units.max())) * power <= EXACT)


def as_floats(units: Array, scale: int | None) -> Array:
    """Units times 10**scale as float64, correctly rounded. float64 input is returned unchanged.

    units: shape (n,), float64 if scale is None, else int64 or object. Divides by 10**-scale rather than multiplying by
    0.1, so that 0.1-resolution values print like decimals.
    """
    if scale is None or units.dtype == np.float64:
        return units
    power = 10 ** max(scale, 0)
    if fits_floats(units, power):
        return (units * power if scale > 0 else units / 10.0**-scale).astype(np.float64, copy=False)
    divisor = 10 ** max(-scale, 0)
    return np.array([int(unit) * power / divisor for unit in units.tolist()], np.float64)


def times(values: Array, factor: int) -> Array:
    """Exact integers times a positive factor: int64 if all products fit, else object (Python ints)."""
    if factor == 1 or (values.dtype == np.int64 and len(values) == 0):
        return values
    if values.dtype == np.int64 and max(-int(values.min()), int(values.max())) * factor < 2**63:
        return values * factor
    return values.astype(object) * factor


def rescaling(scale: int, to: int | None) -> Callable[[Array], Array]:
    """A function that converts units of `scale` to units of the finer scale `to`, or to floats if `to` is None."""
    return lambda units: as_floats(units, scale) if to is None else times(units, 10 ** (scale - to))


def ratio(numerator: Array, denominator: Array) -> Floats:
    """The quotient of exact integers, rounded once. Arguments: shape (n,), int64 or object; denominators positive."""
    small = numerator.dtype == np.int64 and denominator.dtype == np.int64 and len(numerator) > 0
    if small and max(-int(numerator.min()), int(numerator.max()), int(denominator.max())) <= EXACT:
        return numerator / denominator
    pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
    return np.array([above / below for above, below in pairs], np.float64)


def within_reach(sums: Array) -> Array:
    """Sums of floats, clipped to +-HUGE so that states stay finite. NaN becomes HUGE."""
    if not len(sums) or (np.isfinite(sums).all() and max(-sums.min(), sums.max()) <= HUGE):
        return sums
    near: Array = np.clip(np.nan_to_num(sums, nan=HUGE, posinf=HUGE, neginf=-HUGE), -HUGE, HUGE)
    return near


def out_of_reach(*sums: Array) -> Mask:
    """Mask of rows whose result is null because one of these sums is beyond HUGE or WIDEST."""
    out = np.zeros(len(sums[0]), np.bool_)
    for column in sums:
        if column.dtype == object:
            out |= np.array([abs(value) >= WIDEST for value in column.tolist()], np.bool_)
        elif column.dtype == np.float64:
            out |= np.abs(column) >= HUGE
    return out


def difference(values: Array, others: Array) -> Array:
    """The difference; of integers exactly: int64 if all differences fit, else object. Arguments: shape (n,)."""
    if values.dtype == np.int64 and others.dtype == np.int64 and len(values):
        reach = max(-int(values.min()), int(values.max())) + max(-int(others.min()), int(others.max()))
        if reach >= 2**63:
            values = values.astype(object)
    less: Array = values - others
    return less


def fits_float(number: object) -> bool:
    """Whether a float is equal to the number. Of integers beyond 2^53 only some are."""
    return not isinstance(number, int) or int(float(number)) == number


def number_name(value: float) -> str:
    """A number as text for the key of a JSON object: a whole number without decimals (1, not 1.0)."""
    return str(int(value)) if value.is_integer() and abs(value) <= EXACT else repr(value)
