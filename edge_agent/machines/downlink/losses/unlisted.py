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


class Unlisted:
    """Remembers lost frames of each child until the child has listed its leaves again. of: child -> its lost frames."""

    def __init__(self) -> None:
        self.of: dict[str, LostListing] = {}

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

    def left(self, memberships: Memberships) -> Iterator[tuple[GroupMembership, str, Leaf, Gap | None]]:
        """Finds leaves whose `leave` was in a lost frame: another child lists them as moved from its epoch (1.5).

        Yields (membership, child that the leaf left, report of the leaf, gap record; None if that child had listed it).
        """
        for node, lost in self.of.items():
            for group, membership in memberships.items() if lost.reason in (FRAMES_LOST, LET_GO) else ():
                known = membership.members[node].leaves if node in membership.members else {}
                others = [each for other, each in membership.members.items() if other != node]
                for leaf in [each.leaves[name] for each in others for name in sorted(each.moved)]:
                    if leaf.before_move == lost.epoch and membership.moves.awaited(leaf):
                        gap = Gap((group,), lost.start_us, lost.end_us, -1, (leaf.node,), lost.reason)
                        yield membership, node, leaf, None if leaf.node in known else gap
