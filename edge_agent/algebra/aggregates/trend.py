"""slope: how fast the value rises, by the straight line that lies closest to all readings (least squares).

The state holds sums about its own means, of time and of time times value, merged about the means of the whole as the
variance is; never differences of raw sums, of which event times in microseconds since 1970 would leave nothing. Times
count from the earliest reading of a state, which is exact.
Source: Chan, Golub & LeVeque (1983), equation 2.1, for two variables as in Pébay (2008), SAND2008-6212, equation 3.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.aggregates.base import (
    Column,
    Component,
    Family,
    Function,
    Lowered,
    Readings,
    answered,
    out_of_reach,
    within_reach,
)
from edge_agent.algebra.aggregates.moments import mean
from edge_agent.algebra.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.aggregates.base import Params, States
    from edge_agent.algebra.partial import Column as Array
    from edge_agent.algebra.partial import Ints

SECOND_US = 1_000_000.0


def _lift(readings: Readings, groups: Segments, _scale: int | None, lifted: States) -> dict[str, Array]:
    """trend_since: the earliest event time. trend_s: seconds since then, summed. trend_tt: squares of the distances of
    the times from their mean, s^2. trend_tx: those distances times the distances of the values, s x unit.
    """
    since = readings.time_us[groups.first()]
    time_s = (readings.time_us - groups.spread(since)) / SECOND_US
    total_s = groups.sum(time_s)
    away_s = time_s - groups.spread(total_s / lifted["count"])
    away = readings.value - groups.spread(mean(lifted))
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "trend_since": since,
            "trend_s": within_reach(total_s),
            "trend_tt": within_reach(groups.sum(away_s * away_s)),
            "trend_tx": within_reach(groups.sum(away_s * away)),
        }


def _combine(states: States, groups: Segments, combined: States, _ranks: Ints | None) -> dict[str, Array]:
    count = states["count"]
    since = groups.min(states["trend_since"])
    later_s = (states["trend_since"] - groups.spread(since)) / SECOND_US
    with np.errstate(over="ignore", invalid="ignore"):
        total_s = groups.sum(states["trend_s"] + count * later_s)
        away_s = later_s + states["trend_s"] / count - groups.spread(total_s / combined["count"])
        away: NDArray[np.float64] = mean(states) - groups.spread(mean(combined))
        return {
            "trend_since": since,
            "trend_s": within_reach(total_s),
            "trend_tt": within_reach(groups.sum(states["trend_tt"] + count * away_s * away_s)),
            "trend_tx": within_reach(groups.sum(states["trend_tx"] + count * away_s * away)),
        }


def _lower_slope(states: States, scale: int | None, _params: Params) -> Lowered:
    """Per second, in the sensor's unit."""
    spread, rise = states["trend_tt"], states["trend_tx"]
    null = spread <= 0  # exactly so where all readings are of one instant
    with np.errstate(over="ignore"):
        slope = rise / np.where(null, 1.0, spread)
        if scale:
            slope = slope * 10.0**scale if scale > 0 else slope / 10.0**-scale
        return answered(within_reach(slope), null | out_of_reach(spread, rise))


FAMILY = Family(
    columns=(
        Column("trend_since", "time"),
        Column("trend_s", "real"),
        Column("trend_tt", "real"),
        Column("trend_tx", "real", 1),
    ),
    components=(
        Component(
            "trend",
            ("trend_since", "trend_s", "trend_tt", "trend_tx"),
            _lift,
            _combine,
            needs=("count", "sum"),
        ),
    ),
    functions=(
        Function(
            "slope",
            ("count", "sum", "trend"),
            _lower_slope,
            "rise a second of the straight line closest to all readings (least squares); null where no time passes",
        ),
    ),
)
