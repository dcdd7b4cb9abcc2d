"""Markers of many nodes as those of one stream, at the root: the windows that one central computer would have.

In order of time; of one time an end comes before a start, and equal ones are one, whichever nodes they are of. The
rules of one stream hold for them (algebra/punctuation/markers.py): a marker without a kind ends a window and begins the
next, a 'start' in an open window and an 'end' outside one change nothing. The first reading of all nodes leads where
that is asked for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.punctuation.markers import LEAD

Point = tuple[int, str]  # time, kind: '', 'end', LEAD, 'start', in this order where times are equal


@dataclass(slots=True)
class MergedMarkers:
    """points: of all nodes, sorted, each once. open_us, begun: before the first of them (see Markers).

    floor_us: what comes below it parts nothing any more.
    """

    points: list[Point] = field(default_factory=list)
    open_us: int | None = None
    begun: bool = False
    floor_us: int = NEVER_US
    # up to the point of that number: the windows that have closed, and what is open
    _done: int = 0
    _closed: list[tuple[int, int]] = field(default_factory=list)
    _open: tuple[int | None, bool] | None = None
    _told: int = 0  # of them, at the last step
    _anew: bool = True  # whether they have been looked at again since

    def add(self, time_us: int, kind: str) -> None:
        """A marker, in any order; one that is known changes nothing."""
        point = (time_us, kind)
        at = bisect_left(self.points, point)
        if time_us < self.floor_us or (at < len(self.points) and self.points[at] == point):
            return
        if at < self._done:  # of a node that was behind: what followed from those after it is looked at again
            self._again()
        insort(self.points, point)

    def step(self, decided_us: int) -> tuple[Sequence[tuple[int, int]], bool]:
        """(windows that have closed since the last step, False), or (all, True) where one from before may be none now.

        decided_us: markers below it are all here.
        """
        told, anew = self._told, self._anew
        self._advance(decided_us)
        self._told, self._anew = len(self._closed), False
        return (self._closed, True) if anew else (self._closed[told:], False)

    def _advance(self, decided_us: int) -> None:
        open_us, begun = self._open or (self.open_us, self.begun)
        while self._done < len(self.points) and self.points[self._done][0] < decided_us:
            time_us, kind = self.points[self._done]
            self._done += 1
            if kind == LEAD:
                open_us, begun = (open_us, True) if begun else (time_us, True)
                continue
            begun = True
            if open_us is not None and kind != "start":
                if time_us > open_us:
                    self._closed.append((open_us, time_us))
                open_us = None
            if open_us is None and kind != "end":
                open_us = time_us
        self._open = (open_us, begun)

    @property
    def low_us(self) -> int | None:
        """Where a window begins, or may begin, that has not closed; None: there is none."""
        open_us, _ = self._open or (self.open_us, self.begun)
        waiting = self.points[self._done][0] if self._done < len(self.points) else None
        return waiting if open_us is None else open_us

    def forget(self, floor_us: int) -> None:
        """Windows that ended by then are no longer asked for."""
        before = MergedMarkers([point for point in self.points if point[0] < floor_us], self.open_us, self.begun)
        before._advance(floor_us)
        self.open_us, self.begun = before._open or (self.open_us, self.begun)
        self.floor_us = floor_us
        self.points = [point for point in self.points if point[0] >= floor_us]
        self._again()

    def look_again(self) -> None:
        """At the next step all windows are told."""
        self._anew = True

    def _again(self) -> None:
        self._done, self._closed, self._open, self._told, self._anew = 0, [], None, 0, True

    def snapshot(self) -> list[object]:
        """Plain values."""
        return [[list(point) for point in self.points], self.open_us, self.begun, self.floor_us, self._done]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> MergedMarkers:
        """The twin of `snapshot`."""
        points, open_us, begun, floor_us, done = state
        made = cls([(time_us, kind) for time_us, kind in points], open_us, begun, floor_us)
        if done:
            made._advance(made.points[done - 1][0] + 1)
        return made
