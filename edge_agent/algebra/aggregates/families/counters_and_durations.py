"""increase, rate, resets, averages over time, integral, time in a state: functions of the time between readings.

All use the readings of one window and key in the global order (event time, node, arrival). Nothing is extrapolated from
the first or last reading to the edges of the window. Between two readings the value is the earlier one ('previous', for
states and values reported on change) or a straight line ('linear'). A counter that falls has restarted at 0. Sources:
Prometheus for resets (increase, rate, but without its extrapolation), TimescaleDB for time (time_weight, state_agg,
counter_agg), pandas for weights that decrease with age (ewm with times, halflife = tau ln 2).
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from edge_agent.algebra.aggregates.base import ANY, Family, Function, Param, Params, States
from edge_agent.algebra.aggregates.families.histogram import OPS, holding
from edge_agent.algebra.aggregates.lowered import Lowered, answered, decimals, in_details, value_names
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array, Floats, Ints
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.series import FlatSeries
from edge_agent.algebra.partials.units import difference, out_of_reach, ratio, times, within_reach

SECOND_US: Final = 1_000_000


def _steps(found: FlatSeries) -> Array:
    """Each reading minus the previous reading of its row, in units; 0 for the first reading of a row."""
    before = found.value.copy()
    before[1:] = found.value[:-1]
    before[found.starts] = found.value[found.starts]
    return difference(found.value, before)


def _summed(found: FlatSeries, values: Array) -> Array:
    """Sum of each row; exact for integers."""
    return Segments.runs(found.starts, len(values)).sum(values)


def _spans(found: FlatSeries) -> tuple[Ints, Ints]:
    """(us from each reading to the next of its row, 0 for the last; us from the first to the last of each row)."""
    after = np.zeros(len(found.time_us), np.int64)
    if not len(after):
        return after, found.sizes
    after[:-1] = found.time_us[1:] - found.time_us[:-1]
    last = found.starts + found.sizes - 1
    after[last] = 0
    return after, found.time_us[last] - found.time_us[found.starts]


def _increase_of(found: FlatSeries) -> Array:
    """The increase of each row's counter, in units."""
    steps = _steps(found)
    with np.errstate(over="ignore"):
        total = _summed(found, np.where(np.less(steps, 0), found.value, steps))
    return within_reach(total) if total.dtype == np.float64 else total


def _increase(states: States, scale: int | None, _params: Params) -> Lowered:
    found = series.flat(states["series"])
    risen = decimals(_increase_of(found), scale)
    return answered(risen.value, found.sizes < 2, risen.details)


def _rate(states: States, scale: int | None, _params: Params) -> Lowered:
    found = series.flat(states["series"])
    risen, (_, length) = _increase_of(found), _spans(found)
    null = length == 0
    length = np.where(null, 1, length)
    if scale is None:
        return answered(risen / (length / SECOND_US), null | out_of_reach(risen))
    above, below = times(risen, SECOND_US * 10 ** max(scale, 0)), times(length, 10 ** max(-scale, 0))
    return answered(ratio(above, below), null)


def _resets(states: States, _scale: int | None, _params: Params) -> Lowered:
    found = series.flat(states["series"])
    return answered(_summed(found, np.less(_steps(found), 0).astype(np.int64)))


def _area(found: FlatSeries, scale: int | None, method: object) -> tuple[Floats, Floats]:
    """For each row: (integral of value over time, unit x s; seconds from the first to the last reading)."""
    after, length = _spans(found)
    value = decimals(found.value, scale).value
    if method == "linear" and len(value):
        value = np.append((value[1:] + value[:-1]) / 2, 0.0)  # `after` is 0 at the last reading of a row
    with np.errstate(over="ignore"):
        area = within_reach(_summed(found, value * (after / SECOND_US)))
    return area, length / SECOND_US


def _integral(states: States, scale: int | None, params: Params) -> Lowered:
    area, _ = _area(series.flat(states["series"]), scale, params["method"])
    return answered(area, out_of_reach(area))


