"""Extends losses that ended at the present time of a parent whose clock turns out to be behind (3.6)."""

from __future__ import annotations

from collections.abc import Iterator

from edge_agent.algebra.frame import Gap
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.group_membership import GroupParts
from edge_agent.machines.downlink.member import AHEAD_US


def found_behind(node: str, parts: GroupParts, children: Children, received_us: int) -> Iterator[Gap]:
    """Yields what may be lost of a child above the time at which its last loss was declared.

    A promise of more than this parent's time shows that its clock is behind, by AHEAD_US at most (4.3). If the last
    promise before the lost frame was still below that time, only the next one shows it. parts: of the child's frame.
    """
    lost, unlisted = children.unlisted.of.get(node), children.unlisted
    promised_us = (part.frontier_us for _, part in parts if part.frontier_us is not None)
    if lost is None or not any(lost.end_us < us <= lost.end_us + AHEAD_US and us > received_us for us in promised_us):
        return
    end_us = lost.end_us + AHEAD_US
    unlisted.of[node] = lost._replace(end_us=end_us)
    for group, membership in children.memberships.items():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            yield Gap((group,), lost.end_us, end_us, -1, tuple(sorted(member.leaves)), lost.reason)
