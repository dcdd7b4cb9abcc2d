"""Nodes that configuration says will not come back: what they sent, and who has moved away from them (protocol 1.5)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Frame, Gap, Leaf, Members, Receipt
from edge_agent.algebra.gap_scope import RETIRED
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.losses import retired_leaves
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import LATE_US
from edge_agent.machines.downlink.losses.retired_leaves import RetiredLeaf
from edge_agent.machines.events import Arrived, LowerLink, Receipted, Retire, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink import journal_change
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.root.completeness import Decider
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.wire.frames import decode, encode
from tests.support.machines.scripted_child import JOURNAL, SUM, S, Sender
from tests.support.machines.simulated_host import JOURNAL as UP
from tests.support.machines.simulated_host import SimulatedHost

GROUP = Group("s", "", (), 0)
DOOR = Group("door", "", (), 0)
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


def test_a_retirement_without_a_date_declares_a_loss_with_times_all_the_same() -> None:
    """protocol 1.5: the root has decided nothing yet; a record that ends before it begins would touch no window."""
    root = Decider(1, 60 * S)
    moved(root.parent, 5)
    root.retire(("old",), 0)
    ((_, gap),) = root.decide(NOW).gaps
    assert (gap.start_us, gap.end_us) == (2_000 * S - LATE_US, 2_000 * S - LATE_US + 1)


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
    assert [gap.reason for frame in frames for gap in frame.gaps] == [RETIRED, LET_GO]
    (member,) = above.children.membership(GROUP).members.values()
    assert member.leaves == {"g": Leaf("g", 9, 5)}
    assert not above.children.membership(GROUP).moves.awaited(member.leaves["g"])


QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
LEFT_AT = 3_000 * S  # where the retired region stands


def lists(child: Sender, *leaves: Leaf) -> Frame:
    """A frame of a region that lists leaves of other epochs."""
    (frame,) = child.outbox.put(Step((GroupStep(QUERY.group, leaves=leaves),)))
    return frame


def restarted(parent: ChildFrames) -> ChildFrames:
    again = ChildFrames(JOURNAL, 60 * S)
    again.restore(parent.snapshot(lambda frame: frame), lambda frame: frame)
    return again


def retired_region(parent: ChildFrames, *leaves: Leaf) -> tuple[Sender, Sender]:
    """The parent has retired the region old with these leaves, and knows the region new. Returns both."""
    old, new = Sender("old", QUERY, leaves=("h",)), Sender("new", QUERY, leaves=("i",))
    for frame in (old.birth(), lists(old, *leaves), old.send(frontier_us=LEFT_AT)):
        parent.take("old", frame, NOW - S)
    for frame in (new.birth(), new.send(frontier_us=4_000 * S)):
        parent.take("new", frame, NOW - S)
    assert parent.retire("old", NOW) == []
    return old, new


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("moved", [Leaf("g", 9, 5), Leaf("g", 9, 6), Leaf("g", 5, 77)])
def test_a_leaf_that_is_listed_elsewhere_after_its_region_was_retired_is_not_missing_for_ever(
    moved: Leaf, restarts: bool
) -> None:
    """protocol 1.5: from the epoch that the region had listed, from a later one, or with a merger that moves."""
    parent = ChildFrames(JOURNAL, 60 * S)
    _, new = retired_region(parent, Leaf("g", 5))
    if restarts:
        parent = restarted(parent)
        parent.retire("old", NOW + S)
    later_us = NOW + 86_400 * S
    (applied,) = parent.take("new", lists(new, moved), later_us)
    assert applied.losses == (Gap((QUERY.group,), LEFT_AT - LATE_US, later_us + 1, -1, ("g",), LET_GO),)
    membership = parent.children.memberships[QUERY.group]
    assert membership.leaf_frontiers()["g"][0] == 4_000 * S
    assert membership.members.keys() == {"new"}
    (applied,) = parent.take("new", lists(new, Leaf("g", 12, 9)), later_us)
    assert applied.losses == (), "once only"


def test_all_that_a_parent_remembers_of_a_retired_region_survives_the_end_of_its_group() -> None:
    """protocol 1.5: it was the only child."""
    parent = ChildFrames(JOURNAL, 60 * S)
    _, new = retired_region(parent, Leaf("g", 5))
    del parent.children.memberships[QUERY.group]
    parent.take("new", lists(new, Leaf("g", 9, 5)), NOW)
    assert not parent.children.memberships[QUERY.group].moves.missing(Leaf("g", 9, 5))


def test_a_leaf_that_comes_from_a_region_that_is_alive_is_awaited_from_there_though_another_region_was_retired() -> (
    None
):
    """protocol 1.5: it had left the retired one for that region before."""
    parent = ChildFrames(JOURNAL, 60 * S)
    _, new = retired_region(parent, Leaf("g", 5, 4))
    alive = Sender("alive", QUERY, leaves=("j",))
    parent.take("alive", alive.birth(), NOW)
    (applied,) = parent.take("new", lists(new, Leaf("g", 9, 4)), NOW)
    assert applied.losses == (), "it did not come from the retired one"
    parent.take("alive", lists(alive, Leaf("g", 6)), NOW)
    (applied,) = parent.take("new", lists(new, Leaf("g", 9, 6)), NOW)
    membership = parent.children.memberships[QUERY.group]
    assert applied.losses == ()
    assert membership.moves.missing(Leaf("g", 9, 6))
    (applied,) = parent.take("new", lists(new, Leaf("g", 9, 7)), NOW)
    assert applied.losses == (), "it may be of a later start there, which that region has not listed yet"


def test_a_leaf_that_an_older_region_still_lists_left_the_retired_one_in_whatever_epoch() -> None:
    """protocol 1.5: the older region is awaited as before."""
    parent = ChildFrames(JOURNAL, 60 * S)
    older = Sender("older", QUERY, leaves=("j",))
    _, new = retired_region(parent, Leaf("g", 5, 4))
    parent.take("older", older.birth(), NOW)
    parent.take("older", lists(older, Leaf("g", 4)), NOW)
    (applied,) = parent.take("new", lists(new, Leaf("g", 9, 6)), NOW)
    assert [gap.reason for gap in applied.losses] == [LET_GO]
    membership = parent.children.memberships[QUERY.group]
    assert membership.leaf_frontiers()["g"][0] == NEVER_US
    parent.take("older", lists(older, Leaf("g", 4)), NOW)
    membership.leave("older", Leaf("g", 5, 4))
    assert membership.leaf_frontiers()["g"][0] == 4_000 * S


def test_a_leaf_that_comes_with_a_merger_from_the_retired_region_had_its_own_exception_there() -> None:
    """protocol 1.5, 4.6: it keeps its epoch, though another region lists a line of it that nobody knows."""
    parent, out = ChildFrames(JOURNAL, 60 * S), (ExcludedLeaf("g", 2_000 * S, 1_900 * S),)
    old, new, other = (Sender(name, QUERY, leaves=(f"of-{name}",)) for name in ("old", "new", "other"))
    for frame in (old.birth(), lists(old, Leaf("g", 5)), old.send(frontier_us=LEFT_AT, exceptions=out)):
        parent.take("old", frame, NOW)
    parent.retire("old", NOW)
    for child, leaf in ((other, Leaf("g", 3)), (new, Leaf("g", 5, 77))):
        parent.take(child.node, child.birth(), NOW)
        (applied,) = parent.take(child.node, lists(child, leaf), NOW)
    assert [(gap.start_us, gap.nodes) for gap in applied.losses] == [(1_900 * S - LATE_US, ("g",))]


def test_a_region_that_is_retired_no_longer_and_returns_is_awaited_again() -> None:
    """protocol 1.5: configuration alone says who is retired."""
    parent = ChildFrames(JOURNAL, 60 * S)
    old, new = retired_region(parent, Leaf("g", 5), Leaf("k", 5))  # k does not return
    parent.children.retired.clear()
    for frame in (*old.outbox.restate(), old.birth(), lists(old, Leaf("g", 5))):
        parent.take("old", frame, NOW)
    assert parent.children.retired_leaves.of[QUERY.group].keys() == {"k"}
    (applied,) = parent.take("new", lists(new, Leaf("g", 9, 5)), NOW)
    assert applied.losses == ()
    assert parent.children.memberships[QUERY.group].moves.missing(Leaf("g", 9, 5))


def test_a_leaf_below_a_retired_region_that_is_retired_itself_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.5: and so are the oldest beyond a bound, which are counted."""
    parent = ChildFrames(JOURNAL, 60 * S)
    retired_region(parent, Leaf("g", 5), Leaf("k", 5))
    known = parent.children.retired_leaves
    assert known.of[QUERY.group].keys() == {"g", "h", "k"}
    parent.retire("g", NOW)
    assert known.of[QUERY.group].keys() == {"h", "k"}
    monkeypatch.setattr(retired_leaves, "MOST_RETIRED", 1)
    parent.retire("new", NOW)
    assert known.of[QUERY.group].keys() == known.last.keys() == {"i"}
    assert parent.children.forgotten()["moves"] == 2
    parent.retire("i", NOW)
    assert (known.of, known.last) == ({}, {})


