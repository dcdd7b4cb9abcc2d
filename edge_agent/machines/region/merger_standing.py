"""Explains for `headwater status` how far a merger is behind, and which child causes it. Pure."""

from __future__ import annotations

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
    return (None if least_us <= NEVER_US else least_us), "; ".join(f"{name}: {why}" for name, why in found.items())
