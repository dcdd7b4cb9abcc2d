"""Explains for `headwater status` how far a merger is behind, and which child causes it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from edge_agent.algebra.frame import NEVER_US

if TYPE_CHECKING:
    from edge_agent.machines.region.merger import Merger


def standing(merger: Merger, now_us: int) -> tuple[int | None, str]:
    """Returns (least frontier of all groups, None before the first promise; why it is behind, '' if it is not)."""
    children = merger.parent.children
    if merger.outbox.journal is None:
        return None, "waits for its parent: no receipt so far"
    if missing := sorted(children.unheard()):
        return None, f"{', '.join(missing)}: named in the settings, never heard"
    if not children.memberships:
        return None, "waits for its children: none has announced a group"
    least_us = min(membership.published_us for membership in children.memberships.values())
    found = {
        name: why
        for membership in children.memberships.values()
        for name, member in membership.expected().items()
        if (why := children.why_out(name, member, now_us))
    }
    found = found or _held_up(merger, now_us)
    return (None if least_us <= NEVER_US else least_us), "; ".join(f"{name}: {why}" for name, why in found.items())


def _held_up(merger: Merger, now_us: int) -> dict[str, str]:
    """Child -> why it holds up a group for longer than the grace time, although it speaks and is not left out."""
    children, out = merger.parent.children, dict[str, str]()
    for group, membership in children.memberships.items():
        if not children.stuck(group, now_us) or membership.published_us <= NEVER_US:
            continue
        since = datetime.fromtimestamp(membership.moved_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
        for name, member in membership.expected().items():
            if not member.out and member.frontier_us <= membership.published_us:
                out[name] = f"its frontier for {group.source} has not risen since {since}"
    return out
