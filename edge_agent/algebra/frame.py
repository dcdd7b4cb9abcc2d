"""The contents of frames, heartbeats and receipts as values; wire/ encodes them (schemas/frame.cddl).

Numbers of groups, plans, keys and nodes are valid in one epoch: each is defined before its first use and never reused
(docs/protocol.md 2.4). Times are microseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials, readings_in, with_names
from edge_agent.algebra.partials.row_validation import bounds, check_basis, check_columns, check_held, node_columns
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.sketches import kind_of
from edge_agent.errors import WireError

LATEST_US: Final = 2**61  # later than every event time
NEVER_US: Final = -(2**62)  # a frontier of minus infinity: no reading yet
ROW_LIMIT_US: Final = 2**60  # bound of |time| of rows: differences, and sums with gaps and frontiers, fit 64 bits
KINDS: Final = ("slice", "window", "session", "raw", "marker")
HORIZON_US: Final = 7 * 86_400_000_000  # the horizon if a receipt contains none; the default of `[root] horizon`
MAX_HORIZON_US: Final = 366 * 86_400_000_000  # upper bound of `[root] horizon`
MAX_FRAME_BYTES: Final = 128 * 1024  # of an encoded frame (docs/protocol.md 2.1)
# Of a frame. Nodes put up to 2 457 into one; a section of 7 bytes costs a parent 50 us.
MOST_SECTIONS: Final = 4_096
LEAF_READINGS: Final = 2**40  # most readings of one gateway in one row: 35 000/s for a year; their sums fit 64 bits
MAX_KEYS: Final = 2**16  # keys of one epoch; a further key begins a new epoch (docs/protocol.md 2.4)
MAX_LEAVES: Final = 2**20  # most gateways below one node
MAX_PLAN_BYTES: Final = 80_000  # of the queries named in a plan, so that its definition fits one frame
MAX_COLUMNS: Final = 256  # state columns of a plan: enough for a histogram of 100 edges and all other functions
LOST: Final = "lost"
LONG_AGO_US: Final = 0  # start of a gap record whose sender cannot know the real start
JOURNAL_LOST: Final = "journal lost"  # reason of a gap record: readings that the parent's lost journal contained (3.7)
IN_DOUBT: Final = "in doubt"  # reason of a gap record: published, but not receipted by a lost journal (3.7)
ENDED: Final = "ended"  # reason in coverage: the leaf stopped serving the query within the window
DAMAGED: Final = "damaged"  # reason of a gap record: the spool could not return the bytes of a frame (3.6)
FRAMES_LOST: Final = "received frames are in no landing file"  # reason of a gap record of the root (3.2)
BEGAN: Final = "began"  # reason of a gap record and in coverage: earlier readings were not received


@dataclass(frozen=True, slots=True)
class Plan:
    """Describes the rows of a section. hash: 8 bytes over kind, basis, scale and queries; the same on every node.

    kind: one of KINDS. basis: names of the state columns, in order. scale: power of ten of scaled-integer values, None
    for floats. unit_us: greatest common divisor of the window edges. queries: (id, revision) of the queries served.
    gap_us: gap of sessions, None for other kinds.
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
        """`queries` as named tuples."""
        return tuple(QueryKey(*query) for query in self.queries)


@dataclass(frozen=True, slots=True)
class Define:
    """Assigns numbers of this epoch to keys, nodes, groups and plans, and contains definitions that are new in it.

    keys, nodes: (number of the first text, texts); the numbers are consecutive. groups: (number, Group). plans:
    (number, group number, Plan). queries, sensors: canonical JSON texts (config.definitions).
    """

    keys: tuple[int, tuple[str, ...]] = (0, ())
    nodes: tuple[int, tuple[str, ...]] = (0, ())
    groups: tuple[tuple[int, Group], ...] = ()
    plans: tuple[tuple[int, int, Plan], ...] = ()
    queries: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()


