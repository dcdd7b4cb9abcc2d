"""Takes lists of leaves that a merger sent before it lost its journal and that come behind its new birth (1.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from edge_agent.algebra.frame import NEVER_US, Gap, Leaf
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
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
