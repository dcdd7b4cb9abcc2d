"""Computes results from states with native Spark expressions, for the usual functions. Numpy computes the others.

A result is a double or null, and a text for `details` if a double cannot represent it (docs/protocol.md 7.1). Integers
stay exact up to the last step, which rounds once, as in numpy, if the operands are below 2^53; else at most three
times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from cloud_job.spark.native import in_numpy, multisets, series
from cloud_job.spark.native.answers import answers as answered
from cloud_job.spark.native.plan import WIDE_TYPE, Shape, is_native, spark_name
from edge_agent.algebra.aggregates import FUNCTIONS, params_of
from edge_agent.algebra.aggregates.base import Params
from edge_agent.algebra.aggregates.families.moments import NEAR_WHOLE
from edge_agent.algebra.partials.units import EXACT, HUGE
from edge_agent.algebra.query.query import Aggregate


@dataclass(frozen=True, slots=True)
class LoweredAnswer:
    """The result of one aggregate. value: double or null. details: JSON text or null; None: always null."""

    value: Column
    details: Column | None = None


@dataclass(frozen=True, slots=True)
class States:
    """The state columns of one shape by their names in the registry."""

    scale: int | None

    def __getitem__(self, column: str) -> Column:
        return F.col(spark_name(column, self.scale))

    def wide(self, column: str) -> Column:
        """An integer column as decimal(38,0), so that products stay exact."""
        return self[column].cast(WIDE_TYPE)


def lower(asked: Sequence[Aggregate], scale: int | None) -> dict[str, LoweredAnswer]:
    """The results of these aggregates from the columns of a row, by name; equal to algebra.aggregates.lower."""
    states = States(scale)
    together = [aggregate for aggregate in asked if _of("bag", aggregate)]
    found = answered(together, scale, multisets.merged, states["bag"]) if together else {}
    in_order = [aggregate for aggregate in asked if _of("series", aggregate)]
    found |= answered(in_order, scale, series.ordered, states["series"]) if in_order else {}
    others = [a for a in asked if a.name not in found and not native(a, scale)]
    if others:
        found |= in_numpy.answered(others, scale, is_native, lambda column: spark_name(column, scale))
    return {
        a.name: LoweredAnswer(*found[a.name]) if a.name in found else LOWER[a.fn](states, params_of(a)) for a in asked
    }


def _of(component: str, aggregate: Aggregate) -> bool:
    """Whether a function needs this component and no other."""
    return FUNCTIONS[aggregate.fn].needs == (component,)


def native(aggregate: Aggregate, scale: int | None) -> bool:
    """Whether native expressions can combine the states of a function and compute its result."""
    needed = FUNCTIONS[aggregate.fn].components(scale, params_of(aggregate))
    return aggregate.fn in LOWER and all(map(is_native, needed))


def answers(shapes: Sequence[Shape], shape_number: Column) -> tuple[Column, Column]:
    """Columns (map of aggregate name -> value, details as JSON or null) of rows with the shape shapes[shape_number]."""
    maps: list[Column] = []
    details: list[Column] = []
    for shape in shapes:
        lowered = lower(shape.aggregates, shape.scale)
        pairs = [part for name, answer in lowered.items() for part in (F.lit(name), answer.value)]
        maps.append(F.create_map(*pairs))
        details.append(_object({name: a.details for name, a in lowered.items() if a.details is not None}))
    return _chosen(maps, shape_number), _chosen(details, shape_number)


def _chosen(choices: Sequence[Column], number: Column) -> Column:
    if len(choices) == 1:
        return choices[0]
    picked = F.when(number == 0, choices[0])
    for i, choice in enumerate(choices[1:], 1):
        picked = picked.when(number == i, choice)
    return picked


def _object(texts: Mapping[str, Column]) -> Column:
    """A JSON object of the members that are not null; null if there are none."""
    if not texts:
        return F.lit(None).cast("string")
    members = [F.when(text.isNotNull(), F.concat(F.lit(json.dumps(n) + ": "), text)) for n, text in texts.items()]
    joined = F.concat_ws(", ", *members)
    return F.when(joined != "", F.concat(F.lit("{"), joined, F.lit("}")))


def _number(units: Column, scale: int | None) -> LoweredAnswer:
    """Integers times 10**scale, correctly rounded; beyond 2**53 units also written out in `details`. Equal to
    `decimals` of the algebra.
    """
    if scale is None:
        return LoweredAnswer(units.cast("double"))
    wide = units.cast(WIDE_TYPE)
    power = 10 ** max(scale, 0)
    small = F.abs(wide) <= EXACT // power
    near = wide.cast("double") * float(power) if scale >= 0 else wide.cast("double") / 10.0**-scale
    far = F.concat(wide.cast("string"), F.lit(f"E{scale}")).cast("double")  # parsing rounds once
    return LoweredAnswer(F.when(small, near).otherwise(far), F.when(~small, _text(wide, scale)))


def _text(units: Column, scale: int) -> Column:
    """An integer times 10**scale, written out. Equal to `_decimal_text` of the algebra."""
    places = max(-scale, 0)
    if not places:
        return F.concat(units.cast("string"), F.lit("0" * max(scale, 0)))
    digits = F.abs(units).cast("string")
    digits = F.lpad(digits, F.greatest(F.length(digits), F.lit(places + 1)), F.lit("0"))
    whole = F.substring(digits, F.lit(1), F.length(digits) - places)
    part = F.regexp_replace(F.right(digits, F.lit(places)), "0+$", "")
    sign = F.when(units < 0, "-").otherwise("")
    return F.concat(sign, whole, F.when(part == "", "").otherwise(F.concat(F.lit("."), part)))


def _sum_of_floats(states: States) -> Column:
    """The sum, or null if it has left the floats (docs/protocol.md 7.1)."""
    return F.when(F.abs(states["sum"]) < HUGE, states["sum"])


def _mean(states: States) -> Column:
    return _sum_of_floats(states) / states["count"]


def _truncated(value: Column) -> Column:
    """Round toward zero, except near a whole number, as in numpy. Doubles from 2^52 on are whole, and may not fit the
    bigint that floor returns.
    """
    whole = F.when(value >= 0, F.floor(value)).otherwise(F.ceil(value)).cast("double")
    near = F.abs(value - F.rint(value)) <= F.abs(value) * NEAR_WHOLE
    return F.when(F.abs(value) < 2.0**52, F.when(near, F.rint(value)).otherwise(whole)).otherwise(value)


def _avg(states: States, params: Params) -> LoweredAnswer:
    truncate = params["rounding"] == "truncate"
    if states.scale is None:
        return LoweredAnswer(_truncated(_mean(states)) if truncate else _mean(states))
    above, below = 10 ** max(states.scale, 0), 10 ** max(-states.scale, 0)
    total, count = states.wide("sum"), states["count"]
    if not truncate:
        return LoweredAnswer(total.cast("double") * float(above) / (count.cast("double") * float(below)))
    quotient = _quotient(F.try_multiply(total, _wide(above)), F.try_multiply(count.cast(WIDE_TYPE), _wide(below)))
    return LoweredAnswer(quotient.cast("double"), F.when(F.abs(quotient) > EXACT, quotient.cast("string")))


def _wide(number: int) -> Column:
    return F.lit(str(number)).cast(WIDE_TYPE)


def _quotient(above: Column, below: Column) -> Column:
    """The quotient of two integers, rounded toward zero. It must fit 64 bits."""
    return F.call_function("div", above, below)


def _squared_distances(states: States) -> Column:
    """Count * sum of squares - sum**2 of exact integers, as a double.

    With q = sum div count and remainder r, it is count * d - r**2, where d = sq - q * (sum + r) is the sum of squared
    distances from the integer q. No intermediate value is much larger than `sq`, while count * sq may exceed 38 digits.
    """
    count, total, squares = states.wide("count"), states.wide("sum"), states.wide("sq")
    q = _quotient(total, count).cast(WIDE_TYPE)
    r = total - q * count
    d = F.try_subtract(squares, F.try_multiply(q, total + r))
    exact = F.try_subtract(F.try_multiply(count, d), F.try_multiply(r, r)).cast("double")
    near = count.cast("double") * d.cast("double") - r.cast("double") * r.cast(
        "double"
    )  # in this case count * d >> r**2
    return F.coalesce(exact, near)


def _var(states: States, params: Params) -> LoweredAnswer:
    free = states["count"] - F.lit(int(params["ddof"])).cast("bigint")
    if states.scale is None:
        return LoweredAnswer(F.when((free > 0) & (states["m2"] < HUGE), states["m2"] / free))
    above, below = 10.0 ** (2 * max(states.scale, 0)), 10.0 ** (2 * max(-states.scale, 0))
    divisor = F.try_multiply(states.wide("count"), free.cast(WIDE_TYPE)).cast("double") * below
    return LoweredAnswer(F.when(free > 0, _squared_distances(states) * above / divisor))


def _stddev(states: States, params: Params) -> LoweredAnswer:
    return LoweredAnswer(F.sqrt(_var(states, params).value))


def _column(name: str) -> Callable[[States, Params], LoweredAnswer]:
    return lambda states, _params: _number(states[name], states.scale)


def _sum(states: States, _params: Params) -> LoweredAnswer:
    return _number(_sum_of_floats(states) if states.scale is None else states["sum"], states.scale)


def _range(states: States, _params: Params) -> LoweredAnswer:
    if states.scale is None:
        return LoweredAnswer(states["max"] - states["min"])
    return _number(states.wide("max") - states.wide("min"), states.scale)


def _time(name: str) -> Callable[[States, Params], LoweredAnswer]:
    return lambda states, _params: LoweredAnswer(states[name].cast("double"))


def _delta(states: States, _params: Params) -> LoweredAnswer:
    if states.scale is None:
        return LoweredAnswer(states["last_value"] - states["first_value"])
    return _number(states.wide("last_value") - states.wide("first_value"), states.scale)


def _length_s(states: States) -> Column:
    return (states["last_time"] - states["first_time"]) / 1_000_000.0


LOWER: Final[dict[str, Callable[[States, Params], LoweredAnswer]]] = {  # function -> its native expression
    "count": lambda states, _params: LoweredAnswer(states["count"].cast("double")),
    "sum": _sum,
    "avg": _avg,
    "var": _var,
    "stddev": _stddev,
    "min": _column("min"),
    "max": _column("max"),
    "range": _range,
    "time_of_min": _time("argmin_time"),
    "time_of_max": _time("argmax_time"),
    "first": _column("first_value"),
    "last": _column("last_value"),
    "delta": _delta,
    "duration": lambda states, _params: LoweredAnswer(_length_s(states)),
    "time_of_first": _time("first_time"),
    "time_of_last": _time("last_time"),
}
