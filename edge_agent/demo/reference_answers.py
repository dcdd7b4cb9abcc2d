"""Expected results: computes every window from all raw readings at once, without the product's aggregation.

The readings come from the formulas of the simulated sensors (ports/sensors/simulated.py). A window's readings are found
by scanning all readings; functions are computed with numpy, or with exact integers for scaled sensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Floats, Ints, Mask
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.ports.sensors.simulated import Simulation


@dataclass(frozen=True, slots=True)
class RawReadings:
    """All readings of one key, sorted by event time, gateway and arrival.

    Columns of shape (k,): time_us; value in the sensor's unit; units: the values as integers in units of 10^scale.
    units and scale are None for floats.
    """

    time_us: Ints
    value: Floats
    units: Ints | None
    scale: int | None


def raw_readings(query: Query, sensors: Mapping[str, Sensor], begin_us: int, until_us: int) -> dict[str, RawReadings]:
    """Key -> all readings of the query in [begin_us, until_us). sensors: gateway -> sensor of the query's source."""
    pieces: dict[str, list[tuple[Ints, Floats, Ints | None]]] = {}
    scale: int | None = None
    for gateway in sorted(sensors, key=str.encode):
        sensor = sensors[gateway]
        scale = sensor.scale
        made = Simulation(sensor, begin_us).between(begin_us, until_us)
        made = made.take(np.argsort(made.arrival_us, kind="stable"))
        value, units = made.value, None
        if scale is not None:
            units = np.rint(value / 10.0**scale).astype(np.int64)
            value = np.asarray(_scaled(units, scale), np.float64)
        by_key: dict[str, Mask] = {}
        for number in range(int(made.series.max(initial=0)) + 1):
            labels = {**dict(sensor.labels), "series": str(number)}
            kept = (made.series == number) & _passes(query.where, value, labels)
            key = ",".join(f"{name}={labels.get(name, '')}" for name in query.by)
            by_key[key] = by_key.get(key, False) | kept
        for key, kept in by_key.items():
            piece = (made.time_us[kept], value[kept], None if units is None else units[kept])
            pieces.setdefault(key, []).append(piece)
    return {key: _joined(found, scale) for key, found in pieces.items()}


def _joined(pieces: Sequence[tuple[Ints, Floats, Ints | None]], scale: int | None) -> RawReadings:
    time_us = np.concatenate([piece[0] for piece in pieces])
    order = np.argsort(time_us, kind="stable")
    units = None
    if scale is not None:
        units = np.concatenate([piece[2] for piece in pieces if piece[2] is not None])[order]
    return RawReadings(time_us[order], np.concatenate([piece[1] for piece in pieces])[order], units, scale)


def _passes(where: str, value: Floats, labels: Mapping[str, str]) -> Mask:
    """Mask of the readings that pass a filter of comparisons joined by `and`.

    Raises: ValueError for other filters. Queries with these are not compared.
    """
    passed = np.ones(len(value), np.bool_)
    for term in where.split(" and ") if where.strip() else ():
        name, sign, right = term.split(maxsplit=2)
        compare = _SIGNS[sign]
        if name == "value":
            passed &= compare(value, float(right))
        elif right[:1] in "'\"" and sign in ("=", "!="):
            passed &= np.bool_(compare(labels.get(name, ""), right.strip()[1:-1]))
        else:
            raise ValueError(f"the demo cannot check the filter {where}")
    return passed


_SIGNS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def windows(query: Query, raw: RawReadings, from_us: int, until_us: int) -> Iterator[tuple[int, dict[str, float], int]]:
    """Yields (start, values by aggregate, number of readings) of every window with readings in [from_us, until_us]."""
    starts = query.time_window.edge_sets[0].points(from_us, until_us)
    ends = query.time_window.ends(starts)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end > until_us:
            return
        inside = (raw.time_us >= start) & (raw.time_us < end)
        if inside.any():
            units = None if raw.units is None else raw.units[inside]
            window = RawReadings(raw.time_us[inside], raw.value[inside], units, raw.scale)
            values = {a.name: _answer(a, window) for a in query.aggregates}
            yield start, values, int(inside.sum())


def _answer(aggregate: Aggregate, raw: RawReadings) -> float:
    """The result of one window. An int must be equal in the tables; a float may differ by TOLERANCE."""
    if aggregate.fn in _ANSWERS:
        return _ANSWERS[aggregate.fn](raw)
    if aggregate.fn not in ("var", "stddev"):
        raise ValueError(f"the demo cannot check the function {aggregate.fn}")
    ddof = aggregate.param("ddof", 1)
    assert isinstance(ddof, int)
    if len(raw.value) <= ddof:
        return math.nan
    spread = float(np.var(raw.value, ddof=ddof))
    return spread if aggregate.fn == "var" else math.sqrt(spread)


def _sum(raw: RawReadings) -> float:
    if raw.units is None or raw.scale is None:
        return math.fsum(raw.value)
    return float(_scaled(int(raw.units.sum()), raw.scale))


def _scaled(units: Any, scale: int) -> Any:
    """An integer or an array of integers, times 10^scale."""
    return units * 10.0**scale if scale >= 0 else units / 10.0**-scale


_ANSWERS: Final[dict[str, Callable[[RawReadings], float]]] = {
    "count": lambda raw: len(raw.value),
    "sum": _sum,
    "avg": lambda raw: _sum(raw) / len(raw.value),
    "min": lambda raw: float(raw.value.min()),
    "max": lambda raw: float(raw.value.max()),
    "range": lambda raw: float(raw.value.max() - raw.value.min()),
    "geomean": lambda raw: math.exp(math.fsum(np.log(raw.value)) / len(raw.value)),
    "first": lambda raw: float(raw.value[0]),
    "last": lambda raw: float(raw.value[-1]),
    "time_of_min": lambda raw: int(raw.time_us[int(np.argmin(raw.value))]),
    "time_of_max": lambda raw: int(raw.time_us[int(np.argmax(raw.value))]),
}
