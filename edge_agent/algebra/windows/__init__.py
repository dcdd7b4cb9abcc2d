"""Window types: one a file, each a frozen spec with the slice edges it causes. `TYPES` is the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partial import Ints
from edge_agent.algebra.span import Lattice
from edge_agent.algebra.windows.session import Session
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.algebra.windows.tumbling import Tumbling

__all__ = ["ALL", "TYPES", "Session", "Sliding", "Tumbling", "Window", "reach_us"]


class Window(Protocol):
    """A context-free time window: windows [start, end) known from the definition alone. Times in us."""

    @property
    def type(self) -> str:
        """The word in a definition: 'tumbling', 'sliding', ..."""

    @property
    def length_us(self) -> int:
        """End minus start."""

    @property
    def slide_us(self) -> int:
        """Start to start."""

    @property
    def offset_us(self) -> int:
        """Starts are this plus multiples of the slide."""

    @property
    def unit_us(self) -> int:
        """Greatest common divisor of all edges (of slide, length and offset)."""

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        """Where windows start (the first) and end, as evenly spaced edges; their union is what `edges` lists."""

    def edges(self, low_us: int, high_us: int) -> Ints:
        """All window starts and ends e with low <= e <= high; sorted, unique."""

    def assign(self, start: Ints, end: Ints) -> tuple[NDArray[np.int64], Ints]:
        """Windows that contain each range [start, end): (row index, window start), one entry a pair.

        Windows never start before 0 (the epoch). A range that lies in no window gives none.
        """


TYPES: Final[Mapping[str, type[Tumbling] | type[Sliding]]] = {cls.type: cls for cls in (Tumbling, Sliding)}
ALL: Final[Mapping[str, type[Tumbling] | type[Sliding] | type[Session]]] = {**TYPES, Session.type: Session}


def reach_us(window: Window | Session) -> int:
    """How far from a reading the window that holds it may lie: its length, or the gap of a session."""
    return window.gap_us if isinstance(window, Session) else window.length_us
