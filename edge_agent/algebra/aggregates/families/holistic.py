"""Exact functions of all values: median, quantile, mode, distinct count, collect. They share one multiset.

The multiset of a quantised sensor is small even for many readings, because it has few distinct values. Source: Hyndman
& Fan (1996), definitions 7 (linear) and 1 (nearest rank).
"""

from __future__ import annotations

import json

import numpy as np

from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, Param, Params, States
from edge_agent.algebra.aggregates.lowered import (
    Lowered,
    answered,
    by_row,
    decimals,
    in_details,
    plain_numbers,
    value_names,
)
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import difference


def _median(states: States, scale: int | None, params: Params) -> Lowered:
    """The middle value. With an even number of readings: the mean of the two middle ones, the upper or the lower."""
    found = multisets.flat(states["bag"])
    total = found.totals()
    lower, upper = found.at((total - 1) // 2), found.at(total // 2)
    if params["even"] != "mean":
        return decimals(upper if params["even"] == "upper" else lower, scale)
    if scale is None:
        return answered((lower + upper) / 2)
    whole = decimals(lower, scale)
    if bool((lower == upper).all()):
        return whole
    halves = decimals(difference(lower, -upper), scale).value / 2
    texts = whole.details and [text if same else None for text, same in zip(whole.details, lower == upper, strict=True)]
    return answered(np.where(lower == upper, whole.value, halves), None, texts)


def _quantile(states: States, scale: int | None, params: Params) -> Lowered:
    """The quantile q of n sorted values, which are numbered from 0.

    Method nearest_rank: the value at ceil(q n) - 1, at least the first. linear: interpolated at q (n - 1).
    median_unbiased: interpolated at q (n + 1/3) - 2/3, limited to the first and last value. Source: Hyndman & Fan
    (1996), types 1, 7 and 8.
    """
    found = multisets.flat(states["bag"])
    total, q = found.totals(), float(params["q"])
    if params["method"] == "nearest_rank":
        return decimals(found.at(np.clip(np.ceil(q * total).astype(np.int64) - 1, 0, total - 1)), scale)
    place = q * (total - 1)
    if params["method"] == "median_unbiased":
        place = np.clip((q * (3 * total + 1) - 2) / 3, 0, total - 1)
    below = np.floor(place).astype(np.int64)
    low = decimals(found.at(below), scale).value
    high = decimals(found.at(np.minimum(below + 1, total - 1)), scale).value
    part, step = place - below, high - low
    return answered(np.where(part < 0.5, low + step * part, high - step * (1 - part)))  # exact at both ends


def _mode(states: States, scale: int | None, _params: Params) -> Lowered:
    """The most frequent value; the smallest if several are equally frequent."""
    found = multisets.flat(states["bag"])
    if not len(found.sizes):
        return decimals(found.values, scale)
    most = np.repeat(np.maximum.reduceat(found.counts, found.starts), found.sizes)
    groups = Segments.runs(found.starts, len(found.values))
    return decimals(found.values[groups.first_where(found.counts == most)], scale)


def _distinct(states: States, _scale: int | None, _params: Params) -> Lowered:
    return answered(multisets.flat(states["bag"]).sizes)


def _collect(states: States, scale: int | None, _params: Params) -> Lowered:
    """All values, sorted, as a JSON list in the details."""
    found = multisets.flat(states["bag"])
    pairs = list(zip(plain_numbers(found.values, scale), found.counts.tolist(), strict=True))
    return in_details(
        json.dumps([value for value, count in row for _ in range(count)]) for row in by_row(pairs, found.sizes)
    )


def _value_counts(states: States, scale: int | None, _params: Params) -> Lowered:
    """The number of readings of each value as a JSON object in the details, sorted by value."""
    found = multisets.flat(states["bag"])
    pairs = list(zip(value_names(found.values, scale), found.counts.tolist(), strict=True))
    return in_details(json.dumps(dict(row)) for row in by_row(pairs, found.sizes))


_COUNT_ABOUT = "how many different values there are, exactly"

FAMILY = Family(
    columns=(Column("bag", "bag", 1),),
    components=(
        Component.of_column(
            "bag",
            lambda readings, groups, _scale: multisets.lift(readings.value, groups),
            lambda groups, column: multisets.combine(column, groups),
        ),
    ),
    functions=(
        Function(
            "median",
            ("bag",),
            _median,
            "the middle value, exactly",
            (("even", Param(("mean", "upper", "lower"), "mean")),),
        ),
        Function(
            "quantile",
            ("bag",),
            _quantile,
            "the value below which a share q of the readings lies, exactly",
            (
                ("method", Param(("linear", "nearest_rank", "median_unbiased"), "linear")),
                ("q", Param((0.0, 0.07, 0.9, 1.0), None, (0.0, 1.0))),
            ),
        ),
        Function(
            "mode", ("bag",), _mode, "the most frequent value, of equally frequent ones the smallest", gives="value"
        ),
        Function("distinct", ("bag",), _distinct, _COUNT_ABOUT, gives="count"),
        Function("count_distinct", ("bag",), _distinct, _COUNT_ABOUT + "; the same as distinct", gives="count"),
        Function(
            "value_counts",
            ("bag",),
            _value_counts,
            "how often each value came, as a JSON object in `details`: for few values",
            gives="details",
        ),
        Function("collect", ("bag",), _collect, "every value in order, as a JSON list in `details`", gives="details"),
    ),
)
