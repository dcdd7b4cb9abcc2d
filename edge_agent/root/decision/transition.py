"""Makes one decision of a root and its Work, then forgets state that is no longer needed. Pure.

A root runs for years while queries come and go. State of a query is deleted when none of its rows can change any more:
two horizons after its last window, because a gateway may return after a long absence and still send rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.decision import too_late
from edge_agent.root.decision.decide import step
from edge_agent.root.decision.needed import needed_us
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import Work, identity
from edge_agent.wire.heads import Parts

SWEEP_US: Final = 3_600_000_000  # between two sweeps, by the lander's time


def decided(
    decider: Decider,
    state: RootState,
    now_us: int,
    parts_of: Callable[[Decision], Parts],
    *,
    unread: int = 0,
    flush: bool = False,
) -> tuple[Decision, Work]:
    """Make the next decision and its Work. parts_of: parts of the frames that took effect. Others: see `step`."""
    before_us, decision = state.decided_us, decider.decide(now_us)
    parts, dictionaries = parts_of(decision), decider.parent.dictionaries
    lost = too_late.begun_before(decider, state, decision)
    lost += too_late.contradicted(decider, decision, parts, state.extent)
    if lost:
        decision = replace(decision, gaps=(*decision.gaps, *lost))
        decider.gaps += lost
    work = step(state, decision, parts, dictionaries, decider.gaps, unread=unread, flush=flush)
    decider.release(decision, state.limits.horizon_us, state.reach)
    over = decider.let_go(decision, state.limits.horizon_us, state.waits)
    if over:
        state.let_go(over, decision)
    if over or decision.ended or before_us // SWEEP_US != now_us // SWEEP_US:
        sweep(decider, state, parts)
    return decision, work


def sweep(decider: Decider, state: RootState, parts: Parts) -> None:
    """Forget the state of retired nodes, and plans, definitions and floors that nothing needs any more. End epochs that
    were declared lost, once no frame of them can come and no result can need one.

    parts: of the frames that took effect.
    """
    for node in decider.parent.children.retired:
        decider.parent.inbox.retire(node)
    _forget_sessions(decider, state)
    dictionaries = decider.parent.dictionaries
    came = {  # this decision's rows are still to be read
        identity(*dictionaries[EpochKey(node, epoch)].plans[part.plan])
        for (node, epoch, _seq), found in parts.items()
        for part in found
    }
    for digest, (group, plan) in [*state.plans.items()]:
        below_us = needed_us(group, plan, decider, state)
        if below_us is not None and state.ends[digest] < below_us and digest not in came:
            state.forget_plan(digest)
    named = {key for _group, plan in state.plans.values() for key in plan.keys}
    unnamed = [key for key in {**state.queries, **state.scales} if key not in named]
    for key in decider.forget_texts(unnamed):
        state.forget_query(key)
    long_ago_us = min(state.decided_us, decider.elapsed_us) - 2 * state.limits.horizon_us
    inbox = decider.parent.inbox
    for line in [*inbox.spent()]:
        if state.extent.get(line, (NEVER_US, NEVER_US))[1] < long_ago_us:  # what else comes of it is in no result
            inbox.end_spent(line)
    for group, floor_us in [*state.floors.items()]:
        if group not in decider.parent.children.memberships and floor_us < long_ago_us:
            del state.floors[group]
            state.begun.pop(group, None)


def _forget_sessions(decider: Decider, state: RootState) -> None:
    """Forget open sessions of queries that their group does not serve, two horizons after their end.

    A gateway that was away when a query was removed may still send pieces of it, also after the query was let go.
    """
    for group, plan in state.plans.values():
        before_us = state.floors.get(group, NEVER_US) - state.limits.horizon_us
        for key in plan.keys if plan.kind == "session" else ():
            place = QueryPlace(*key, group.node)
            track = state.sessions.tracks.get(place)
            if track is not None and decider.serves(group, key) is False:
                track.drop(before_us, group.cut.gap_us)
                if not len(track.code):
                    del state.sessions.tracks[place]
