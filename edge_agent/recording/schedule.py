"""Splits a child's stream into portions, so that each reading arrives at the frontier that is right for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.machines.events import Read
from edge_agent.recording.parser import Recording
from edge_agent.recording.streams import FAR_US, ChildStream

PORTIONS: Final = 4  # least number per stream, so that frames of several children alternate


@dataclass(frozen=True, slots=True)
class Add:
    """An event: queries with `after_items` <= items are in force from here on."""

    items: int


def portions(recording: Recording, stream: ChildStream, sensor: str) -> Iterator[Read | Add]:
    """Yields a stream as events in order. After each event the gateway commits and its frontier moves.

    The frontier follows the watermarks in mode `markers`, else the newest reading. Portions are large, but no portion
    contains a reading that is late because of earlier items of the same portion.
    """
    marked = recording.mode == "markers"
    marks = np.maximum.accumulate(
        np.concatenate([[-FAR_US], stream.mark_us])
    )  # before the first mark there is no frontier

    def mark_before(item: Ints | int) -> Ints:
        return marks[np.searchsorted(stream.mark_item, item)]

    def read(first: int, last: int, upto_item: int) -> Read:
        rows = slice(first, last)
        batch = Batch(stream.time_us[rows], stream.value[rows], stream.series[rows], recording.labels)
        due: list[Marker] = []
        while waiting and waiting[0][0] < upto_item:
            due.append(waiting.popleft()[1])
        return Read(sensor, batch, mark_us=int(mark_before(upto_item)) if marked else None, markers=tuple(due))

    newest = np.maximum.accumulate(np.concatenate([[-FAR_US], stream.time_us]))[:-1]
    waiting = deque(sorted(_on_time(recording, stream), key=itemgetter(0)))
    cuts = _cuts(stream.time_us, mark_before(stream.item) if marked else newest, recording.late_by_us)
    # set the frontier before the first reading, because that may be late too
    yield read(0, 0, int(stream.item[0]) if len(stream.item) else 0)
    done = 0
    for item in [*sorted({one.after_items for one in recording.asked if one.after_items}), FAR_US]:
        upto = int(np.searchsorted(stream.item, item))
        inside = cuts[(cuts > done) & (cuts < upto)].tolist()
        for first, last in pairwise([done, *inside, upto]):
            yield read(first, last, int(stream.item[last]) if last < upto else item)
        done = upto
        if item < FAR_US:
            yield Add(item)


def _on_time(recording: Recording, stream: ChildStream) -> list[tuple[int, Marker]]:
    """Returns (item, marker): the item at which each marker takes effect, so that no marker is late.

    That is the marker's own item, or the earlier item that moves the frontier up to the marker.
    """
    if recording.mode == "markers":
        reached, moved_by = np.maximum.accumulate(stream.mark_us), stream.mark_item
    else:
        reached, moved_by = np.maximum.accumulate(stream.time_us), stream.item
    due = np.searchsorted(reached - recording.late_by_us, [marker.time_us for _, marker in stream.markers])
    moved_by = np.append(moved_by, FAR_US)
    return [(min(at, int(moved_by[first])), one) for (at, one), first in zip(stream.markers, due, strict=True)]


def _cuts(time_us: Ints, reached_us: Ints, late_by_us: int) -> Ints:
    """Index of the first reading of each portion: equal parts, and the first late reading after each frontier move.

    reached_us: event time reached before each reading; non-decreasing.
    """
    equal = np.linspace(0, len(time_us), PORTIONS, endpoint=False).astype(np.int64)
    late = np.flatnonzero(time_us < reached_us - late_by_us)
    moves = np.cumsum(np.diff(reached_us, prepend=reached_us[:1]) > 0)
    _, first = np.unique(moves[late], return_index=True)
    return np.union1d(equal, late[first])
