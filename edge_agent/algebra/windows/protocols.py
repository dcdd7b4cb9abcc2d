"""The interfaces of window types: `Window` for windows by time, `OrderedWindow` for windows in the order of all
readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import EdgeSet, Lattice, Run
from edge_agent.algebra.windows.base import Setting, Wrong
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows


class Spec(Protocol):
    """What every window type declares, so that definitions can use it."""

    type: ClassVar[str]  # the word in a definition: 'tumbling', 'sliding', ...
    KEYS: ClassVar[tuple[Setting, ...]]  # of its table; the fields of the spec

    def wrong(self) -> Wrong | None:
        """The mistake in values that are each valid on their own; None if there is none."""


class Window(Spec, Protocol):
    """A context-free time window: windows [start, end) known from the definition alone. Times in us.

    No window starts before 0 (the epoch). Starts are unique, and ends are in the order of starts.
    """

    @property
    def longest_us(self) -> int:
        """No window is longer."""

    @property
    def one_length(self) -> bool:
        """Whether every window is as long."""

    @property
    def unit_us(self) -> int:
        """A common divisor of all edges."""

    @property
    def edge_sets(self) -> tuple[EdgeSet, ...]:
        """Where windows start (the first) and end; their union is what `edges` lists."""

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        """Evenly spaced edges as frequent as those of `edge_sets`: for estimates. At least one, the first of starts."""

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All window starts and ends e with low <= e <= high; sorted, unique."""

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Windows that contain each range [start, end): (row index, window start), one entry a pair.

        A range that lies in no window gives none.
        """

    def ends(self, start: Ints) -> Ints:
        """The end of the window that starts at each of these starts of windows."""

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        """All windows with an end in (after, upto], as runs of evenly spaced ones of one length, in order.

        The ranges (after, upto] of the runs are disjoint. So edges leave here as plain numbers, and who forms windows
        elsewhere (Spark) needs no calendar.
        """


class OrderedWindow(Spec, Protocol):
    """A window that only the root can form: a reading's place among all others decides (docs/protocol.md 7.4).

    Readings of such a query travel raw. positions: whether its windows start and end at positions; else at times.
    labels: the labels in its conditions, all of which must be in the key.
    """

    positions: ClassVar[bool]

    @property
    def labels(self) -> frozenset[str]: ...

    def cut(self, line: OrderedReadings) -> RowWindows:
        """The windows that are complete. What `RowWindows.keep` leaves is asked again, with what has come since."""
