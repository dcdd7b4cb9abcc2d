"""Further functions of the oracle: plain Python over all readings of a window, in global order, exact if it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.oracle.central_computer import Reading

Params = Mapping[str, object]
Function = Callable[[Sequence["Reading"], Params], float | None]


def _exact(readings: Sequence[Reading]) -> list[Fraction]:
    return [Fraction(r.value) for r in readings]


def _central(readings: Sequence[Reading], power: int) -> Fraction:
    """The mean of (reading - mean)**power."""
    values = _exact(readings)
    mean = sum(values, Fraction(0)) / len(values)
    return sum(((v - mean) ** power for v in values), Fraction(0)) / len(values)


def all_equal(readings: Sequence[Reading]) -> bool:
    """Whether readings differ by no more than the rounding of floats."""
    values = _exact(readings)
    return _central(readings, 2) <= (Fraction(1, 10**13) * sum(values) / len(values)) ** 2


def _skewness(readings: Sequence[Reading], params: Params) -> float | None:
    n = len(readings)
    if all_equal(readings) or (params.get("ddof", 1) and n < 3):
        return None
    value: float = float(_central(readings, 3)) / float(_central(readings, 2)) ** 1.5
    return value * math.sqrt(n * (n - 1)) / (n - 2) if params.get("ddof", 1) else value


def _kurtosis(readings: Sequence[Reading], params: Params) -> float | None:
    n = len(readings)
    if all_equal(readings) or (params.get("ddof", 1) and n < 4):
        return None
    value = _central(readings, 4) / _central(readings, 2) ** 2 - 3
    return float(Fraction(n - 1, (n - 2) * (n - 3)) * ((n + 1) * value + 6) if params.get("ddof", 1) else value)


def _moment(readings: Sequence[Reading], params: Params) -> float | None:
    power = params["order"]
    assert isinstance(power, int)
    if params.get("kind", "central") == "central":
        return float(_central(readings, power))
    if all_equal(readings):
        return None
    value: float = float(_central(readings, power)) / float(_central(readings, 2)) ** (power / 2)
    return value


def _sum_of_squares(readings: Sequence[Reading], _params: Params) -> float:
    return float(sum(v * v for v in _exact(readings)))


def _harmonic(readings: Sequence[Reading], _params: Params) -> float | None:
    values = _exact(readings)
    return None if any(v <= 0 for v in values) else float(len(values) / sum(1 / v for v in values))


def _percent_change(readings: Sequence[Reading], _params: Params) -> float | None:
    first, last = _exact(readings)[0], _exact(readings)[-1]
    return None if first == 0 else float(100 * (last - first) / abs(first))


def _derivative(readings: Sequence[Reading], _params: Params) -> float | None:
    length_us = readings[-1].time_us - readings[0].time_us
    rise = Fraction(readings[-1].value) - Fraction(readings[0].value)
    return float(rise * 1_000_000 / length_us) if length_us else None


def value_counts(readings: Sequence[Reading]) -> dict[float, int]:
    """What `value_counts` tells in its details."""
    values = sorted(float(r.value) for r in readings)
    return {value: values.count(value) for value in values}


def edge(number: object, value: object) -> Fraction:
    """An edge beside a reading: a decimal beside exact readings, a float beside floats."""
    assert isinstance(number, int | float)
    return Fraction(number) if isinstance(value, float) else Fraction(str(number))


def holds(reading: Reading, params: Params, default: str) -> bool:
    """Whether a comparison holds for a reading."""
    value, wanted = Fraction(reading.value), edge(params["value"], reading.value)
    return {
        "<": value < wanted,
        "<=": value <= wanted,
        ">": value > wanted,
        ">=": value >= wanted,
        "=": value == wanted,
        "!=": value != wanted,
    }[str(params.get("op", default))]


def _count_if(readings: Sequence[Reading], params: Params) -> float:
    return float(sum(holds(r, params, ">") for r in readings))


def histogram(readings: Sequence[Reading], params: Params) -> dict[str, object]:
    """What `histogram` tells in its details."""
    edges = params["edges"]
    assert isinstance(edges, tuple)
    below = above = 0
    counts = [0] * (len(edges) - 1)
    for r in readings:
        at = [edge(each, r.value) for each in edges]
        if r.value < at[0]:
            below += 1
        elif r.value >= at[-1]:
            above += 1
        else:
            counts[max(n for n in range(len(counts)) if r.value >= at[n])] += 1
    return {"below": below, "counts": counts, "above": above}


def _weighted_avg(readings: Sequence[Reading], params: Params) -> float | None:
    weights = [weight(r.labels.get(str(params["weight"]), "")) for r in readings]
    total = sum(w for w in weights if w is not None)
    if not total:
        return None
    return float(sum(Fraction(r.value) * w for r, w in zip(readings, weights, strict=True) if w is not None) / total)


def weight(text: str) -> Fraction | None:
    """What a label says as a number of 0 or more."""
    try:
        number = Fraction(text)
    except ValueError:
        return None
    return number if number >= 0 and "/" not in text else None


def _increase(readings: Sequence[Reading], _params: Params) -> float | None:
    return float(_risen(readings)) if len(readings) > 1 else None


def _risen(readings: Sequence[Reading]) -> Fraction:
    total, before = Fraction(0), None
    for value in _exact(readings):
        if before is not None:
            total += value - before if value >= before else value
        before = value
    return total


def _rate(readings: Sequence[Reading], _params: Params) -> float | None:
    length_us = readings[-1].time_us - readings[0].time_us
    return float(_risen(readings) * 1_000_000 / length_us) if length_us else None


def _resets(readings: Sequence[Reading], _params: Params) -> float:
    values = _exact(readings)
    return float(sum(1 for n in range(1, len(values)) if values[n] < values[n - 1]))


def _area(readings: Sequence[Reading], params: Params) -> Fraction:
    """Value times seconds."""
    total = Fraction(0)
    for n in range(1, len(readings)):
        before, after = _exact(readings[n - 1 : n + 1])
        held = (before + after) / 2 if params.get("method") == "linear" else before
        total += held * Fraction(readings[n].time_us - readings[n - 1].time_us, 1_000_000)
    return total


def _time_weighted_avg(readings: Sequence[Reading], params: Params) -> float:
    length_us = readings[-1].time_us - readings[0].time_us
    return float(_area(readings, params) * 1_000_000 / length_us if length_us else Fraction(readings[-1].value))


def _slope(readings: Sequence[Reading], _params: Params) -> float | None:
    """Least squares, in fractions."""
    values, times = _exact(readings), [Fraction(r.time_us, 1_000_000) for r in readings]
    mean, middle = sum(values, Fraction(0)) / len(values), sum(times, Fraction(0)) / len(times)
    spread = sum(((t - middle) ** 2 for t in times), Fraction(0))
    rise = sum(((t - middle) * (v - mean) for t, v in zip(times, values, strict=True)), Fraction(0))
    return float(rise / spread) if spread else None


def _ewma(readings: Sequence[Reading], params: Params) -> float:
    """By its recurrence, reading after reading: what was known fades with the time that passes."""
    total = weights = 0.0
    before_us = readings[0].time_us
    for reading in readings:
        left = math.exp((before_us - reading.time_us) / 1e6 / float(str(params["tau"])))
        total, weights, before_us = total * left + float(reading.value), weights * left + 1.0, reading.time_us
    return total / weights


def _time_in_state(readings: Sequence[Reading], params: Params) -> float:
    total = 0
    for n in range(1, len(readings)):
        if holds(readings[n - 1], params, "="):
            total += readings[n].time_us - readings[n - 1].time_us
    return total / 1_000_000


def time_by_state(readings: Sequence[Reading]) -> dict[float, float]:
    """What `time_by_state` tells in its details: value -> seconds."""
    found = {float(r.value): 0 for r in readings}
    for n in range(1, len(readings)):
        found[float(readings[n - 1].value)] += readings[n].time_us - readings[n - 1].time_us
    return {value: us / 1_000_000 for value, us in sorted(found.items())}


FUNCTIONS: dict[str, Function] = {
    "skewness": _skewness,
    "kurtosis": _kurtosis,
    "moment": _moment,
    "sum_of_squares": _sum_of_squares,
    "rms": lambda readings, _: math.sqrt(sum(v * v for v in _exact(readings)) / len(readings)),
    "harmonic": _harmonic,
    "delta": lambda readings, _: float(Fraction(readings[-1].value) - Fraction(readings[0].value)),
    "percent_change": _percent_change,
    "duration": lambda readings, _: (readings[-1].time_us - readings[0].time_us) / 1_000_000,
    "derivative": _derivative,
    "value_counts": lambda _readings, _: None,  # see `value_counts`
    "time_of_first": lambda readings, _: float(readings[0].time_us),
    "time_of_last": lambda readings, _: float(readings[-1].time_us),
    "count_if": _count_if,
    "share_if": lambda readings, params: _count_if(readings, params) / len(readings),
    "histogram": lambda _readings, _: None,  # see `histogram`
    "weighted_avg": _weighted_avg,
    "slope": _slope,
    "ewma": _ewma,
    "increase": _increase,
    "rate": _rate,
    "resets": _resets,
    "integral": lambda readings, params: float(_area(readings, params)),
    "time_weighted_avg": _time_weighted_avg,
    "time_in_state": _time_in_state,
    "time_by_state": lambda _readings, _: None,  # see `time_by_state`
}
