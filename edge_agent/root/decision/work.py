"""The Work of one decision: plain values, stored in its row of ops.batches so that a replay reuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import NEVER_US, Plan, Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.query.query import Aggregate, Group
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow
from edge_agent.wire import snapshot

VERSION: Final = 1
ROWS: Final = ("coverage", "gaps", "queries", "sensors")
TableRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Windows of one query revision that end in (after_us, upto_us] and share a coverage.

    node: of local windows, else ''. shape: index into Work.shapes. Window starts are offset_us + i * slide_us within
    [low_us, high_us]. orders: numbers of the read requests for the rows in the windows. picks: for one window between
    markers, (number of the read request, start, end) of its rows. within: rows inside a pick count; else only rows with
    exactly its range. by_end: rows with equal start may differ in their end.
    """

    query: str
    revision: int
    shape: int
    after_us: int
    upto_us: int
    length_us: int
    slide_us: int
    offset_us: int
    low_us: int
    high_us: int
    orders: tuple[int, ...]
    coverage_id: str
    expected: int
    received: int
    complete: bool
    node: str = ""
    picks: tuple[tuple[int, int, int], ...] = ()
    within: bool = False
    by_end: bool = False


def identity(group: Group, plan: Plan) -> bytes:
    """The id of a plan at the root.

    It includes the node of the group, because equal plans of local windows at different nodes have equal hashes.
    """
    return plan.hash + group.node.encode()


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request for the rows of one plan, converted to states of one scale.

    plan: its `identity`. kind, basis, scale: of the plan. target: scale of the resulting states (docs/protocol.md 7.1).
    gap_us, max_us: of sessions (5.3, 5.5). lifted: if the markers of all nodes cut one stream, the basis of the slices
    to make from raw readings; else empty. reaching: see root/instant_slices.py.
    """

    number: int
    plan: bytes
    kind: str
    basis: tuple[str, ...]
    scale: int | None
    target: int | None
    gap_us: int = 0
    max_us: int = 0
    lifted: tuple[str, ...] = ()
    reaching: bool = False


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The values for one key of a query of sessions. bound_us, shut_us: see Islands.

    touch: range of event time, both ends included; rows of islands that touch it are computed again. None: no row.
    """

    key: str
    bound_us: int
    shut_us: int
    touch: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CoverageCell:
    """The islands with one coverage: first reading in [first_low, first_high), last + gap in [end_low, end_high).

    key: '' for all keys without cells of their own, else '=' and the key. Times in us. revising: the cell is for rows
    that are computed again; else for first rows.
    """

    key: str
    first_low: int
    first_high: int
    end_low: int
    end_high: int
    coverage_id: str
    expected: int
    received: int
    complete: bool
    revising: bool = False


@dataclass(frozen=True, slots=True)
class Islands:
    """Sessions of one query revision that get their first rows, or whose rows are computed again (docs/protocol.md 5).

    shape: index into Work.shapes. bound_us: islands with last + gap below it are complete. shut_us: islands with last +
    gap below it have had a row. Both apply to all keys except those in `keys`. low_us: start of the earliest island
    that gets its first row; None if there is none. due: rows may be revised now: those of islands that touch `touch`,
    for any key, or the range of their own key. start_from_us, start_until_us, end_until_us: which islands may give rows
    (6.3). crossing_us: latest last + gap of islands that began before start_from_us. node: of local windows, else ''.
    meets: rows of an older revision may exist where first rows are written.
    """

    query: str
    revision: int
    shape: int
    gap_us: int
    max_us: int
    orders: tuple[int, ...]
    bound_us: int
    shut_us: int
    low_us: int | None
    due: bool
    touch: tuple[int, int] | None
    start_from_us: int | None
    start_until_us: int | None
    end_until_us: int | None
    crossing_us: int
    node: str
    meets: bool
    keys: tuple[SessionKey, ...]
    cells: tuple[CoverageCell, ...]

    @property
    def serving(self) -> Serving:
        """Which islands may give rows (docs/protocol.md 6.3)."""
        return Serving(self.query, self.revision, self.start_from_us, self.start_until_us, self.end_until_us)

    @property
    def revises(self) -> bool:
        """Whether rows may change."""
        return self.due and (self.touch is not None or any(k.touch is not None for k in self.keys))


@dataclass(frozen=True, slots=True)
class Ordering:
    """Raw readings of one query revision that get positions now: those in [after_us, upto_us) of event time.

    target: scale of the states computed from them. orders: numbers of the read requests for their rows. node: of local
    windows, else ''. cells: coverages by first and last reading of a window (docs/protocol.md 7.4).
    """

    query: str
    revision: int
    node: str
    target: int | None
    orders: tuple[int, ...]
    after_us: int
    upto_us: int
    cells: tuple[CoverageCell, ...]


