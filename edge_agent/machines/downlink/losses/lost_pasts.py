"""Handles children that do not know what they had sent (docs/protocol.md 1.2, 1.3).

Frames that they may have sent without effect here are declared lost. Rows that they send now do not count if they may
repeat earlier ones.
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
from edge_agent.machines.downlink.losses.late_listings import listed_before, listed_in_vain
from edge_agent.machines.downlink.losses.repeats import (
    began_below,
    counting,
    cut,
    look_below,
    never_read_again,
    take_pasts,
)
from edge_agent.machines.downlink.member import Member

READ_AGAIN: Final = "its readings may have come before"  # reason of records for rows that may be repeats (1.2, 1.3)


class LostPasts:
    """Remembers which children do not know their past, and judges each of their frames."""

    def __init__(self, children: Children, inbox: Inbox) -> None:
        self._children, self._inbox = children, inbox
        # (epoch, number of birth frames) of the newest child whose past neither it nor this parent knows (1.2)
        self._strange = (EpochKey("", 0), 0)
        self._forgetful: set[str] = set()  # children that may repeat rows
        self._rebuilt: set[str] = set()  # children that lost their journal, with the state of all leaves below
        self._before: tuple[Gap, ...] = ()  # losses from before listening began, by the frame that was judged last
        self._began: tuple[Gap, ...] = ()  # losses of leaves that began without a spool, in the frame that is judged

    def repeats(
        self,
        effect: Effect,
        changes: MemberChanges,
        parts: GroupParts,
        plans: Mapping[int, tuple[Group, Plan]],
        now_us: int,
    ) -> Effect:
        """Judge a frame before its rows are taken. Returns the effect with `counting` set for plans with repeats.

        plans: by number in the frame's epoch.
        """
        memberships = self._children.memberships
        self._look_back(effect, now_us)
        self._listed_late(effect, changes, now_us)
        self._began = ()
        if effect.frame is not None and not effect.stale:
            self._began = tuple(began_below(effect, changes, memberships))
            take_pasts(effect.node, effect.frame.gaps, memberships)
        older = self._older_lines(effect.node) if effect.node in self._rebuilt and not effect.stale else None
        if older is not None and look_below(effect, changes, parts, memberships, older):
            self._forgetful.add(effect.node)
        if not (effect.unheard or effect.node in self._forgetful):
            return effect
        own = {s.plan: plans[s.plan] for _, part in parts for s in (*part.sections, *part.late)}
        key = EpochKey(effect.node, effect.epoch)
        return effect._replace(counting=counting(key, own, memberships, unheard=effect.unheard))

    def losses(self, effect: Effect, changes: MemberChanges, parts: GroupParts, now_us: int) -> Iterator[Gap]:
        """The gap records for losses with the sender's past, and for rows that do not count as they may be repeats.

        `repeats` has judged the same frame.
        """
        before, self._before = self._before, ()
        yield from (*before, *self._began)
        if effect.frame is not None:
            yield from self._of_strangers(effect, effect.frame, changes, now_us)
        if effect.stale:
            yield from self._listed_before(effect, changes, now_us)
        elif changes:
            lost = [each for each in self._inbox.lines_of(effect.node).values() if each.lost and each.waiting]
            yield from listed_in_vain(effect, changes, self._children, lost, self._children.losses_until(now_us))
        yield from self._again(effect, changes, parts, now_us)

    def restored(self, membership: GroupMembership) -> None:
        """Find children without their past in a membership restored from a spool."""
        self._forgetful.update(n for n, m in membership.members.items() if m.since_us > NEVER_US or m.older)
        self._rebuilt.update(n for n, m in membership.members.items() if m.unsaid or m.anew)

    def _look_back(self, effect: Effect, now_us: int) -> None:
        """Take the birth of a node that does not know its past: it may repeat rows that its parent has (1.2).

        A merger that lost its spool has none of its earlier rows left; a restored copy may have. A source for which a
        gap record with the reason `began` reports when it was first heard cannot be read again.
        """
        if effect.frame is None or effect.stale:
            return
        if effect.forgot:
            lost = self._inbox.lost_epochs(effect.node)
            for membership in self._children.memberships.values():
                member = membership.members.get(effect.node)
                if member is not None:
                    if effect.copied or effect.node in member.leaves or member.anew:
                        cut(member, lost, self._inbox.copies(effect.node), self._children.rows_until(now_us))
                        self._forgetful.add(effect.node)
                    birth = effect.frame.birth
                    if effect.node in member.leaves and birth and not isinstance(birth.predecessor, tuple):
                        member.forget_line()  # a copy still knows its queries
                    member.again_us = max(member.again_us, member.frontier_us, member.reach_us)
                    member.lose(effect.node, self._children.rows_until(now_us))
                    self._rebuilt.add(effect.node)
        for gap in effect.frame.gaps:
            for group in gap.groups if gap.reason == BEGAN and not gap.detail else ():
                known = self._children.memberships.get(group)
                if known is not None and effect.node in gap.nodes and effect.node in known.members:
                    member = known.members[effect.node]
                    self._before += tuple(self._until_heard(effect, group, member, gap.start_us))
                    never_read_again(member, self._inbox.copies(effect.node))

    def _listed_late(self, effect: Effect, changes: MemberChanges, now_us: int) -> None:
        """Divide the lines of a gateway whose rows came before it was listed, as its birth was damaged (1.2).

        Nothing tells such a child from a merger until it lists itself, which may be after it has lost its past.
        """
        for group, change in changes if effect.frame is not None and not effect.stale else ():
            known = self._children.memberships.get(group)
            member = None if known is None else known.members.get(effect.node)
            if member is None or member.again_us == NEVER_US or effect.node in member.leaves:
                continue
            lost = self._inbox.lost_epochs(effect.node)
            if lost and member.since_us == NEVER_US and any(leaf.node == effect.node for leaf in change.leaves):
                cut(member, lost, self._inbox.copies(effect.node), self._children.rows_until(now_us))
                self._forgetful.add(effect.node)

    def _until_heard(self, effect: Effect, group: Group, member: Member, began_us: int) -> Iterator[Gap]:
        """Yields the loss between the line that a gateway has forgotten and the time when it began to listen again.

        At the birth it was declared up to the present time of this parent, whose clock may be behind. began_us: by the
        clock of the gateway, which read the lost rows.
        """
        own, since_us = self._inbox.in_force(effect.node), member.since_us
        forgot = since_us > NEVER_US or member.older or (own is not None and own.predecessor == LOST)
        anew = effect.node in member.leaves and not member.live and member.frontier_us <= since_us
        if not forgot or not anew or began_us <= max(since_us, 0):
            return
        if since_us == NEVER_US:
            yield loss_records.of_past(group, (effect.node,), began_us - 1)
        else:
            yield Gap((group,), max(since_us, 0), began_us, -1, (effect.node,), loss_records.PAST_LOST)

    def _older_lines(self, node: str) -> list[int]:
        """The epochs of which frames still count, though the child has forgotten them."""
        return [epoch for epoch, frames in self._inbox.lines_of(node).items() if frames.lost]

    def _listed_before(self, effect: Effect, changes: MemberChanges, now_us: int) -> Iterator[Gap]:
        """Yields the losses of leaves of which a frame of an older line shows that they were there (1.2)."""
        older, until_us = self._older_lines(effect.node), self._children.losses_until(now_us)
        for loss in listed_before(effect, changes, self._children, older, until_us):
            self._rebuilt.add(effect.node)
            self._forgetful.add(effect.node)
            yield loss

    def _of_strangers(self, effect: Effect, frame: Frame, changes: MemberChanges, now_us: int) -> Iterator[Gap]:
        """Yields the losses of a gateway whose past neither it nor this parent knows (1.2).

        Its groups are those in the frames of its birth, which take effect together.
        """
        if frame.birth is not None and frame.birth.predecessor == LOST and not effect.stale:
            known = (membership.members.get(effect.node) for membership in self._children.memberships.values())
            if all(member is None or member.frontier_us == NEVER_US for member in known):
                self._strange = (EpochKey(effect.node, effect.epoch), frame.birth.frames)
        of, frames = self._strange
        if of == (effect.node, effect.epoch) and effect.seq < frames:
            for group, change in changes:
                if any(leaf.node == effect.node for leaf in change.leaves):
                    yield loss_records.of_past(group, (effect.node,), self._children.losses_until(now_us))

    def _again(self, effect: Effect, changes: MemberChanges, parts: GroupParts, now_us: int) -> Iterator[Gap]:
        """Yields losses of a node that does not know its past, and records for its rows that may be repeats.

        changes: the definition sections of the frame, which may list leaves of its rows for the first time.
        """
        until_us = self._children.losses_until(now_us)
        if effect.forgot:
            for group, membership in self._children.memberships.items():
                member = membership.members.get(effect.node)
                if member is None:
                    continue
                if member.frontier_us == NEVER_US:  # it had promised nothing yet
                    if effect.node in member.leaves and self._strange[0] != (effect.node, effect.epoch):
                        yield loss_records.of_past(group, member.leaves, until_us)
                    elif effect.copied and effect.node not in member.leaves:  # those below do not know of the copy
                        yield loss_records.of_past(group, member.leaves, until_us, loss_records.PAST_LOST)
                else:
                    upto_us = loss_records.latest_us(member, until_us)
                    start_us = max(min(member.lowest_us, upto_us), 0)
                    end_us = max(upto_us, min(member.reach_us, self._children.rows_until(now_us))) + 1
                    yield Gap((group,), start_us, end_us, -1, tuple(sorted(member.leaves)), loss_records.PAST_LOST)
        elsewhere = self._elsewhere(effect.node, changes, now_us)
        counted = effect.counting
        listed: dict[Group, set[str]] = {}
        for group, change in changes:
            listed.setdefault(group, set()).update(leaf.node for leaf in change.leaves)
        for group, part in parts:
            member = self._children.membership(group).member(effect.node)  # its rows may come ahead of its leaves
            for section in (*part.sections, *part.late):
                end_us = section.end_us
                member.reach_us = max(member.reach_us, end_us)
                if effect.stale:
                    member.past_us = max(member.past_us, min(end_us, self._children.rows_until(now_us)))
                found = counted.get(section.plan) if counted else None
                if found is None and member.again_us == NEVER_US:
                    continue
                start_us = section.span_us[0]
                before_us = end_us if effect.stale or found is not None else min(end_us, member.again_us)
                if start_us < before_us and (found is None or found.cuts(start_us, end_us)):
                    leaves = tuple(sorted(listed.get(group, set()) | member.leaves.keys()))
                    leaves = self._twice(effect.node, group, elsewhere.get(group, set())) or leaves
                    # rows of a wrong clock may end before 1970, and no record may end before it starts
                    yield Gap((group,), max(start_us, 0), max(before_us, 0), -1, leaves, READ_AGAIN)

    def _twice(self, node: str, group: Group, found: set[str]) -> tuple[str, ...]:
        """The leaves of which a child may repeat rows of others; () if it may repeat its own, which are of all leaves.

        found: those that the frame lists for the first time.
        """
        membership = self._children.membership(group)
        if membership.members[node].past_us > NEVER_US:
            return ()
        return tuple(sorted(found | membership.listed_elsewhere(node)))

    def _elsewhere(self, node: str, changes: MemberChanges, now_us: int) -> dict[Group, set[str]]:
        """Take the leaves of a child that others list in lines of which their lines here know nothing (1.2).

        Such a gateway lost its spool and came here, so all rows that begin before now may repeat rows of the others.
        Returns these leaves by group.
        """
        found: dict[Group, set[str]] = {}
        for group, change in changes:
            membership = self._children.memberships.get(group)
            for leaf in () if membership is None else change.leaves:
                if membership is not None and membership.lives_elsewhere(node, leaf):
                    found.setdefault(group, set()).add(leaf.node)
                    member = membership.member(node)
                    member.again_us = max(member.again_us, now_us)
        return found
