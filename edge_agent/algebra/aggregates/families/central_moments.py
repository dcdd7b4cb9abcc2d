"""skewness, kurtosis and moments up to the fifth: sums of powers of the distance from the group's own mean.

Third and higher powers of scaled integers may exceed 128 bits (2^53 cubed has 159), so these sums are floats, in units,
for scaled integers, too. They are merged in two passes, with the mean of the whole, never as differences of raw powers,
which cancel (docs/protocol.md 7.2). Source: Pebay (2008), "Formulas for robust, one-pass parallel computation of
covariances and arbitrary-order statistical moments", equation 2.1; Joanes & Gill (1998) for the sample corrections.
"""

from __future__ import annotations

from math import comb
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Param, Params, Readings, States
from edge_agent.algebra.aggregates.families.moments import DDOF, UPTO_M2, mean
from edge_agent.algebra.aggregates.lowered import Lowered, answered
from edge_agent.algebra.partials.arrays import Array, Floats, Ints, Mask
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import HUGE, out_of_reach, within_reach

MOST: Final = 5
NOISE: Final = 1e-13  # a standard deviation below this share of the mean is due to rounding: all readings are equal


def _power(values: Floats, power: int) -> Floats:
    """values**power by multiplying, which is several times faster than `**`."""
    product = np.ones_like(values) if not power else values
    for _ in range(1, power):
        product = product * values
    return product


def _central(power: int) -> Component:
    """The component `m3`, `m4` or `m5`."""
    name = f"m{power}"

    def lift(readings: Readings, groups: Segments, _scale: int | None, lifted: States) -> dict[str, Array]:
        value = readings.value
        distance = value - groups.spread(mean(lifted))
        with np.errstate(over="ignore", invalid="ignore"):
            return {name: within_reach(groups.sum(_power(distance, power)))}

    def combine(states: States, groups: Segments, combined: States, _ranks: Ints | None) -> dict[str, Array]:
        away = mean(states) - groups.spread(mean(combined))
        with np.errstate(over="ignore", invalid="ignore"):
            total = states["count"] * _power(away, power)  # the sum below starts at 2, because the first moment is 0
            for lower in range(2, power + 1):
                total = total + comb(power, lower) * states[f"m{lower}"] * _power(away, power - lower)
            return {name: within_reach(groups.sum(total))}

    needs = ("count", "sum", *(f"m{lower}" for lower in range(2, power)))
    return Component(name, (name,), lift, combine, needs=needs)


def _spread(states: States) -> tuple[Floats, Mask]:
    """(m2, mask of rows in which all readings are equal). m2 of such rows is set to 1, to avoid division by 0."""
    count, m2 = states["count"], states["m2"]
    with np.errstate(over="ignore"):
        equal = m2 <= count * (NOISE * mean(states)) ** 2
    return np.where(equal, 1.0, m2), equal


def _lower_skewness(states: States, _scale: int | None, params: Params) -> Lowered:
    n, (m2, null) = states["count"].astype(np.float64), _spread(states)
    if params["ddof"]:
        null = null | (n < 3)
    with np.errstate(over="ignore"):
        value = (states["m3"] / n) / (m2 / n) ** 1.5
        if params["ddof"]:
            value = value * np.sqrt(n * np.maximum(n - 1, 0)) / np.maximum(n - 2, 1)
    return answered(value, null | out_of_reach(states["m2"], states["m3"]))


def _lower_kurtosis(states: States, _scale: int | None, params: Params) -> Lowered:
    n, (m2, null) = states["count"].astype(np.float64), _spread(states)
    if params["ddof"]:
        null = null | (n < 4)
    with np.errstate(over="ignore"):
        value = n * (states["m4"] / m2) / m2 - 3.0
        if params["ddof"]:
            value = (n - 1) / np.maximum((n - 2) * (n - 3), 1) * ((n + 1) * value + 6.0)
    return answered(value, null | out_of_reach(states["m2"], states["m4"]))


def _lower_moment(states: States, scale: int | None, params: Params) -> Lowered:
    power = int(params["order"])
    n, (m2, equal) = states["count"].astype(np.float64), _spread(states)
    name = f"m{power}"
    null = out_of_reach(states["m2"], states[name])
    if params["kind"] == "standardized":
        with np.errstate(over="ignore"):
            return answered((states[name] / n) / (m2 / n) ** (power / 2), null | equal)
    value = np.clip(states[name] / n * 10.0 ** (power * (scale or 0)), -HUGE, HUGE)
    return answered(value, null)


FAMILY = Family(
    columns=tuple(Column(f"m{power}", "real", power) for power in range(3, MOST + 1)),
    components=tuple(_central(power) for power in range(3, MOST + 1)),
    functions=(
        Function(
            "skewness",
            (*UPTO_M2, "m3"),
            _lower_skewness,
            "how lopsided; ddof 1: of a sample of at least 3 (as pandas and Excel have it), 0: of a population (as "
            "Spark SQL); null if all readings are equal, or their standard deviation is below 1e-13 of the mean",
            DDOF,
        ),
        Function(
            "kurtosis",
            (*UPTO_M2, "m3", "m4"),
            _lower_kurtosis,
            "how heavy the tails, less the 3 of a normal distribution; ddof 1: of a sample of at least 4, 0: of a "
            "population; null if all readings are equal, or their standard deviation is below 1e-13 of the mean",
            DDOF,
        ),
        Function(
            "moment",
            UPTO_M2,
            _lower_moment,
            "the mean of (reading - mean)^order; standardized: over the standard deviation (ddof 0) to that power; "
            "then null as skewness is",
            (
                ("kind", Param(("central", "standardized"), "central")),
                ("order", Param(tuple(range(2, MOST + 1)), None)),
            ),
            asks=lambda params: tuple(f"m{power}" for power in range(3, int(params["order"]) + 1)),
        ),
    ),
)
