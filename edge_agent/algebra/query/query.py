"""Sensors, queries and groups of queries as frozen values. config/ converts them from and to text.

Source: docs/configure.md, schemas/query.schema.json and schemas/sensor.schema.json define the text form.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from edge_agent.algebra.query.group_cut import BY_TIME, GroupCut, OrderedCut, SessionCut, TimeCut
from edge_agent.algebra.query.key import Labels, QueryKey

if TYPE_CHECKING:
    from edge_agent.algebra.windows import OrderedWindow, Punctuation, Session, Window

Param = str | int | float | bool | tuple[float, ...] | None

LATE_POLICIES: Final = ("revise", "drop", "per_window")
ON_MISSING: Final = ("hold", "skip")
SCOPES: Final = ("global", "local")  # one result over all nodes, or one per gateway
FINEST: Final = -9  # exponents of the resolutions of sensors: 1e-9 to 1e9
COARSEST: Final = 9


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a query. fn: a name in algebra.aggregates.FUNCTIONS. name: the column of the result.

    params: (name, value); lists are converted to tuples, so that the value can be hashed.
    """

    fn: str
    name: str
    params: tuple[tuple[str, Param], ...] = ()

    def __post_init__(self) -> None:
        params: tuple[tuple[str, object], ...] = self.params
        if any(isinstance(value, list) for _, value in params):
            plain = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in params)
            object.__setattr__(self, "params", plain)

    def param(self, name: str, default: Param = None) -> Param:
        """The value of a parameter, or the default if it is not given."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class Query:
    """The definition of a query. Times are in microseconds.

    source: id of the sensor. where: text of the filter, '' for every reading. by: labels that form the key. scope: one
    of SCOPES. late: one of LATE_POLICIES. effective_from_us: first window start of this revision. on_missing: for
    windows whose bounds depend on all nodes: 'hold' them until every expected node has reported, or 'skip' nodes that
    are excluded from the frontier.
    """

    id: str
    revision: int
    source: str
    window: Window | Session | OrderedWindow | Punctuation
    aggregates: tuple[Aggregate, ...]
    where: str = ""
    by: tuple[str, ...] = ()
    lateness_us: int = 2_000_000
    scope: str = "global"
    late: str = "revise"
    effective_from_us: int | None = None
    on_missing: str = "hold"

    @property
    def key(self) -> QueryKey:
        """Identifies this revision."""
        return QueryKey(self.id, self.revision)

    @property
    def central(self) -> OrderedWindow:
        """The window of a query whose windows the root forms from raw readings. Raises: TypeError for others."""
        if not hasattr(self.window, "cut"):
            raise TypeError(f"query {self.id}: {self.window.type} windows are not formed from raw readings")
        return cast("OrderedWindow", self.window)

    @property
    def time_window(self) -> Window:
        """The window of a query whose windows follow from the definition alone. Raises: TypeError for others."""
        if not isinstance(self.cut, TimeCut):
            raise TypeError(f"query {self.id}: {self.window.type} windows do not follow from the definition alone")
        return cast("Window", self.window)

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of the sensors that the query needs: its source and, if a sensor gives its markers, that sensor."""
        markers = getattr(self.window, "markers", "")
        return (self.source, markers) if markers else (self.source,)

    @property
    def group(self) -> Group:
        """The group of the query: one slicer serves all queries of a group."""
        return Group(self.source, self.where, self.by, self.lateness_us, self.late, self.cut)

    @property
    def cut(self) -> GroupCut:
        """How the readings of its group are cut into windows."""
        match self.window.type:  # not by class: importing windows/ here would be a cycle
            case "session":
                session = cast("Session", self.window)
                return SessionCut(session.gap_us, session.max_us)
            case "punctuation":
                return cast("Punctuation", self.window).group_cut(skips=self.on_missing == "skip")
        return OrderedCut() if hasattr(self.window, "cut") else TimeCut()

    def group_at(self, node: str) -> Group:
        """The group of the query at a gateway: one of the node's own if its windows do not merge below the root."""
        own = self.scope == "local"
        if self.window.type == "punctuation":
            own = cast("Punctuation", self.window).own
        return replace(self.group, node=node) if own else self.group


class _Hashed:
    """Room for a hash, and for the plain values. They are no fields: a hash counts in one process only, and no copy and
    no pickle has it.
    """

    __slots__ = ("_hash", "_plain")
    _hash: int
    _plain: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Group(_Hashed):
    """Queries with the same source, filter, key, lateness and cut. The unit of slicing, frontier and coverage.

    Sessions with different gaps are in different groups, so that the hint of a key concerns one gap only, and a long
    gap does not delay a short one (docs/protocol.md 5.2). node: the gateway of a group of its own, for windows that
    wait for no other node; '' for a group of all nodes. Groups sort by their values.
    """

    source: str
    where: str
    by: tuple[str, ...]
    lateness_us: int
    late: str = "revise"
    cut: GroupCut = BY_TIME
    node: str = ""

    def __hash__(self) -> int:
        """Computed once, because groups are the keys of most tables."""
        try:
            return self._hash
        except AttributeError:
            values = (self.source, self.where, self.by, self.lateness_us, self.late, self.cut, self.node)
            object.__setattr__(self, "_hash", hash(values))
            return self._hash

    @property
    def plain(self) -> tuple[object, ...]:
        """Its values as plain ones (texts, numbers, a list), made once: each commit of a node stores groups."""
        try:
            return self._plain
        except AttributeError:
            cut = self.cut
            values = (self.source, self.where, list(self.by), self.lateness_us, self.late)
            object.__setattr__(self, "_plain", (*values, cut.gap_us, cut.max_us, self.node, cut.text))
            return self._plain

    def __lt__(self, other: Group) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[object, ...]:
        cut = self.cut
        values = (self.source, self.where, self.by, self.lateness_us, self.late)
        return (*values, cut.gap_us, cut.max_us, self.node, cut.text)


@dataclass(frozen=True, slots=True)
class Sensor:
    """One configured source of readings. options: the driver's own fields, checked by config/.

    scale: power of ten of one unit of the scaled integers (resolution 0.1 -> -1), None for floats. timeout_us: after
    this silence the sensor is idle, and its frontier follows the clock minus delay_us. nan: 'skip' (count and drop) or
    'quarantine'. rereadable: whether reading continues at a committed position after a restart. own_clock: whether it
    is read from its beginning, by a clock of its own instead of the node's (protocol 4.1). The driver and its options
    determine the last two.
    """

    id: str
    revision: int
    driver: str
    options: tuple[tuple[str, object], ...] = ()
    labels: Labels = ()
    unit: str = ""
    scale: int | None = None
    range: tuple[float, float] | None = None
    timeout_us: int = 10_000_000
    delay_us: int = 0
    nan: str = "skip"
    rereadable: bool = field(default=False, compare=False)
    own_clock: bool = field(default=False, compare=False)

    def option(self, name: str, default: object = None) -> object:
        """The value of one of the driver's own fields, or the default."""
        return dict(self.options).get(name, default)

    def number(self, name: str, default: float) -> float:
        """One of the driver's own fields as a float, or the default if it is no number."""
        option = self.option(name)
        return float(option) if isinstance(option, int | float) else default
