"""Finds gateways that lived before their spool was lost, which their parent knows and they do not (docs/protocol.md
1.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge_agent.algebra.frame import BEGAN, NEVER_US, Frame, Gap
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import Memberships
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.events import BadFrame


def losses_before(node: str, frame: Frame, inbox: Inbox, memberships: Memberships) -> Iterator[Gap]:
    """The losses of a gateway that reports the beginning of listening while frames of an earlier life of it wait.

    They wait for births that never took effect here, nor will: the content of these epochs is not known, and no row of
    them counts. The losses of a line that this parent knows are declared from where that line stood.
    """
    began = [gap for gap in frame.gaps if gap.reason == BEGAN and not gap.detail and gap.nodes == (node,)]
    lines = inbox.lines_of(node) if began else {}
    strangers = _strangers(lines, frame.epoch)
    own = lines.get(frame.epoch)
    first = own is not None and own.predecessor is None and not own.copied
    for gap in began:
        if not any(_earlier(message, gap.end_us) for each in strangers for message in each.waiting.values()):
            continue
        for group in gap.groups:
            member = memberships[group].members.get(node) if group in memberships else None
            if first or member is None or member.frontier_us == NEVER_US:
                yield loss_records.of_past(group, gap.nodes, gap.end_us - 1)


def _strangers(lines: Mapping[int, EpochFrames], epoch: int) -> list[EpochFrames]:
    """The epochs of which frames wait here and which do not follow this one, according to their births.

    They may follow it all the same, where a birth between has not come yet.
    """
    others = {other: each for other, each in lines.items() if other != epoch and each.waiting and not each.lost}
    known = {epoch}
    while True:
        following = {
            other
            for other, each in others.items()
            if isinstance(each.predecessor, tuple) and each.predecessor[0] in known
        }
        if following <= known:
            return [each for other, each in others.items() if other not in known]
        known |= following


def _earlier(message: Frame | BadFrame, began_us: int) -> bool:
    """Whether a frame has something of before listening began: then it is of an earlier life."""
    if isinstance(message, BadFrame):
        return True
    promised = [part.frontier_us for part in message.groups if part.frontier_us is not None]
    rows = [section.span_us[0] for part in message.groups for section in (*part.sections, *part.late)]
    losses = [gap.end_us for gap in message.gaps if gap.groups]
    return min((*promised, *rows, *losses), default=began_us) < began_us
