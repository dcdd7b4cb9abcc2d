"""Windows between the markers of one stream: the closed ones, the open one, and the window of each reading.

Windows are [marker, next marker). With explicit markers, a 'start' opens a window if none is open, and an 'end' closes
it. A 'start' within an open window and an 'end' outside a window are ignored.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.units import number_name
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.span import FAR_US

LEAD: Final = "lead"  # role of the marker that represents a first reading that opens a window
MARKER_KEY: Final = "|"  # differs from all keys of readings, which are '' or contain a '='
ORDINALS: Final = 4_096  # the key of a marker row contains the window's number modulo this, which limits the keys
_ROW_KEY: Final = re.compile(r"\|([0-9]{1,4}|:(start|end|lead)?)?")  # all keys that marker rows have
MOST_WINDOWS: Final = 65_536  # closed windows remembered for late readings: one per 10 s for a week


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """One marker. role: 'start', 'end', or '' to end a window and begin the next. id: type of the event, or ''."""

    time_us: int
    role: str = ""
    id: str = ""


def window_key(ordinal: int | None) -> str:
    """The key of a window's marker row. ordinal: its number at the node if windows merge by number, else None."""
    return MARKER_KEY if ordinal is None else f"{MARKER_KEY}{ordinal % ORDINALS}"


def ordinal_of(key: str, after: int) -> int:
    """The ordinal of a window from its `window_key`.

    The key contains it modulo ORDINALS: the number nearest to `after` + 1 is chosen, because rows may arrive out of
    order. after: the highest number so far, -1 if there is none.
    """
    back = min(ORDINALS // 2, after + 1)
    return after + 1 - back + (int(key[1:]) - after - 1 + back) % ORDINALS


def role_key(role: str) -> str:
    """The key of the row of a single marker, for windows that the root cuts."""
    return f"{MARKER_KEY}:{role}"


def role_of(key: str) -> str | None:
    """The role in a key of `role_key`; None for a key of `window_key`."""
    return key[2:] if key.startswith(role_key("")) else None


def is_marker_key(key: str) -> bool:
    """Whether a marker row may have this key: it is one of `window_key` or `role_key`."""
    return _ROW_KEY.fullmatch(key) is not None


def markers_of_changes(cut: PunctuationCut, changes: Iterable[tuple[int, float]]) -> list[Marker]:
    """Markers from the changes (time, new value) of a sensor. The value becomes the marker's id."""
    explicit = cut.interpretation == "overlap"
    return [
        Marker(time_us, (("start" if value else "end") if explicit else ""), number_name(value))
        for time_us, value in changes
    ]


@dataclass(slots=True)
class Markers:
    """The markers of one slicer.

    leading: whether the first reading opens a window if no marker precedes it. waiting: markers that the frontier has
    not passed, sorted. start, end: the latest closed windows, in order. made: number of windows closed so far. open_us:
    start of the open window, None if none is open. begun: whether the first window has begun. led: whether that window
    is open and was opened by a reading, so that an earlier (late) reading moves its start.

    If only the root knows the windows: first_us: the earliest marker or LEAD passed to the root, None if there is none.
    late_leads: (time, bound) of late readings that may open the first window of all nodes and have not left yet.
    """

    leading: bool
    waiting: list[Marker] = field(default_factory=list)
    start: Ints = field(default_factory=lambda: NO_INTS)
    end: Ints = field(default_factory=lambda: NO_INTS)
    made: int = 0
    open_us: int | None = None
    begun: bool = False
    led: bool = False
    first_us: int | None = None
    late_leads: list[tuple[int, int]] = field(default_factory=list)

    def add(self, markers: Iterable[Marker]) -> None:
        """Add markers at or after the frontier, in any order; a duplicate changes nothing."""
        fresh = set(markers).difference(self.waiting)
        if fresh:
            self.waiting = sorted([*self.waiting, *fresh])

    def advance(self, frontier_us: int, first_us: int | None, floor_us: int) -> list[tuple[int, int, int]]:
        """Close windows up to a frontier. Returns them as (start, end, number). All markers up to it have been added.

        first_us: time of the earliest reading that waits for the frontier, None if there is none. floor_us: windows
        that ended at or before it are forgotten.
        """
        closed: list[tuple[int, int, int]] = []
        for marker in self._take(frontier_us + 1):
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
        """Remove and return (time, role) of the markers below a frontier, for the root. All of them have been added.

        first_us: as in `advance`; if that reading opens a window, a marker with role LEAD represents it.
        """
        out: list[tuple[int, str]] = []
        for marker in self._take(frontier_us):
            out += self._leads(first_us, marker.time_us)
            self._note(marker.time_us)
            out.append((marker.time_us, marker.role))
        return out + self._leads(first_us, frontier_us)

    def pass_late(self, time_us: int, bound_us: int) -> None:
        """Note a late reading for the root if it may open the first window: see MergedMarkers.add_lead."""
        if self._may_lead(time_us):
            self.late_leads.append((time_us, bound_us))
            self._note(time_us)

    def _take(self, before_us: int) -> list[Marker]:
        """Remove and return the markers before a time, in order."""
        upto = bisect_left(self.waiting, before_us, key=lambda marker: marker.time_us)
        taken, self.waiting = self.waiting[:upto], self.waiting[upto:]
        return taken

    def _leads(self, first_us: int | None, before_us: int) -> list[tuple[int, str]]:
        if first_us is None or first_us >= before_us or not self._may_lead(first_us):
            return []
        self._note(first_us)
        return [(first_us, LEAD)]

    def _may_lead(self, time_us: int) -> bool:
        """Whether a reading is before all that this node has passed to the root. Markers of others may precede it."""
        return self.leading and (self.first_us is None or time_us < self.first_us)

    def _note(self, time_us: int) -> None:
        self.begun, self.first_us = True, time_us if self.first_us is None else min(time_us, self.first_us)

    def _lead(self, first_us: int | None, before_us: int) -> None:
        """If `leading`, open a window at a first reading that precedes all markers."""
        if self.leading and not self.begun and first_us is not None and first_us < before_us:
            self.open_us, self.begun, self.led = first_us, True, True

    def lead_late(self, time_us: int) -> None:
        """Handle a late reading. With `leading` and no earlier marker, it opens the first window or moves its start."""
        if self.leading and (self.led or not self.begun) and (self.open_us is None or time_us < self.open_us):
            self.open_us, self.begun, self.led = time_us, True, True

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """(start, end) of the window of each reading below the frontier.

        end FAR_US: the window is open. Both NEVER_US: the reading is in no window.
        """
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
        """Whether a known window begins or ends after this time."""
        return (self.open_us or NEVER_US) > time_us or bool(len(self.end) and self.end[-1] > time_us)

    def snapshot(self) -> dict[str, object]:
        return {
            "waiting": [[marker.time_us, marker.role, marker.id] for marker in self.waiting],
            "closed": [self.start, self.end],
            "made": self.made,
            "open": self.open_us,
            "begun": self.begun,
            "led": self.led,
            "first": self.first_us,
            "late_leads": [list(lead) for lead in self.late_leads],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `snapshot` returned."""
        self.waiting = [Marker(*marker) for marker in state["waiting"]]
        self.start, self.end = state["closed"]
        self.made, self.open_us, self.begun = state["made"], state["open"], state["begun"]
        self.led = state.get("led", False)
        # an older version did not keep the time of what it passed to the root: then nothing may precede it
        self.first_us = state.get("first", NEVER_US if self.begun else None)
        self.late_leads = [(time_us, bound_us) for time_us, bound_us in state.get("late_leads", ())]
