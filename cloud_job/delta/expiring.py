"""Decides which rows of bronze.messages no result can need any more (docs/protocol.md 8.4). Pure.

Rows expire by plan. Rows of sessions and of windows between markers stay while a node serves their group, because a
later row of such a group may need readings from any time before it.
"""

from __future__ import annotations

from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.query.group_cut import OrderedCut, TimeCut
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import extent_us
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import identity
from edge_agent.wire.heads import Parts

Expiring = tuple[str, int, int, int]  # node, epoch, plan, time


def expiring(decider: Decider, state: RootState, parts: Parts) -> list[Expiring]:
    """Returns (node, epoch, plan, time): parts of the plan that end before the time are needed by no result any more.

    parts: of the frames that have not taken effect.
    """
    waiting: dict[EpochKey, int] = {}
    for (node, epoch, _seq), found in parts.items():
        line = EpochKey(node, epoch)
        waiting[line] = min([waiting.get(line, -NEVER_US), *(part.latest_end_us for part in found)])
    out = []
    for line, dictionary in decider.parent.dictionaries.items():
        for number, (group, plan) in dictionary.plans.items():
            before_us = _needed_us(group, plan, decider, state)
            if before_us is None:
                before_us = _ended_us(group, plan, decider, state)
            if before_us is not None:
                out.append((*line, number, min(before_us, waiting.get(line, before_us))))
    return out


def over(decider: Decider, state: RootState, parts: Parts) -> list[EpochKey]:
    """Returns the epochs that have ended and whose rows no result can need any more.

    Rows of sessions and of windows between markers stay, as in `expiring`. parts: of the frames that have not taken
    effect.
    """
    waiting, found = {EpochKey(node, epoch) for node, epoch, _seq in parts}, []
    for line, dictionary in decider.parent.dictionaries.items():
        if line in decider.parent.inbox.epochs or line in waiting:
            continue
        plans = [each for each in dictionary.plans.values() if identity(*each) in state.plans]  # others have no rows
        needed = [_needed_us(group, plan, decider, state) for group, plan in plans]
        latest_us = state.extent.get(line, (NEVER_US, NEVER_US))[1]
        if all(before_us is not None and latest_us < before_us for before_us in needed):
            found.append(line)
    return found


def _needed_us(group: Group, plan: Plan, decider: Decider, state: RootState) -> int | None:
    """The time before which rows of a plan are needed by no result any more; None: not known."""
    floor_us, served = state.floors.get(group), group in decider.parent.children.memberships
    queries = [query for query in map(state.query, plan.keys) if query is not None]
    if floor_us is None or not served or identity(group, plan) not in state.plans or len(queries) < len(plan.keys):
        return None
    places = [QueryPlace(*key, group.node) for key in plan.keys]
    closed_us = min((state.closed_us(place) for place in places), default=NEVER_US)
    if closed_us == NEVER_US:  # its first windows are still to come
        return None
    if isinstance(group.cut, OrderedCut) and plan.kind == "raw":
        return min(closed_us, floor_us)
    if isinstance(group.cut, TimeCut) and plan.kind in ("slice", "window"):
        put_off = [after_us for place in places for after_us, _ in state.pending.get(place, ())]
        return min(closed_us, floor_us, *put_off) - max(extent_us(query.window) for query in queries)
    return None


def _ended_us(group: Group, plan: Plan, decider: Decider, state: RootState) -> int | None:
    """The same time for a group that nobody serves any more, so that none of its rows can change; None: it is served.

    A node that serves the group again does so from about now on, which is two horizons after this time.
    """
    if group in decider.parent.children.memberships or identity(group, plan) in state.plans:
        return None
    reaches = [state.reach(key) for key in plan.keys]
    if None in reaches:
        return None
    longest_us = max((us for us in reaches if us is not None), default=0)
    return state.decided_us - 2 * state.limits.horizon_us - longest_us