# a question has the last 32 bits of the id of the birth that follows, plus the number of parents asked before
MOST_ASKED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Birth:
    """Opens an epoch, in its frame 0 (docs/protocol.md 1.2).

    epoch_id: 64 bits; the first 32 are the frame's epoch. journal: id of the parent's journal. predecessor: (epoch,
    last seq) of the node's previous epoch at this parent, None for the first, LOST if it is declared lost. frames:
    number of frames of the birth, which takes effect when all have arrived. held: epochs with frames still in the
    spool, including the predecessor; None: not stated. flush: last seq before the flush that ended the predecessor;
    None: no flush, or not stated.
    """

    epoch_id: int
    journal: int
    predecessor: tuple[int, int] | str | None
    version: str
    frames: int = 1
    held: tuple[int, ...] | None = None
    flush: int | None = None

    def follows_question(self, epoch: int) -> bool:
        """Whether a heartbeat with this epoch, if it is a question, asked for the journal named here (3.7)."""
        return (epoch - self.epoch_id) & 0xFFFFFFFF < MOST_ASKED


@dataclass(frozen=True, slots=True)
class Leaf:
    """A gateway below the sender. epoch: its current one. before_move: the one before its last move (protocol 1.5)."""

    node: str
    epoch: int
    before_move: int | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The windows that a node serves of a query: starts in [start_from_us, start_until_us), ends <= end_until_us.

    A bound of None is unbounded. A merger passes on the narrowest range of its members (docs/protocol.md 6.3). node: ''
    for all leaves below the sender, else one leaf that begins later or ends earlier than the others. A start_from_us of
    LATEST_US or more means that the query is not served; so does None for a single leaf.
    """

    query: str
    revision: int
    start_from_us: int | None = None
    start_until_us: int | None = None
    end_until_us: int | None = None
    node: str = ""

    @property
    def key(self) -> QueryKey:
        """The id and revision of the query."""
        return QueryKey(self.query, self.revision)

    @property
    def from_us(self) -> int:
        """`start_from_us`, or NEVER_US if it is unbounded."""
        return self.bounds_us[0]

    @property
    def bounds_us(self) -> tuple[int, int, int]:
        """(lowest start, exclusive upper bound of starts, latest end); NEVER_US and -NEVER_US where unbounded."""
        return (
            NEVER_US if self.start_from_us is None else self.start_from_us,
            -NEVER_US if self.start_until_us is None else self.start_until_us,
            -NEVER_US if self.end_until_us is None else self.end_until_us,
        )

    def covers(self, start_us: int, end_us: int) -> bool:
        """Whether the window [start, end) is served, so that it may get a row (docs/protocol.md 6.3)."""
        from_us, until_us, end_until_us = self.bounds_us
        return from_us <= start_us < until_us and end_us <= end_until_us

    def covered(self, start_us: Ints, end_us: Ints) -> NDArray[np.bool_]:
        """`covers` for many windows: shape (n,) each."""
        from_us, until_us, end_until_us = self.bounds_us
        return (start_us >= from_us) & (start_us < until_us) & (end_us <= end_until_us)

    def starts(self, length_us: int) -> tuple[int, int]:
        """(lowest, highest) start of the served windows of one length."""
        from_us, until_us, end_until_us = self.bounds_us
        return from_us, min(until_us - 1, end_until_us - length_us)

    def readings(self, after_us: int, upto_us: int) -> tuple[int, int]:
        """The part [from, until) of [after, upto) whose raw readings are served; empty if until <= from (7.4)."""
        from_us, until_us, end_until_us = self.bounds_us
        return max(after_us, from_us), min(upto_us, until_us, end_until_us)


@dataclass(frozen=True, slots=True)
class Members:
    """Changes of the members of one group. leaves, serving: added, or replacing those of the same name."""

    group: int
    leaves: tuple[Leaf, ...] = ()
    dropped: tuple[str, ...] = ()
    serving: tuple[Serving, ...] = ()


@dataclass(frozen=True, slots=True)
class ExcludedLeaf:
    """A leaf or subtree that the group's frontier does not wait for (docs/protocol.md 4.6).

    frontier_us, bound_us: its own frontier and its lowest session bound.
    """

    node: str
    frontier_us: int
    bound_us: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Summary of the rows of a section, in a head: suffices to validate the rows once their plan is known.

    key: highest key number. kinds: one letter per column: 'f', 'i' or 'O' (numpy), 'B' or 'b' (multisets of floats or
    integers), 'S' or 's' (series), 'H', 'T' or 'K' (sketches). low, high: lowest and highest value of each column of
    64-bit integers, for series of their node numbers; 0 for other columns. pieces: for session rows, all keys, then all
    starts, then all ends, as little-endian int64; needed because a session row clears the register of its key
    (docs/protocol.md 5.2). readings: sum over all rows. start_us, end_us: lowest start and highest end.
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
        """Summarise a section with at least one row. sessions: whether the rows may be sessions."""
        rows = section.partials
        columns = rows.states.values()
        low, high = zip(*map(bounds, columns), strict=True) if columns else ((), ())
        pieces = np.concatenate([rows.key, rows.start, rows.end]).astype("<i8").tobytes() if sessions else b""
        kinds, readings = "".join(map(kind_of, columns)), section.readings
        return cls(section.highest_key, kinds, low, high, pieces, readings, *section.span_us)


class Seen(NamedTuple):
    """Facts about the rows of a section that its encoding shows. None: not shown.

    key: highest key number. range_us: [start, end) if all rows share it. first: value of the first column if it is the
    same integer in all rows.
    """

    key: int | None = None
    range_us: tuple[int, int] | None = None
    first: int | None = None


NOT_SEEN: Final = Seen()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one plan. plan: number of the plan in this epoch. partials.key: key numbers of this epoch.

    Frames contain columns by position in the plan's basis. A decoded section names its columns '0', '1', ...; `named`
    gives them their names once the plan is known, since a frame may arrive before the frame that defines its plan.
    extent: in a head, replaces the rows, which are stored elsewhere; None if the rows are here. seen: see Seen.
    """

    plan: int
    partials: Partials
    extent: Extent | None = None
    seen: Seen = field(default=NOT_SEEN, compare=False, repr=False)

    @classmethod
    def of(cls, number: int, plan: Plan, partials: Partials) -> Section:
        """A section with columns in the order of the basis. number: the plan's. Raises: KeyError if one is missing."""
        states = {name: partials.states[name] for name in plan.basis}
        return cls(number, Partials(partials.start, partials.end, partials.key, states))

    @property
    def readings(self) -> int:
        """Readings in the rows, also if they are stored elsewhere."""
        if self.extent is not None:
            return self.extent.readings
        first = self.seen.first
        return readings_in(self.partials) if first is None else first * len(self.partials)

    @property
    def span_us(self) -> tuple[int, int]:
        """(lowest start, highest end). The section must have a row."""
        if self.extent is not None:
            return self.extent.start_us, self.extent.end_us
        if self.seen.range_us is not None:
            return self.seen.range_us
        return int(self.partials.start.min()), int(self.partials.end.max())

    @property
    def end_us(self) -> int:
        """Highest end. The section must have a row."""
        if self.extent is not None:
            return self.extent.end_us
        return self.seen.range_us[1] if self.seen.range_us is not None else int(self.partials.end.max())

    @property
    def highest_key(self) -> int:
        """Highest key number; -1 without rows."""
        if self.extent is not None:
            return self.extent.key
        return self.seen.key if self.seen.key is not None else int(self.partials.key.max(initial=-1))

    def _bounds(self, column: int, columns: list[Array]) -> tuple[int, int]:
        """(lowest, highest) value of a column, from the extent if there is one, else from `columns`."""
        if self.extent is not None:
            return self.extent.low[column], self.extent.high[column]
        first = self.seen.first
        return bounds(columns[column]) if column or first is None else (first, first)

    def highest_node(self, plan: Plan) -> int:
        """Highest node number in the rows; -1 if there is none, or if the rows lack columns of the plan."""
        named, columns = node_columns(plan.basis), list(self.partials.states.values())
        found = len(columns) if self.extent is None else len(self.extent.kinds)
        if not named or found != len(plan.basis) or (self.extent is None and not len(self.partials)):
            return -1
        return max(self._bounds(i, columns)[1] for i in named)

    def rows(self, basis: tuple[str, ...]) -> Partials:
        """The rows with columns named by the basis. Their number and kinds are not checked."""
        return with_names(self.partials, basis)

    def pieces(self) -> tuple[Ints, Ints, Ints]:
        """(key numbers, starts, ends) of session rows, from the extent if there is one."""
        if self.extent is None:
            return self.partials.key, self.partials.start, self.partials.end
        key, start, end = np.frombuffer(self.extent.pieces, "<i8").astype(np.int64).reshape(3, -1)
        return key, start, end

    def named(self, plan: Plan) -> Section:
        """The section with columns named by the plan's basis. Raises: WireError, as `check`."""
        self.check(plan)
        return Section(self.plan, self.rows(plan.basis), self.extent)

    def check(self, plan: Plan, keys: int = MAX_KEYS, nodes: int | None = None, leaves: int = MAX_LEAVES) -> None:
        """Refuse rows that contradict their plan, use undefined numbers, or have counts too large to merge.

        keys, nodes: how many the epoch defines; nodes None: not checked. leaves: gateways below the sender. Raises:
        WireError.
        """
        rows, basis = self.partials, plan.basis
        if not len(rows) and self.extent is None:
            return
        kinds = self.extent.kinds if self.extent is not None else "".join(map(kind_of, rows.states.values()))
        if len(kinds) != len(basis):
            raise WireError(f"plan {self.plan} has {len(basis)} columns ({', '.join(basis)[:200]}), got {len(kinds)}")
        check_basis(basis)
        if plan.kind == "raw" and "series" not in basis:
            listed = ", ".join(basis)[:200]
            raise WireError(f"plan {self.plan}: raw readings need the column 'series', the plan has {listed}")
        key = self.highest_key
        if key >= keys:
            raise WireError(f"plan {self.plan}: key number {key}, but only {keys} keys are defined in the epoch")
        columns = list(rows.states.values())
        checked = check_columns(basis, kinds, plan.scale)
        for i, name, counts, numbers in checked.bounded:
            low, high = self._bounds(i, columns)
            if low < (name == "count"):
                raise WireError(f"column {name}: {low} in a row, wanted at least {int(name == 'count')}")
            if counts and high > LEAF_READINGS * min(leaves, MAX_LEAVES):
                raise WireError(f"column {name}: {high} readings in a row of {leaves} gateways are too many")
            if numbers and nodes is not None and high >= nodes:
                raise WireError(f"column {name}: node number {high}, but only {nodes} nodes are defined in the epoch")
        if checked.held and len(rows):
            check_held(self.plan, dict(zip(basis, columns, strict=True)))


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group's part of a frame.

    frontier_us: the sender's frontier once this frame is applied; None: unchanged (docs/protocol.md 2.3). late:
    sections of late readings, separate from those on time (docs/protocol.md 4.2, 8.6). exceptions: the new list of
    excluded leaves; None: unchanged. more, ended: changes of a list that is too long for one frame: exceptions to add,
    and leaves to remove from it (docs/protocol.md 2.3). registers: (key number, start; None clears the register) (5.2).
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
    """A gap record: declares a loss, at the seq of the first frame that it replaces (docs/protocol.md 3.5).

    groups: affected groups, as values rather than numbers, so that mergers can pass the record on unchanged. [start_us,
    end_us): affected event time. readings: number lost, -1 if unknown. nodes: affected gateways, empty for all. run:
    number of frames replaced. detail: for example the SHA-256 of the lost bytes.
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
    """Marks the frames of a flush. after: the last seq before them. successor: the next epoch, None if not stated.

    The successor tells apart two devices with one name: both may flush after the same seq, but they draw different
    epochs (docs/protocol.md 1.3, 1.4).
    """

    after: int
    successor: int | None = None

    def agrees(self, other: Flush | None) -> bool:
        """Whether both may be the same flush."""
        if other is None or other.after != self.after:
            return False
        return None in (self.successor, other.successor) or self.successor == other.successor


@dataclass(frozen=True, slots=True)
class Frame:
    """One message to the parent. leave: the epoch that continues at a new parent, if any (docs/protocol.md 1.5)."""

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
        """Number of readings in its rows, including late ones."""
        return sum(section.readings for part in self.groups for section in (*part.sections, *part.late))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """New frontiers without rows, neither spooled nor receipted (docs/protocol.md 2.5).

    They take effect once the parent has applied all frames up to last_seq.

    frontiers: (group number, frontier).
    """

    epoch: int
    last_seq: int
    frontiers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The parent's confirmation that frames are durable there (docs/protocol.md 3.2).

    upto: all seqs below it are durable. above: inclusive ranges (first, last) of further durable seqs. quarantined:
    durable seqs whose frames were invalid. horizon_us: correction horizon of the root (4.2). earliest_us: only in
    landing files: the `earliest_start` (algebra/earliest_start.py) of late rows and gap records in these frames.
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
    """The parent's answer to a request for the time. time_us: the parent's clock when it answered.

    error_us: how far that clock may be off; None if no time service confirms it. asked_us: the node's time since boot
    when it asked.
    """

    time_us: int
    error_us: int | None
    asked_us: int