def drops(child: Sender, *names: str) -> Frame:
    """A frame of a merger that no longer lists leaves, because it retired the region that had them."""
    (frame,) = child.outbox.put(Step((GroupStep(QUERY.group, dropped=names),)))
    return frame


@pytest.mark.parametrize("moved_first", [False, True])
def test_a_leaf_that_goes_to_another_merger_after_a_region_below_the_first_was_retired_is_not_missing_for_ever(
    moved_first: bool,
) -> None:
    """protocol 1.5: the merger of the region reports no leave, and the leaf never comes below it again."""
    parent = ChildFrames(JOURNAL, 60 * S)
    one, two = Sender("one", QUERY, leaves=("h",)), Sender("two", QUERY, leaves=("i",))
    for frame in (one.birth(), lists(one, Leaf("g", 5)), one.send(frontier_us=LEFT_AT)):
        parent.take("one", frame, NOW)
    for frame in (two.birth(), two.send(frontier_us=4_000 * S)):
        parent.take("two", frame, NOW)
    frames = [("one", drops(one, "g")), ("two", lists(two, Leaf("g", 9, 5)))]
    losses = []
    for child, frame in reversed(frames) if moved_first else frames:
        parent = restarted(parent)
        losses += [gap for applied in parent.take(child, frame, NOW) for gap in applied.losses]
    assert losses == [Gap((QUERY.group,), LEFT_AT - LATE_US, NOW + 1, -1, ("g",), LET_GO)]
    assert parent.children.memberships[QUERY.group].leaf_frontiers()["g"][0] == 4_000 * S
    assert parent.children.retired_leaves.of == {}


