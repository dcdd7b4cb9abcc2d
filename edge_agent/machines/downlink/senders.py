"""Checks for which nodes a child may send: a gateway only for itself (docs/protocol.md 4.6)."""

from __future__ import annotations

from edge_agent.algebra.frame import Frame
from edge_agent.errors import WireError
from edge_agent.machines.downlink.group_membership import Memberships


def check_names(memberships: Memberships, node: str, frame: Frame, gateways_only: bool | None) -> None:
    """Refuse a frame in which a gateway names another node. gateways_only: see ChildFrames. Raises: WireError."""
    if gateways_only is False:
        return
    named = _names_in(frame)
    foreign = sorted(named - {node})
    if foreign and (gateways_only or node in named or _is_gateway(memberships, node)):
        says = "[lower] tiers says that children here are gateways" if gateways_only else "is a gateway itself"
        raise WireError(f"speaks for {', '.join(foreign[:3])}, and {says}")


def _is_gateway(memberships: Memberships, node: str) -> bool:
    """Whether a child has listed itself as a leaf, which only a gateway does."""
    members = (each.members.get(node) for each in memberships.values())
    return any(member is not None and node in member.leaves for member in members)


def _names_in(frame: Frame) -> set[str]:
    """The nodes that a frame names in its groups, members, gap records and exceptions."""
    named = {group.node for _, group in (frame.define.groups if frame.define else ()) if group.node}
    for change in frame.members:
        named.update(leaf.node for leaf in change.leaves)
        named.update(change.dropped)
        named.update(serving.node for serving in change.serving if serving.node)
    for gap in frame.gaps:
        named.update(gap.nodes)
    for part in frame.groups:
        if part.exceptions or part.more or part.ended:
            named.update(each.node for each in (*(part.exceptions or ()), *part.more))
            named.update(part.ended)
    return named
