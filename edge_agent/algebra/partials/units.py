"""Arithmetic of states: units of a scale as units of another one or as floats, exact up to the last rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Array, Floats, Mask

HUGE: Final = 1e307  # sums of floats stop here, short of infinity: there is no answer then
WIDEST: Final = 10**38  # nor from an integer of so many digits: a decimal(38,0) does not hold it
EXACT: Final = 2**53  # integers up to here are float64 without loss


def fits_floats(units: Array, power: int) -> bool:
    """Whether units times a power are float64 without loss. units: shape (n,), int64 or object."""
    return len(units) == 0 or (units.dtype == np.int64 and max(-int(units.min()), int(units.max())) * power <= EXACT)


def as_floats(units: Array, scale: int | None) -> Array:
    """Units times 10**scale, correctly rounded; float64 as it is.

    units: shape (n,), float64 if scale is None, else int64 or object. Divides by 10**-scale rather than multiplying
    by 0.1, so that 0.1-resolution values print like decimals.
    """
    if scale is None or units.dtype == np.float64:
        return units
    power = 10 ** max(scale, 0)
    if fits_floats(units, power):
        return (units * power if scale > 0 else units / 10.0**-scale).astype(np.float64, copy=False)
    divisor = 10 ** max(-scale, 0)
    return np.array([int(unit) * power / divisor for unit in units.tolist()], np.float64)


def times(values: Array, factor: int) -> Array:
    """Exact integers times a positive factor: int64 where that surely fits, else object."""
    if factor == 1 or (values.dtype == np.int64 and len(values) == 0):
        return values
    if values.dtype == np.int64 and max(-int(values.min()), int(values.max())) * factor < 2**63:
        return values * factor
    return values.astype(object) * factor


def rescaling(scale: int, to: int | None) -> Callable[[Array], Array]:
    """Units of one scale as units of a finer one, or as floats (to None)."""
    return lambda units: as_floats(units, scale) if to is None else times(units, 10 ** (scale - to))


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
