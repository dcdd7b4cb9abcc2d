"""Windows between the markers of one stream: closed windows, the open one, and the window of a reading.

Windows are [marker, next marker). With explicit markers, a window begins at a 'start' while none is open, and ends at
an 'end'; a 'start' in an open window and an 'end' outside one change nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.span import FAR_US

LEAD: Final = "lead"  # role of the marker that stands for a first reading that opens a window
MARKER_KEY: Final = "|"  # differs from all keys of readings: those are '' or contain a '='
ORDINALS: Final = 4_096  # a window's number travels modulo this in the key of its marker: few keys, whatever the time
MOST_WINDOWS: Final = 65_536  # remembered for late readings; more than one a ten seconds for a week


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """One marker. role: '' ends a window and begins the next; 'start'; 'end'. id: the type of event it marks, or ''."""

    time_us: int
    role: str = ""
    id: str = ""


def window_key(ordinal: int | None) -> str:
    """The key of a marker row of a window. ordinal: the window's number at the node, where windows merge by it."""
    return MARKER_KEY if ordinal is None else f"{MARKER_KEY}{ordinal % ORDINALS}"


def ordinal_of(key: str, after: int) -> int:
    """The ordinal in a key of `window_key`: the number nearest to `after` + 1 that fits, as rows may come out of order.

    after: the last number so far, -1 if there is none.
    """
    back = min(ORDINALS // 2, after + 1)
    return after + 1 - back + (int(key[1:]) - after - 1 + back) % ORDINALS


def role_key(role: str) -> str:
    """The key of a marker row of a single marker, which the root puts in order."""
    return f"{MARKER_KEY}:{role}"


def role_of(key: str) -> str | None:
    """The role in a key of `role_key`; None for a key of `window_key`."""
    return key[2:] if key.startswith(role_key("")) else None


def markers_of_changes(cut: PunctuationCut, changes: Iterable[tuple[int, float]]) -> list[Marker]:
    """Changes (time, new value) of a sensor as markers; the value is the id."""
    explicit = cut.interpretation == "overlap"
    return [
        Marker(time_us, (("start" if value else "end") if explicit else ""), f"{value:g}") for time_us, value in changes
    ]


@dataclass(slots=True)
class Markers:
    """The markers of one slicer.

    leading: the first reading before any marker opens a window. waiting: markers that the frontier has not passed,
    sorted. start, end: closed windows, in order; made: how many have ever closed. open_us: start of the open window,
    None if none is open. begun: whether the first window has begun. led: whether it is open and a reading opened it, so
    that an earlier (late) reading moves its start.
    """

    leading: bool
    waiting: list[Marker] = field(default_factory=list)
    start: Ints = field(default_factory=lambda: NO_INTS)
    end: Ints = field(default_factory=lambda: NO_INTS)
    made: int = 0
    open_us: int | None = None
    begun: bool = False
    led: bool = False

    def add(self, markers: Iterable[Marker]) -> None:
        """Add markers at or after the frontier, in any order; a duplicate changes nothing."""
        for marker in markers:
            if marker not in self.waiting:
                insort(self.waiting, marker)

    def advance(self, frontier_us: int, first_us: int | None, floor_us: int) -> list[tuple[int, int, int]]:
        """Windows (start, end, number) that close at a frontier; all markers up to it have been added.

        first_us: the earliest reading below the frontier in no interval that a marker has closed, None if there is
        none. floor_us: windows that ended before it may be forgotten.
        """
        closed: list[tuple[int, int, int]] = []
        while self.waiting and self.waiting[0].time_us <= frontier_us:
            marker = self.waiting.pop(0)
            self._lead(first_us, marker.time_us)
            self.begun, self.led = True, False
            if self.open_us is not None and marker.role != "start":
                if marker.time_us > self.open_us:
                    closed.append((self.open_us, marker.time_us, self.made))
                    self.made += 1
                self.open_us = None
            if self.open_us is None and marker.role != "end":
                self.open_us = marker.time_us
        self._lead(first_us, frontier_us)
        if closed:
            kept = np.flatnonzero(self.end > floor_us)[-MOST_WINDOWS:]
            fresh = np.array([window[:2] for window in closed], np.int64)
            self.start = np.concatenate([self.start[kept], fresh[:, 0]])
            self.end = np.concatenate([self.end[kept], fresh[:, 1]])
        return closed

    def passed(self, frontier_us: int, first_us: int | None) -> list[tuple[int, str]]:
        """(time, role) of the markers below a frontier, for the root; all markers below it have been added.

        first_us: as for `advance`; where it opens a window, a marker of role LEAD stands for it.
        """
        out: list[tuple[int, str]] = []
        while self.waiting and self.waiting[0].time_us < frontier_us:
            marker = self.waiting.pop(0)
            out += self._leads(first_us, marker.time_us)
            self.begun = True
            out.append((marker.time_us, marker.role))
        return out + self._leads(first_us, frontier_us)

    def _leads(self, first_us: int | None, before_us: int) -> list[tuple[int, str]]:
        self._lead(first_us, before_us)
        led_us, self.open_us = self.open_us, None  # nothing is open here: the root knows what is
        return [] if led_us is None else [(led_us, LEAD)]

    def _lead(self, first_us: int | None, before_us: int) -> None:
        """Open a window at the first reading before any marker, if `leading`."""
        if self.leading and not self.begun and first_us is not None and first_us < before_us:
            self.open_us, self.begun, self.led = first_us, True, True

    def lead_late(self, time_us: int) -> None:
        """Note a late reading in no interval that a marker has closed: it may be the first of all."""
        if self.leading and (self.led or not self.begun) and (self.open_us is None or time_us < self.open_us):
            self.open_us, self.begun, self.led = time_us, True, True

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """(start, end) of the window of each reading below the frontier; end FAR_US: open, both NEVER_US: in none."""
        starts, ends = self.start, self.end
        if self.open_us is not None:
            starts, ends = np.append(starts, self.open_us), np.append(ends, FAR_US)
        if not len(starts):
            none = np.full(len(time_us), NEVER_US, np.int64)
            return none, none
        place = np.searchsorted(starts, time_us, side="right") - 1
        start, end = starts[place], ends[place]
        outside = (place < 0) | (time_us >= end)
        start[outside] = end[outside] = NEVER_US
        return start, end

    def cut_after(self, time_us: int) -> bool:
        """Whether a window that is known here begins or ends after that time."""
        return (self.open_us or NEVER_US) > time_us or bool(len(self.end) and self.end[-1] > time_us)

    def snapshot(self) -> dict[str, object]:
        return {
            "waiting": [[marker.time_us, marker.role, marker.id] for marker in self.waiting],
            "closed": [self.start, self.end],
            "made": self.made,
            "open": self.open_us,
            "begun": self.begun,
            "led": self.led,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `snapshot` returned."""
        self.waiting = [Marker(*marker) for marker in state["waiting"]]
        self.start, self.end = state["closed"]
        self.made, self.open_us, self.begun = state["made"], state["open"], state["begun"]
        self.led = state.get("led", False)
