"""The values that frames, heartbeats and receipts carry between nodes; wire/ encodes them (schemas/frame.cddl).

Numbers of groups, plans, keys and nodes belong to one epoch: first use defines them, and they are never reused
(docs/protocol.md 2.4). Times are microseconds; a frontier of None is minus infinity in a birth and "unchanged"
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials, readings_in
from edge_agent.algebra.partials.row_validation import bounds, check_basis, check_columns, check_held, node_columns
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.sketches import kind_of
from edge_agent.errors import WireError

LATEST_US: Final = 2**61  # after every event time
NEVER_US: Final = -(2**62)  # minus infinity of frontiers
KINDS: Final = ("slice", "window", "session", "raw", "marker")
HORIZON_US: Final = 7 * 86_400_000_000  # of a receipt that names none; the default of `[root] horizon`
MAX_HORIZON_US: Final = 366 * 86_400_000_000  # the longest that `[root] horizon` may be
MAX_FRAME_BYTES: Final = 128 * 1024  # a frame is built to fit (docs/protocol.md 2.1)
LEAF_READINGS: Final = 2**40  # of one gateway in one row: 35 000 a second for a year; sums of them fit 64 bits
MAX_KEYS: Final = 2**16  # keys of one epoch; then a new epoch begins (docs/protocol.md 2.4)
MAX_LEAVES: Final = 2**20  # gateways below one node
MAX_PLAN_BYTES: Final = 80_000  # of the (query, revision)s that a plan names: it stands in one frame, beside others
MAX_COLUMNS: Final = 256  # state columns of a plan: a histogram of 100 edges, and all other functions beside it
LOST: Final = "lost"
LONG_AGO_US: Final = 0  # the start of a gap record whose sender cannot know it
JOURNAL_LOST: Final = "journal lost"  # reason of a gap record: what the parent's lost journal held (3.7)
IN_DOUBT: Final = "in doubt"  # reason of a gap record: published to a journal that was lost (3.7)
ENDED: Final = "ended"  # reason of coverage: a leaf stopped to serve the query within the window
DAMAGED: Final = "damaged"  # reason of a gap record: the bytes of a frame were gone from its spool (3.6)
FRAMES_LOST: Final = "received frames are in no landing file"  # reason of a gap record of the root (3.2)
BEGAN: Final = "began"  # reason of a gap record, and of coverage: readings from before were not heard


@dataclass(frozen=True, slots=True)
class Plan:
    """What a section's rows are. hash: 8 bytes over kind, basis and the (query, revision)s served; equal everywhere.

    unit_us: greatest common divisor of the window edges; ranges travel in it. basis: state columns in order.
    scale: power of ten of scaled-integer values, None for floats. gap_us: of sessions.
    """

    hash: bytes
    kind: str
    basis: tuple[str, ...]
    scale: int | None
    unit_us: int
    queries: tuple[tuple[str, int], ...]
    gap_us: int | None = None

    @property
    def keys(self) -> tuple[QueryKey, ...]:
        """`queries` by name."""
        return tuple(QueryKey(*query) for query in self.queries)


@dataclass(frozen=True, slots=True)
class Define:
    """Names for the numbers of this epoch, and definitions that are new in it.

    keys, nodes: (first number, texts) - consecutive. queries, sensors: canonical JSON texts (config.definitions).
    groups: (number, Group). plans: (number, group number, Plan).
    """

    keys: tuple[int, tuple[str, ...]] = (0, ())
    nodes: tuple[int, tuple[str, ...]] = (0, ())
    groups: tuple[tuple[int, Group], ...] = ()
    plans: tuple[tuple[int, int, Plan], ...] = ()
    queries: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Birth:
    """The first record of an epoch (docs/protocol.md 1.2).

    predecessor: (epoch, last seq) at this parent, None, or LOST. frames: how many frames the birth takes; it holds when
    all have arrived. held: epochs of which frames are still in the spool, including the predecessor; None: not stated.
    flush: the last seq before the flush that ended the predecessor; None: there was none, or it is not stated.
    """

    epoch_id: int  # 64 bits; the frame's epoch is its first 32
    journal: int
    predecessor: tuple[int, int] | str | None
    version: str
    frames: int = 1
    held: tuple[int, ...] | None = None
    flush: int | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A gateway below: its present epoch and the epoch before its last move, if any (docs/protocol.md 1.5)."""

    node: str
    epoch: int
    before_move: int | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The range of event time for which a node serves a query: window starts in [start_from, start_until), ends <=
    end_until.

    None is unbounded. A merger passes on the narrowest range of its members (docs/protocol.md 6.3). node: '' for all
    leaves below the sender (from LATEST_US on: none of them serves it any longer), else one leaf that begins later than
    the others (LATEST_US: does not serve it) or ends earlier. If such a leaf has no start, it does not serve the query
    any longer either.
    """

    query: str
    revision: int
    start_from_us: int | None = None
    start_until_us: int | None = None
    end_until_us: int | None = None
    node: str = ""

    @property
    def key(self) -> QueryKey:
        """The query revision."""
        return QueryKey(self.query, self.revision)

    @property
    def from_us(self) -> int:
        """`start_from_us` as a number: NEVER_US where it is unbounded."""
        return self.bounds_us[0]

    @property
    def bounds_us(self) -> tuple[int, int, int]:
        """(lowest start, start that is past the last one, latest end), NEVER_US and -NEVER_US where unbounded."""
        return (
            NEVER_US if self.start_from_us is None else self.start_from_us,
            -NEVER_US if self.start_until_us is None else self.start_until_us,
            -NEVER_US if self.end_until_us is None else self.end_until_us,
        )

    def covers(self, start_us: int, end_us: int) -> bool:
        """Whether the window [start, end) may give a row of this revision (docs/protocol.md 6.3)."""
        from_us, until_us, end_until_us = self.bounds_us
        return from_us <= start_us < until_us and end_us <= end_until_us

    def covered(self, start_us: Ints, end_us: Ints) -> NDArray[np.bool_]:
        """`covers` for many windows: shape (n,) each."""
        from_us, until_us, end_until_us = self.bounds_us
        return (start_us >= from_us) & (start_us < until_us) & (end_us <= end_until_us)

    def starts(self, length_us: int) -> tuple[int, int]:
        """(lowest, highest) start of windows of one length that may give rows."""
        from_us, until_us, end_until_us = self.bounds_us
        return from_us, min(until_us - 1, end_until_us - length_us)

    def readings(self, after_us: int, upto_us: int) -> tuple[int, int]:
        """The part of [after, upto) whose raw readings are of this revision; empty where upto <= after (7.4)."""
        from_us, until_us, end_until_us = self.bounds_us
        return max(after_us, from_us), min(upto_us, until_us, end_until_us)


@dataclass(frozen=True, slots=True)
class Members:
    """Changes of the members of one group: leaves, servings set (replacing those of the same name) and dropped."""

    group: int
    leaves: tuple[Leaf, ...] = ()
    dropped: tuple[str, ...] = ()
    serving: tuple[Serving, ...] = ()


@dataclass(frozen=True, slots=True)
class ExcludedLeaf:
    """A leaf or subtree left out of the frontier: its own frontier and lowest session bound (docs/protocol.md 4.6)."""

    node: str
    frontier_us: int
    bound_us: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Summary of a section's rows in a head: enough to validate them without the rows, once the plan is known.

    key: the highest. kinds: the kind of each column, one letter per column ('f', 'i', 'O'; 'B', 'b' of multisets, 'S',
    's' of series of floats or integers; 'H', 'T', 'K' of sketches). low, high: of each column of 64-bit integers; for
    series of their node numbers; 0 for others. pieces: of session rows only, which key lies where: int64 keys, starts
    and ends one after the other, little-endian; a partial clears the register of its key (docs/protocol.md 5.2).
    readings: of all rows. start_us, end_us: the time that they span.
    """

    key: int
    kinds: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    pieces: bytes = b""
    readings: int = 0
    start_us: int = 0
    end_us: int = 0

    @classmethod
    def of(cls, section: Section, *, sessions: bool = False) -> Extent:
        """Summarise at least one row. sessions: whether the rows may be sessions."""
        rows = section.partials
        columns = rows.states.values()
        low, high = zip(*map(bounds, columns), strict=True) if columns else ((), ())
        pieces = np.concatenate([rows.key, rows.start, rows.end]).astype("<i8").tobytes() if sessions else b""
        kinds, readings = "".join(map(kind_of, columns)), section.readings
        return cls(section.highest_key, kinds, low, high, pieces, readings, *section.span_us)


