"""Decides what a group of queries sends upward, with the reason; every node decides the same (docs/how-it-works.md).

Slices travel once, however many windows contain them; whole windows only where they are fewer bytes for the group as a
whole, as with a slide that does not divide the length: every window then cuts the stream twice. Where rows hold
readings (exact quantiles, sketches until they are full) a reading would travel once for each of its windows: fewer
bytes at any rate of readings is what counts.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.aggregates import basis_of, check
from edge_agent.algebra.aggregates.weighted import labels_of
from edge_agent.algebra.frame import MAX_COLUMNS, MAX_PLAN_BYTES, Plan
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.query import SCOPES, Query
from edge_agent.algebra.query.wire_costs import COMMIT, Cost, overlap, rates
from edge_agent.algebra.windows import ALL, Punctuation, Session
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.errors import ConfigError

RAW_BASIS: Final = ("count", "series")  # state columns of raw readings


@dataclass(frozen=True, slots=True)
class Placement:
    """One plan and its part.

    feeds: 'all' readings, those 'on_time', 'late' ones, or 'markers'. where: windows are formed, 'root' or 'gateway'.
    cost: what its rows weigh; how many there are is known of slices and windows, not where readings decide.
    """

    plan: Plan
    feeds: str
    where: str
    reason: str
    cost: Cost

    @property
    def kind(self) -> str:
        """What its rows are: 'slice' or 'window'."""
        return self.plan.kind


@functools.lru_cache(maxsize=64)  # asked for again at every change of definitions and every restart
def plan(queries: tuple[Query, ...], scale: int | None) -> tuple[Placement, ...]:
    """How one group's queries are served; empty for none. scale: of the sensor's values, None for floats.

    One placement that feeds 'all', or one 'on_time' and one 'late' (a group whose late readings count per window).
    Raises: ConfigError for what cannot be served, one line.
    """
    if not queries:
        return ()
    for query in queries:
        _refuse_unsupported(query)
    basis = basis_of((aggregate for query in queries for aggregate in query.aggregates), scale)
    if len(basis) > MAX_COLUMNS:
        ids = ", ".join(query.id for query in queries[:3]) + (", ..." if len(queries) > 3 else "")
        raise ConfigError(
            f"the functions of the queries of one source and filter ({ids}) need {len(basis)} state columns, at most "
            f"{MAX_COLUMNS} travel together: ask for fewer edges, or let one of them differ in its filter or lateness"
        )
    if (named := sum(len(query.id) + 8 for query in queries)) > MAX_PLAN_BYTES:
        raise ConfigError(
            f"{len(queries)} queries over one source and filter, with revisions whose windows are still open, take "
            f"{named} bytes to name, at most {MAX_PLAN_BYTES}: wait until windows have ended, or take shorter ids"
        )
    if isinstance(queries[0].window, Session):
        return (_sessions(queries, basis, scale),)
    if isinstance(queries[0].group.cut, OrderedCut):
        return (_raw(queries, scale),)
    if isinstance(queries[0].window, Punctuation):
        return _punctuation(queries, queries[0].window, basis, scale)
    windows = sorted(
        {query.time_window for query in queries}, key=lambda w: (w.spacing[0].step_us, w.longest_us, w.unit_us)
    )
    by_rows = rates(windows)
    slices = Cost(basis, scale, by_rows[0])
    whole = Cost(basis, scale, by_rows[1], overlap(windows))
    local = queries[0].scope == "local"
    kind = "window" if local or whole.never_more_than(slices) else "slice"
    figures = f"of a key with a reading a second: slices {slices.text()}, whole windows {whole.text()}"
    if local:
        reason = "finished on the gateway and merged with no other node"
    elif kind == "window":
        reason = f"whole windows: fewer bytes than the slices between their edges ({figures})"
    else:
        reason = f"slices, each sent once however many windows contain it ({figures})"

    def placed(kind: str, feeds: str, reason: str) -> Placement:
        served = tuple(sorted((query.id, query.revision) for query in queries))
        unit_us = math.gcd(*(window.unit_us for window in windows))
        made = Plan(plan_hash(kind, basis, scale, served), kind, basis, scale, unit_us, served)
        cost = slices if kind == "slice" else whole
        return Placement(made, feeds, "gateway" if local else "root", reason, cost)

    if kind == "slice" and any(query.late == "per_window" for query in queries):
        late = "late readings as whole windows: each counts in the windows that are still open, in no other"
        return placed(kind, "on_time", reason), placed("window", "late", late)
    return (placed(kind, "all", reason),)


def _sessions(queries: tuple[Query, ...], basis: tuple[str, ...], scale: int | None) -> Placement:
    """Sessions of one gap: pieces merge at every tier, the root completes them by frontiers and hints."""
    served = tuple(sorted((query.id, query.revision) for query in queries))
    cut = queries[0].group.cut
    digest = plan_hash(f"session {cut.gap_us} {cut.max_us}", basis, scale, served)
    made, cost = Plan(digest, "session", basis, scale, 1, served, cut.gap_us), Cost(basis, scale, own_range=True)
    if queries[0].scope == "local":
        return Placement(
            made, "all", "gateway", "sessions of the gateway alone, merged with those of no other node", cost
        )
    reason = "partial sessions, merged at every tier across the gap; the root completes them by frontiers and hints"
    return Placement(made, "all", "root", reason, cost)


_MARKED: Final = {  # how windows between markers travel
    "local": "finished on the gateway and merged with no other node",
    "bounds": "finished on the gateway; those of equal bounds merge at every tier",
    "order": "finished on the gateway; the root merges the i-th of all nodes once every one has sent it",
    "overlap": "finished on the gateway; the root joins those that overlap once no node has an earlier one open",
    "central": "formed from every reading, compact: only the root knows the markers of all gateways in their order",
}


def _punctuation(
    queries: tuple[Query, ...], window: Punctuation, basis: tuple[str, ...], scale: int | None
) -> tuple[Placement, ...]:
    """Whole windows, and rows that list all windows: a window without a reading counts too.

    Where markers of all nodes cut one stream, the readings and the markers.
    """
    if window.interpretation == "central":
        _refuse_labels(queries, scale)
    served = tuple(sorted((query.id, query.revision) for query in queries))
    where, why = ("gateway" if window.interpretation == "local" else "root"), _MARKED[window.interpretation]
    central = window.interpretation == "central"
    kind, basis = (RAW, RAW_BASIS) if central else ("window", basis)
    digest = plan_hash(f"{kind} {window.group_cut(skips=False).text}", basis, scale, served)
    rows = Plan(digest, kind, basis, scale, 1, served)
    told = Plan(plan_hash("marker", ("count",), None, served), "marker", ("count",), None, 1, served)
    cost = Cost(basis, scale, COMMIT) if central else Cost(basis, scale, own_range=True)
    which = "the markers themselves" if central else "which windows there are, with or without a reading"
    return (
        Placement(rows, "all", where, f"windows from marker to marker, {why}", cost),
        Placement(told, "markers", where, which, Cost(told.basis, None, own_range=True)),
    )


def _raw(queries: tuple[Query, ...], scale: int | None) -> Placement:
    """Unaggregated readings: only the root knows a reading's place among those of all nodes.

    Labels do not travel with the readings, only their key does.
    """
    _refuse_labels(queries, scale)
    served = tuple(sorted((query.id, query.revision) for query in queries))
    made = Plan(plan_hash(RAW, RAW_BASIS, scale, served), RAW, RAW_BASIS, scale, 1, served)
    cost = Cost(RAW_BASIS, scale, COMMIT)
    if queries[0].scope == "local":
        return Placement(
            made, "all", "root", "every reading, compact: the root puts those of the gateway in order", cost
        )
    reason = "every reading, compact: only the root knows the order of the readings of all gateways"
    return Placement(made, "all", "root", reason, cost)


def _refuse_labels(queries: tuple[Query, ...], scale: int | None) -> None:
    """Raises: ConfigError where a function, or a condition of a window, looks at a label that does not travel."""
    for query in queries:
        conditions = getattr(query.window, "labels", frozenset[str]())
        lacking = sorted({*conditions, *labels_of(basis_of(query.aggregates, scale))} - {*query.by})
        if lacking:
            raise ConfigError(
                f"query {query.id}: a {query.window.type} window knows of each reading its key and value, not its "
                f"label {lacking[0]!r}: add it to `by`"
            )


def plan_hash(kind: str, basis: tuple[str, ...], scale: int | None, queries: tuple[tuple[str, int], ...]) -> bytes:
    """The identity of a plan: 8 bytes over kind, basis, scale and (query, revision)s."""
    text = json.dumps([kind, list(basis), scale, [list(pair) for pair in queries]], separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:8]


def _refuse_unsupported(query: Query) -> None:
    if not isinstance(query.window, tuple(ALL.values())):
        kind = getattr(query.window, "type", type(query.window).__name__)
        raise ConfigError(
            f"query {query.id}: window type {kind!r} is not supported yet; there are {', '.join(sorted(ALL))}"
        )
    if query.scope not in SCOPES:
        raise ConfigError(f"query {query.id}: scope {query.scope!r}: there are {', '.join(SCOPES)}")
    for aggregate in query.aggregates:
        try:
            check(aggregate)
        except ConfigError as err:
            raise ConfigError(f"query {query.id}: {err}") from err
