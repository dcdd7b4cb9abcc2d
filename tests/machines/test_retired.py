"""Nodes that configuration says will not come back: what they sent, and who has moved away from them (protocol 1.5)."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, Leaf, Members
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import LATE_US
from edge_agent.machines.events import Retire, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.completeness import Decider
from tests.support.machines.simulated_host import SimulatedHost

S = 1_000_000
GROUP = Group("s", "", (), 0)
NOW = 5_000 * S


def moved(parent: ChildFrames, known_epoch: int) -> GroupMembership:
    """A leaf of the region old, which said that the leaf had begun `known_epoch`, is listed by new: it left epoch 5."""
    membership = parent.children.membership(GROUP)
    for region, leaves, frontier_us in (
        ("old", (Leaf("g", known_epoch), Leaf("h", 1)), 2_000 * S),
        ("new", (Leaf("g", 9, 5), Leaf("i", 1)), 4_000 * S),
    ):
        membership.change(region, Members(0, leaves))
        membership.member(region).promise(frontier_us, frontier_us)
    return membership


@pytest.mark.parametrize("known_epoch", [5, 3])
def test_a_leaf_is_not_missing_for_ever_because_its_leave_went_down_with_a_region(known_epoch: int) -> None:
    """protocol 1.5: the region had receipted it and died before it reported it; known_epoch 3: nor a start before."""
    root = Decider(1, 60 * S)
    membership = moved(root.parent, known_epoch)
    if known_epoch == 3:
        assert membership.leaf_frontiers()["g"][0] == NEVER_US
    root.retire(("old",), NOW)
    assert {name: us for name, (us, _) in membership.leaf_frontiers().items()} == {"g": 4_000 * S, "i": 4_000 * S}
    lost = Gap((GROUP,), 2_000 * S - LATE_US, NOW + 1, -1, ("g",), LET_GO)
    assert root.decide(NOW).gaps == (("old", lost),)
    root.retire(("old",), NOW + S)
    assert root.decide(NOW + S).gaps == ()


def test_a_leaf_that_came_from_a_region_that_is_alive_is_awaited_from_there() -> None:
    """protocol 1.5: the retired one had passed on an older entry of it."""
    parent = ChildFrames(1, 60 * S)
    membership = moved(parent, 3)
    membership.change("alive", Members(0, (Leaf("g", 5, 3),)))
    membership.member("alive").promise(3_000 * S, NOW)
    (lost,) = parent.retire("old", NOW)
    assert lost.nodes == ("g",), "between 3 and 5"
    assert membership.leaf_frontiers()["g"][0] == 3_000 * S
    membership.change("alive", Members(0, (Leaf("g", 9, 5),), ("g",)))
    assert membership.leaf_frontiers()["g"][0] == 4_000 * S


def test_the_tier_above_hears_that_a_leaf_has_left_a_retired_region() -> None:
    """protocol 1.5: it expects the leave that the region never reported too."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.accepted(NOW)
    above = ChildFrames(1, 60 * S)
    seen = 0

    def passed_on(now_us: int) -> list[Frame]:
        nonlocal seen
        host.do(Tick(), now_us)
        frames, seen = host.frames[seen:], len(host.frames)
        for frame in frames:
            for change in frame.members:
                above.children.membership(GROUP).change("m", change)
        return frames

    membership = host.machine.parent.children.membership(GROUP)
    membership.change("old", Members(0, (Leaf("g", 5),)))
    passed_on(NOW + S)
    membership.change("new", Members(0, (Leaf("g", 9, 5),)))
    passed_on(NOW + 2 * S)
    host.do(Retire("old"), NOW + 3 * S)
    frames = passed_on(NOW + 4 * S)
    assert [gap.reason for frame in frames for gap in frame.gaps] == [LET_GO]
    (member,) = above.children.membership(GROUP).members.values()
    assert member.leaves == {"g": Leaf("g", 9, 5)}
    assert not above.children.membership(GROUP).moves.awaited(member.leaves["g"])
