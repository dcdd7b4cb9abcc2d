"""The naive answer: keep every reading, sort, loop. It shares only value types with the product.

Plain Python on purpose: no numpy, no slices, no partials. A window type is one function from readings to windows, an
aggregate one function from the readings of a window to a number or None. Session and count windows fit the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import ORDERED, Session
from tests.oracle import functions, member_itself, ordered_windows, time_windows

Number = float | int | Fraction
Row = tuple[str, str, int, int]  # query, key, start, end


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. value: exact (int, Fraction) or float, in the sensor's unit. order: arrival at its node."""

    time_us: int
    value: Number
    node: str = "n"
    order: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


def exact(units: int, scale: int) -> Fraction:
    """Scaled integers as the numbers they mean."""
    return Fraction(units) * Fraction(10) ** scale


def results(
    queries: Iterable[Query],
    readings: Iterable[Reading],
    passes: Callable[[Query, Reading], bool] = lambda _query, _reading: True,
) -> dict[Row, dict[str, float | None]]:
    """Every row of every query over all readings. passes: what `where` means."""
    kept = sorted(
        (r for r in readings if math.isfinite(r.value)),
        key=lambda r: (r.time_us, r.node.encode(), r.order),
    )
    out: dict[Row, dict[str, float | None]] = {}
    for query in queries:
        by_key: dict[str, list[Reading]] = {}
        for reading in kept:
            if passes(query, reading):
                by_key.setdefault(key_of(query, reading), []).append(reading)
        for key, group in by_key.items():
            for (start, end), inside in windows(query, group).items():
                out[query.id, key, start, end] = answers(query, inside)
    return out


def key_of(query: Query, reading: Reading) -> str:
    """The key as text."""
    quote = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})
    return ",".join(f"{name.translate(quote)}={reading.labels.get(name, '').translate(quote)}" for name in query.by)


def windows(query: Query, readings: Sequence[Reading]) -> dict[tuple[int, int], list[Reading]]:
    """(start, end) -> the readings in it, in global order. Windows without a reading are not there."""
    if isinstance(query.window, Session):
        return sessions(query.window, readings)
    if query.window.type in ORDERED:
        return ordered_windows.windows(query.central, readings)
    out: dict[tuple[int, int], list[Reading]] = {}
    for reading in readings:
        for bounds in time_windows.holding(query.time_window, reading.time_us):
            out.setdefault(bounds, []).append(reading)
    return out


