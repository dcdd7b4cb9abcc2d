"""Decides what a group of queries sends upward, and why. Every node decides the same (docs/how-it-works.md).

A slice is sent once, however many windows contain it. Whole windows are sent instead only if they take fewer bytes for
the whole group at every rate of readings. That happens if the slide does not divide the length: the stream is then cut
twice per window, so there are more slices than windows. In exchange, rows that contain readings (exact quantiles,
sketches until they are full) repeat each reading once per window.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Final

from edge_agent.algebra.aggregates import basis_of, check
from edge_agent.algebra.aggregates.families.weighted import labels_of
from edge_agent.algebra.frame import MAX_COLUMNS, MAX_PLAN_BYTES, Plan
from edge_agent.algebra.query.group_cut import GroupCut, OrderedCut, PunctuationCut, SessionCut
from edge_agent.algebra.query.query import SCOPES, Query
from edge_agent.algebra.query.wire_costs import COMMIT, Cost, overlap, rates
from edge_agent.algebra.windows import ALL, Punctuation, Session
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.errors import ConfigError

RAW_BASIS: Final = ("count", "series")  # state columns of raw readings


@dataclass(frozen=True, slots=True)
class Placement:
    """One plan, and the readings that it gets.

    feeds: 'all' readings, only those 'on_time', only 'late' ones, or 'markers' instead of readings. where: 'root' or
    'gateway', the place where windows are formed. reason: text for the user. cost: bytes of the rows. other: if whole
    windows and slices were compared, the cost of those that were not chosen.
    """

    plan: Plan
    feeds: str
    where: str
    reason: str
    cost: Cost
    other: Cost | None = None

    @property
    def kind(self) -> str:
        """Kind of its rows: one of algebra.frame.KINDS."""
        return self.plan.kind


@functools.lru_cache(maxsize=64)  # called again at every change of definitions
def plan(queries: tuple[Query, ...], scale: int | None) -> tuple[Placement, ...]:
    """The placements that serve the queries of one group; empty for none. scale: of the values, None for floats.

    There is one placement for 'all' readings or, if late readings count per window, one for those 'on_time' and one for
    'late' ones. Windows between markers add one for 'markers'. Raises: ConfigError for queries that cannot be served.
    """
    if not queries:
        return ()
    for query in queries:
        _refuse_unsupported(query)
    basis = basis_of((aggregate for query in queries for aggregate in query.aggregates), scale)
    if len(basis) > MAX_COLUMNS:
        ids = ", ".join(query.id for query in queries[:3]) + (", ..." if len(queries) > 3 else "")
        raise ConfigError(
            f"the functions of the queries with one source and filter ({ids}) need {len(basis)} state columns, at most "
            f"{MAX_COLUMNS} are possible: use fewer functions or fewer `edges` of a histogram, or give one of these "
            "queries another filter or lateness"
        )
    if (named := sum(len(query.id) + 8 for query in queries)) > MAX_PLAN_BYTES:
        raise ConfigError(
            f"the ids of {len(queries)} queries with one source and filter (with revisions of open windows) take "
            f"{named} bytes, at most {MAX_PLAN_BYTES} are possible: wait until windows have ended, or use shorter ids"
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
    if local:
        reason = "finished on the gateway and merged with no other node"
    elif kind == "window":
        reason = "whole windows: fewer bytes than the slices between their edges"
    else:
        reason = "slices, each sent once however many windows contain it"

    def placed(kind: str, feeds: str, reason: str) -> Placement:
        made = _plan_of(queries, kind, basis, scale, unit_us=math.gcd(*(window.unit_us for window in windows)))
        cost, other = (slices, whole) if kind == "slice" else (whole, slices)
        where = "gateway" if local else "root"
        return Placement(made, feeds, where, reason, cost, None if local or feeds == "late" else other)

    if kind == "slice" and any(query.late == "per_window" for query in queries):
        late = "late readings as whole windows: each counts in the windows that are still open, in no other"
        return placed(kind, "on_time", reason), placed("window", "late", late)
    return (placed(kind, "all", reason),)


def _sessions(queries: tuple[Query, ...], basis: tuple[str, ...], scale: int | None) -> Placement:
    cut = queries[0].group.cut
    made = _plan_of(queries, "session", basis, scale, gap_us=cut.gap_us)
    cost = Cost(basis, scale, own_range=True)
    if queries[0].scope == "local":
        reason = "sessions of the gateway alone, merged with those of no other node"
        return Placement(made, "all", "gateway", reason, cost)
    reason = "partial sessions, merged at every tier across the gap; the root completes them by frontiers and hints"
    return Placement(made, "all", "root", reason, cost)


_MARKED: Final = {  # interpretation of markers -> reason of the placement
    "local": "finished on the gateway and merged with no other node",
    "bounds": "finished on the gateway; those of equal bounds merge at every tier",
    "order": "finished on the gateway; the root merges the i-th of all nodes once every one has sent it",
    "overlap": "finished on the gateway; the root joins those that overlap once no node has an earlier one open",
    "central": "formed from every reading, compact: only the root knows the markers of all gateways in their order",
}


def _punctuation(
    queries: tuple[Query, ...], window: Punctuation, basis: tuple[str, ...], scale: int | None
) -> tuple[Placement, ...]:
    """Placements of windows between markers: one for rows, one for markers.

    If the markers of all nodes cut one stream, these are raw readings and single markers. Else they are whole windows,
    and marker rows that list all windows, because a window without a reading counts, too.
    """
    where, why = ("gateway" if window.interpretation == "local" else "root"), _MARKED[window.interpretation]
    if window.interpretation == "central":
        _refuse_labels(queries, scale)
        kind, basis, cost = RAW, RAW_BASIS, Cost(RAW_BASIS, scale, COMMIT)
        listed = "the markers themselves"
    else:
        kind, cost = "window", Cost(basis, scale, own_range=True)
        listed = "which windows there are, with or without a reading"
    rows = _plan_of(queries, kind, basis, scale)
    markers = _plan_of(queries, "marker", ("count",), None)
    return (
        Placement(rows, "all", where, f"windows from marker to marker, {why}", cost),
        Placement(markers, "markers", where, listed, Cost(markers.basis, None, own_range=True)),
    )


def _raw(queries: tuple[Query, ...], scale: int | None) -> Placement:
    """The placement of raw readings, for windows that depend on the order of the readings of all nodes."""
    _refuse_labels(queries, scale)
    reason = "every reading, compact: only the root knows the order of the readings of all gateways"
    if queries[0].scope == "local":
        reason = "every reading, compact: the root puts those of the gateway in order"
    made = _plan_of(queries, RAW, RAW_BASIS, scale)
    return Placement(made, "all", "root", reason, Cost(RAW_BASIS, scale, COMMIT))


def _refuse_labels(queries: tuple[Query, ...], scale: int | None) -> None:
    """Refuse functions and window conditions that need a label outside the key, because the root gets only keys.

    Raises: ConfigError.
    """
    for query in queries:
        conditions = getattr(query.window, "labels", frozenset[str]())
        lacking = sorted({*conditions, *labels_of(basis_of(query.aggregates, scale))} - {*query.by})
        if lacking:
            raise ConfigError(
                f"query {query.id}: a {query.window.type} window can use the key and value of a reading, not its "
                f"label {lacking[0]!r}: add it to `by`"
            )


def _plan_of(
    queries: tuple[Query, ...],
    kind: str,
    basis: tuple[str, ...],
    scale: int | None,
    *,
    unit_us: int = 1,
    gap_us: int | None = None,
) -> Plan:
    served = tuple(sorted((query.id, query.revision) for query in queries))
    digest = plan_hash(hashed_kind(queries[0].group.cut, kind), basis, scale, served)
    return Plan(digest, kind, basis, scale, unit_us, served, gap_us)


def hashed_kind(cut: GroupCut, kind: str) -> str:
    """The kind of a plan as its hash includes it, with what cuts sessions or windows between markers."""
    if isinstance(cut, SessionCut):
        return f"{kind} {cut.gap_us} {cut.max_us}"
    if isinstance(cut, PunctuationCut) and kind != "marker":
        return f"{kind} {replace(cut, skips=False).text}"
    return kind


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
        raise ConfigError(f"query {query.id}: unknown scope {query.scope!r}; there are {', '.join(SCOPES)}")
    for aggregate in query.aggregates:
        try:
            check(aggregate)
        except ConfigError as err:
            raise ConfigError(f"query {query.id}: {err}") from err
