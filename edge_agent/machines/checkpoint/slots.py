"""Every slot of a node's spool: its name and the type of its value. Raise VERSION with any change of these types.

A slot is one row of the spool, written when its bytes change. Values that change every second are therefore in other
slots than those that change only with definitions. A slot with names has one row for each: `source/press-1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Flush, Leaf, Plan, Serving
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

# What each version added: 2 this version; 3 books (docs/protocol.md 9.1), 4 undated readings, 5 a row for each waiting
# frame, 6 a change of the parent's journal, 7 ends of leaves, 8 a second slot for the journal id, 9 registers of the
# epoch before, 10 repeats, 11 former parents and moved leaves, 12 when a parent was left, 13 several moves of a leaf,
# times of late rows, 14 serving ranges of moving leaves, 15 leaves in lost frames and below a lost journal, 16 when
# late rows were sent, gateways that lived before, 17 the epoch after a flush, 18 flushes of ended epochs, 19 queries of
# forgotten lines, 20 leaves of retired children, 21 replaced entries, epochs left twice
VERSION: Final = 21


# --- every node ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BirthState:
    """The fields of a birth that a gap record in its place must contain; see Birth."""

    epoch_id: int
    predecessor: tuple[int, int] | str | None
    frames: int


@dataclass(frozen=True, slots=True)
class FormerLineState:
    """Frames for a former parent. end: (last epoch, seq). epochs: with unreceipted frames. left_us: 0: not known."""

    journal: int | None
    end: tuple[int, int] | None
    epochs: list[int]
    left_us: int = 0


@dataclass(frozen=True, slots=True)
class LateExtentState:
    """The time range of the late rows in frames `first` to `last` of an epoch; see LateExtents."""

    epoch: int
    first: int
    last: int
    group: Group
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxState:
    """The outbox. predecessor: (epoch, last seq) of the epoch before, or `lost`; journal: of the parent.

    sent, lost, lost_frames: the books, see Outbox. whole: the books have counted since the spool was created. births:
    of each epoch with frames in the spool. left: former journals of the parent, newest last. leaving: the epoch whose
    frames still have to be moved into the present one; 0: none. changes: number of journal changes of the parent.
    parent: the receiver of the epoch; '': not known. former: former parents and the frames for them. moved_from: the
    epoch before the last move; 0: none. moved: the leaves of that epoch. late: time ranges of late rows in spooled
    frames.
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
    """Nodes, groups and plans of an epoch in the order of their numbers. texts: definitions sent in the epoch.

    held: registers of the epoch before, by group and key, until this epoch states a frontier.
    """

    nodes: list[str]
    groups: list[Group]
    plans: list[tuple[Group, Plan]]
    texts: list[str] = field(metadata={WRITTEN: "said"})
    held: list[tuple[Group, dict[str, int]]] = field(default_factory=list)


# Names on disk never change, neither those of slots nor those under WRITTEN, whatever the code calls them today.
LAYOUT: Final = Slot("layout", int, without="its slots are read as of the present version")  # VERSION at last commit
OUTBOX: Final = Slot("outbox", OutboxState)
NUMBERS: Final = Slot("numbering", NumbersState)
HORIZON: Final = Slot("horizon", int, without="the longest horizon until the next receipt")  # the root's, us
LATE_SENT: Final = Slot("late_sent", dict[Group, list[tuple[int, int, int]]])  # (sent, event times from, upto)
KEYS: Final = "numbers"  # table: keys of the epoch
REGISTERS: Final = "registers"  # table for each group number: the hints last sent for open sessions