def test_a_leaf_whose_merger_lists_it_again_is_awaited_from_there() -> None:
    """protocol 1.5: the region is retired no longer."""
    parent = ChildFrames(JOURNAL, 60 * S)
    one, two = Sender("one", QUERY, leaves=("h",)), Sender("two", QUERY, leaves=("i",))
    for frame in (one.birth(), lists(one, Leaf("g", 5)), drops(one, "g"), lists(one, Leaf("g", 5))):
        parent.take("one", frame, NOW)
    parent.take("two", two.birth(), NOW)
    (applied,) = parent.take("two", lists(two, Leaf("g", 9, 5)), NOW)
    assert applied.losses == ()
    assert parent.children.memberships[QUERY.group].moves.missing(Leaf("g", 9, 5))


def test_a_leaf_that_only_serves_a_group_no_longer_is_not_remembered() -> None:
    """protocol 1.5, 6.3: each removed query would fill the place of leaves of a retired region."""
    parent = ChildFrames(JOURNAL, 60 * S)
    one = Sender("one", QUERY, leaves=("h",))
    for frame in (one.birth(), lists(one, Leaf("g", 5))):
        parent.take("one", frame, NOW)
    (frame,) = one.outbox.put(Step((GroupStep(Group("other", "", (), 0), leaves=(Leaf("g", 5),)),)))
    parent.take("one", frame, NOW)
    parent.take("one", drops(one, "g"), NOW)
    assert parent.children.retired_leaves.of == {}