def sessions(window: Session, readings: Sequence[Reading]) -> dict[tuple[int, int], list[Reading]]:
    """Readings in order of time; exactly one gap apart is one session; cut at multiples of the maximum duration."""
    runs: list[list[Reading]] = []
    for reading in readings:
        last = runs[-1][-1].time_us if runs else None
        apart = last is None or reading.time_us - last > window.gap_us
        if apart or (window.max_us and last is not None and last // window.max_us != reading.time_us // window.max_us):
            runs.append([])
        runs[-1].append(reading)
    return {(run[0].time_us, run[-1].time_us + window.gap_us): run for run in runs}


def answers(query: Query, readings: Sequence[Reading]) -> dict[str, float | None]:
    """Every aggregate of the query over the readings of one window, by name."""
    return {a.name: FUNCTIONS[a.fn](readings, dict(a.params)) for a in query.aggregates}


Params = Mapping[str, object]
Function = Callable[[Sequence[Reading], Params], float | None]


def _total(values: Sequence[Number]) -> Number:
    if any(isinstance(v, float) for v in values):
        return math.fsum(values)
    return sum(values, Fraction(0))


def _values(readings: Sequence[Reading]) -> list[Number]:
    return [r.value for r in readings]


def _avg(readings: Sequence[Reading], params: Params) -> float:
    mean = _total(_values(readings)) / len(readings)
    return float(math.trunc(mean)) if params.get("rounding") == "truncate" else float(mean)


def _var(readings: Sequence[Reading], params: Params) -> float | None:
    values = _values(readings)
    ddof = params.get("ddof", 1)
    assert isinstance(ddof, int)
    if len(values) <= ddof:
        return None
    mean = _total(values) / len(values)
    return float(_total([(v - mean) * (v - mean) for v in values]) / (len(values) - ddof))


def _stddev(readings: Sequence[Reading], params: Params) -> float | None:
    variance = _var(readings, params)
    return None if variance is None else math.sqrt(variance)


def _geomean(readings: Sequence[Reading], _params: Params) -> float | None:
    values = _values(readings)
    if any(v <= 0 for v in values):
        return None
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def _range(readings: Sequence[Reading], _params: Params) -> float:
    values = _values(readings)
    return float(max(values) - min(values))


def _median(readings: Sequence[Reading], params: Params) -> float:
    values = sorted(_values(readings))
    low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
    even = params.get("even", "mean")
    return float(high if even == "upper" else low if even == "lower" else _total([low, high]) / 2)


def _quantile(readings: Sequence[Reading], params: Params) -> float:
    values, q = sorted(_values(readings)), params["q"]
    assert isinstance(q, int | float)
    if params.get("method", "linear") == "nearest_rank":
        return float(values[max(math.ceil(q * len(values)) - 1, 0)])
    place = q * (len(values) - 1)
    if params.get("method") == "median_unbiased":  # R's type 8, Telegraf's "exact R8"
        place = min(max(q * (len(values) + 1 / 3) - 2 / 3, 0), len(values) - 1)
    below = math.floor(place)
    part = place - below
    low, high = float(values[below]), float(values[min(below + 1, len(values) - 1)])
    return low + (high - low) * part


def _mode(readings: Sequence[Reading], _params: Params) -> float:
    values = _values(readings)
    return float(min(values, key=lambda v: (-values.count(v), v)))


def _distinct(readings: Sequence[Reading], _params: Params) -> float:
    return float(len(set(_values(readings))))


def _few_distinct(readings: Sequence[Reading], _params: Params) -> float:
    """What a sketch says of a few values: it knows them as the numbers they mean."""
    return float(len({float(value) for value in _values(readings)}))


def collected(readings: Sequence[Reading]) -> list[float]:
    """What `collect` tells in its details: every value in order."""
    return sorted(float(value) for value in _values(readings))


def _changes(readings: Sequence[Reading], _params: Params) -> float:
    values = _values(readings)
    return float(sum(1 for n in range(1, len(values)) if values[n] != values[n - 1]))


def sequence(readings: Sequence[Reading]) -> list[float]:
    """What `sequence` tells in its details: every value in global order."""
    return [float(value) for value in _values(readings)]


WRITTEN: dict[str, Function] = {  # by hand; what else is in the registry answers for itself
    **functions.FUNCTIONS,
    "count": lambda readings, _: float(len(readings)),
    "sum": lambda readings, _: float(_total(_values(readings))),
    "avg": _avg,
    "var": _var,
    "stddev": _stddev,
    "min": lambda readings, _: float(min(_values(readings))),
    "max": lambda readings, _: float(max(_values(readings))),
    "range": _range,
    "time_of_min": lambda readings, _: float(min(readings, key=lambda r: (r.value, r.time_us)).time_us),
    "time_of_max": lambda readings, _: float(min(readings, key=lambda r: (-r.value, r.time_us)).time_us),
    "geomean": _geomean,
    "first": lambda readings, _: float(readings[0].value),
    "last": lambda readings, _: float(readings[-1].value),
    "median": _median,
    "quantile": _quantile,
    "mode": _mode,
    "distinct": _distinct,
    "count_distinct": _distinct,
    "collect": lambda _readings, _: None,  # see `collected`
    "approx_distinct": _few_distinct,
    "theta_distinct": _few_distinct,
    "approx_quantile": lambda readings, params: _quantile(readings, {**params, "method": "nearest_rank"}),
    "approx_median": lambda readings, _: _quantile(readings, {"q": 0.5, "method": "nearest_rank"}),
    "top_k": _mode,
    "changes": _changes,
    "sequence": lambda _readings, _: None,  # see `sequence`
}
FUNCTIONS: dict[str, Function] = member_itself.Known(WRITTEN)
