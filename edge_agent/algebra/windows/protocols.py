"""Interfaces of window types: `Window` for windows by time, `OrderedWindow` for windows by the order of readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import EdgeSet, Lattice, Run
from edge_agent.algebra.windows.declaration import Setting, Wrong
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows


class Spec(Protocol):
    """The members that every window type must have."""

    type: ClassVar[str]  # its name in definitions: 'tumbling', 'sliding', ...
    KEYS: ClassVar[tuple[Setting, ...]]  # its settings in definitions; each is a field of the spec

    def wrong(self) -> Wrong | None:
        """The mistake in a combination of values that are valid one by one; None if there is none."""


class Window(Spec, Protocol):
    """Windows [start, end) by time, which follow from the definition alone. Times in us.

    No window starts before 0 (1970). Starts are unique, and ends have the same order as starts.
    """

    @property
    def longest_us(self) -> int:
        """Length of the longest window."""

    @property
    def one_length(self) -> bool:
        """Whether all windows have the same length."""

    @property
    def unit_us(self) -> int:
        """A common divisor of all edges."""

    @property
    def edge_sets(self) -> tuple[EdgeSet, ...]:
        """Sets of edges whose union are all starts and ends of windows. The first contains exactly the starts."""

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        """For estimates: evenly spaced edges, as frequent as those of `edge_sets`. The first lattice is for starts."""

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All starts and ends of windows within [low_us, high_us], sorted, unique."""

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Find the windows that contain each range [start, end). Returns (row index, window start) of each pair."""

    def ends(self, start: Ints) -> Ints:
        """The end of the window that begins at each start."""

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        """All windows with an end in (after_us, upto_us], as runs of evenly spaced windows of one length, in order.

        The ranges (after_us, upto_us] of the runs must be disjoint. Spark forms windows from these numbers, so it needs
        no calendar.
        """


class OrderedWindow(Spec, Protocol):
    """Windows that only the root can form, because they depend on the order of all readings (docs/protocol.md 7.4).

    Nodes send the raw readings of such a query. positions: whether starts and ends of windows are positions rather than
    times. labels: labels in the conditions of the window; the key must contain all of them.
    """

    positions: ClassVar[bool]

    @property
    def labels(self) -> frozenset[str]: ...

    def cut(self, line: OrderedReadings) -> RowWindows:
        """The complete windows. The next call gets the rows from `RowWindows.keep` on again, before new readings."""
