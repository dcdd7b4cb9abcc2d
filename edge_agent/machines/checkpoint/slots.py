"""Every slot of a node's spool: its name and the type of its value. Raise VERSION with any change of these types.

A slot is one row of the spool, written when its bytes change; so what changes every second and what changes with
definitions only are slots apart. A slot with names has one row for each: `source/press-1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Leaf, Plan, Serving
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.sliding.incremental import WindowRows
from edge_agent.errors import ConfigError
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.checkpoint.codec import WRITTEN, Untyped, decode, encode
from edge_agent.machines.checkpoint.paged_rows import PagedRows
from edge_agent.machines.checkpoint.slot import Slot

# 1 had no slot for its version and reads as 2; 3 has books (docs/protocol.md 9.1), 4 undated readings, 5 a row for each
# frame that waits, 6 a change of the parent's journal, 7 ends of leaves, 8 the journal id twice, 9 registers of
# the epoch before, 10 repeats, 11 parents that were left and leaves that moved, 12 when they were left, 13 several ways
# of a leaf, and where late rows lie, 14 what leaves on their way served, 15 leaves that lost frames listed,
# and leaves below a lost journal, 16 when late rows were sent, and gateways that may have lived before
VERSION: Final = 17


# --- every node ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BirthState:
    """What a gap record in the place of a birth needs; see Birth."""

    epoch_id: int
    predecessor: tuple[int, int] | str | None
    frames: int


@dataclass(frozen=True, slots=True)
class FormerLineState:
    """Frames for a parent that was left. end: the last epoch and seq; epochs: of frames without a receipt.

    left_us: when it was left; 0: not known.
    """

    journal: int | None
    end: tuple[int, int] | None
    epochs: list[int]
    left_us: int = 0


@dataclass(frozen=True, slots=True)
class LateExtentState:
    """Where the late rows of frames first to last of an epoch lie; see LateExtents."""

    epoch: int
    first: int
    last: int
    group: Group
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxState:
    """The epoch in use. predecessor: (epoch, last seq) of the one before, or `lost`; journal: of the parent.

    sent, lost, lost_frames: the books, see Outbox. whole: they are as old as the spool. births: of each epoch of which
    frames are in the spool.
    left: journals of the parent that are no more, newest last. leaving: the epoch of which frames are still to be moved
    into the present one; 0: none. changes: of the parent's journal. parent: whom the epoch is for; '': not known.
    former: parents that were left. moved_from: the epoch before the last move; 0: none. moved: the leaves that it had.
    late: where late rows lie in frames that are in the spool.
    """

    epoch_id: int
    seq: int
    journal: int | None
    predecessor: tuple[int, int] | str | None
    sent: int = 0
    lost: int = 0
    lost_frames: int = 0
    whole: bool = False
    births: dict[int, BirthState] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    leaving: int = 0
    changes: int = 0
    parent: str = ""
    former: dict[str, FormerLineState] = field(default_factory=dict)
    moved_from: int = 0
    moved: list[tuple[Group, list[Leaf]]] = field(default_factory=list)
    late: list[LateExtentState] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersState:
    """The numbers of an epoch, in order, without its keys. texts: definitions that were sent in it.

    held: registers of the epoch before, by group and key, until this one states a frontier.
    """

    nodes: list[str]
    groups: list[Group]
    plans: list[tuple[Group, Plan]]
    texts: list[str] = field(metadata={WRITTEN: "said"})
    held: list[tuple[Group, dict[str, int]]] = field(default_factory=list)  # registers of the epoch before


LAYOUT: Final = Slot("layout", int, without="the version of the file says enough")
OUTBOX: Final = Slot("outbox", OutboxState)
NUMBERS: Final = Slot("numbering", NumbersState)
# the root's correction horizon [us], from the last receipt
HORIZON: Final = Slot("horizon", int, without="the longest horizon until the next receipt")
LATE_SENT: Final = Slot("late_sent", dict[Group, list[tuple[int, int, int]]])  # when, and the range of event time
KEYS: Final = "numbers"  # table: keys of the epoch
REGISTERS: Final = "registers"  # table for each group number: hints of open sessions as they were sent

# --- gateways ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far a sensor has been read. position: where to continue a source that can be read again."""

    newest_us: int
    position: Any = field(compare=False)  # it may hold arrays
    clock_us: int | None
    ended: bool
    readings: int
    changes: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityState:
    """A query revision and the window starts and ends it is fed for."""

    query: Query
    start: tuple[int, int]
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsState:
    """The queries of a group. fed: the query revisions of each plan interval."""

    validities: list[ValidityState] = field(metadata={WRITTEN: "tenures"})
    fed: list[list[QueryKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalState:
    """A plan interval. newest_us: of its readings."""

    from_us: int
    until_us: int
    newest_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeIntervalState(IntervalState):
    """late: rows of late readings. extents: start, first and last reading of each open slice. See TimeSlicer."""

    late: Partials
    closed_us: int
    gone_us: int
    extents: tuple[Ints, Ints, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceIntervalState(TimeIntervalState):
    """A plan of slices."""

    open: Partials


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowIntervalState(TimeIntervalState):
    """A plan of windows."""

    open: WindowRows


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIntervalState(IntervalState):
    """Open sessions, and those of late readings."""

    open: Partials
    late: Partials


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIntervalState(IntervalState):
    """Readings, and late readings: (time, key code, arrival number, value)."""

    open: list[tuple[Ints, Ints, Ints, Array]]
    late: list[tuple[Ints, Ints, Ints, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PunctuationIntervalState(IntervalState):
    """held: readings the frontier has not passed, as SortedBatch. rows: of the open window, on time and late; late."""

    held: list[Any]
    rows: tuple[Partials, Partials, Partials]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicerState:
    """What any reading changes. intervals: the IntervalState of each plan interval."""

    frontier_us: int
    newest_us: int
    arrivals: int
    counters: dict[str, int]
    intervals: list[Untyped] = field(metadata={WRITTEN: "eras"})
    markers: dict[str, Any] | None = None  # of punctuation windows: algebra Markers


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSlicerState:
    """The slicer of one group."""

    group: Group
    scale: int | None
    slicer: SlicerState


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """Readings of one sensor that wait until the time is known: times since the boot `boot`, series index labels."""

    sensor: str
    boot: str
    since_us: Ints
    value: Array
    series: Ints
    labels: list[list[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndatedState:
    """Groups whose sources were first heard while the clock was not known: when, since the boot with that id."""

    boot: str
    began: list[tuple[Group, int]]


HELD: Final = Slot("held", HeldState)  # number of the page
UNDATED: Final = Slot("undated", UndatedState)
COMMITTED: Final = Slot("committed_us", int)
ENDED_BOOK: Final = Slot("ended_book", dict[str, int])  # the books of groups that are gone, together
FRONTIERS: Final = Slot("frontiers", dict[Group, int])
SOURCE: Final = Slot("source", SourceState)
SLICER: Final = Slot("group", GroupSlicerState)
DEFINITIONS: Final = Slot("fed", DefinitionsState)
GROUP_KEYS: Final = "keys"  # table for each group: its keys
OPEN_ROWS: Final = "rows"  # pages for each group: open rows of many keys
OF_GROUPS: Final = tuple(f"{name}/" for name in (SLICER.name, DEFINITIONS.name, GROUP_KEYS, OPEN_ROWS))


class GroupSlots:
    """The slots of one group at a gateway."""

    __slots__ = ("_keys", "_name", "_rows", "_table")

    def __init__(self, group: Group) -> None:
        self._name = slot_name(group)
        self._keys, self._rows = AppendOnlyTable(f"{GROUP_KEYS}/{self._name}"), PagedRows(f"{OPEN_ROWS}/{self._name}")
        self._table: list[str] | None = None

    def changes(
        self, state: GroupSlicerState, definitions: DefinitionsState | None, keys: list[str]
    ) -> dict[str, object]:
        """The rows to commit. definitions: None while they are unchanged; keys: all so far, or another table."""
        anew, self._table = self._table is not None and keys is not self._table, keys
        plain, pages = self._rows.changes(state)
        fed = {} if definitions is None else DEFINITIONS.write(definitions, self._name)
        return {f"{SLICER.name}/{self._name}": plain, **fed, **self._keys.changes(keys, anew=anew), **pages}

    def gone(self) -> dict[str, object]:
        """The rows to delete."""
        keys, pages = self._keys.changes((), anew=True), self._rows.changes(None)[1]
        return {**SLICER.write(None, self._name), **DEFINITIONS.write(None, self._name), **keys, **pages}

    @staticmethod
    def each(state: Mapping[str, Any]) -> Iterator[tuple[GroupSlicerState, DefinitionsState | None, list[str]]]:
        """Every group among the rows of a spool: (slicer, definitions, keys)."""
        pages = PagedRows.reader(state)
        for row, plain in state.items():
            if row.startswith(f"{SLICER.name}/"):
                name = row.removeprefix(f"{SLICER.name}/")
                keys = AppendOnlyTable.read(f"{GROUP_KEYS}/{name}", state)
                yield decode(GroupSlicerState, plain, pages), DEFINITIONS.read(state, name), keys


# --- mergers (and the root's decision row) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildState:
    """When a child was last heard, and whether it is online."""

    heard_us: int
    online: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenState:
    """The children of a parent. link_up_us: since when it is connected to their broker; None: it is not. unlisted: see
    LostListing.
    """

    children: dict[str, ChildState]
    retired: list[str]
    link_up_us: int | None
    unlisted: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberState:
    """One child in one group. None: in the slot MEMBER, apart from what moves every second."""

    frontier_us: int
    leaves: list[Leaf] | None
    exceptions: list[tuple[str, int, int]]  # leaf, frontier, session bound
    serving: list[Serving] | None
    out: bool
    fresh: bool
    ahead: bool
    begins: list[tuple[str, int, str, int]] | None  # query, revision, leaf, start
    hints: tuple[dict[str, int], dict[str, int]]  # key -> start: of this epoch, of the one before
    reach_us: int = NEVER_US  # see Member
    again_us: int = NEVER_US
    reached: list[tuple[str, int, int, bool | None]] = field(default_factory=list)  # see Member.reached, .unlisted
    ends: list[tuple[str, int, str, int]] | None = None  # query, revision, leaf, end
    since_us: int = NEVER_US
    older: dict[int, tuple[int, int]] = field(default_factory=dict)
    live: bool = False
    past_us: int = NEVER_US
    unsaid: dict[str, int] = field(default_factory=dict)
    anew: list[str] = field(default_factory=list)
    began_us: int = NEVER_US


@dataclass(frozen=True, slots=True)
class MemberDefinitions:
    """The part of a member that changes with definitions or nodes only: a row for each gateway or query below."""

    leaves: list[Leaf]
    serving: list[Serving]
    begins: list[tuple[str, int, str, int]]
    ends: list[tuple[str, int, str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesState:
    """Leaves that have changed their parent; see Moves. ways: its transit; transit: as an earlier version wrote it."""

    left: dict[str, list[int]]
    transit: dict[str, tuple[int, int, int, int]]
    reports: list[tuple[Leaf | None, Leaf]]
    carried: dict[str, list[int]]
    ways: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    served: list[Serving] = field(default_factory=list)
    replaced: dict[str, list[tuple[str, Leaf]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """The members of one group. since, starts: see ServingAgreement; None: in the slot AGREEMENT. moves: None: none."""

    published_us: int
    moved_us: int
    members: dict[str, MemberState]
    history: list[tuple[int, int, str, int]]
    since: dict[QueryKey, int] | None
    starts: dict[QueryKey, int | None] | None = field(metadata={WRITTEN: "told"})
    moves: MovesState | None = None


@dataclass(frozen=True, slots=True)
class AgreementState:
    """The queries that the members of a group serve together: when first seen, and the start agreed."""

    since: dict[QueryKey, int]
    starts: dict[QueryKey, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFramesState:
    """The frames of one epoch of a child; see EpochFrames. waiting: up to version 3, since then in WAITING.

    closed: up to version 3 without `lost`: an epoch that has ended.
    """

    next: int
    predecessor: tuple[int, int] | str | None
    born: bool
    closed: bool
    lost: bool
    applied: list[int]
    quarantined: list[int]
    current: bool
    waiting: list[tuple[int, Any]] | None = None
    readings: int | None = None
    refused: int = 0
    birth_frames: int = 1
    held: list[int] | None = None
    ordinary: int | None = None
    flush: int | None = None
    copied: bool = False
    since_us: int | None = None
    unheard: bool = False
    successor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryState:
    """The numbers of an epoch of a child. groups: [number, *plain group]. keys: empty where a table holds them."""

    keys: list[str]
    nodes: list[str]
    groups: list[list[Any]]
    plans: list[tuple[int, Group, Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRows:
    """Rows with key and node numbers that index tables of their own: numbers of a process end with it."""

    start: Ints
    end: Ints
    key: Ints
    states: dict[str, Array]
    names: list[str]
    nodes: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """The open rows of one plan at a merger."""

    group: Group
    rows: NamedRows


RECEIVED: Final = Slot("received", int)  # readings in all frames of children that took effect
JOURNAL: Final = Slot("journal", int, without="the id is read from journal_again")
JOURNAL_AGAIN: Final = Slot("journal_again", int, without="the id is read from journal")
CHILDREN: Final = Slot("household", ChildrenState)
MEMBERSHIPS: Final = Slot("families", dict[Group, MembershipState])
MEMBER: Final = Slot("member", MemberDefinitions)  # group, node
AGREEMENT: Final = Slot("member", AgreementState)  # group
PROMISED: Final = Slot("promised", dict[Group, int])
EPOCH: Final = Slot("line", EpochFramesState)  # node, epoch
WAITING: Final = Slot("waiting", Any)  # node, epoch, seq: a frame that waits, as the runtime packs it
ENDED: Final = Slot("ended", dict[int, int])  # node: epoch that has ended -> all seqs below it are here
DICTIONARY: Final = Slot("book", DictionaryState)  # node, epoch
CHILD_KEYS: Final = "names"  # table for each node and epoch: its keys
TEXTS: Final = Slot("texts", tuple[list[str], list[str]])  # definition texts of queries and sensors
UNNAMED: Final = Slot("unnamed", list[QueryKey])  # of these queries, those that nothing has named yet
PLAN: Final = Slot("plan", Plan)
STORE: Final = Slot("store", StoreState)


# --- the process around the machine --------------------------------------------------------------------------------

# config.in_force.revision_numbering
NUMBERER: Final = Slot("rim/numberer", dict[str, Any], without="the broker retains the numbers")
REFUSED: Final = Slot("rim/refused", dict[str, int])  # sensor -> readings it refused
REGISTRY: Final = Slot("rim/registry", dict[str, Any])  # config.in_force.registry
# ids of commands to all nodes
COMMANDS: Final = Slot("rim/commands", list[str], without="a command that comes again is executed again")
POSITIONS_OF: Final = Slot("rim/sources", dict[str, str])  # sensor -> what its position is a position in


def epoch_key(name: str) -> EpochKey:
    """The epoch in the name of a slot."""
    node, _, epoch = name.rpartition("/")
    return EpochKey(node, int(epoch))


def slot_name(group: Group) -> str:
    """A group as part of the name of a slot."""
    return str(encode(group))


def check_version(state: Mapping[str, Any]) -> None:
    """Raises: ConfigError for the rows of a newer layout."""
    version = state.get(LAYOUT.name, VERSION)
    if version > VERSION:
        raise ConfigError(
            f"the spool has slots of version {version}, this headwater reads up to {VERSION}: "
            "run the newer one again, or move the spool away (what it holds is then lost)"
        )
