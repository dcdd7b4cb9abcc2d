"""A loss lasts until now, which a parent knows only if it knows its time (docs/protocol.md 3.5, 4.3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import DAMAGED, JOURNAL_LOST, LATEST_US, LOST, Frame, Gap, Leaf, Members
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import PAST_LOST, dated, undated
from edge_agent.machines.downlink.member import AHEAD_US, Member
from edge_agent.machines.events import Arrived, BadFrame, ClockChanged, LowerLink, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.step import Step
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import SUM, Sender, journalled
from tests.support.machines.simulated_host import JOURNAL, S, SimulatedHost

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
GRACE = 60 * S
UNSET = 10 * S  # what a clock shows that was not set since 1970
NOW = 1_000 * S
DAMAGE = Gap((QUERY.group,), 0, 0, -1, (), DAMAGED, 1)


class Region:
    """A merger with one child, and the root, whose time is right. now_us: of the merger's clock."""

    def __init__(self, *, known: bool) -> None:
        self.known, self.now_us = known, NOW if known else UNSET
        self.host = SimulatedHost(Merger(NodeSettings("m"), Random(5), grace_us=GRACE))
        self.child = Sender("a", QUERY)
        self.host.do(ClockChanged(known, "", 0), self.now_us)
        self.host.accepted(self.now_us)
        self.host.do(LowerLink(up=True), self.now_us)
        self.hear(journalled(self.child.birth(), self.host.machine))

    def hear(self, message: Frame | BadFrame, node: str = "a") -> None:
        self.now_us += S
        self.host.do(Arrived(((node, message, None),)), self.now_us)
        self.now_us += S
        self.host.do(Tick(), self.now_us)

    def losses(self, at_us: int, node: str = "a") -> set[tuple[str, int, int]]:
        """(reason, start, end) of what the root declares of a node after it has heard the merger at this time."""
        root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        root.decider.parent.children.membership(QUERY.group).member("m").frontier_us = NOW - 10 * S  # it lists later
        first, *others = self.host.frames
        assert first.birth is not None  # which was made before the journal was known
        for frame in (replace(first, birth=replace(first.birth, journal=JOURNAL)), *others):
            root.take("m", frame, at_us)
        root.step(at_us)
        return {(gap.reason, gap.start_us, gap.end_us) for _, gap in root.decider.gaps if gap.nodes == (node,)}


@pytest.mark.parametrize("known", [False, True])
def test_a_loss_at_a_region_that_does_not_know_its_time_lasts_until_the_tier_above_hears_of_it(known: bool) -> None:
    """Found by seed 57261 of the simulation: it ended in 1970, and rows without what was lost were complete."""
    region = Region(known=known)
    (damaged,) = region.child.outbox.put(Step(gaps=(DAMAGE,)))
    region.hear(damaged)
    start_us, end_us = (0, NOW + 3 * S) if known else (1, NOW + 20 * S)
    assert region.losses(NOW + 20 * S) == {(DAMAGED, start_us, end_us + 1)}


def test_a_refused_frame_is_lost_until_the_tier_above_hears_of_it_too() -> None:
    region = Region(known=False)
    region.hear(BadFrame(region.child.outbox.epoch, 1, "not CBOR", b"?"))
    assert region.losses(NOW + 20 * S) == {("quarantined: not CBOR", 1, NOW + 20 * S + 1)}


@pytest.mark.parametrize("known", [False, True])
def test_a_leaf_that_only_a_lost_birth_listed_is_lost_from_the_beginning_of_time(known: bool) -> None:
    """Found by seed 96275 of the simulation: at a region without the time its loss began at the frontier of the region
    above, which had not waited for the leaf.
    """
    region, first, later = Region(known=known), Sender("b", QUERY), Sender("b", QUERY)
    birth = journalled(first.birth(), region.host.machine)
    region.hear(replace(birth, define=None, members=(), groups=(), gaps=(replace(DAMAGE, run=0),)), "b")
    later.outbox.random.seed(2)
    listed = journalled(later.birth(), region.host.machine)
    assert listed.birth is not None
    region.hear(replace(listed, birth=replace(listed.birth, predecessor=(first.outbox.epoch, 0))), "b")
    starts = {(reason, start_us) for reason, start_us, _ in region.losses(NOW + 20 * S, "b")}
    assert starts == {(DAMAGED, 0 if known else 1)}


