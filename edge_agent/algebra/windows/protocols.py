"""The interfaces of window types: `Window` for windows by time, `OrderedWindow` for windows by order of readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.span import EdgeSet, Lattice, Run
from edge_agent.algebra.windows.base import Setting, Wrong
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows


class Spec(Protocol):
    """The declarations that definitions need of every window type."""

    type: ClassVar[str]  # the word in a definition: 'tumbling', 'sliding', ...
    KEYS: ClassVar[tuple[Setting, ...]]  # keys of its table; each is a field of the spec

    def wrong(self) -> Wrong | None:
        """The mistake in values that are valid one by one; None if there is none."""


class Window(Spec, Protocol):
    """A context-free time window: windows [start, end) known from the definition alone. Times in us.

    No window starts before 0 (the epoch). Starts are unique, and ends are in the order of starts.
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
        """Where windows start (the first) and end; their union is what `edges` lists."""

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        """Evenly spaced edges as frequent as those of `edge_sets`: for estimates. At least one, the first of starts."""

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All window starts and ends e with low <= e <= high; sorted, unique."""

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The windows that contain each range [start, end): (row index, window start), one entry per pair."""

    def ends(self, start: Ints) -> Ints:
        """The end of the window that begins at each start."""

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        """All windows with an end in (after, upto], as runs of evenly spaced windows of one length, in order.

        The ranges (after, upto] of the runs are disjoint. Spark forms windows from these numbers, without a calendar.
        """


class OrderedWindow(Spec, Protocol):
    """A window that only the root can form, because it depends on the order of all readings (docs/protocol.md 7.4).

    Readings of such a query travel raw. positions: whether windows start and end at positions rather than at times.
    labels: the labels in its conditions; the key must contain all of them.
    """

    positions: ClassVar[bool]

    @property
    def labels(self) -> frozenset[str]: ...

    def cut(self, line: OrderedReadings) -> RowWindows:
        """The complete windows. Rows from `RowWindows.keep` on are passed again, with the readings that follow."""