def _time_weighted_avg(states: States, scale: int | None, params: Params) -> Lowered:
    found = series.flat(states["series"])
    area, length_s = _area(found, scale, params["method"])
    instant = length_s == 0
    last = decimals(found.value[found.starts + found.sizes - 1], scale).value
    return answered(np.where(instant, last, area / np.where(instant, 1.0, length_s)), out_of_reach(area))


def _ewma(states: States, scale: int | None, params: Params) -> Lowered:
    """Weight each reading by exp(-age / tau). Ages count from the last reading, so that not all weights become 0."""
    found = series.flat(states["series"])
    if not len(found.sizes):
        return answered(np.zeros(0))
    last = found.starts + found.sizes - 1
    age_s = (np.repeat(found.time_us[last], found.sizes) - found.time_us) / SECOND_US
    weight = np.exp(-age_s / float(params["tau"]))
    with np.errstate(over="ignore"):
        total = within_reach(_summed(found, weight * decimals(found.value, scale).value))
    return answered(total / _summed(found, weight), out_of_reach(total))


def _time_in_state(states: States, scale: int | None, params: Params) -> Lowered:
    found = series.flat(states["series"])
    after, _ = _spans(found)
    held = holding(found.value, str(params["op"]), params["value"], scale)
    return answered(_summed(found, np.where(held, after, 0)) / SECOND_US)


def _time_by_state(states: States, scale: int | None, _params: Params) -> Lowered:
    """Seconds of each value as a JSON object in the details, sorted by value."""
    found = series.flat(states["series"])
    after, _ = _spans(found)
    rows = found.rows
    order = np.lexsort((found.value, rows))
    value, row, after = found.value[order], rows[order], after[order]
    groups = Segments.equal(row, value)
    begins = groups.first()
    seconds = (groups.sum(after) / SECOND_US).tolist()
    names, owner = value_names(value[begins], scale), row[begins].tolist()
    seconds_of: list[dict[str, float]] = [{} for _ in found.sizes]
    for name, of_row, length_s in zip(names, owner, seconds, strict=True):
        seconds_of[of_row][name] = length_s
    return in_details(map(json.dumps, seconds_of))


_METHOD: Final[tuple[tuple[str, Param], ...]] = (("method", Param(("previous", "linear"), "previous")),)
_TAU: Final[tuple[tuple[str, Param], ...]] = (("tau", Param((60.0, 0.000005), None, (1e-6, 1e9))),)
_STATE: Final[tuple[tuple[str, Param], ...]] = (("op", Param(OPS, "=")), ("value", Param((1.0, 0.3), None, ANY)))


def _function(
    name: str, lower: Any, about: str, params: tuple[tuple[str, Param], ...] = (), gives: str = "number"
) -> Function:
    return Function(name, ("series",), lower, about, params, gives=gives)


FAMILY = Family(
    columns=(),
    components=(),
    functions=(
        _function(
            "increase",
            _increase,
            "how far a counter rose from the first to the last reading; where it falls it began again at 0; null for "
            "one reading",
            gives="value",
        ),
        _function("rate", _rate, "increase a second, from the first to the last reading; null where no time passes"),
        _function("resets", _resets, "how often a counter fell", gives="count"),
        _function(
            "time_weighted_avg",
            _time_weighted_avg,
            "the average over time, from the first to the last reading; of a single instant its last value",
            _METHOD,
        ),
        _function(
            "ewma",
            _ewma,
            "exponentially weighted average: a reading tau seconds older than the window's last one weighs 1/e as much",
            _TAU,
        ),
        _function(
            "integral",
            _integral,
            "value x seconds, from the first to the last reading (of kW over 3600: kWh)",
            _METHOD,
        ),
        _function(
            "time_in_state",
            _time_in_state,
            "seconds in which the value was equal to (op) a value, from the first to the last reading",
            _STATE,
        ),
        _function(
            "time_by_state",
            _time_by_state,
            "seconds of every value, as a JSON object in `details`: for few states",
            gives="details",
        ),
    ),
)
