"""Approximate functions with a stated error and small states: distinct counts, quantiles, the most frequent values.

A sketch takes at most some kilobytes, however many distinct values there are; holistic.py has the exact functions.
Sketches contain values as floats in the sensor's unit, so that sketches from different scales can be combined. Sources:
the modules of algebra/sketches; for frequent values see `_thinned`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import ModuleType
from typing import Final

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Param, Params, States
from edge_agent.algebra.aggregates.lowered import Lowered, answered, by_row, decimals
from edge_agent.algebra.columns.cells import hll_size, kll_size, multiset_size, theta_size
from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.sketches import hll, kll, theta

MOST_FREQUENT: Final = 255  # most values kept; counts are too low by at most readings / (MOST_FREQUENT + 1)


def _sketch(name: str, made: ModuleType) -> Component:
    """A component for one kind of sketch, with one column. name: of both. made: the module in algebra.sketches."""

    def of_bag(column: Array, scale: int | None) -> dict[str, Array]:
        found = multisets.flat(column)
        values = decimals(found.values, scale).value
        if made is kll:
            return {name: kll.of_bags(values, found.counts, found.starts)}
        return {name: made.lift(values, Segments.runs(found.starts, len(values)))}

    component = Component.of_column(
        name,
        lambda readings, groups, scale: made.lift(decimals(readings.value, scale).value, groups),
        lambda groups, column: made.combine(column, groups),
    )
    return replace(component, of_bag=of_bag)


def _frequent() -> Component:
    component = Component.of_column(
        "frequent",
        lambda readings, groups, _scale: _thinned(multisets.lift(readings.value, groups)),
        lambda groups, column: _thinned(multisets.combine(column, groups)),
    )
    return replace(component, of_bag=lambda column, _scale: {"frequent": _thinned(column)})


def _frequent_size(degree: int, scale: int | None, readings: float) -> RowSize:
    """Expected size: many floats that hardly repeat are thinned to few values, so the state stays small."""
    expected = 250.0 if scale is None and readings > MOST_FREQUENT else multiset_size(degree, scale, readings).expected
    return RowSize(expected, 16.0 * min(readings, MOST_FREQUENT))  # 8 bytes for a value, up to 8 for its count


def _thinned(column: Array) -> Array:
    """Reduce multisets to at most MOST_FREQUENT values, by subtracting the next highest count from all counts.

    So a count is never too high, and too low by at most readings / (MOST_FREQUENT + 1), in whatever order states merge.
    Source: Misra & Gries (1982); Agarwal, Cormode, Huang, Phillips, Wei & Yi (2013), mergeable summaries, section 3.
    """
    many = [row for row, multiset in enumerate(column.tolist()) if len(multiset.values) > MOST_FREQUENT]
    if not many:
        return column
    out = column.copy()
    for row in many:
        multiset: Multiset = column[row]
        next_one = np.partition(multiset.counts, -MOST_FREQUENT - 1)[-MOST_FREQUENT - 1]
        kept = multiset.counts > next_one
        if kept.any():
            out[row] = Multiset(multiset.values[kept], multiset.counts[kept] - next_one)
        else:  # all values are equally frequent; the least is kept with count 1, because no multiset may be empty
            out[row] = Multiset(multiset.values[:1], np.ones(1, np.int64))
    return out


def _lower_theta(states: States, _scale: int | None, _params: Params) -> Lowered:
    """The estimate. The details have the sketch in base64, with which other tools can do set operations."""
    return answered(theta.estimates(states["theta"]), None, [json.dumps(text) for text in theta.texts(states["theta"])])


def _lower_top_k(states: States, scale: int | None, params: Params) -> Lowered:
    """The most frequent value. The details have [value, count] of the k most frequent, smaller values first on ties."""
    found = multisets.flat(_thinned(states["frequent"]))
    order = np.lexsort((-found.counts, found.rows))  # stable: values with equal counts stay increasing
    values, counts = decimals(found.values[order], scale).value.tolist(), found.counts[order].tolist()
    most = [row[: int(params["k"])] for row in by_row(list(zip(values, counts, strict=True)), found.sizes)]
    return answered(np.array([row[0][0] for row in most], np.float64), None, list(map(json.dumps, most)))


FAMILY: Final = Family(
    columns=(
        Column("hll", "sketch", size=hll_size),
        Column("theta", "sketch", size=theta_size),
        Column("kll", "sketch", size=kll_size),
        Column("frequent", "bag", 1, _frequent_size),
    ),
    components=(_sketch("hll", hll), _sketch("theta", theta), _sketch("kll", kll), _frequent()),
    functions=(
        Function(
            "approx_distinct",
            ("hll",),
            lambda states, _scale, _params: answered(hll.estimates(states["hll"])),
            "how many different values there are, exact up to 384 values, then standard error 1.6 % (HyperLogLog); of"
            " integers beyond 2^53, those that are the same float count once",
            gives="count",
        ),
        Function(
            "theta_distinct",
            ("theta",),
            _lower_theta,
            "how many different values there are, exact up to 4096 values, then standard error 1.6 %; the theta sketch"
            " for set operations in `details` as base64 (at most 44 kB); of integers beyond 2^53, those that are the"
            " same float count once",
            gives="count",
        ),
        Function(
            "approx_quantile",
            ("kll",),
            lambda states, _scale, params: answered(kll.quantiles(states["kll"], float(params["q"]))),
            "the value at rank q, exact up to 200 readings, then the rank is within 1.33 % with 99 % probability (KLL)",
            (("q", Param((0.0, 0.07, 0.9, 1.0), None, (0.0, 1.0))),),
        ),
        Function(
            "approx_median",
            ("kll",),
            lambda states, _scale, _params: answered(kll.quantiles(states["kll"], 0.5)),
            "the same as approx_quantile of 0.5",
        ),
        Function(
            "top_k",
            ("frequent",),
            _lower_top_k,
            "experimental: the most frequent value, in `details` [value, count] of the k most frequent; counts are"
            " exact up to 255 different values, then too low by at most 1/256 of the readings; integers beyond 2^53 are"
            " shown as the nearest float, so two may look the same",
            (("k", Param((1, 3, 5, 10, 20, 50, 100), 10)),),
        ),
    ),
)
