"""Merges the markers of all nodes into one stream, at the root, and forms the windows between them.

Markers are sorted by time; at equal times an 'end' comes before a 'start'. Equal markers of several nodes count once.
The rules are those of a single stream (algebra/punctuation/markers.py): a marker without a role ends a window and
begins the next; a 'start' within an open window and an 'end' outside a window are ignored. With `leading`, the first
reading of all nodes opens a window if it precedes all markers. A late reading may be that first one, so that the window
begins earlier than rows that are already written.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.punctuation.markers import LEAD

Point = tuple[int, str]  # (time, role): '', 'end' or 'start', which sort in this order at equal times
Lead = tuple[int, int]  # (time, bound): a reading that opens the first window if no marker is before the bound


@dataclass(slots=True)
class MergedMarkers:
    """The markers of all nodes. points: sorted, without duplicates.

    leads: sorted; none has both its time and its bound at or after those of another. open_us, begun: as in Markers,
    before the first point. floor_us: earlier markers and leads are ignored.
    """

    points: list[Point] = field(default_factory=list)
    leads: list[Lead] = field(default_factory=list)
    open_us: int | None = None
    begun: bool = False
    floor_us: int = NEVER_US
    # windows closed by the first _done points, and (open_us, begun) after them
    _done: int = 0
    _closed: list[tuple[int, int]] = field(default_factory=list)
    _open: tuple[int | None, bool] | None = None
    _returned: int = 0  # number of windows of _closed that earlier steps returned
    _anew: bool = True  # whether windows were formed again since the last step

    def add(self, time_us: int, role: str) -> None:
        """Add a marker, in any order; a duplicate changes nothing."""
        point = (time_us, role)
        at = bisect_left(self.points, point)
        if time_us < self.floor_us or (at < len(self.points) and self.points[at] == point):
            return
        if at < self._done:  # from a node that was behind: later windows are formed again
            self._again()
        insort(self.points, point)

    def add_lead(self, time_us: int, bound_us: int) -> None:
        """Add a reading that opens the first window if it is the earliest and no marker is before bound_us.

        bound_us: after time_us; later for a late reading that counts only in windows that end after the frontier it
        missed.
        """
        known = self.points and self.points[0][0] < bound_us  # the first marker may only become earlier
        if self.begun or known or time_us < self.floor_us:
            return
        if any(time <= time_us and bound <= bound_us for time, bound in self.leads):
            return
        others = [lead for lead in self.leads if lead[0] < time_us or lead[1] < bound_us]
        self.leads = sorted([*others, (time_us, bound_us)])
        if self._done:
            self._again()

    def step(self, decided_us: int) -> tuple[Sequence[tuple[int, int]], bool]:
        """Form windows. Returns (windows closed since the last step, False), or (all closed windows, True).

        The latter if windows were formed again, so that earlier results may be void. decided_us: all markers below it
        have been added.
        """
        returned, anew = self._returned, self._anew
        self._advance(decided_us)
        self._returned, self._anew = len(self._closed), False
        return (self._closed, True) if anew else (self._closed[returned:], False)

    def _advance(self, decided_us: int) -> None:
        open_us, begun = self._open or (self.open_us, self.begun)
        while self._done < len(self.points) and self.points[self._done][0] < decided_us:
            time_us, role = self.points[self._done]
            self._done += 1
            if not begun:
                open_us, begun = min((lead for lead, bound in self.leads if bound <= time_us), default=open_us), True
            if open_us is not None and role != "start":
                if time_us > open_us:
                    self._closed.append((open_us, time_us))
                open_us = None
            if open_us is None and role != "end":
                open_us = time_us
        self._open = (open_us, begun)

    @property
    def low_us(self) -> int | None:
        """Earliest start of a window that has not closed; None if there is none."""
        open_us, begun = self._open or (self.open_us, self.begun)
        if open_us is not None:
            return open_us
        waiting = [self.points[self._done][0]] if self._done < len(self.points) else []
        return min([*waiting, *(time_us for time_us, _ in self.leads if not begun)], default=None)

    def forget(self, floor_us: int) -> None:
        """Drop the windows that end at or before floor_us."""
        past = [point for point in self.points if point[0] < floor_us]
        before = MergedMarkers(past, self.leads, self.open_us, self.begun)
        before._advance(floor_us)
        self.open_us, self.begun = before._open or (self.open_us, self.begun)
        self.leads = [] if self.begun else self.leads
        self.floor_us = floor_us
        self.points = [point for point in self.points if point[0] >= floor_us]
        self._again()

    def look_again(self) -> None:
        """Let the next step return all windows."""
        self._anew = True

    def _again(self) -> None:
        self._done, self._closed, self._open, self._returned, self._anew = 0, [], None, 0, True

    def snapshot(self) -> list[object]:
        points, leads = [list(point) for point in self.points], [list(lead) for lead in self.leads]
        return [points, self.open_us, self.begun, self.floor_us, self._done, leads]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> MergedMarkers:
        """Continue from what `snapshot` returned. In states of older versions, leads are among the points."""
        points, open_us, begun, floor_us, done, *leads = state
        made = cls([(time_us, role) for time_us, role in points if role != LEAD], [], open_us, begun, floor_us)
        made.leads = [(time_us, bound_us) for time_us, bound_us in leads[0]] if leads else []
        for time_us, role in points:
            if role == LEAD:
                made.add_lead(time_us, time_us + 1)
        if done:
            made._advance(points[done - 1][0] + 1)
        return made
