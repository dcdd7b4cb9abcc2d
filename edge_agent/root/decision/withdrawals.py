"""The reasons for which a row of results is withdrawn (docs/protocol.md). There are no others.

- joined (5.4): a session, or a window between markers, is now part of a longer one that has a row. Late readings join
  sessions, late markers join windows, a node that was left out adds its window to that of the others, and a late
  reading begins the first window between the markers of all nodes earlier (`PunctuationWindows._cut_anew`).
  Sessions: `joined`, for both roots; windows between markers: `PunctuationWindows.step` (root/punctuation_state.py).
- cut (7.4): a late marker divides a window between the markers of all nodes into several:
  `PunctuationWindows._cut_anew`.
- superseded (6.3): the row starts at or after the end of its query revision, which has become known since:
  `superseded`, with the start from `revision_handover.narrowed`.

Count and state windows are never withdrawn: a position is given once (7.4). A withdrawn row stays in the table, with
revision + 1. It is a result again, with the next revision, if its window gets a row again.

The arguments of the predicates are numbers, arrays or columns of Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class SessionExtent(NamedTuple):
    """The bounds of a session's row in us. block: equal for rows with no cut of the maximum duration between them."""

    start: Any
    end: Any
    block: Any


def joined(row: SessionExtent, made: SessionExtent) -> Any:
    """Whether the new row `made` of a session contains an existing row of the same query revision, node and key.

    True if they touch and no cut of the maximum duration is between them (5.5). A row with the same start is revised
    instead.
    """
    touching = (row.start <= made.end) & (row.end >= made.start)
    return touching & (row.start != made.start) & (row.block == made.block)


def superseded(start: Any, end: Any, from_us: Any, after_us: Any) -> Any:
    """Whether a row of an older revision belongs to a newer one. from_us, after_us: as in `SupersededRows`."""
    return (start >= from_us) & (end > after_us)


@dataclass(frozen=True, slots=True)
class SupersededRows:
    """Rows of a revision to withdraw because a newer revision is in force from from_us on.

    after_us: rows that end by this time are beyond the horizon and stay.
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
