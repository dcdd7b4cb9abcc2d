"""Chooses the plans whose slices are kept on the driver, and from which event time on (docs/protocol.md 8.6). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.sliding.prefix_blocks import kept_us
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import ReadRequest

MORE: Final = 4  # keep a fourth of the longest window more: late readings revise windows that have just closed


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A plan whose slices are kept if they start at from_us or later.

    order: the read request for its rows, in the plan's own scale. longest_us: longest window computed from the rows.
    """

    order: ReadRequest
    longest_us: int
    from_us: int


def kept_plans(state: RootState, groups: Mapping[Group, GroupView]) -> dict[bytes, CachedPlan]:
    """The plans whose slices are kept, by identity: those of queries for which the cache pays, late readings too."""
    found: dict[bytes, CachedPlan] = {}
    sliced: set[tuple[str, int]] = set()
    for identity, (group, plan) in state.plans.items():
        view = groups.get(group)
        if view is None:
            continue
        served = [key for key in plan.keys if key in view.serving]
        longest_us = kept_us((query for key in served if (query := state.query(key)) is not None), plan.scale)
        if not longest_us:
            continue
        closed_us = min(state.closed.get(QueryPlace(*key, group.node), NEVER_US) for key in served)
        order = ReadRequest(0, identity, plan.kind, plan.basis, plan.scale, plan.scale)
        found[identity] = CachedPlan(order, longest_us, closed_us - longest_us - longest_us // MORE)
        if plan.kind == "slice":
            sliced |= set(served)
    return {i: kept for i, kept in found.items() if sliced & set(state.plans[i][1].queries)}
