"""Computes the frontier of a group at a gateway (docs/protocol.md 4.1)."""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.query import Group
from edge_agent.machines.gateway.group_state import GroupState
from edge_agent.machines.gateway.source import Source


def advanced_us(
    group: Group, state: GroupState, sources: Mapping[str, Source], now_us: int, *, clock_known: bool, step_us: int
) -> int:
    """The frontier of a group at now_us, never below its last one. step_us: see `_aligned`."""
    source, before = sources.get(group.source), max(state.slicer.frontier_us, state.frontier_us)
    _, *marker_sources = sensors_of(group)
    reached_us = source.reached_us(now_us) if source is not None else now_us
    for name in marker_sources:  # a marker may still be in transit, so the slowest source counts
        if (marking := sources.get(name)) is not None:
            reached_us = min(reached_us, marking.reached_us(now_us))
    if reached_us <= NEVER_US or not (clock_known or (source is not None and source.own_clock)):
        return before
    return max(before, _aligned(state, reached_us - group.lateness_us, step_us))


def promise_anew(group: Group, state: GroupState, sources: Mapping[str, Source], now_us: int, *, step_us: int) -> None:
    """Lower a frontier that lies ahead of the clock, because it was promised while the clock was wrong."""
    found = [sources.get(name) for name in sensors_of(group)]
    if all(source is not None and not source.own_clock and source.mark_us is None for source in found):
        if state.slicer.promise_anew(_aligned(state, now_us - group.lateness_us, step_us)):
            state.serves(state.slicer.servings)
        state.frontier_us = min(state.frontier_us, state.slicer.frontier_us)


def _aligned(state: GroupState, frontier_us: int, step_us: int) -> int:
    """Round a frontier down to a multiple of step_us if all window edges of the group are such multiples."""
    return frontier_us - frontier_us % step_us if state.slicer.unit_us % step_us == 0 else frontier_us


def sensors_of(group: Group) -> tuple[str, ...]:
    """The sensor of a group and, if its markers are value changes of another sensor, also that sensor."""
    if isinstance(group.cut, PunctuationCut) and group.cut.marker_source:
        return group.source, group.cut.marker_source
    return (group.source,)
