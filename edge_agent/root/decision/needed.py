"""Decides which rows are no longer needed for any result (docs/protocol.md 8.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.query.group_cut import OrderedCut, PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import extent_us
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import identity

ALONE: Final = ("local", "bounds", "order")  # interpretations by which windows of a node are not joined or cut anew


def needed_us(group: Group, plan: Plan, decider: Decider, state: RootState) -> int | None:
    """No future result needs rows of the plan that end before the returned time. None: not known."""
    if group not in decider.parent.children.memberships:
        return _ended_us(group, plan, decider, state)
    floor_us = state.floors.get(group)
    if floor_us is None:
        return None
    served = [(key, decider.serves(group, key)) for key in plan.keys]
    if any(does is None for _, does in served):  # its first windows have not closed yet
        return None
    queries = [state.query(key) for key, does in served if does]
    known = [query for query in queries if query is not None]
    if len(known) < len(queries):
        return None
    if not known:
        return _over_us(plan, state, floor_us)
    if isinstance(group.cut, SessionCut) and plan.kind == "session":
        return _of_sessions_us(group, known, decider, state)
    if isinstance(group.cut, PunctuationCut):
        return _of_markers_us(group, group.cut, known, state, floor_us)
    return _of_windows_us(group, plan, known, state, floor_us)


def _of_markers_us(
    group: Group, cut: PunctuationCut, queries: Sequence[Query], state: RootState, floor_us: int
) -> int | None:
    """needed_us for windows between markers: the start of the first window that may get rows or be revised.

    None for interpretations that join windows or cut them anew, because such a window may begin anywhere.
    """
    if cut.interpretation not in ALONE or any(
        state.closed_us(QueryPlace(*query.key, group.node)) == NEVER_US for query in queries
    ):
        return None
    windows = (state.markers.windows.get(query.key) for query in queries)
    kept = [us for each in windows if each is not None and (us := each.kept_us(group.node)) is not None]
    return min([floor_us, *kept])


def _of_sessions_us(group: Group, queries: Sequence[Query], decider: Decider, state: RootState) -> int | None:
    """needed_us for sessions: start of the first piece that may still come, minus the length of the longest session."""
    begun_us = state.begun.get(group)
    if begun_us is None or any(state.closed_us(QueryPlace(*query.key, group.node)) == NEVER_US for query in queries):
        return None
    out = begun_us
    for query in queries:
        track = state.sessions.tracks.get(QueryPlace(*query.key, group.node))
        if track is None:
            continue
        start_us = decider.start_us(group, query.key)
        crosses = start_us is not None and begun_us <= track.crossing_us  # earlier pieces show that it gives no row
        low_us = min(begun_us, start_us - group.cut.gap_us) if crosses and start_us is not None else begun_us
        out = min(out, low_us - track.longest_us)
    return out


def _of_windows_us(group: Group, plan: Plan, queries: Sequence[Query], state: RootState, floor_us: int) -> int | None:
    places = [QueryPlace(*query.key, group.node) for query in queries]
    closed_us = min(state.closed_us(place) for place in places)
    if closed_us == NEVER_US:
        return None
    longest_us = max(extent_us(query.window) for query in queries)
    if isinstance(group.cut, OrderedCut) and plan.kind == "raw":
        return min(closed_us, floor_us)
    if isinstance(group.cut, TimeCut) and plan.kind in ("slice", "window"):
        put_off = [after_us for place in places for after_us, _ in state.pending.get(place, ())]
        return min(closed_us, floor_us, *put_off) - longest_us
    return None


def _over_us(plan: Plan, state: RootState, floor_us: int) -> int | None:
    """needed_us for a plan none of whose queries is served any more, in a group that still serves others."""
    reaches = [us for key in plan.keys if (us := state.reach(key)) is not None]
    if len(reaches) < len(plan.keys):
        return None
    return floor_us - state.limits.horizon_us - max(reaches, default=0)


def _ended_us(group: Group, plan: Plan, decider: Decider, state: RootState) -> int | None:
    """needed_us for a group without members, whose rows cannot change any more.

    Two horizons are enough: a member that serves the group again serves it only from about that time on.
    """
    reaches = [us for key in plan.keys if (us := state.reach(key)) is not None]
    if identity(group, plan) in state.plans or len(reaches) < len(plan.keys):
        return None
    now_us = min(state.decided_us, decider.elapsed_us)  # an error of the clock makes no reading old
    return now_us - 2 * state.limits.horizon_us - max(reaches, default=0)