def test_leaves_that_a_child_drops_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.5: a child may list and drop as many names as it likes; those beyond the bound are counted."""
    monkeypatch.setattr(retired_leaves, "MOST_RETIRED", 3)
    parent = ChildFrames(JOURNAL, 60 * S)
    _, new = retired_region(parent, Leaf("g", 5))
    parent.take("new", lists(new, *(Leaf(name, 1) for name in "abc")), NOW)
    parent.take("new", drops(new, *"abc"), NOW)
    known = parent.children.retired_leaves
    assert known.of[QUERY.group].keys() == known.last.keys() == {"g", "h", "a"}
    assert parent.children.forgotten()["moves"] == 2


def test_the_tier_above_hears_of_a_leaf_that_came_after_its_region_was_retired() -> None:
    """protocol 1.5: a merger, which is started again in between."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    journal = host.machine.journal
    old, new = Sender("old", QUERY, leaves=("h",)), Sender("new", QUERY, leaves=("i",))
    old.outbox.journal = new.outbox.journal = journal
    for child, frame in (("old", old.birth()), ("old", lists(old, Leaf("g", 5))), ("new", new.birth())):
        host.do(Arrived(((child, frame, None),)), NOW)
    host.do(Tick(), NOW + S)
    host.do(Retire("old"), NOW + 2 * S)
    host.do(Tick(), NOW + 3 * S)
    again = SimulatedHost(
        Merger(NodeSettings("m"), Random(2), host.disk.restored(), host.disk.load, grace_us=60 * S), host.disk
    )
    again.do(LowerLink(up=True), NOW + 4 * S)
    again.do(Retire("old"), NOW + 4 * S)
    again.accepted(NOW + 4 * S)
    again.do(Arrived((("new", lists(new, Leaf("g", 9, 5)), None),)), NOW + 5 * S)
    again.do(Tick(), NOW + 6 * S)
    above = ChildFrames(1, 60 * S)
    above.children.membership(QUERY.group).change("m", Members(0, (Leaf("g", 5),)))
    frames = [frame for frame in again.frames if frame.epoch == again.machine.outbox.epoch]
    for frame in frames:
        for change in frame.members:
            above.children.membership(QUERY.group).change("m", change)
    assert LET_GO in [gap.reason for frame in frames for gap in frame.gaps]
    (member,) = above.children.membership(QUERY.group).members.values()
    assert member.leaves["g"] == Leaf("g", 9, 5)
    assert not above.children.membership(QUERY.group).moves.awaited(member.leaves["g"])


