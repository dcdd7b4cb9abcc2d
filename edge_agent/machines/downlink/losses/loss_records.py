"""Makes gap records for frames that a parent cannot use or has lost, and completes those of its children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from edge_agent.algebra.frame import DAMAGED, FRAMES_LOST, JOURNAL_LOST, LATEST_US, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import SECOND_LINE
from edge_agent.machines.downlink.group_membership import Memberships
from edge_agent.machines.downlink.losses.bad_messages import evidence
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.member import Member

PAST_UNKNOWN: Final = "its past is not known"  # detail of a record: not the child itself says it (3.7)
LATE_US: Final = 900_000_000  # nobody knows how late the late rows in frames were that a child let go: so much at most


def of_message(
    memberships: Memberships, node: str, why: str, payload: bytes, now_us: int, *, since_us: int | None = None
) -> tuple[Gap, ...]:
    """The gap records for a message that cannot be used, one per group of its sender (3.6).

    Its rows closed after the frontier that the sender had promised by then, and pieces of sessions began no earlier
    than its registers say, so windows from there to now are marked: rather too many than too few. since_us: where
    late rows of it may begin; those of frames that a child let go, LATE_US before. The detail contains the bytes, so
    that the root can show them.
    """
    lost = next((reason for reason in (FRAMES_LOST, LET_GO) if why.startswith(reason)), "")
    reason, detail = (lost, why) if lost else (f"quarantined: {why}", evidence(payload))
    out = []
    for group, membership in memberships.items():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            start_us = min(member.lowest_us, now_us, _earliest(member, since_us)) - (LATE_US if lost == LET_GO else 0)
            start_us = max(start_us, 0)
            out.append(Gap((group,), start_us, now_us + 1, -1, tuple(sorted(member.leaves)), reason, 0, detail))
    return tuple(out) or (Gap((), 0, 0, -1, (node,), reason, 0, detail),)


def _earliest(member: Member, since_us: int | None) -> int:
    """The earliest time of late rows and gap records in a lost frame.

    A gap record from the beginning of time is of a lost journal, and stands for what its leaves had reached here (3.7).
    """
    if since_us is None:
        return LATEST_US
    if since_us > 0:
        return since_us
    return min((min(each) for each in (*member.leaf_frontiers().values(), *member.reached.values())), default=0)


def late_start(frame: Frame) -> int | None:
    """The earliest start of late rows and gap records of a frame that is read and refused; None if it has none."""
    late = [section.span_us[0] for part in frame.groups for section in part.late]
    return min((*late, *(gap.start_us for gap in frame.gaps if gap.groups)), default=None)


def of_past(group: Group, leaves: Iterable[str], now_us: int, reason: str = JOURNAL_LOST) -> Gap:
    """The gap records for a child that this parent once heard and no longer knows. The tier above narrows them.

    reason: another reason if late rows may be among the loss: then the tier above does not narrow the record.
    """
    return Gap((group,), 0, now_us + 1, -1, tuple(sorted(leaves)), reason, 0, PAST_UNKNOWN)


def unheard(memberships: Memberships, node: str, frame: Frame) -> Iterator[Gap]:
    """The gap records for a second line that is not counted, for all groups of the node: the line's own are not
    known.
    """
    spans = [s.span_us for part in frame.groups for s in (*part.sections, *part.late)]
    for group, membership in memberships.items() if spans else ():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            start_us, end_us = max(min(spans)[0], 0), max(end_us for _, end_us in spans)
            yield Gap((group,), start_us, max(start_us, end_us), -1, tuple(sorted(member.leaves)), SECOND_LINE)


def dated(children: Children, node: str, gaps: Iterable[Gap], now_us: int) -> Iterator[Gap]:
    """Gap records to pass on, without the number of frames that each replaces, which concerns the child's own line.

    The sender of a frame damaged on disk cannot know its time, or whose rows it contained; such a record gets the time
    from where the sender's line has come here until now.
    """
    for gap in (replace(gap, run=0) for gap in gaps):
        timed = gap.end_us > gap.start_us
        if (timed and (gap.nodes or gap.reason != DAMAGED)) or gap.readings >= 0 or not gap.groups:
            yield gap
            continue
        for group in gap.groups:
            member = children.membership(group).member(node)
            start_us = gap.start_us if timed else max(min(member.frontier_us, now_us), 0)
            end_us = gap.end_us if timed else now_us + 1
            nodes = gap.nodes or tuple(sorted(member.leaves))
            yield replace(gap, groups=(group,), start_us=start_us, end_us=end_us, nodes=nodes)


def narrowed(memberships: Memberships, node: str, gap: Gap) -> list[Gap]:
    """A gap record about a lost journal, beginning where its leaves had come to here (3.7); one per group and leaf."""
    if gap.reason != JOURNAL_LOST:
        return [gap]
    out = []
    for group in gap.groups:
        membership = memberships.get(group)
        member = None if membership is None else membership.members.get(node)
        known = {} if member is None else {**member.leaf_frontiers(), **member.reached}
        for leaf in gap.nodes:
            start_us = max(gap.start_us, min(known.get(leaf, (gap.start_us, gap.start_us))))
            if start_us < gap.end_us:
                out.append(replace(gap, groups=(group,), nodes=(leaf,), start_us=start_us))
    return out
