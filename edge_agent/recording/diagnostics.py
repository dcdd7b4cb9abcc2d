"""Warnings about readings of a valid recording that are in no result, or rounded: one line per stream or query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import numpy as np

from edge_agent.algebra.partials.units import fits_float
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import TYPES, Window
from edge_agent.config.checking.checker import short
from edge_agent.config.checking.durations import UNITS_US
from edge_agent.config.checking.quantities import EPOCH
from edge_agent.recording.streams import EXACT, MARKS, ChildStream, is_far

MOST: Final = 10**300  # values beyond it are skipped (machines/slicing/reading_filter.py)


def odd_items(raw: Mapping[str, Sequence[Any]], unit_us: int) -> Iterator[str]:
    """Warns about items that are left out: their first element is a text but not a mark, or a time too far from 0."""
    unit = next(name for name, us in UNITS_US.items() if us == unit_us)
    for child, stream in raw.items():
        odd = [at for at, item in enumerate(stream) if type(item[0]) is str and item[0] not in MARKS]
        if odd:
            text = stream[odd[0]][0]
            first = f"the first is [{odd[0]}], {short(repr(text))}"
            hint = f"times are plain numbers in {unit}{_number(text, unit_us)}; marks are {' and '.join(MARKS)}"
            yield f"streams.{short(child)}: {_many(len(odd), 'item')} left out, neither time nor mark: {first}; {hint}"
        far = [at for at, item in enumerate(stream) if is_far(item[0], unit_us)]
        if far:
            first = f"the first is [{far[0]}], {short(repr(stream[far[0]][0]))}"
            why = "more than a thousand years from 0"
            yield f"streams.{short(child)}: {_many(len(far), 'reading')} left out, {why}: {first}; correct the times"


def rounded(raw: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Warns about integers that no float64 equals, in a recording whose values are floats."""
    for child, stream in raw.items():
        found = [(at, item[2]) for at, item in enumerate(stream) if type(item[0]) is not str and type(item[2]) is int]
        other = [(at, value) for at, value in found if EXACT < abs(value) <= MOST and not fits_float(value)]
        if other:
            first = f"the first is [{other[0][0]}], {short(repr(other[0][1]))}"
            why = "integers are exact only if all values are integers below 2^61, and sums of their squares below 10^38"
            yield f"streams.{short(child)}: {_many(len(other), 'integer')} rounded to the nearest float: {first}; {why}"


def early(streams: Sequence[ChildStream], queries: Sequence[Query], unit_us: int) -> Iterator[str]:
    """Warns about readings before time 0 if a query has time windows, because no time window starts before 0."""
    if not any(_first_start_us(query) is not None for query in queries):
        return
    for stream in streams:
        below = np.flatnonzero(stream.time_us < 0)
        if len(below):
            first = f"the first is [{stream.item[below[0]]}], {_time(int(stream.time_us[below[0]]), unit_us)}"
            why = "no time window starts before 0, so none contains them: shift the times"
            yield f"streams.{short(stream.child)}: {_many(len(below), 'reading')} before time 0: {first}; {why}"


def before_first(streams: Sequence[ChildStream], query: Query, unit_us: int) -> str:
    """Warning about readings from time 0 to the first window of the query; '' if there are none."""
    first_us = _first_start_us(query) or 0
    count = sum(int(((stream.time_us >= 0) & (stream.time_us < first_us)).sum()) for stream in streams)
    if not count:
        return ""
    why = f"the first window starts at {_time(first_us, unit_us)}, because none starts before 0: shift the times"
    return f"{_many(count, 'reading')} in no window; {why}"


def _first_start_us(query: Query) -> int | None:
    """Start of the first time window at or after 0; None for types without regular windows."""
    if query.window.type not in TYPES:
        return None
    window = cast("Window", query.window)
    step_us = window.spacing[0].step_us
    if step_us >= FAR_US:
        return None
    starts = window.edge_sets[0].points(0, 2 * step_us)  # step_us is an average, because months differ
    return int(starts[0]) if len(starts) else None


def _number(text: str, unit_us: int) -> str:
    """Text with an RFC 3339 time as a number in the unit of the recording; '' if it is not such a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return ""
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return f", like {_time((moment - EPOCH) // timedelta(microseconds=1), unit_us)}"


def _time(us: int, unit_us: int) -> str:
    whole, rest = divmod(us, unit_us)
    return f"{us / unit_us:.12g}" if rest else str(whole)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