# --- gateways ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far a sensor has been read; see Source. position: where to continue a source that can be read again."""

    newest_us: int
    position: Any = field(compare=False)  # it may hold arrays
    clock_us: int | None
    ended: bool
    readings: int
    changes: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityState:
    """A query revision and the windows for which it gets readings; see QueryValidity."""

    query: Query
    start: tuple[int, int]
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsState:
    """The query revisions of a group. fed: those in each plan interval."""

    validities: list[ValidityState] = field(metadata={WRITTEN: "tenures"})
    fed: list[list[QueryKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalState:
    """A plan interval; see PlanInterval. newest_us: the newest event time of its readings."""

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
    open: Partials


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowIntervalState(TimeIntervalState):
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
    """Open windows between markers; see PunctuationSlicer.

    held: SortedBatches of readings that the frontier has not passed. rows: of the open window on time; of the open
    window late; late rows of closed windows.
    """

    held: list[Any]
    rows: tuple[Partials, Partials, Partials]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicerState:
    """The part of a slicer that changes with every reading. intervals: the IntervalState of each plan interval."""

    frontier_us: int
    newest_us: int
    arrivals: int
    counters: dict[str, int]
    intervals: list[Untyped] = field(metadata={WRITTEN: "eras"})
    markers: dict[str, Any] | None = None  # the state of algebra Markers; None: no punctuation windows


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSlicerState:
    """The slicer of one group."""

    group: Group
    scale: int | None
    slicer: SlicerState


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """Readings of a sensor that wait for the clock. since_us: time since boot `boot`. series: indices into labels."""

    sensor: str
    boot: str
    since_us: Ints
    value: Array
    series: Ints
    labels: list[list[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndatedState:
    """Groups whose source was first heard while the clock was unknown. began: time since the boot with id `boot`."""

    boot: str
    began: list[tuple[Group, int]]


HELD: Final = Slot("held", HeldState)  # number of the page
UNDATED: Final = Slot("undated", UndatedState)
COMMITTED: Final = Slot("committed_us", int)
ENDED_BOOK: Final = Slot("ended_book", dict[str, int])  # sum of the books of groups that were dropped
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
        """The rows to commit. definitions: None if unchanged. keys: all keys of the group by their code."""
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
        """Yields (slicer, definitions, keys) of every group in the rows of a spool."""
        pages = PagedRows.reader(state)
        for row, plain in state.items():
            if row.startswith(f"{SLICER.name}/"):
                name = row.removeprefix(f"{SLICER.name}/")
                keys = AppendOnlyTable.read(f"{GROUP_KEYS}/{name}", state)
                yield decode(GroupSlicerState, plain, pages), DEFINITIONS.read(state, name), keys


# --- mergers (and the root's decision row) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildState:
    heard_us: int
    online: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenState:
    """A parent's children. link_up_us: connected to their broker since then; None: not. unlisted: see LostListing."""

    children: dict[str, ChildState]
    retired: list[str]
    link_up_us: int | None
    unlisted: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberState:
    """One child in one group; see Member. A field that is None is stored in the slot MEMBER instead."""

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
    former: list[tuple[str, int, int]] = field(default_factory=list)  # query, revision, start
    former_us: int = NEVER_US


@dataclass(frozen=True, slots=True)
class MemberDefinitions:
    """The part of a member that changes with definitions or nodes only: a row for each gateway or query below."""

    leaves: list[Leaf]
    serving: list[Serving]
    begins: list[tuple[str, int, str, int]]
    ends: list[tuple[str, int, str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesState:
    """Leaves that have changed their parent; see Moves. ways: Moves.transit; transit: its form up to version 12."""

    left: dict[str, list[int]]
    transit: dict[str, tuple[int, int, int, int]]
    reports: list[tuple[Leaf | None, Leaf]]
    carried: dict[str, list[int]]
    ways: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    served: list[Serving] = field(default_factory=list)
    replaced: dict[str, list[tuple[str, Leaf]]] = field(default_factory=dict)
    skipped: dict[str, list[Leaf]] = field(default_factory=dict)
    again: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """The members of one group. since, starts: stored in the slot AGREEMENT, None here. moves: None: no leaf moved."""

    published_us: int
    moved_us: int
    members: dict[str, MemberState]
    history: list[tuple[int, int, str, int]]  # frontiers of the past; empty in a merger's spool (4.4)
    since: dict[QueryKey, int] | None
    starts: dict[QueryKey, int | None] | None = field(metadata={WRITTEN: "told"})
    moves: MovesState | None = None


@dataclass(frozen=True, slots=True)
class AgreementState:
    """When the members of a group began to serve each query. since: first seen; starts: the announced start."""

    since: dict[QueryKey, int]
    starts: dict[QueryKey, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFramesState:
    """See EpochFrames. Up to version 4: waiting, now in the slots WAITING; closed without lost: the epoch has ended."""

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
    """The numbers of a child's epoch. groups: [number, *plain group]. keys: empty if the table CHILD_KEYS has them."""

    keys: list[str]
    nodes: list[str]
    groups: list[list[Any]]
    plans: list[tuple[int, Group, Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRows:
    """Rows with their own tables of key and node numbers, because the numbers of a process are void after a restart."""

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


RECEIVED: Final = Slot("received", int)  # number of readings in all frames of children that took effect
JOURNAL: Final = Slot("journal", int, without="the id is read from journal_again")
JOURNAL_AGAIN: Final = Slot("journal_again", int, without="the id is read from journal")
CHILDREN: Final = Slot("household", ChildrenState)
MEMBERSHIPS: Final = Slot("families", dict[Group, MembershipState])
MEMBER: Final = Slot("member", MemberDefinitions)  # group, node
AGREEMENT: Final = Slot("member", AgreementState)  # group
RetiredState = dict[Group, list[tuple[str, Leaf, int]]]  # of each leaf the child, the entry there, how far it had come
RETIRED_LEAVES: Final = Slot("retired_leaves", RetiredState, without="leaves that move later stay missing")
PROMISED: Final = Slot("promised", dict[Group, int])
EPOCH: Final = Slot("line", EpochFramesState)  # node, epoch
WAITING: Final = Slot("waiting", Any)  # node, epoch, seq: a waiting frame, as packed by the runtime
ENDED_FLUSHES: Final = Slot("ended_flushes", dict[int, tuple[Flush, list[int]]])  # node: ended epoch -> see LastFlush
ENDED: Final = Slot("ended", dict[int, int])  # node: ended epoch -> all seqs below this one were received
DICTIONARY: Final = Slot("book", DictionaryState)  # node, epoch
CHILD_KEYS: Final = "names"  # table for each node and epoch: the keys of the epoch
TEXTS: Final = Slot("texts", tuple[list[str], list[str]])  # definition texts of queries and sensors
UNNAMED: Final = Slot("unnamed", list[QueryKey])  # known queries that no frame has named yet
PLAN: Final = Slot("plan", Plan)
STORE: Final = Slot("store", StoreState)


# --- the process around the machine --------------------------------------------------------------------------------

# config.in_force.revision_numbering
NUMBERER: Final = Slot("rim/numberer", dict[str, Any], without="the broker retains the numbers")
REFUSED: Final = Slot("rim/refused", dict[str, int])  # sensor -> number of its readings that were refused
REGISTRY: Final = Slot("rim/registry", dict[str, Any])  # config.in_force.registry
# ids of commands to all nodes
COMMANDS: Final = Slot("rim/commands", list[str], without="a command that comes again is executed again")
# sensor -> the source to which its position refers; "" -> filters in the session at the local broker (runtime.gateway)
POSITIONS_OF: Final = Slot("rim/sources", dict[str, str])


def epoch_key(name: str) -> EpochKey:
    """The node and epoch in a slot name `node/epoch`."""
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
            "run the newer headwater, or set another [spool] path (the frames in this spool are then not sent)"
        )
