"""Units of a scale as units of another one, or as floats: exact up to the last rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Array

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
