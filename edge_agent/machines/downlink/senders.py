"""Checks for which nodes a child may send: a gateway for itself alone (docs/protocol.md 4.6)."""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.downlink.group_membership import GroupMembership

Memberships = Mapping[Group, GroupMembership]


def check_names(memberships: Memberships, node: str, frame: Frame, gateways_only: bool | None) -> None:
    """Refuse a frame in which a gateway names another node. gateways_only: see ChildFrames. Raises: WireError."""
    if gateways_only is False or not (frame.members or frame.gaps or frame.define or _excepts(frame)):
        return
    named = {leaf.node for change in frame.members for leaf in change.leaves}
    named.update(name for change in frame.members for name in change.dropped)
    named.update(serving.node for change in frame.members for serving in change.serving if serving.node)
    named.update(name for gap in frame.gaps for name in gap.nodes)
    named.update(group.node for _, group in (frame.define.groups if frame.define else ()) if group.node)
    named.update(each.node for part in frame.groups for each in part.exceptions or ())
    foreign = sorted(named - {node})
    if foreign and (gateways_only or node in named or _is_gateway(memberships, node)):
        says = "[lower] tiers says that children here are gateways" if gateways_only else "is a gateway itself"
        raise WireError(f"speaks for {', '.join(foreign[:3])}, and {says}")


def _is_gateway(memberships: Memberships, node: str) -> bool:
    """Whether a child has listed itself, as a region never does."""
    members = (each.members.get(node) for each in memberships.values())
    return any(member is not None and node in member.leaves for member in members)


def _excepts(frame: Frame) -> bool:
    """Whether a frame names leaves that are left out."""
    return any(part.exceptions for part in frame.groups)
