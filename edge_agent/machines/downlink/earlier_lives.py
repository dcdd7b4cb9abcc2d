"""Finds gateways that lived before their spool was lost, which their parent knows and they do not (docs/protocol.md
1.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge_agent.algebra.frame import BEGAN, NEVER_US, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink import loss_records
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Inbox


def losses_before(node: str, frame: Frame, inbox: Inbox, memberships: Mapping[Group, GroupMembership]) -> Iterator[Gap]:
    """The losses of a gateway that reports the beginning of listening while frames of unknown epochs of it wait.

    They wait for births that never took effect here, nor will: the content of these epochs is not known, and no row of
    them counts. The losses of a line that this parent knows are declared from where that line stood.
    """
    began = [gap for gap in frame.gaps if gap.reason == BEGAN and not gap.detail and gap.nodes == (node,)]
    lines = inbox.lines_of(node) if began else {}
    if not _has_strangers(lines, frame.epoch):
        return
    own = lines.get(frame.epoch)
    first = own is not None and own.predecessor is None and not own.copied
    for gap in began:
        for group in gap.groups:
            member = memberships[group].members.get(node) if group in memberships else None
            if first or member is None or member.frontier_us == NEVER_US:
                yield loss_records.of_past(group, gap.nodes, gap.end_us - 1)


def _has_strangers(lines: Mapping[int, EpochFrames], epoch: int) -> bool:
    """Whether frames wait here of epochs that do not follow this one, according to their births."""
    others = {other: each for other, each in lines.items() if other != epoch and each.waiting and not each.lost}
    known = {epoch}
    while True:
        following = {
            other
            for other, each in others.items()
            if isinstance(each.predecessor, tuple) and each.predecessor[0] in known
        }
        if following <= known:
            return bool(others.keys() - known)
        known |= following
