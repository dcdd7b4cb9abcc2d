"""Takes lists of leaves that a merger sent before it lost its journal, which its new line does not repeat (1.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, Leaf
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.group_membership import MemberChanges
from edge_agent.machines.downlink.losses.loss_records import PAST_LOST, of_past
from edge_agent.machines.downlink.losses.repeats import end_older_lines
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.room import MOST_LEAVES


def listed_before(
    effect: Effect, changes: MemberChanges, children: Children, lost: Collection[int], now_us: int
) -> Iterator[Gap]:
    """Take the lists in a frame of an older line of a merger. Yields the losses of leaves that were unknown here.

    As at the birth of the new line for the leaves that were known then: what the lost journal had of them may be lost.
    Such a list adds no leaf, but the leaf has lived, in that epoch. So if it begins anew, it has lost its spool too.

    changes: the definition sections of the frame. lost: epochs of older lines of the merger.
    """
    for group, change in changes:
        gone, found = {*change.dropped, effect.node}, list[str]()
        for leaf in change.leaves:
            if leaf.node not in gone and _lived(children.membership(group).member(effect.node), leaf, lost):
                found.append(leaf.node)
        if found:
            yield of_past(group, found, now_us, PAST_LOST)


def listed_in_vain(
    effect: Effect, changes: MemberChanges, children: Children, lost: Sequence[EpochFrames], now_us: int
) -> Iterator[Gap]:
    """Yields the losses of leaves that are new here, but that frames of an older line of the child list.

    These frames never take effect, because one that defines their numbers is lost. They name their leaves, but not the
    groups. A leaf that goes on in one of these epochs, or names one before a move, states its losses itself.

    changes: the definition sections of the frame, of the present line. lost: older lines with waiting frames.
    """
    epochs: dict[str, set[int]] = {}
    waiting = [each for line in lost for each in line.waiting.values() if isinstance(each, Frame)]
    for leaf in (leaf for frame in waiting for each in frame.members for leaf in each.leaves):
        epochs.setdefault(leaf.node, set()).add(leaf.epoch)
    for group, change in changes if epochs else ():
        membership = children.memberships.get(group)
        member = None if membership is None else membership.members.get(effect.node)
        found = [
            leaf.node
            for leaf in change.leaves
            if leaf.before_move is None and leaf.epoch not in epochs.get(leaf.node, {leaf.epoch})
            if leaf.node != effect.node and (member is None or leaf.node not in member.leaves)
        ]
        if found:
            yield of_past(group, found, now_us, PAST_LOST)


def _lived(member: Member, listed: Leaf, lost: Collection[int]) -> bool:
    """Note that a leaf was there before the journal was lost. Returns whether that was unknown."""
    name, entry = listed.node, member.leaves.get(listed.node)
    if name in member.reached or len(member.reached) >= MOST_LEAVES:
        return False
    if entry is None:
        member.unsaid[name], member.unlisted[name] = listed.epoch, False
    elif entry.epoch == listed.epoch or entry.before_move is not None:
        return False
    else:  # it may have read again what the older lines have
        end_older_lines(member, lost)
    member.reached[name] = NEVER_US, NEVER_US
    return True
