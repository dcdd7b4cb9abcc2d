"""What answers for a member of the registry that has no independent answer yet: the member itself, in one piece.

All readings of a window at one node, lifted at once; all readings of a key cut at once; all starts of windows with
their ends. So slices, merging, trees, steps and both roots are held to it from its first line on, but its own formula
is compared only with itself, until there is an independent answer in central_computer.py (with functions.py),
time_windows.py or ordered_windows.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, FUNCTIONS, Lowered, Readings, basis_of
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.windows.ordered import OrderedReadings

if TYPE_CHECKING:
    from edge_agent.algebra.windows import OrderedWindow, Window
    from tests.oracle.central_computer import Function, Params, Reading


class Known(dict[str, "Function"]):
    """Functions with an independent answer; any other one of the registry answers for itself."""

    def __missing__(self, fn: str) -> Function:
        if fn not in FUNCTIONS:
            raise KeyError(fn)
        return functools.partial(answer, fn)


def answer(fn: str, readings: Sequence[Reading], params: Params) -> float | None:
    """The number of a function over readings in global order."""
    lowered = _lowered(fn, readings, params)
    return None if lowered.null[0] else float(lowered.value[0])


def told(fn: str) -> Callable[[Sequence[Reading], Params], Any]:
    """What a function says in its details, read."""

    def tells(readings: Sequence[Reading], params: Params) -> Any:
        details = _lowered(fn, readings, params).details
        return None if details is None or details[0] is None else json.loads(details[0])

    return tells


def terms(fn: str, largest: float) -> float:
    """How large the terms of its answer are: of powers where a column of its state is one."""
    degrees = [COLUMNS[name].degree for scale in (None, 0) for name in basis_of([_plain(fn)], scale)]
    return max(1.0, largest) ** max(1, *degrees)


def _plain(fn: str) -> Aggregate:
    """The function with some value of each parameter."""
    return Aggregate(fn, fn, tuple((name, param.choices[0]) for name, param in FUNCTIONS[fn].params))


def _lowered(fn: str, readings: Sequence[Reading], params: Params) -> Lowered:
    aggregate = Aggregate(fn, fn, tuple(params.items()))  # type: ignore[arg-type]
    value, scale = _values(readings)
    names = {name for reading in readings for name in reading.labels}
    numbers = {name: np.array([_number(r.labels.get(name, "")) for r in readings], np.float64) for name in names}
    time = np.array([r.time_us for r in readings], np.int64)
    whole = Readings(time, value, np.arange(len(readings)), 0, numbers)
    states = aggregates.lift(
        whole, Segments.runs(np.zeros(1, np.int64), len(readings)), basis_of([aggregate], scale), scale
    )
    return aggregates.lower(aggregate, states, scale)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _values(readings: Sequence[Reading]) -> tuple[Any, int | None]:
    """Values as one column, integers of one scale where all are exact."""
    if any(isinstance(r.value, float) for r in readings):
        return np.array([float(r.value) for r in readings], np.float64), None
    places = 0
    while any((Fraction(r.value) * 10**places).denominator > 1 for r in readings):
        places += 1
    return np.array([int(r.value * 10**places) for r in readings], np.int64), -places


def holding(window: Window, time_us: int) -> list[tuple[int, int]]:
    """(start, end) of the windows that hold an instant: of all starts near it those whose end lies behind it."""
    start = window.edge_sets[0].points(max(time_us - window.longest_us, 0), time_us)
    end = window.ends(start)
    return [(low, high) for low, high in zip(start.tolist(), end.tolist(), strict=True) if low <= time_us < high]


def cut(window: OrderedWindow, readings: Sequence[Reading], first: int = 0) -> dict[tuple[int, int], list[Reading]]:
    """(start, end) -> readings of one key, which come in global order, all at once. first: position of the first."""
    one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
    time = np.array([r.time_us for r in readings], np.int64)
    value = np.array([float(r.value) for r in readings], np.float64)
    labels = tuple(sorted(readings[0].labels.items())) if readings else ()
    made = window.cut(OrderedReadings(none, one * len(readings), one * first, one * first, time, value, (labels,)))
    columns = (column.tolist() for column in (made.start, made.end, made.low, made.high))
    return {(start, end): list(readings[low:high]) for start, end, low, high in zip(*columns, strict=True)}
