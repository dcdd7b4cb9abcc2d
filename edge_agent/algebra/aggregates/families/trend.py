"""slope: the rise per second of the straight line closest to all readings (least squares).

The state has sums of products of the distances of time and value from their means. Combining moves them to the common
means, as for the variance. Differences of raw sums would lose all digits, because event times are microseconds since
1970. Times in a state count from its earliest reading, which is exact. A state of zeros represents no reading: if a row
is split (algebra/partials/row_splitting.py), all pieces but the first have it, because a multiset of values has no
times. Source: Chan, Golub & LeVeque (1983), equation 2.1, for two variables as in Pébay (2008), SAND2008-6212, equation
3.8.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Params, Readings, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.segments import INT64_MAX, Segments
from edge_agent.algebra.partials.units import out_of_reach, within_reach

SECOND_US: Final = 1_000_000.0
COLUMNS: Final = (
    Column("trend_n", "count"),  # number of readings
    Column("trend_since", "time"),  # earliest event time, us
    Column("trend_s", "real"),  # sum of the times since then, s
    Column("trend_x", "real", 1),  # mean of the values
    Column("trend_tt", "real"),  # sum of (time - mean time)^2, s^2
    Column("trend_tx", "real", 1),  # sum of (time - mean time) * (value - mean value), s x unit
)


def _lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: States) -> dict[str, Array]:
    count = groups.count()
    since = readings.time_us[groups.first()]
    time_s = (readings.time_us - groups.spread(since)) / SECOND_US
    total_s = groups.sum(time_s)
    value = readings.value.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = within_reach(groups.sum(value)) / count
        return _states(
            (count, since, total_s, mean), groups, time_s - groups.spread(total_s / count), value - groups.spread(mean)
        )


def _combine(states: States, groups: Segments, _combined: States, _ranks: Ints | None) -> dict[str, Array]:
    n, mean = states["trend_n"], states["trend_x"]
    some, least = n > 0, np.maximum(n, 1)
    count = groups.sum(n)
    since = groups.min(np.where(some, states["trend_since"], INT64_MAX))
    since = np.where(count > 0, since, 0)
    later_s = np.where(some, states["trend_since"] - groups.spread(since), 0) / SECOND_US
    with np.errstate(over="ignore", invalid="ignore"):
        total_s = groups.sum(states["trend_s"] + n * later_s)
        every = np.maximum(count, 1)
        middle = groups.sum(n * mean) / every
        found = _states(
            (count, since, total_s, within_reach(middle)),
            groups,
            later_s + states["trend_s"] / least - groups.spread(total_s / every),
            mean - groups.spread(middle),
            n,
        )
        for name in ("trend_tt", "trend_tx"):
            found[name] = within_reach(found[name] + groups.sum(states[name]))
    return found


def _states(
    known: tuple[Array, ...], groups: Segments, away_s: Array, away: Array, weight: Array | int = 1
) -> dict[str, Array]:
    """All columns: the first four are `known`, the last two are sums of products of distances from the means.

    away_s, away: distance of each time and value from its mean. weight: how often each counts.
    """
    sums = (groups.sum(weight * away_s * away_s), groups.sum(weight * away_s * away))
    columns = (*known[:2], *map(within_reach, (*known[2:], *sums)))
    return {column.name: found for column, found in zip(COLUMNS, columns, strict=True)}


def _lower_slope(states: States, scale: int | None, _params: Params) -> Lowered:
    """The slope in the sensor's unit per second."""
    spread, rise = states["trend_tt"], states["trend_tx"]
    null = spread <= 0  # exactly 0 if all readings have the same time
    with np.errstate(over="ignore"):
        slope = rise / np.where(null, 1.0, spread)
        if scale:
            slope = slope * 10.0**scale if scale > 0 else slope / 10.0**-scale
        return answered(within_reach(slope), null | out_of_reach(spread, rise))


FAMILY = Family(
    columns=COLUMNS,
    components=(Component("trend", tuple(column.name for column in COLUMNS), _lift, _combine, apart=True),),
    functions=(
        Function(
            "slope",
            ("trend",),
            _lower_slope,
            "rise a second of the straight line closest to all readings (least squares); null where no time passes;"
            " values are rounded to floats, so integers beyond 2^53 lose their last digits",
        ),
    ),
)
