"""Declares the loss of leaves that a child listed only in a lost frame, once they are listed again.

The gap record for a lost or damaged frame names the leaves that its parent knows by then (docs/protocol.md 1.3, 3.2,
3.6). The frame may have listed further leaves and contained their rows. The next birth of the child lists all leaves
below it, and so does its `leave`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from edge_agent.algebra.frame import DAMAGED, FRAMES_LOST, Frame, Gap, Leaf
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames, stands_in
from edge_agent.machines.downlink.group_membership import GroupMembership, MemberChanges, Memberships
from edge_agent.machines.downlink.losses.let_go import LET_GO


class LostListing(NamedTuple):
    """Lost frames of a child that may have listed leaves. epoch: of the newest such frame.

    start_us, end_us, reason: for the gap records of leaves that are listed later.
    """

    epoch: int
    start_us: int
    end_us: int
    reason: str


class Unseen(NamedTuple):
    """A leaf that has left a child by a report that is lost. loss: of the leaf; None if that child had listed it."""

    membership: GroupMembership
    child: str
    report: Leaf
    loss: Gap | None


class Unlisted:
    """Remembers lost frames of each child until the child has listed its leaves again. of: child -> its lost frames."""

    def __init__(self) -> None:
        self.of: dict[str, LostListing] = {}
        # epoch before a move -> (group, child, leaf) of the leaves listed with it; None: to be computed anew
        self._former: dict[int, list[tuple[Group, str, str]]] | None = None

    def lost(self, effect: Effect, start_us: int, end_us: int, reason: str) -> None:
        """Note that a frame is lost, or unusable because an earlier one is lost. Its rows are in [start_us, end_us)."""
        before = self.of.get(effect.node)
        if before is not None:
            start_us, end_us, reason = min(before.start_us, start_us), max(before.end_us, end_us), before.reason
        self.of[effect.node] = LostListing(effect.epoch, start_us, end_us, reason)

    def damaged(self, effect: Effect, frame: Frame, gaps: Iterable[Gap]) -> None:
        """Note gap records in a frame for frames damaged in a spool. gaps: its records, completed with times."""
        if any(gap.reason == DAMAGED and gap.groups and not gap.nodes for gap in frame.gaps):
            starts, ends = zip(*((gap.start_us, gap.end_us) for gap in gaps if gap.reason == DAMAGED), strict=True)
            self.lost(effect, min(starts), max(ends), DAMAGED)

    def listed(
        self,
        effect: Effect,
        frame: Frame,
        changes: MemberChanges,
        memberships: Memberships,
        epoch: EpochFrames | None,
    ) -> Iterator[Gap]:
        """Yields the losses of leaves that a frame lists and that were unknown here.

        frame: the frame as it arrived. changes: its definition sections. epoch: of the frame; None: it has ended.
        """
        lost = self.of.get(effect.node)
        if lost is None:
            return
        new: dict[Group, set[str]] = {}
        for group, change in changes:
            member = memberships[group].members.get(effect.node) if group in memberships else None
            known = () if member is None else member.leaves
            new.setdefault(group, set()).update(leaf.node for leaf in change.leaves if leaf.node not in known)
        for group, leaves in new.items():
            if leaves:
                yield Gap((group,), lost.start_us, lost.end_us, -1, tuple(sorted(leaves)), lost.reason)
        birth_frames = frame.birth.frames if frame.birth is not None else 0 if epoch is None else epoch.birth_frames
        born = effect.epoch != lost.epoch and effect.seq + 1 == birth_frames and not stands_in(frame)
        if born or frame.leave is not None:
            del self.of[effect.node]

    def left_by(self, effect: Effect, changes: MemberChanges, memberships: Memberships) -> Iterator[Unseen]:
        """Finds leaves that a frame lists as moved from an epoch of which the `leave` was in a lost frame (1.5)."""
        moved = [(group, leaf) for group, change in changes for leaf in change.leaves if leaf.before_move is not None]
        if moved:
            self._former = None
            by_epoch = {lost.epoch: node for node, lost in self.of.items() if node != effect.node}
            for group, leaf in moved if by_epoch else ():
                node = by_epoch.get(leaf.before_move or 0)
                if node is not None:
                    yield from self._unseen(node, group, leaf, memberships)

    def left_behind(self, effect: Effect, memberships: Memberships) -> Iterator[Unseen]:
        """Finds leaves that other children list as moved from the epoch of a frame that is lost (1.5)."""
        if self._former is None:
            self._former = {}
            for group, membership in memberships.items():
                for node, member in membership.members.items():
                    for name in member.moved:
                        former = member.leaves[name].before_move or 0
                        self._former.setdefault(former, []).append((group, node, name))
        for group, node, name in self._former.get(effect.epoch, ()) if effect.node in self.of else ():
            member_now = memberships[group].members.get(node) if group in memberships else None
            leaf = None if member_now is None else member_now.leaves.get(name)
            if node != effect.node and leaf is not None and leaf.before_move == effect.epoch:
                yield from self._unseen(effect.node, group, leaf, memberships)

    def _unseen(self, node: str, group: Group, leaf: Leaf, memberships: Memberships) -> Iterator[Unseen]:
        lost, membership = self.of[node], memberships.get(group)
        if lost.reason in (FRAMES_LOST, LET_GO) and membership is not None and membership.moves.awaited(leaf):
            known = membership.members[node].leaves if node in membership.members else {}
            gap = Gap((group,), lost.start_us, lost.end_us, -1, (leaf.node,), lost.reason)
            yield Unseen(membership, node, leaf, None if leaf.node in known else gap)
