"""Why a row of results is withdrawn: the whole list (docs/protocol.md). Rows are withdrawn for no other reason.

- joined (5.4): a session, or a window between markers, is part of a longer one that has a row now. Late readings join
  sessions, late markers join windows, and a node that was left out adds its window to that of the others.
  Sessions: `joined`, for both roots; windows between markers: `PunctuationWindows.step` (root/punctuation_state.py).
- cut (7.4): a late marker falls into a window between the markers of all nodes, so that others take its place:
  `PunctuationWindows._cut_anew`.
- superseded (6.3): the row belongs to a revision of a query that turns out to end before it: `superseded`, for rows
  from the start on that `revision_handover.narrowed` returns.

Count and state windows are never withdrawn: a position is given once (7.4). A withdrawn row stays in the table, with
revision + 1. It is a result again, with the next revision, if its window gets a row again.

The predicates take numbers, arrays and columns of Spark alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Extent(NamedTuple):
    """The bounds of a session's row in us. block: the multiple of the maximum duration before its start, 0 without."""

    start: Any
    end: Any
    block: Any


def joined(row: Extent, made: Extent) -> Any:
    """Whether a session that was made has joined a row of the same query revision, node and key.

    They touch, and no cut of the maximum duration is between them (5.5). A row with the same start is revised instead.
    """
    touching = (row.start <= made.end) & (row.end >= made.start)
    return touching & (row.start != made.start) & (row.block == made.block)


def superseded(start: Any, end: Any, from_us: Any, after_us: Any) -> Any:
    """Whether a newer revision holds for a row of an older one. from_us, after_us: as in `SupersededRows`."""
    return (start >= from_us) & (end > after_us)


@dataclass(frozen=True, slots=True)
class SupersededRows:
    """Rows of a revision that are withdrawn because a newer one holds from from_us on.

    after_us: rows that end by then are beyond the horizon and stay.
    """

    query: str
    revision: int
    node: str
    from_us: int
    after_us: int


@dataclass(frozen=True, slots=True)
class WithdrawnWindow:
    """A window between markers whose rows are withdrawn: joined, cut or superseded."""

    query: str
    revision: int
    node: str
    start_us: int
    end_us: int