class Seen(NamedTuple):
    """What the decoder found in all rows of a section.

    key: the highest. range_us: [start, end) if all rows have the same. first: the integer that the first column has in
    each row, if it is the same.
    """

    key: int | None = None
    range_us: tuple[int, int] | None = None
    first: int | None = None


NOT_SEEN: Final = Seen()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one plan. plan: its number in this epoch; partials.key: key numbers of this epoch.

    Columns travel by position in the plan's basis: a decoded section has states '0', '1', ... until `named` gives them
    their names, once the plan is known (frames may come before the one that defines it). extent: of a head, whose rows
    are elsewhere; sections with rows need none. seen: what the decoder of a frame saw without looking at each row.
    """

    plan: int
    partials: Partials
    extent: Extent | None = None
    seen: Seen = field(default=NOT_SEEN, compare=False, repr=False)

    @classmethod
    def of(cls, number: int, plan: Plan, partials: Partials) -> Section:
        """Build a section with columns in the order of the basis. Raises: KeyError for a missing column."""
        states = {name: partials.states[name] for name in plan.basis}
        return cls(number, Partials(partials.start, partials.end, partials.key, states))

    @property
    def readings(self) -> int:
        """Readings in the rows, here or elsewhere."""
        if self.extent is not None:
            return self.extent.readings
        first = self.seen.first
        return readings_in(self.partials) if first is None else first * len(self.partials)

    @property
    def span_us(self) -> tuple[int, int]:
        """[start, end) of at least one row."""
        if self.extent is not None:
            return self.extent.start_us, self.extent.end_us
        if self.seen.range_us is not None:
            return self.seen.range_us
        return int(self.partials.start.min()), int(self.partials.end.max())

    @property
    def end_us(self) -> int:
        """The end of at least one row."""
        if self.extent is not None:
            return self.extent.end_us
        return self.seen.range_us[1] if self.seen.range_us is not None else int(self.partials.end.max())

    @property
    def highest_key(self) -> int:
        """The highest key number of its rows; -1 without rows."""
        if self.extent is not None:
            return self.extent.key
        return self.seen.key if self.seen.key is not None else int(self.partials.key.max(initial=-1))

    def _bounds(self, column: int, columns: list[Array]) -> tuple[int, int]:
        """(lowest, highest) of a column of rows, here or elsewhere."""
        if self.extent is not None:
            return self.extent.low[column], self.extent.high[column]
        first = self.seen.first
        return bounds(columns[column]) if column or first is None else (first, first)

    def highest_node(self, plan: Plan) -> int:
        """The highest node number in its rows; -1 where they have none, or not the plan's columns, which is bad."""
        named, columns = node_columns(plan.basis), list(self.partials.states.values())
        found = len(columns) if self.extent is None else len(self.extent.kinds)
        if not named or found != len(plan.basis) or (self.extent is None and not len(self.partials)):
            return -1
        return max(self._bounds(i, columns)[1] for i in named)

    def rows(self, basis: tuple[str, ...]) -> Partials:
        """The rows with their columns under the names of the basis, unchecked."""
        rows = self.partials
        if tuple(rows.states) == basis:
            return rows
        return Partials(rows.start, rows.end, rows.key, dict(zip(basis, rows.states.values(), strict=True)))

    def pieces(self) -> tuple[Ints, Ints, Ints]:
        """(key numbers, starts, ends) of session rows, from the rows or from the extent."""
        if self.extent is None:
            return self.partials.key, self.partials.start, self.partials.end
        key, start, end = np.frombuffer(self.extent.pieces, "<i8").astype(np.int64).reshape(3, -1)
        return key, start, end

    def named(self, plan: Plan) -> Section:
        """The same rows with columns named by the basis. Raises: WireError as `check`."""
        self.check(plan)
        return Section(self.plan, self.rows(plan.basis), self.extent)

    def check(self, plan: Plan, keys: int = MAX_KEYS, nodes: int | None = None, leaves: int = MAX_LEAVES) -> None:
        """Refuse rows that contradict their plan or use undefined numbers, or count more than can be merged.

        keys, nodes: how many are defined in the epoch. leaves: gateways whose readings they are. Raises: WireError.
        """
        rows, basis = self.partials, plan.basis
        if not len(rows) and self.extent is None:
            return
        kinds = self.extent.kinds if self.extent is not None else "".join(map(kind_of, rows.states.values()))
        if len(kinds) != len(basis):
            raise WireError(f"plan {self.plan} has {len(basis)} columns ({', '.join(basis)[:200]}), got {len(kinds)}")
        check_basis(basis)
        if plan.kind == "raw" and "series" not in basis:
            raise WireError(f"plan {self.plan}: raw readings without their series")
        key = self.highest_key
        if key >= keys:
            raise WireError(f"key number {key} in plan {self.plan}, {keys} are defined")
        columns = list(rows.states.values())
        checked = check_columns(basis, kinds, plan.scale)
        for i, name, counts, numbers in checked.bounded:
            low, high = self._bounds(i, columns)
            if low < (name == "count"):
                raise WireError(f"column {name}: {low} in a row")
            if counts and high > LEAF_READINGS * min(leaves, MAX_LEAVES):
                raise WireError(f"column {name}: {high} readings in a row of {leaves} gateways")
            if numbers and nodes is not None and high >= nodes:
                raise WireError(f"column {name}: node number {high}, {nodes} are defined")
        if checked.held and len(rows):
            check_held(self.plan, dict(zip(basis, columns, strict=True)))


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group's part of a frame.

    frontier_us: the sender's promise once this frame is applied; None = unchanged (docs/protocol.md 2.3).
    exceptions: the whole new list, None = unchanged. more, ended: of a list that is too long for one frame what changes
    in it: exceptions set beside those that are there, and leaves that are none any more (docs/protocol.md 2.3).
    registers: (key number, start or None to clear); 5.2.
    late: sections of late readings, kept apart from those on time (docs/protocol.md 4.2, 8.6).
    """

    group: int
    frontier_us: int | None = None
    sections: tuple[Section, ...] = ()
    late: tuple[Section, ...] = ()
    exceptions: tuple[ExcludedLeaf, ...] | None = None
    registers: tuple[tuple[int, int | None], ...] = ()
    more: tuple[ExcludedLeaf, ...] = ()
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A declared loss (docs/protocol.md 3.5): loss is data. It stands at the seq of the first frame it replaces.

    groups: which (as Group values, so that it can be passed on unchanged); [start, end) in us; readings lost, -1 if not
    known; nodes it concerns; frames replaced (run); detail: e.g. the SHA-256 of the bytes.
    """

    groups: tuple[Group, ...]
    start_us: int
    end_us: int
    readings: int
    nodes: tuple[str, ...]
    reason: str
    run: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Flush:
    """What the frames of a flush name: the last seq before them, and the epoch that follows (docs/protocol.md 1.3).

    Two devices with one name flush in the same place, but draw different epochs (1.4). successor: None: not stated.
    """

    after: int
    successor: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One message upward. leave: the successor epoch (docs/protocol.md 1.5)."""

    epoch: int
    seq: int
    birth: Birth | None = None
    define: Define | None = None
    members: tuple[Members, ...] = ()
    groups: tuple[GroupPart, ...] = ()
    gaps: tuple[Gap, ...] = ()
    flush: Flush | None = None
    leave: int | None = None

    @property
    def readings(self) -> int:
        """How many readings its rows contain, late ones included."""
        return sum(section.readings for part in self.groups for section in (*part.sections, *part.late))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Not spooled, not receipted (docs/protocol.md 2.5): holds once the parent has applied up to last_seq.

    frontiers: (group number, frontier).
    """

    epoch: int
    last_seq: int
    frontiers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The parent's confirmation that frames are durable there (docs/protocol.md 3.2).

    upto: all seqs below it. above: [first, last] ranges received beyond. quarantined: seqs among them that were bad.
    horizon_us: the correction horizon of the root (4.2). earliest_us: only in the statements of landing files: the
    earliest start of late rows and gap records among the frames, 0 if one begins at the beginning of time; None: there
    are none.
    """

    epoch: int
    journal: int
    upto: int
    above: tuple[tuple[int, int], ...] = ()
    quarantined: tuple[int, ...] = ()
    horizon_us: int = HORIZON_US
    earliest_us: int | None = None


@dataclass(frozen=True, slots=True)
class ParentTime:
    """The parent's answer: its time when it answered, and how far that may be off (None: no time service confirms it).

    asked_us: the node's time since boot when it asked.
    """

    time_us: int
    error_us: int | None
    asked_us: int