@pytest.mark.parametrize("reason", [JOURNAL_LOST, PAST_LOST, LET_GO, DAMAGED])
def test_a_record_without_an_end_begins_where_it_says(reason: str) -> None:
    """What a region has lost may be older than what it had stated, of this leaf or of others."""
    for start_us in (0, NOW - 20 * S):
        gap = undated(Gap((QUERY.group,), start_us, LATEST_US + 1, -1, ("a",), reason))
        assert gap.end_us == gap.start_us
        children, member = Children(GRACE), Member(NOW - 10 * S, {"a": Leaf("a", 1)})
        children.membership(QUERY.group).members["m"] = member
        (found,) = dated(children, "m", [gap], NOW)
        assert (found.start_us, found.end_us) == (start_us or 1, NOW + 1)


@pytest.mark.parametrize("known", [False, True])
def test_a_child_without_a_past_is_lost_until_now(known: bool) -> None:
    region, anew = Region(known=known), Sender("a", QUERY)
    anew.outbox.random.seed(2)
    birth = journalled(anew.birth(), region.host.machine)
    assert birth.birth is not None
    region.hear(replace(birth, birth=replace(birth.birth, predecessor=LOST)))
    ends = {end_us for _, _, end_us in region.losses(NOW + 20 * S)}
    assert ends == {(NOW + 3 * S if known else NOW + 20 * S) + 1}


@pytest.mark.parametrize(("back_us", "believed"), [(30 * S, True), (AHEAD_US + 10 * S, False)])
def test_after_a_step_back_a_loss_lasts_until_what_the_clock_had_shown(back_us: int, believed: bool) -> None:
    """Found by seed 60488 of the simulation. After a long step the clock is taken to have been wrong before it."""
    region = Region(known=True)
    showed_us = region.now_us
    for now_us, end_us in ((showed_us - back_us, showed_us), (showed_us + 5 * S, showed_us + 6 * S)):
        region.now_us = now_us
        (damaged,) = region.child.outbox.put(Step(gaps=(DAMAGE,)))
        region.hear(damaged)
        end_us = end_us if believed else now_us + S
        assert max(region.losses(NOW + 20 * S))[2] == end_us + 1


@pytest.mark.parametrize("how", ["its region is retired", "its region was retired", "it lost its spool on the way"])
@pytest.mark.parametrize("behind_us", [-S, S])
def test_a_loss_of_a_leaf_lasts_until_the_true_time_if_the_clock_of_its_parent_is_behind(
    how: str, behind_us: int
) -> None:
    """protocol 1.2, 1.5, 3.6: the leaf had promised more than the parent's time."""
    parent, now_us, strays = ChildFrames(JOURNAL, GRACE), NOW - behind_us, how == "it lost its spool on the way"
    membership, lists = parent.children.membership(QUERY.group), Members(0, (Leaf("g", 9, None if strays else 5),))
    membership.change("old", Members(0, (Leaf("g", 5), Leaf("h", 1))))
    membership.member("old").promise(NOW, NOW)
    if strays:
        membership.leave("old", Leaf("g", 7, 5))
    if how == "its region was retired":
        parent.retire("old", now_us)
    membership.change("new", lists)
    changes = [(QUERY.group, lists)]
    if how == "its region is retired":
        (lost,) = parent.retire("old", now_us)
    elif strays:
        (lost,) = loss_records.strayed(parent.children.memberships, changes, now_us)
    else:
        (lost,) = loss_records.left_retired(parent.children, "new", changes, now_us)
    assert (lost.nodes, lost.end_us) == (("g",), now_us + (AHEAD_US if behind_us > 0 else 0) + 1)
