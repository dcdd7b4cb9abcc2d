"""Leaves that have left a region which then lost its journal, and with it the report of their leave (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_agent.algebra.frame import LOST as LOST_PAST
from edge_agent.algebra.frame import Frame, Gap, Leaf
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import LATE_US
from edge_agent.machines.uplink.step import GroupStep, Step
from tests.support.machines.scripted_child import JOURNAL, SUM, S, Sender

NOW = 5_000 * S
QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
LEFT_AT = 3_000 * S  # where the region stands that loses its journal
LOST = Gap((QUERY.group,), LEFT_AT - LATE_US, NOW + 1, -1, ("g",), LET_GO)


class Regions:
    """Two regions below a parent: `old` lists the leaf g in epoch 5, and loses its journal; `new` lists others."""

    def __init__(self) -> None:
        self.parent = ChildFrames(JOURNAL, 60 * S)
        self.old, self.new = Sender("old", QUERY, leaves=("h",)), Sender("new", QUERY, leaves=("i",))
        self.losses: list[Gap] = []
        for frame in (self.old.birth(), self.lists(self.old, Leaf("g", 5, 3)), self.old.send(frontier_us=LEFT_AT)):
            self.takes("old", frame)
        for frame in (self.new.birth(), self.new.send(frontier_us=4_000 * S)):
            self.takes("new", frame)
        self.parent.children.membership(QUERY.group).moves.left["g"] = [3]  # it has come from elsewhere, in good order
        self.losses.clear()

    @staticmethod
    def lists(child: Sender, *leaves: Leaf) -> Frame:
        (frame,) = child.outbox.put(Step((GroupStep(QUERY.group, leaves=leaves),)))
        return frame

    def takes(self, child: str, frame: Frame) -> None:
        """With a start before it."""
        again = ChildFrames(JOURNAL, 60 * S)
        again.restore(self.parent.snapshot(lambda frame: frame), lambda frame: frame)
        self.parent = again
        self.losses += [gap for each in again.take(child, frame, NOW) for gap in each.losses if gap.reason == LET_GO]

    def forgets(self) -> None:
        """The region begins anew, without its past and without the leaf that has moved away."""
        self.old = Sender("old", QUERY, leaves=("h",))
        self.old.outbox.draw()  # another epoch than before
        birth = self.old.birth()
        assert birth.birth is not None
        self.takes("old", replace(birth, birth=replace(birth.birth, predecessor=LOST_PAST)))

    @property
    def stands_us(self) -> int:
        return self.parent.children.memberships[QUERY.group].leaf_frontiers()["g"][0]


@pytest.mark.parametrize("steps", [("moved", "forgets"), ("forgets", "moved"), ("moved", "again", "forgets")])
@pytest.mark.parametrize("left", [5, 4])
def test_a_leaf_is_not_missing_for_ever_because_its_leave_went_with_a_journal(steps: Sequence[str], left: int) -> None:
    """protocol 1.5, 3.7: its region had receipted it, or it is in doubt.

    left 4: a start that the region did not pass on. again: the leaf has begun a further epoch since, which names the
    move before that one, because what it had sent to the region was given up.
    """
    regions = Regions()
    for step in steps:
        if step == "forgets":
            regions.forgets()
        else:
            leaf = Leaf("g", 9, left) if step == "moved" else Leaf("g", 11, 3)
            regions.takes("new", regions.lists(regions.new, leaf))
    assert regions.losses == [LOST]
    regions.takes("new", regions.new.send(frontier_us=4_500 * S))
    assert regions.stands_us == 4_500 * S
    membership = regions.parent.children.memberships[QUERY.group]
    assert list(membership.members["old"].leaves) == ["h"]
    assert membership.moves.transit == {}


def test_a_leaf_that_the_new_journal_lists_is_awaited_from_there() -> None:
    """protocol 1.5: the region that lost its journal has taken its rows again, and reports its leave behind them."""
    regions = Regions()
    regions.forgets()
    regions.takes("old", regions.lists(regions.old, Leaf("g", 5, 3)))
    regions.takes("new", regions.lists(regions.new, Leaf("g", 9, 5)))
    assert regions.losses == []
    assert regions.parent.children.memberships[QUERY.group].moves.missing(Leaf("g", 9, 5))


def test_a_leaf_that_came_from_a_third_region_is_awaited_from_there() -> None:
    """protocol 1.5: that one will report its leave."""
    regions = Regions()
    third = Sender("third", QUERY, leaves=("j",))
    for frame in (third.birth(), regions.lists(third, Leaf("g", 7, 5))):
        regions.takes("third", frame)
    regions.takes("new", regions.lists(regions.new, Leaf("g", 9, 7)))
    regions.forgets()
    assert regions.losses == [LOST]  # what it left before it came to the third
    assert regions.parent.children.memberships[QUERY.group].moves.missing(Leaf("g", 9, 7))


def test_a_leaf_that_names_the_same_move_as_the_lost_list_has_not_left_it() -> None:
    """protocol 1.5: which of the two is the later one is not known."""
    regions = Regions()
    regions.parent.children.membership(QUERY.group).moves.left.clear()  # its leave is awaited
    regions.forgets()
    regions.takes("new", regions.lists(regions.new, Leaf("g", 9, 3)))
    assert regions.losses == []
    assert "g" in regions.parent.children.memberships[QUERY.group].members["old"].leaves
