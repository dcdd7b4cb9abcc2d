"""Checks for which nodes a child may send: a gateway only for itself (docs/protocol.md 4.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edge_agent.algebra.frame import Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.downlink.group_membership import Memberships


class Senders:
    """Which children are gateways.

    known: children that have listed themselves, which only gateways do. One stays here after it has left all groups.
    """

    def __init__(self, gateways_only: bool | None) -> None:
        """gateways_only: see ChildFrames."""
        self.known: set[str] = set()
        self._gateways_only = gateways_only

    def check(self, memberships: Memberships, node: str, frame: Frame, used: Iterable[Group] = ()) -> None:
        """Refuse a frame in which a gateway names another node. Raises: WireError.

        used: groups to which the frame refers by numbers; the frame that defined them may have been refused.
        """
        if self._gateways_only is False:
            return
        self._listen(node, frame)
        named = _names_in(frame)
        named.update(group.node for group in used if group.node)
        foreign = sorted(named - {node})
        if foreign and self._is_gateway(memberships, node):
            says = (
                "[lower] tiers says that children here are gateways" if self._gateways_only else "is a gateway itself"
            )
            raise WireError(f"speaks for {', '.join(foreign[:3])}, and {says}")

    def gaps(self, memberships: Memberships, node: str, frame: Frame) -> tuple[Gap, ...]:
        """The gap records of a child's frame. Those of a gateway that name nobody concern itself, not all leaves."""
        self._listen(node, frame)
        if all(gap.nodes or not gap.groups for gap in frame.gaps) or not self._is_gateway(memberships, node):
            return frame.gaps
        return tuple(gap if gap.nodes or not gap.groups else replace(gap, nodes=(node,)) for gap in frame.gaps)

    def _listen(self, node: str, frame: Frame) -> None:
        if any(leaf.node == node for change in frame.members for leaf in change.leaves):
            self.known.add(node)

    def _is_gateway(self, memberships: Memberships, node: str) -> bool:
        if self._gateways_only is not None:
            return self._gateways_only
        members = (each.members.get(node) for each in memberships.values())  # after a start, nobody is known yet
        return node in self.known or any(member is not None and node in member.leaves for member in members)


def _names_in(frame: Frame) -> set[str]:
    """The nodes that a frame names in its groups, members, gap records and exceptions."""
    named = {group.node for _, group in (frame.define.groups if frame.define else ()) if group.node}
    for change in frame.members:
        named.update(leaf.node for leaf in change.leaves)
        named.update(change.dropped)
        named.update(serving.node for serving in change.serving if serving.node)
    for gap in frame.gaps:
        named.update(gap.nodes)
        named.update(group.node for group in gap.groups if group.node)
    for part in frame.groups:
        if part.exceptions or part.more or part.ended:
            named.update(each.node for each in (*(part.exceptions or ()), *part.more))
            named.update(part.ended)
    return named
