"""Takes the frames of children that do not know what they had sent (docs/protocol.md 1.2, 1.3).

What they had sent and this parent does not have is declared lost; of the rows that they send now those that may have
come before do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from edge_agent.algebra.frame import BEGAN, LOST, NEVER_US, Frame, Gap, Plan
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.machines.downlink.group_membership import GroupMembership, GroupParts, MemberChanges
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.repeats import counting, cut, look_below, never_read_again
from edge_agent.machines.downlink.member import AHEAD_US

PAST_LOST: Final = "its spool is lost, or an older copy"  # reasons of gap records that a parent makes (1.2, 1.3)
READ_AGAIN: Final = "its readings may have come before"  # what may be a repeat does not count


class LostPasts:
    """What is remembered of such children, from one frame to the next."""

    def __init__(self, children: Children, inbox: Inbox) -> None:
        self._children, self._inbox = children, inbox
        # the last birth of a child whose past neither it nor this parent knows, and how many frames it takes (1.2)
        self._strange = (EpochKey("", 0), 0)
        self._forgetful: set[str] = set()  # children that may send again what they had sent
        self._rebuilt: set[str] = set()  # children that lost their journal, with all that they had heard

    def repeats(
        self,
        effect: Effect,
        changes: MemberChanges,
        parts: GroupParts,
        plans: Mapping[int, tuple[Group, Plan]],
        now_us: int,
    ) -> Effect:
        """Take a frame before its rows. Returns it with those of its rows that count. plans: by number in its epoch."""
        memberships = self._children.memberships
        self._look_back(effect, now_us)
        if effect.node in self._rebuilt and not effect.stale:
            lost = self._inbox.lost_epochs(effect.node)
            if look_below(effect, changes, parts, memberships, lost):
                self._forgetful.add(effect.node)
        if not (effect.unheard or effect.node in self._forgetful):
            return effect
        own = {s.plan: plans[s.plan] for _, part in parts for s in (*part.sections, *part.late)}
        key = EpochKey(effect.node, effect.epoch)
        return effect._replace(counting=counting(key, own, memberships, unheard=effect.unheard))

    def losses(self, effect: Effect, changes: MemberChanges, parts: GroupParts, now_us: int) -> Iterator[Gap]:
        """The gap records for what may be lost with the past of its sender, or is in a row that may be a repeat."""
        if effect.frame is not None:
            yield from self._of_strangers(effect, effect.frame, changes, now_us)
        yield from self._again(effect, changes, parts, now_us)

    def restored(self, membership: GroupMembership) -> None:
        """Take what a membership from a spool shows of such children."""
        self._forgetful.update(n for n, m in membership.members.items() if m.since_us > NEVER_US or m.older)
        self._rebuilt.update(n for n, m in membership.members.items() if m.unsaid or m.anew)

    def _look_back(self, effect: Effect, now_us: int) -> None:
        """Take the birth of a node that does not know its past: it may send again what its parent had (1.2).

        A merger without a past has no rows that it sent before; a copy of a merger may. Readings of a source that a gap
        record reports as heard from its beginning on cannot be read again.
        """
        if effect.frame is None or effect.stale:
            return
        if effect.forgot:
            lost = self._inbox.lost_epochs(effect.node)
            for membership in self._children.memberships.values():
                member = membership.members.get(effect.node)
                if member is not None:
                    if effect.copied or effect.node in member.leaves or member.anew:
                        cut(member, lost, self._inbox.copies(effect.node), now_us)
                        self._forgetful.add(effect.node)
                    member.again_us = max(member.again_us, member.frontier_us, member.reach_us)
                    member.lose(effect.node, now_us)
                    self._rebuilt.add(effect.node)
        for gap in effect.frame.gaps:
            for group in gap.groups if gap.reason == BEGAN and not gap.detail else ():
                members = self._children.membership(group).members
                if effect.node in gap.nodes and effect.node in members:
                    never_read_again(members[effect.node], self._inbox.copies(effect.node))

    def _of_strangers(self, effect: Effect, frame: Frame, changes: MemberChanges, now_us: int) -> Iterator[Gap]:
        """The losses of a gateway whose past neither it nor this parent knows (1.2).

        The frames of its birth take effect together, with the groups that it serves.
        """
        if frame.birth is not None and frame.birth.predecessor == LOST and not effect.stale:
            known = (membership.members.get(effect.node) for membership in self._children.memberships.values())
            if all(member is None or member.frontier_us == NEVER_US for member in known):
                self._strange = (EpochKey(effect.node, effect.epoch), frame.birth.frames)
        of, frames = self._strange
        if of == (effect.node, effect.epoch) and effect.seq < frames:
            for group, change in changes:
                if any(leaf.node == effect.node for leaf in change.leaves):
                    yield loss_records.of_past(group, (effect.node,), now_us)

    def _again(self, effect: Effect, changes: MemberChanges, parts: GroupParts, now_us: int) -> Iterator[Gap]:
        """What a node that does not know its past may have lost, and which of its rows are repeats or may be.

        changes: a frame may list for the first time the leaves whose rows it contains.
        """
        if effect.forgot:
            for group, membership in self._children.memberships.items():
                member = membership.members.get(effect.node)
                if member is None:
                    continue
                if member.frontier_us == NEVER_US:  # what it had sent was nothing yet
                    if effect.node in member.leaves and self._strange[0] != (effect.node, effect.epoch):
                        yield loss_records.of_past(group, member.leaves, now_us)
                else:
                    start_us = max(min(member.lowest_us, now_us), 0)
                    end_us = max(now_us, min(member.reach_us, now_us + AHEAD_US)) + 1
                    yield Gap((group,), start_us, end_us, -1, tuple(sorted(member.leaves)), PAST_LOST)
        counted = effect.counting
        for group, part in parts:
            member = self._children.membership(group).members.get(effect.node)
            if member is None:
                continue
            for section in (*part.sections, *part.late):
                end_us = section.end_us
                member.reach_us = max(member.reach_us, end_us)
                if effect.stale:
                    member.past_us = max(member.past_us, min(end_us, now_us + AHEAD_US))
                found = counted.get(section.plan) if counted else None
                if found is None and member.again_us == NEVER_US:
                    continue
                start_us = section.span_us[0]
                before_us = end_us if effect.stale or found is not None else min(end_us, member.again_us)
                if start_us < before_us and (found is None or found.cuts(start_us, end_us)):
                    listed = {leaf.node for of, change in changes if of == group for leaf in change.leaves}
                    leaves = tuple(sorted(listed.union(member.leaves)))
                    yield Gap((group,), max(start_us, 0), before_us, -1, leaves, READ_AGAIN)
