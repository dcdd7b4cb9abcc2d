"""Markers of one stream to windows: what has closed, what is open, and in which window a reading is.

A marker holds from its time on: windows are [marker, next marker). With explicit markers a window begins at a 'start'
while none is open, and ends at an 'end'; a 'start' in an open window and an 'end' outside one change nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.algebra.windows.punctuation import FORM, SKIPS

LEAD: Final = "lead"  # kind of what a first reading gives where it opens a window
MARKER_KEY: Final = "|"  # no key of readings is so: those are '' or hold a '='
ORDINALS: Final = 4_096  # a window's number travels modulo this in the key of its marker: few keys, whatever the time
MOST_WINDOWS: Final = 65_536  # remembered for late readings; more than one a ten seconds for a week


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """One marker. kind: '' ends a window and begins the next, 'start', 'end'. id: what kind of event it is, or ''."""

    time_us: int
    kind: str = ""
    id: str = ""


def key_of(ordinal: int | None) -> str:
    """The key of a window's marker: with its number at the node where that matters."""
    return MARKER_KEY if ordinal is None else f"{MARKER_KEY}{ordinal % ORDINALS}"


def ordinal_of(key: str, after: int) -> int:
    """The twin of `key_of`: the number next to `after` that fits. A merger may pass on later windows first.

    after: the last number so far, -1: there is none.
    """
    back = min(ORDINALS // 2, after + 1)
    return after + 1 - back + (int(key[1:]) - after - 1 + back) % ORDINALS


def cut_key(kind: str) -> str:
    """The key of a marker that travels as it is, for the root to put in order."""
    return f"{MARKER_KEY}:{kind}"


def cut_of(key: str) -> str | None:
    """The twin of `cut_key`: its kind; None: the key is of a window's marker."""
    return key[2:] if key.startswith(cut_key("")) else None


def is_marked(group: Group) -> bool:
    """Whether its windows run from marker to marker."""
    return group.form.startswith(f"{FORM} ")


def interpretation_of(group: Group) -> str:
    """What is one window of several nodes (algebra/windows/punctuation.py)."""
    return group.form.split(" ", 4)[1].removesuffix(SKIPS)


def skips_of(group: Group) -> bool:
    """Whether nodes that are left out hold nothing back."""
    return group.form.split(" ", 4)[1].endswith(SKIPS)


def is_ordered(group: Group) -> bool:
    """Whether windows merge by their number at the node."""
    return is_marked(group) and interpretation_of(group) == "order"


def is_central(group: Group) -> bool:
    """Whether the markers of all nodes cut one stream."""
    return is_marked(group) and interpretation_of(group) == "central"


def kinds_of(group: Group) -> tuple[str, ...]:
    """The kinds of rows that may be of a group."""
    if group.form == RAW:
        return (RAW,)
    return (RAW, "marker") if is_central(group) else ("slice", "window", "session", "marker")


def leading_of(group: Group) -> bool:
    """Whether the first reading before any marker opens a window."""
    return group.form.split(" ", 4)[2] == "open"


def giver_of(group: Group) -> str:
    """The sensor whose changes are its markers; COMMANDS: none."""
    return group.form.split(" ", 4)[3]


def changed(group: Group, changes: Iterable[tuple[int, float]]) -> list[Marker]:
    """Changes of a sensor's value as markers of a group."""
    explicit = interpretation_of(group) == "overlap"
    return [
        Marker(time_us, (("start" if value else "end") if explicit else ""), f"{value:g}") for time_us, value in changes
    ]


def concerns(group: Group, marker: Marker) -> bool:
    """Whether a marker is one of its windows."""
    wanted = [*group.form.split(" ", 4), ""][4]
    return wanted in {"", marker.id}


@dataclass(slots=True)
class Markers:
    """The markers of one slicer.

    waiting: not passed by the frontier yet, sorted. start, end: of the windows that have closed, in order; made: how
    many there have ever been. open_us: where the open window began, None: none is open. begun: whether the first window
    has begun. led: whether it is open and a reading led it, so that an earlier one, which can only be late, leads it.
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
        """Markers that are not below the frontier, in any order; one that is known changes nothing."""
        for marker in markers:
            if marker not in self.waiting:
                insort(self.waiting, marker)

    def advance(self, frontier_us: int, first_us: int | None, floor_us: int) -> list[tuple[int, int, int]]:
        """Windows (start, end, number) that close at a frontier: the markers up to it are all here.

        first_us: the earliest reading below it that no marker has been passed for, None: there is none. floor_us: what
        ended before may be forgotten.
        """
        closed: list[tuple[int, int, int]] = []
        while self.waiting and self.waiting[0].time_us <= frontier_us:
            marker = self.waiting.pop(0)
            self._lead(first_us, marker.time_us)
            self.begun, self.led = True, False
            if self.open_us is not None and marker.kind != "start":
                if marker.time_us > self.open_us:
                    closed.append((self.open_us, marker.time_us, self.made))
                    self.made += 1
                self.open_us = None
            if self.open_us is None and marker.kind != "end":
                self.open_us = marker.time_us
        self._lead(first_us, frontier_us)
        if closed:
            kept = np.flatnonzero(self.end > floor_us)[-MOST_WINDOWS:]
            fresh = np.array([window[:2] for window in closed], np.int64)
            self.start = np.concatenate([self.start[kept], fresh[:, 0]])
            self.end = np.concatenate([self.end[kept], fresh[:, 1]])
        return closed

    def passed(self, frontier_us: int, first_us: int | None) -> list[tuple[int, str]]:
        """(time, kind) of the markers below a frontier, which are all here: for the root, that has those of all nodes.

        first_us: the earliest reading below it that no marker has been passed for: kind LEAD where it leads.
        """
        out: list[tuple[int, str]] = []
        while self.waiting and self.waiting[0].time_us < frontier_us:
            marker = self.waiting.pop(0)
            out += self._leads(first_us, marker.time_us)
            self.begun = True
            out.append((marker.time_us, marker.kind))
        return out + self._leads(first_us, frontier_us)

    def _leads(self, first_us: int | None, before_us: int) -> list[tuple[int, str]]:
        self._lead(first_us, before_us)
        led_us, self.open_us = self.open_us, None  # nothing is open here: the root knows what is
        return [] if led_us is None else [(led_us, LEAD)]

    def _lead(self, first_us: int | None, before_us: int) -> None:
        """The first reading before any marker opens a window, where that is asked for."""
        if self.leading and not self.begun and first_us is not None and first_us < before_us:
            self.open_us, self.begun, self.led = first_us, True, True

    def lead_late(self, time_us: int) -> None:
        """A reading below the frontier, which no marker has been passed for: it may be the first of all."""
        if self.leading and (self.led or not self.begun) and (self.open_us is None or time_us < self.open_us):
            self.open_us, self.begun, self.led = time_us, True, True

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        """(start, end) of the window of each reading below the frontier; end FAR_US: open; start NEVER_US: in none."""
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

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "waiting": [[marker.time_us, marker.kind, marker.id] for marker in self.waiting],
            "closed": [self.start, self.end],
            "made": self.made,
            "open": self.open_us,
            "begun": self.begun,
            "led": self.led,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The twin of `snapshot`."""
        self.waiting = [Marker(*marker) for marker in state["waiting"]]
        self.start, self.end = state["closed"]
        self.made, self.open_us, self.begun = state["made"], state["open"], state["begun"]
        self.led = state.get("led", False)