def test_the_tier_above_drops_a_leaf_that_is_retired_two_tiers_below_it() -> None:
    """protocol 1.5: the merger was started for its new configuration, and its birth does not list the leaf."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    low, above = Sender("low", QUERY, leaves=("g", "h")), NumpyRoot(UP, grace_us=60 * S)
    low.outbox.journal = host.machine.journal
    host.do(Arrived((("low", low.birth(), None),)), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    settings, random = NodeSettings("m"), Random(2)
    again = SimulatedHost(Merger(settings, random, host.disk.restored(), host.disk.load, grace_us=60 * S), host.disk)
    again.do(Retire("g"), NOW + 3 * S)
    again.accepted(NOW + 3 * S)
    again.do(Tick(), NOW + 4 * S)
    for frame, _ in again.disk.frames.values():
        above.take("m", frame, NOW + 5 * S)
    (membership,) = above.decider.parent.children.memberships.values()
    assert membership.leaf_frontiers().keys() == {"h"}


def test_the_tier_above_drops_the_leaves_of_a_region_that_is_retired_below_it() -> None:
    """protocol 1.5: only the merger knew which leaves these are, and its birth lists them no longer."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    above = NumpyRoot(UP, grace_us=60 * S)
    for child in (Sender("low", QUERY, leaves=("g", "h")), Sender("near", QUERY, leaves=("i",))):
        child.outbox.journal = host.machine.journal
        host.do(Arrived(((child.node, child.birth(), None),)), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    again = SimulatedHost(
        Merger(NodeSettings("m"), Random(2), host.disk.restored(), host.disk.load, grace_us=60 * S), host.disk
    )
    again.do(Retire("low"), NOW + 3 * S)
    again.accepted(NOW + 3 * S)
    again.do(Tick(), NOW + 4 * S)
    for frame, _ in again.disk.frames.values():
        above.take("m", frame, NOW + 5 * S)
    (membership,) = above.decider.parent.children.memberships.values()
    assert membership.leaf_frontiers().keys() == {"i"}


def test_a_gateway_that_was_retired_when_its_region_had_lost_its_spool_is_not_expected_above() -> None:
    """protocol 1.5, 3.7: the new journal has never heard it; the tier above keeps the list of the old one."""
    above, random = NumpyRoot(UP, grace_us=60 * S), Random(1)
    seen: set[tuple[int, int]] = set()
    for retired in ((), ("g",)):
        host = SimulatedHost(Merger(NodeSettings("m"), random, grace_us=60 * S))
        for node in retired:
            host.do(Retire(node), NOW)
        host.accepted(NOW)
        host.do(LowerLink(up=True), NOW)
        for name in {"g", "h"}.difference(retired):
            child = Sender(name, QUERY)
            child.outbox.journal, child.outbox.random = host.machine.journal, random
            host.do(Arrived(((name, child.birth(), None),)), NOW + S)
        for at in (2, 3):
            host.do(Tick(), NOW + at * S)
        for key, (frame, _) in host.disk.frames.items():
            if key not in seen:
                above.take("m", frame, NOW + 5 * S)
        (membership,) = above.decider.parent.children.memberships.values()
        assert membership.leaf_frontiers().keys() == {"g", "h"}.difference(retired)
        seen.update(host.disk.frames)
        assert stated_by(host) == [retired] * len(retired), "once"


def stated_by(host: SimulatedHost[Merger], since: int = 0) -> list[tuple[str, ...]]:
    """What the frames in a spool say of retired nodes. since: the epoch; 0: of all."""
    frames = [frame for frame, _ in host.disk.frames.values() if since in (0, frame.epoch)]
    assert not any(change.dropped for frame in frames for change in frame.members)
    return [gap.nodes for frame in frames for gap in frame.gaps if gap.reason == RETIRED]


def test_a_start_states_retired_nodes_once_and_not_in_every_group() -> None:
    """protocol 1.5: 300 names in each of 5 000 groups took 21 MB and 16 s at each start."""
    names = tuple(f"gateway-{n:04}" for n in range(50))
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    steps = tuple(GroupStep(Group(f"s{n}", "", (), 0), leaves=(Leaf("low", 1),)) for n in range(60))
    low = Sender("low", QUERY)
    low.outbox.journal = host.machine.journal
    low.outbox.draw()
    host.do(Arrived(tuple(("low", frame, None) for frame in low.outbox.open(Step(steps)))), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    again = SimulatedHost(
        Merger(NodeSettings("m"), Random(2), host.disk.restored(), host.disk.load, grace_us=60 * S), host.disk
    )
    before = {*again.disk.frames}
    for name in names:
        again.do(Retire(name), NOW + 3 * S)
    again.accepted(NOW + 3 * S)
    again.do(Tick(), NOW + 4 * S)
    new = [frame for key, (frame, _) in again.disk.frames.items() if key not in before]
    assert sum(len(encode(frame)) for frame in new) < 8_000
    assert {name for each in stated_by(again) for name in each} == {*names}


def test_a_retired_gateway_is_not_expected_in_groups_that_only_a_lost_journal_knew() -> None:
    """protocol 1.5, 3.7: the new journal has no leaf in this group, so no step of it could drop any there."""
    above, random = NumpyRoot(UP, grace_us=60 * S), Random(1)
    for retired, children in (((), {"g": (QUERY.group, DOOR), "h": (QUERY.group,)}), (("g",), {"h": (QUERY.group,)})):
        host = SimulatedHost(Merger(NodeSettings("m"), random, grace_us=60 * S))
        for node in retired:
            host.do(Retire(node), NOW)
        host.accepted(NOW)
        host.do(LowerLink(up=True), NOW)
        for name, groups in children.items():
            box = Sender(name, QUERY).outbox
            box.journal, box.random = host.machine.journal, random
            box.draw()
            (birth,) = box.open(Step(tuple(GroupStep(group, leaves=(Leaf(name, box.epoch),)) for group in groups)))
            host.do(Arrived(((name, birth, None),)), NOW + S)
        for at in (2, 3):
            host.do(Tick(), NOW + at * S)
        for frame, _ in host.disk.frames.values():
            above.take("m", frame, NOW + 5 * S)
        above.step(NOW + 5 * S)
    memberships = above.decider.parent.children.memberships
    found = {group: {*each.leaf_frontiers()} for group, each in memberships.items()}
    assert found == {QUERY.group: {"h"}, DOOR: set()}


def test_a_new_journal_of_the_parent_hears_of_retired_nodes_too() -> None:
    """protocol 1.5, 3.7: the tier above the parent may know them below it."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=60 * S))
    host.do(Retire("g"), NOW)
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    host.do(Tick(), NOW + 2 * S)
    epoch = host.machine.outbox.epoch
    assert stated_by(host, epoch) == [("g",)]
    host.do(Receipted(Receipt(epoch, UP, host.machine.outbox.seq)), NOW + 3 * S)
    for _ in range(2):
        host.do(Receipted(Receipt(epoch, UP + 1, 0)), NOW + 4 * S)
        host.do(Tick(), NOW + 6 * S)
    assert host.machine.outbox.epoch != epoch
    assert stated_by(host, host.machine.outbox.epoch) == [("g",)]


def test_a_record_of_retired_nodes_does_not_move_behind_a_birth_that_lists_them_again() -> None:
    """protocol 1.5, 3.7: it would drop a node that configuration retires no longer."""
    frame = Frame(7, 3, gaps=(Gap((), 0, 0, 0, ("g",), RETIRED), Gap((QUERY.group,), 1, 2, 3, ("h",), "lost")))
    assert [gap.reason for gap in journal_change.moved(frame, journal_change.Numbers()).gaps] == ["lost"]


@pytest.mark.parametrize("sender", ["m", "other"])
def test_a_record_of_retired_nodes_concerns_the_leaves_below_its_sender_only(sender: str) -> None:
    """protocol 1.5, 2.3"""
    parent, heard = ChildFrames(JOURNAL, 60 * S), {}
    for name in ("m", "other"):
        heard[name] = Sender(name, QUERY, leaves=("g", f"h-{name}"))
        parent.take(name, heard[name].birth(), NOW)
    (frame,) = heard[sender].outbox.put(Step(gaps=(Gap((), 0, 0, 0, ("g",), RETIRED),)))
    (applied,) = parent.take(sender, decoded(frame), NOW + S)
    assert applied.effect.frame is not None
    assert applied.effect.frame.gaps == (), "it is no loss, and the tier above may know the node below others"
    members = parent.children.memberships[QUERY.group].members
    assert {name: {*member.leaves} for name, member in members.items()} == {
        name: {f"h-{name}"} if name == sender else {"g", f"h-{name}"} for name in members
    }


def decoded(frame: Frame) -> Frame:
    message = decode(encode(frame))
    assert isinstance(message, Frame)
    return message


def test_what_the_last_member_of_a_group_had_promised_closes_when_it_is_retired() -> None:
    """protocol 1.5, 4.4: the group had waited for another child, so that its frontier was never published."""
    a, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=60 * S, named=("a", "x"))
    for frame in (a.birth(), a.send((0, 10 * S, "", 1.0), (20 * S, 30 * S, "", 2.0), frontier_us=20 * S)):
        root.take("a", frame, S)
    assert root.step(S) == []
    root.decider.retire(("a",), S)
    (row,) = root.step(2 * S)
    assert (row.start, row.values["sum"], row.coverage.expected) == (0, 1.0, ("a", "x"))
    assert row.coverage.missing == (("x", "behind"),), "what the retired one sent is whole"
    assert root.step(3 * S) == []
    assert root.decider.parent.children.memberships == {}, "nothing waits for its later windows"


@pytest.mark.parametrize("nodes", [("a", "b"), ("b", "a")])
def test_in_whatever_order_the_last_members_are_retired_the_highest_promise_counts(nodes: tuple[str, ...]) -> None:
    """protocol 1.5, 4.4: the other one would have been left out."""
    a, b, root = Sender("a", QUERY), Sender("b", QUERY), NumpyRoot(JOURNAL, grace_us=60 * S)
    for child, until_us in ((a, 10 * S), (b, 20 * S)):
        root.take(child.node, child.birth(), S)
        pieces = [(start, start + 10 * S, "", 1.0) for start in range(0, until_us, 10 * S)]
        root.take(child.node, child.send(*pieces, frontier_us=until_us), S)
    assert [row.start for row in root.step(S)] == [0]
    root.decider.retire(nodes, S)
    (row,) = root.step(2 * S)
    assert (row.start, row.coverage.missing) == (10 * S, ())


def test_a_group_that_nobody_had_promised_anything_in_ends_with_its_last_member() -> None:
    """protocol 1.5: it stayed for ever, though nobody could close a window of it."""
    a, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=60 * S)
    for frame in (a.birth(), a.send((0, 10 * S, "", 1.0))):
        root.take("a", frame, S)
    assert root.step(S) == []
    root.decider.retire(("a",), S)
    assert root.step(2 * S) == []
    assert root.decider.parent.children.memberships == {}


def test_the_tier_above_closes_what_the_last_member_of_a_region_had_promised() -> None:
    """protocol 1.5, 4.4: its rows go up, with the promise that had not been published."""
    settings, named = NodeSettings("m"), ("a", "x")
    host = SimulatedHost(Merger(settings, Random(1), grace_us=60 * S, named=named))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    a, root = Sender("a", QUERY), NumpyRoot(UP, grace_us=60 * S)
    a.outbox.journal = host.machine.journal
    pieces = [(start, start + 10 * S, "", 1.0) for start in (LEFT_AT - 10 * S, LEFT_AT)]
    for frame in (a.birth(), a.send(*pieces, frontier_us=LEFT_AT)):
        host.do(Arrived((("a", frame, None),)), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    again = SimulatedHost(
        Merger(settings, Random(2), host.disk.restored(), host.disk.load, grace_us=60 * S, named=named), host.disk
    )
    again.do(Retire("a"), NOW + 3 * S)
    again.do(LowerLink(up=True), NOW + 3 * S)
    again.accepted(NOW + 3 * S)
    again.do(Tick(), NOW + 4 * S)
    assert again.machine.store.readings == 0
    assert again.machine.parent.children.memberships == {}
    rows = []
    for at, (frame, _) in enumerate(again.disk.frames.values()):
        root.take("m", frame, NOW + 5 * S)
        rows += root.step(NOW + 5 * S + at)
    assert [(row.start, row.values["sum"], row.coverage) for row in rows] == [
        (LEFT_AT - 10 * S, 1.0, Coverage(("a",), ()))
    ]
    root.step(NOW + 6 * S)
    assert root.decider.parent.children.memberships == {}


OTHER = Group("other", "", (), 0)


def lists_in(child: Sender, leaf: Leaf, *groups: Group, dropped: tuple[str, ...] = ()) -> tuple[str, Frame]:
    """A frame of a region that lists a leaf in these groups, and drops leaves in that of its query."""
    steps = [GroupStep(group, leaves=(leaf,)) for group in groups]
    steps += [GroupStep(QUERY.group, dropped=dropped)] if dropped else []
    (frame,) = child.outbox.put(Step(tuple(steps)))
    return child.node, frame


@pytest.mark.parametrize("order", ["one frame", "later", "moved first", "with its merger"])
def test_a_leaf_is_not_missing_in_a_group_in_which_its_retired_region_had_not_listed_it(order: str) -> None:
    """protocol 1.5: it went on to another region with both groups, and nobody reports its leave in the other one."""
    parent, leaf = ChildFrames(JOURNAL, 60 * S), Leaf("g", 5, 77) if order == "with its merger" else Leaf("g", 9, 5)
    old, new = Sender("old", QUERY, leaves=("h",)), Sender("new", QUERY, leaves=("i",))
    for frame in (old.birth(), lists(old, Leaf("g", 5)), old.send(frontier_us=LEFT_AT)):
        parent.take("old", frame, NOW - S)
    parent.take("new", new.birth(), NOW - S)
    moves = [(QUERY.group,), (OTHER,)] if order == "later" else [(OTHER, QUERY.group)]
    frames, losses = [lists_in(new, leaf, *groups) for groups in moves], []
    if order == "moved first":
        parent.take(*frames.pop(), NOW)
        losses += parent.retire("old", NOW)
    parent.retire("old", NOW)
    losses += [gap for frame in frames for applied in parent.take(*frame, NOW) for gap in applied.losses]
    known = Gap((QUERY.group,), LEFT_AT - LATE_US, NOW + 1, -1, ("g",), LET_GO)
    assert sorted(losses, key=lambda gap: gap.start_us) == [replace(known, groups=(OTHER,), start_us=0), known]
    assert not any(parent.children.memberships[group].moves.missing(leaf) for group in (OTHER, QUERY.group))
    again = [gap for applied in parent.take(*lists_in(new, leaf, OTHER, QUERY.group), NOW) for gap in applied.losses]
    assert again == []


@pytest.mark.parametrize("moved_first", [False, True])
def test_nor_in_one_in_which_a_region_below_its_merger_had_not_listed_it(moved_first: bool) -> None:
    """protocol 1.5: the merger retired the region, and says only that it lists the leaf no longer."""
    parent, leaf = ChildFrames(JOURNAL, 60 * S), Leaf("g", 9, 5)
    one, two = Sender("one", QUERY, leaves=("h",)), Sender("two", QUERY, leaves=("i",))
    for frame in (one.birth(), lists(one, Leaf("g", 5)), one.send(frontier_us=LEFT_AT)):
        parent.take("one", frame, NOW)
    parent.take("two", two.birth(), NOW)
    frames = [("one", drops(one, "g")), lists_in(two, leaf, QUERY.group, OTHER)]
    for child, frame in reversed(frames) if moved_first else frames:
        parent.take(child, frame, NOW)
    assert not any(parent.children.memberships[group].moves.missing(leaf) for group in (OTHER, QUERY.group))


def test_a_leaf_that_came_to_a_group_from_a_region_that_is_alive_is_awaited_there_though_another_was_retired() -> None:
    """protocol 1.5: in the group of the retired region it is in an older epoch."""
    parent = ChildFrames(JOURNAL, 60 * S)
    _, new = retired_region(parent, Leaf("g", 5))
    parent.take(*lists_in(new, Leaf("g", 9, 7), OTHER), NOW)
    assert parent.children.memberships[OTHER].moves.missing(Leaf("g", 9, 7))
    alive = Sender("alive", QUERY, leaves=("j",))
    parent.take("alive", alive.birth(), NOW)
    parent.take(*lists_in(alive, Leaf("k", 5), OTHER), NOW)
    parent.children.retired_leaves.remember(QUERY.group, [RetiredLeaf("old", Leaf("k", 5), LEFT_AT)])
    (applied,) = parent.take(*lists_in(new, Leaf("k", 9, 5), OTHER), NOW)
    assert applied.losses == ()