@dataclass(frozen=True, slots=True)
class TooLate:
    """Readings of a part that are in no result: those in rows that start before `before_us`.

    lasting: those in rows whose last reading is before `before_us` instead. decided: the reason is a deciding frontier
    that has given positions (7.4), not the correction horizon; of a raw row only the readings before `before_us` count.
    begun_us: for sessions, also those in rows that start before this time; such rows end by until_us (8.4).
    """

    node: str
    epoch: int
    seq: int
    part: int
    source: str
    before_us: int
    decided: bool = False
    lasting: bool = False
    begun_us: int = NEVER_US
    until_us: int = NEVER_US

    @property
    def reason(self) -> str:
        """The reason, for ops.late."""
        return "later readings already had their positions" if self.decided else "beyond the correction horizon"

    def concerns(self, start: Ints, end: Ints) -> NDArray[np.bool_]:
        """Which rows of the part contain such readings: shape (n,) each."""
        return ((end - 1 if self.lasting else start) < self.before_us) | (start < self.begun_us)


@dataclass(frozen=True, slots=True)
class RefusedFrame:
    """A frame that contradicts its epoch: settled without content at the time when it would have taken effect."""

    node: str
    epoch: int
    seq: int
    reason: str


RECORDS: Final[Mapping[str, type[Any]]] = {  # types of the items in tuple fields of Work
    "orders": ReadRequest,
    "closing": WindowRange,
    "revising": WindowRange,
    "beyond": TooLate,
    "refused": RefusedFrame,
    "islands": Islands,
    "ordering": Ordering,
    "gone": WithdrawnWindow,
    "over": SupersededRows,
}
WITHIN: Final[Mapping[type[Any], Mapping[str, type[Any]]]] = {  # types of the items in tuple fields of these records
    Islands: {"keys": SessionKey, "cells": CoverageCell},
    Ordering: {"cells": CoverageCell},
}


@dataclass(frozen=True, slots=True)
class Work:
    """All changes of tables that follow from a decision.

    closing: windows that get their first rows. revising: windows whose rows are computed again. islands: sessions of
    both kinds. ordering: readings that get positions. beyond: readings in no result. refused: frames without effect.
    unread: number of messages of the batch that could not be read. gone, over: rows to withdraw. coverage, gaps,
    queries, sensors: finished rows of ops tables. coverages: by coverage_id, all that this work refers to; not in
    `dumps`, because ops.coverage stores them.
    """

    number: int
    shapes: tuple[tuple[tuple[Aggregate, ...], int | None], ...] = ()
    orders: tuple[ReadRequest, ...] = ()
    closing: tuple[WindowRange, ...] = ()
    revising: tuple[WindowRange, ...] = ()
    beyond: tuple[TooLate, ...] = ()
    refused: tuple[RefusedFrame, ...] = ()
    unread: int = 0
    coverage: tuple[TableRow, ...] = ()
    gaps: tuple[TableRow, ...] = ()
    queries: tuple[TableRow, ...] = ()
    sensors: tuple[TableRow, ...] = ()
    islands: tuple[Islands, ...] = ()
    ordering: tuple[Ordering, ...] = ()
    gone: tuple[WithdrawnWindow, ...] = ()
    over: tuple[SupersededRows, ...] = ()
    coverages: Mapping[str, Coverage] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """Whether no table changes. Read requests alone change none."""
        return not self.unread and not any(getattr(self, name) for name in (*RECORDS, *ROWS) if name != "orders")

    def dumps(self) -> bytes:
        """The work as bytes for the decision's row."""
        shapes = [[[[a.fn, a.name, [list(p) for p in a.params]] for a in group], scale] for group, scale in self.shapes]
        plain: dict[str, object] = {"version": VERSION, "number": self.number, "shapes": shapes, "unread": self.unread}
        for name in RECORDS:
            plain[name] = [list(astuple(value)) for value in getattr(self, name)]
        for name in ROWS:
            plain[name] = list(getattr(self, name))
        return snapshot.dumps(plain)

    @classmethod
    def loads(cls, content: bytes) -> Self:
        """The inverse of `dumps`. Raises: WireError."""
        plain: dict[str, Any] = snapshot.loads(content)
        shapes = tuple(
            (tuple(Aggregate(fn, name, tuple((k, v) for k, v in params)) for fn, name, params in group), scale)
            for group, scale in plain["shapes"]
        )
        held: dict[str, Any] = {name: tuple(plain[name]) for name in ROWS}
        for name, kind in RECORDS.items():
            held[name] = tuple(_record(kind, values) for values in plain[name])
        return cls(plain["number"], shapes, unread=plain["unread"], **held)


def _record(kind: type[Any], values: Sequence[Any]) -> Any:
    """Make a record from the result of `astuple`."""
    within, held = WITHIN.get(kind, {}), list(values)
    for place, column in enumerate(fields(kind)):
        if column.name in within:
            held[place] = tuple(_record(within[column.name], each) for each in held[place])
    return kind(*held)
