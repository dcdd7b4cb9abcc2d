"""In what portions a child's stream is read, so that each reading is judged by the frontier of its moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from edge_agent.algebra.partial import NO_INTS, Batch, Ints
from edge_agent.machines.events import Read
from edge_agent.recording.form import FAR_US, Recording, Stream

PORTIONS: Final = 4  # of a stream without marks: enough that frames of one child fall between those of another


@dataclass(frozen=True, slots=True)
class Add:
    """From here on the queries that were to be added after at most so many items are in force as well."""

    items: int


def portions(recording: Recording, stream: Stream, sensor: str) -> Iterator[Read | Add]:
    """A stream as events, in order; after each the gateway commits and its frontier moves.

    With marks only they move the frontier; without, it follows the newest reading, so that a portion ends before each
    reading that is late by then.
    """
    stops: list[tuple[int, Add | int]] = [
        (int(item), Add(int(item))) for item in sorted({one.after_items for one in recording.asked if one.after_items})
    ]
    cuts = NO_INTS
    if recording.mode == "markers":
        stops += zip((stream.mark_item + 1).tolist(), stream.mark_us.tolist(), strict=True)
    else:
        cuts = _cuts(stream.time_us, recording.late_by_us)

    def read(first: int, last: int, mark_us: int | None = None) -> Read:
        rows = slice(first, last)
        batch = Batch(stream.time_us[rows], stream.value[rows], stream.series[rows], recording.labels)
        return Read(sensor, batch, mark_us=mark_us)

    if recording.mode == "markers":  # until the first mark nothing is promised, however new the readings
        yield read(0, 0, -FAR_US)
    done = 0
    for item, stop in sorted(stops, key=lambda each: (each[0], isinstance(each[1], Add))):
        upto = int(np.searchsorted(stream.item, item))
        yield from (read(first, last) for first, last in _pieces(cuts, done, upto))
        yield stop if isinstance(stop, Add) else read(upto, upto, stop)
        done = upto
    yield from (read(first, last) for first, last in _pieces(cuts, done, len(stream.item)))


def _cuts(time_us: Ints, late_by_us: int) -> Ints:
    """Where portions begin: equal parts, and the first late reading after each move of the frontier."""
    if not len(time_us):
        return NO_INTS
    equal = np.linspace(0, len(time_us), PORTIONS, endpoint=False).astype(np.int64)
    newest = np.maximum.accumulate(time_us)
    late = np.flatnonzero(time_us < newest - late_by_us)
    moves = np.cumsum(np.diff(newest, prepend=newest[0]) > 0)
    _, first = np.unique(moves[late], return_index=True)
    return np.union1d(equal, late[first])


def _pieces(cuts: Ints, first: int, last: int) -> Iterator[tuple[int, int]]:
    """(first, last) of the parts of readings first..last-1; nothing for none."""
    inside = cuts[(cuts > first) & (cuts < last)].tolist()
    bounds = [first, *inside, last] if last > first else []
    yield from pairwise(bounds)
