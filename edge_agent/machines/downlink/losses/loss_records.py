"""Makes gap records for frames that a parent cannot use or has lost, and completes gap records of its children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from edge_agent.algebra.earliest_start import earliest_start
from edge_agent.algebra.frame import (
    BEGAN,
    DAMAGED,
    FRAMES_LOST,
    IN_DOUBT,
    JOURNAL_LOST,
    LATEST_US,
    NEVER_US,
    Frame,
    Gap,
)
from edge_agent.algebra.gap_scope import has_times, of_all_groups
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import (
    AFTER_FLUSH,
    ANOTHER_FLUSH,
    OTHERS_HERE,
    SECOND_LINE,
    Effect,
    EpochFrames,
)
from edge_agent.machines.downlink.group_membership import MemberChanges, Memberships
from edge_agent.machines.downlink.losses.bad_messages import bounded, evidence
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.retired_leaves import is_from
from edge_agent.machines.downlink.losses.unlisted import Unseen
from edge_agent.machines.downlink.member import AHEAD_US, Member

# reason of records for what a child without its past may have sent without effect here (1.2, 1.3)
PAST_LOST: Final = "its spool is lost, or an older copy"
PAST_UNKNOWN: Final = "its past is not known"  # detail of a record made by the parent instead of the child (3.7)
OLDER_LINE: Final = "of an earlier line of its node"  # detail of a record of a node that has lost its past since
LATE_US: Final = 900_000_000  # late rows in frames that a child has deleted are assumed to be at most so late


def of_refused(
    memberships: Memberships, effect: Effect, payload: bytes, now_us: int, *, flushed: bool
) -> tuple[Gap, ...]:
    """The gap records for a frame that was settled without content, as of `of_message`.

    flushed: whether its epoch has a flush. A flush takes the numbers of frames that another device had sent: some may
    never have come, and that device has deleted them for the receipt of the flush (1.4). What it sends behind them, or
    a flush that is refused, shows it. `stale`: a frame in the place of a flush came itself. A birth may have lowered
    the promise of a clock that was ahead (4.1), so frames behind it may have had rows below that promise.
    """
    copied = effect.why in (AFTER_FLUSH, ANOTHER_FLUSH, OTHERS_HERE) and not effect.stale
    hides = copied or (flushed and effect.why == SECOND_LINE) or (effect.seq == 0 and not effect.stale)
    return of_message(
        memberships, effect.node, effect.why, payload, now_us, since_us=effect.since_us, early_us=LATE_US * hides
    )


def of_message(
    memberships: Memberships,
    node: str,
    why: str,
    payload: bytes,
    now_us: int,
    *,
    since_us: int | None = None,
    early_us: int = 0,
) -> tuple[Gap, ...]:
    """The gap records for a message that cannot be used, one per group of its sender (3.6).

    Its rows lie above the sender's frontier so far, and pieces of its sessions begin no earlier than its registers, so
    all windows from there until now are marked. why: the reason; if it begins with FRAMES_LOST or LET_GO, the frames
    never arrived. payload: the message; the detail contains its first bytes for the root to show. since_us: the
    `earliest_start` of its late rows; None: none. early_us: how much earlier the records begin, because of unknown late
    rows; for LET_GO always LATE_US.
    """
    lost = next((reason for reason in (FRAMES_LOST, LET_GO) if why.startswith(reason)), "")
    reason, detail = (lost, why) if lost else (f"quarantined: {why}", evidence(payload))
    early_us = LATE_US if lost == LET_GO else early_us
    out = []
    for group, membership in memberships.items():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            upto_us = latest_us(member, now_us)
            start_us = max(min(member.lowest_us, upto_us, _earliest(member, since_us)) - early_us, 0)
            out.append(Gap((group,), start_us, upto_us + 1, -1, tuple(sorted(member.leaves)), reason, 0, detail))
    return tuple(map(bounded, out)) or (bounded(Gap((), 0, 0, -1, (node,), reason, 0, detail)),)


def latest_us(member: Member, now_us: int) -> int:
    """Up to where rows of a child may reach that were lost before now.

    If the child has promised more than now, the clock of this parent is behind, by AHEAD_US at most (4.3).
    """
    return now_us + AHEAD_US if member.frontier_us > now_us else now_us


def _earliest(member: Member, since_us: int | None) -> int:
    """The earliest time of late rows and gap records in a lost frame. since_us: see `of_message`.

    A since_us of 0 or less comes from a gap record for a lost journal, which the parent begins at its leaves' frontiers
    (3.7); if there are others, it is the opposite of their earliest start.
    """
    if since_us is None:
        return LATEST_US
    if since_us > 0:
        return since_us
    low_us = min((min(each) for each in (*member.leaf_frontiers().values(), *member.reached.values())), default=0)
    return min(low_us, -since_us) if since_us else low_us


def of_past(group: Group, leaves: Iterable[str], now_us: int, reason: str = JOURNAL_LOST) -> Gap:
    """The gap record for a child whose past is unknown here, from the beginning of time to now.

    The tier above narrows it by what the child had promised there, except if `reason` is another: because late rows
    may be lost too, or because the child has promised something here since.
    """
    return Gap((group,), 0, max(now_us + 1, 0), -1, tuple(sorted(leaves)), reason, 0, PAST_UNKNOWN)


def of_older_line(gap: Gap) -> Gap:
    """A gap record of an older line: for the tier above it does not say that the present line knows its past (1.2)."""
    says = gap.reason in (JOURNAL_LOST, BEGAN) and not gap.detail
    return replace(gap, detail=OLDER_LINE) if says else gap


def unheard(memberships: Memberships, node: str, frame: Frame, *, flushed: bool) -> Iterator[Gap]:
    """The gap records for a frame of a second line, which does not count.

    They are for all groups of the node, because the group numbers of that line are not known.

    flushed: see `of_refused`.
    """
    spans = [s.span_us for part in frame.groups for s in (*part.sections, *part.late)]
    for group, membership in memberships.items() if spans else ():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            start_us, end_us = max(min(spans)[0] - LATE_US * flushed, 0), max(end_us for _, end_us in spans)
            yield Gap((group,), start_us, max(start_us, end_us), -1, tuple(sorted(member.leaves)), SECOND_LINE)


def waiting_for_a_journal(memberships: Memberships, node: str, lines: Iterable[EpochFrames]) -> Iterator[Gap]:
    """The gap records for what waits of a child when its parent has another journal: it may never take effect (3.7).

    A child that has moved away since declares only what has no receipt (1.5). The records are for all of its groups,
    because the group numbers of epochs without a birth are not known.
    """
    waiting = [message for each in lines if not each.lost for message in each.waiting.values()]
    frames = [message for message in waiting if isinstance(message, Frame)]
    spans = [section.span_us for frame in frames for part in frame.groups for section in (*part.sections, *part.late)]
    spans += [(gap.start_us, gap.end_us) for frame in frames for gap in frame.gaps if has_times(gap)]
    since_us, end_us = earliest_start(us for us, _ in spans), max((us for _, us in spans), default=0)
    found: dict[tuple[int, tuple[str, ...]], list[Group]] = {}
    for group, membership in memberships.items() if end_us > 0 else ():
        member = membership.members.get(node)
        if member is not None and member.leaves:
            start_us = min(max(_earliest(member, since_us), 0), end_us)
            found.setdefault((start_us, tuple(sorted(member.leaves))), []).append(group)
    for (start_us, leaves), groups in found.items():
        yield Gap(tuple(groups), start_us, end_us, -1, leaves, IN_DOUBT)


def waiting_leaves(lines: Iterable[EpochFrames]) -> list[tuple[int, int]]:
    """The (epoch, seq) of each frame with a `leave` that waits (1.5)."""
    waiting = (message for each in lines if not each.lost for message in each.waiting.values())
    return [(each.epoch, each.seq) for each in waiting if isinstance(each, Frame) and each.leave is not None]


def retired(memberships: Memberships, node: str, now_us: int) -> Iterator[Unseen]:
    """Finds leaves that moved away from a child that is being retired, which will never report their `leave` (1.5).

    Other children list them as moved from an epoch whose `leave` nobody else can report. What the child received of
    them and did not pass on is lost: from where each leaf stands here, and LATE_US earlier, because of late rows. In a
    group in which that child has not listed the leaf yet, all of it is.
    """
    lists = [each.members[node] for each in memberships.values() if node in each.members]
    entries = {name: leaf for member in lists for name, leaf in member.leaves.items()}
    for group, membership in memberships.items():
        own = membership.members.get(node, Member())
        for of, member in membership.members.items():
            for name in sorted(member.moved & entries.keys()) if of != node else ():
                entry, here = member.leaves[name], name in own.leaves
                if not membership.moves.awaited(entry) or not (here or is_from(entry, entries[name])):
                    continue
                others = (each.leaves.get(name) for child, each in membership.members.items() if child != node)
                if any(other is not None and other.epoch == entry.before_move for other in others):
                    continue
                low_us = min(own.times_of(name)) if here else NEVER_US
                until_us = max(latest_us(own, now_us), latest_us(member, now_us))
                yield Unseen(membership, node, entry, of_leaf(group, name, low_us, until_us, LET_GO))


def left_retired(children: Children, node: str, changes: MemberChanges, now_us: int) -> Iterator[Gap]:
    """Treat leaves as moved that a child lists after the child from which they came was retired (1.5).

    Returns losses as `retired` does, up to now, because the retired child may have received frames of them since.
    changes: definition sections of the child's frame, which have been applied.
    """
    for group, leaf, former in children.retired_leaves.listed(node, changes, children.memberships):
        children.memberships[group].leave_retired(former.child, former.entry, leaf)
        until_us = latest_us(children.memberships[group].members[node], now_us)
        yield of_leaf(group, leaf.node, former.low_us, until_us, LET_GO)


def strayed(memberships: Memberships, changes: MemberChanges, now_us: int) -> Iterator[Gap]:
    """Give up leaves that lost their spool on the way to another parent (1.2). Returns the losses, as of a spool.

    changes: definition sections of a child's frame, which have been applied.
    """
    for group, change in changes:
        members, moves = memberships[group].members, memberships[group].moves
        found = list(moves.end_strayed([leaf.node for leaf in change.leaves], members))
        until_us = max(latest_us(member, now_us) for member in members.values()) if found else now_us
        for name, low_us in found:
            yield of_leaf(group, name, low_us, until_us, PAST_LOST)


def of_leaf(group: Group, leaf: str, low_us: int, now_us: int, reason: str) -> Gap:
    """The gap record for what was lost of a leaf below a child until now. low_us: how far its rows had come."""
    start_us, upto_us = max(low_us - LATE_US, 0), now_us + AHEAD_US if low_us > now_us else now_us  # see `latest_us`
    return Gap((group,), start_us, max(upto_us, start_us) + 1, -1, (leaf,), reason)


def spread(memberships: Memberships, node: str, frame: Frame) -> Frame:
    """Name the groups of records that concern all groups of a child: those in which it has leaves here (3.5).

    Of several such records of one reason only two are left, with and without times, because each names thousands of
    groups.
    """
    wide: dict[tuple[str, bool], list[Gap]] = {}
    for gap in frame.gaps:
        if of_all_groups(gap):
            wide.setdefault((gap.reason, gap.end_us > gap.start_us), []).append(gap)
    if not wide:
        return frame
    groups = tuple(group for group, each in memberships.items() if node in each.members and each.members[node].leaves)
    out = [gap for gap in frame.gaps if not of_all_groups(gap)]
    for some in wide.values():
        # without groups no tier above may take it for a loss of all groups of this node
        readings = [gap.readings if groups else max(gap.readings, 0) for gap in some]
        start_us, end_us = min(gap.start_us for gap in some), max(gap.end_us for gap in some)
        lost = -1 if min(readings) < 0 else sum(readings)
        out.append(
            replace(some[0], groups=groups, start_us=start_us, end_us=end_us if groups else start_us, readings=lost)
        )
    return replace(frame, gaps=tuple(out))


def dated(children: Children, node: str, gaps: Iterable[Gap], until_us: int) -> Iterator[Gap]:
    """Complete a child's gap records before they are passed on.

    Their number of replaced frames is removed, because it concerns only the child's line. Long texts are cut. The
    record for a frame damaged on disk lacks a time range, or the leaves whose rows were in it: it gets the time from
    the child's frontier here until now, and the leaves below the child. A record from a child that did not know its
    time lacks the end only (`undated`).
    """
    for gap in (bounded(replace(gap, run=0)) for gap in gaps):
        timed = gap.end_us > gap.start_us
        if (timed and (gap.nodes or gap.reason != DAMAGED)) or gap.readings >= 0 or not gap.groups:
            yield gap
            continue
        found: dict[tuple[int, int, tuple[str, ...]], list[Group]] = {}
        for group in gap.groups:
            # a record alone makes no group known: it may name thousands that its child never serves
            known = children.memberships.get(group)
            member = Member() if known is None or node not in known.members else known.members[node]
            upto_us = latest_us(member, until_us)
            start_us = gap.start_us if timed or gap.start_us else max(min(member.lowest_us, upto_us), 0)
            end_us = gap.end_us if timed else max(upto_us, start_us) + 1
            found.setdefault((start_us, end_us, gap.nodes or tuple(sorted(member.leaves))), []).append(group)
        for (start_us, end_us, nodes), groups in found.items():  # groups often have the same leaves: name these once
            yield replace(gap, groups=tuple(groups), start_us=start_us, end_us=end_us, nodes=nodes)
            if len(gap.detail) > len(OLDER_LINE):  # evidence: one copy of it is enough
                gap = replace(gap, detail="")


def undated(gap: Gap) -> Gap:
    """A gap record without an end if a parent made it that does not know its time: the tier above adds one (3.5).

    It keeps its start. One at the beginning of time is a microsecond later, since above 0 would stand for the child's
    frontier, which may have passed a leaf that is not listed there yet.
    """
    if gap.end_us <= LATEST_US:
        return gap
    start_us = gap.start_us or 1
    return replace(gap, start_us=start_us, end_us=start_us)


def narrowed(memberships: Memberships, node: str, gap: Gap) -> list[Gap]:
    """Divide a gap record about a lost journal by groups, from the frontiers of the leaves here on (3.7).

    Leaves of a group with the same frontier share a record. Groups in which nothing is known of the leaves keep one
    together: a record may name thousands of groups and of leaves.
    """
    if gap.reason != JOURNAL_LOST:
        return [gap]
    out, names, unknown = [], dict.fromkeys(gap.nodes), []
    for group in dict.fromkeys(gap.groups):
        membership = memberships.get(group)
        member = None if membership is None else membership.members.get(node)
        known = {} if member is None else {**member.leaf_frontiers(), **member.reached}
        if not names.keys() & known.keys():
            unknown.append(group)
            continue
        starts: dict[int, list[str]] = {}
        for leaf in names:
            start_us = max(gap.start_us, min(known.get(leaf, (gap.start_us, gap.start_us))))
            starts.setdefault(start_us, []).append(leaf)
        for start_us, leaves in starts.items():
            if start_us < gap.end_us:
                out.append(replace(gap, groups=(group,), nodes=tuple(leaves), start_us=start_us))
    if unknown and names and gap.start_us < gap.end_us:
        out.append(replace(gap, groups=tuple(unknown), nodes=tuple(names)))
    return out
