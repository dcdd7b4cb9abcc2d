"""The leaves that a parent expects while nodes below it move to other parents (protocol 1.5, member lists)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import LATEST_US, NEVER_US, ExcludedLeaf, Frame, Leaf, Members, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, LowerLink, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from tests.support.machines.scripted_child import GRACE, SUM, Sender, journalled, leaving
from tests.support.machines.simulated_host import T0, SimulatedHost

S = 1_000_000
GROUP = Group("s", "", (), 0)


def family(**frontiers: int) -> GroupMembership:
    """Children that list g with the epoch of their own number, 1, 2, …"""
    out = GroupMembership(60 * S)
    for number, (name, frontier_us) in enumerate(frontiers.items(), 1):
        out.change(name, Members(0, (Leaf("g", number, number - 1 or None),)))
        out.member(name).promise(frontier_us, frontier_us)
    return out


def left(successor: int, epoch: int) -> Members:
    return Members(0, (Leaf("g", successor, epoch),), ("g",))


def test_a_leaf_has_come_as_far_as_its_old_parent_until_that_reports_the_leave() -> None:
    """protocol 1.5"""
    group = family(a=10 * S, b=30 * S)
    assert group.leaf_frontiers() == {"g": (10 * S, 10 * S)}
    assert group.leaves() == {"g": Leaf("g", 1)}  # the tier above learns of the move with the leave
    assert [each.frontier_us for each in group.exceptions_at(20 * S)] == [10 * S]
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}
    assert group.leaves() == {"g": Leaf("g", 2, 1)}
    assert list(group.expected()) == ["b"]


def test_a_leaf_that_left_stays_expected_where_it_was_until_it_is_listed() -> None:
    """protocol 1.5"""
    group = family(a=10 * S)
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (10 * S, 10 * S)}
    assert not group.gone
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


@pytest.mark.parametrize("at_once", [False, True])
def test_of_a_leaf_that_came_and_left_in_one_frame_nobody_knows_how_far_it_had_come(at_once: bool) -> None:
    """protocol 1.5: the merger's frontier is not its own, and exceptions of the frame are those behind the report."""
    children = Children(60 * S)
    came, went = (GROUP, Members(0, (Leaf("g", 1),))), (GROUP, left(2, 1))
    children.membership(GROUP).member("m").promise(30 * S, 30 * S)
    for changes in ([came, went],) if at_once else ([came], [went]):
        children.change("m", changes)
    reached_us = NEVER_US if at_once else 30 * S
    assert children.membership(GROUP).leaf_frontiers() == {"g": (reached_us, reached_us)}
    children.change("n", [(GROUP, Members(0, (Leaf("g", 2, 1),)))])
    children.membership(GROUP).member("n").promise(40 * S, 40 * S)
    assert children.membership(GROUP).leaf_frontiers() == {"g": (40 * S, 40 * S)}


def test_a_leaf_whose_old_parent_has_not_been_heard_is_missing_for_every_window() -> None:
    """protocol 1.5"""
    group = GroupMembership(60 * S)
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    restored = GroupMembership.restore(60 * S, group.snapshot())
    assert restored.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    restored.change("a", left(2, 1))
    assert restored.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_leaves_that_come_together_all_count() -> None:
    """protocol 1.5: leaves that come out of order."""
    group = family(a=10 * S)
    group.change("c", Members(0, (Leaf("g", 3, 2),)))
    group.member("c").promise(30 * S, 30 * S)
    group.change("b", left(3, 2))
    group.change("a", left(2, 1))
    assert group.moves.left == {"g": [2, 1]}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_leaf_that_moved_on_before_its_first_leave_came_is_still_missing_everywhere() -> None:
    """protocol 1.5: what stays with the first parent is missing below the third too, and on the way there."""
    group = GroupMembership(60 * S)
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    group.change("b", left(3, 2))
    assert group.moves.transit["g"][2][0] == 3
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("b", left(2, 1))
    assert group.leaf_frontiers()["g"] == (30 * S, 30 * S)


def test_a_leaf_whose_next_line_was_here_and_has_left_in_a_later_epoch_is_not_on_its_way_there() -> None:
    """protocol 1.5: it went from a to b, began another epoch there, and went on to c, before a reported the first."""
    group = family(a=10 * S)
    group.change("b", Members(0, (Leaf("g", 3, 1),)))
    group.member("b").promise(20 * S, 20 * S)
    group.change("b", left(4, 3))
    group.change("c", Members(0, (Leaf("g", 4, 3),)))
    group.member("c").promise(30 * S, 30 * S)
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("a", left(2, 1))
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


@pytest.mark.parametrize("order", ["mmgg", "mgmg", "mggm", "gmmg", "gmgm", "ggmm"])
def test_epochs_in_which_nothing_was_ever_sent_are_not_awaited(order: str) -> None:
    """protocol 1.5: g goes to and fro, and is started again before it has sent anything: its leaves state the epochs
    of that, and each names the last epoch that was sent to that parent.
    """
    group = family(g=10 * S)
    group.change("g", left(2, 1))
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.change("m", left(3, 2))
    group.change("g", Members(0, (Leaf("g", 3, 2),)))
    group.member("g").promise(20 * S, 20 * S)
    sent_g = iter([(Leaf("g", 3, 2), left(4, 3)), (Leaf("g", 5, 2), left(6, 3))])
    sent_m = iter([(Leaf("g", 4, 3), left(5, 2)), (Leaf("g", 6, 3), None)])
    for member in order:
        entry, report = next(sent_g if member == "g" else sent_m)
        group.change(member, Members(0, (entry,)))
        if report is not None:
            group.change(member, report)
    assert group.moves.transit == {}
    group.member("m").promise(40 * S, 40 * S)
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (40 * S, 40 * S)}


@pytest.mark.parametrize("epochs", [(2,), (2, 5)], ids=["one epoch", "started again"])
@pytest.mark.parametrize("order", ["mgm", "gmm"])
def test_a_leaf_that_left_its_parent_twice_in_one_epoch_has_not_arrived_where_it_was_between(
    order: str, epochs: tuple[int, ...]
) -> None:
    """protocol 1.5: g went to m, came back, and went to m again before it had sent anything; m is heard later."""
    group = family(g=10 * S)
    group.change("g", left(2, 1))
    again = [Members(0, (Leaf("g", 3, epochs[-1]),)), left(4, 1)]
    of_m = iter([[Members(0, (Leaf("g", epoch, 1),)) for epoch in epochs], [left(3, epochs[-1])]])
    for member in order:
        for change in again if member == "g" else next(of_m):
            group.change(member, change)
        group = GroupMembership.restore(60 * S, group.snapshot())
    group.member("m").promise(20 * S, 20 * S)
    assert not group.gone
    assert "g" in group.leaf_frontiers()
    group.change("m", Members(0, (Leaf("g", 4, 1),)))
    group.member("m").promise(30 * S, 30 * S)
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_leaf_arrives_with_its_region_in_a_later_epoch_while_an_older_line_of_it_is_awaited() -> None:
    """protocol 1.5: region n left epoch 29 for m; g began epoch 33 below it, after it had been listed as moved on."""
    group = family(n=10 * S)
    group.change("n", Members(0, (Leaf("g", 3, 29),)))
    group.change("m", Members(0, (Leaf("g", 27, 33),)))
    group.change("n", Members(0, (Leaf("g", 3, 29),), ("g",)))
    group.change("m", Members(0, (Leaf("g", 33, 29),)))
    assert group.moves.transit == {}


def test_a_leaf_on_its_way_stays_expected_when_an_older_move_is_reported_late() -> None:
    """protocol 1.5: reports of two members come in any order; a group that still has a leaf does not end."""
    group = family(a=10 * S, b=30 * S)
    group.change("b", left(3, 2))
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}
    group.change("a", Members(0, (Leaf("g", 1, 9),)))  # as it was, a line before: it went away twice
    group.change("a", left(2, 1))
    assert not group.gone
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers().keys() == {"g"}
    group.change("c", Members(0, (Leaf("g", 3, 2),)))
    assert group.moves.transit == {}


@pytest.mark.parametrize("listed_first", [False, True])
def test_below_a_merger_that_moves_on_a_leaf_is_on_its_way_also_where_an_older_line_of_it_is_listed(
    listed_first: bool,
) -> None:
    """protocol 1.5: it keeps its epoch. The merger went from a to b, which left its first report for last, and on."""
    as_it_was, first, second = Leaf("g", 5), Leaf("g", 5, 1), Leaf("g", 5, 2)
    group = GroupMembership(60 * S)
    if listed_first:
        group.change("a", Members(0, (as_it_was,)))
    group.change("m", Members(0, (first,)))
    group.member("m").promise(30 * S, 30 * S)
    group.leave("m", second)
    new = set[str]()  # the report is behind the entry that ended, in one frame
    group.change("a", Members(0, (as_it_was,)), new)
    group.change("a", Members(0, (first,), ("g",)), new)
    assert not group.gone
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (30 * S, 30 * S)}
    group.change("a", Members(0, (second,)))
    group.member("a").promise(40 * S, 40 * S)
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (40 * S, 40 * S)}


def test_a_leaf_whose_merger_gave_up_its_former_lines_has_arrived_once_the_last_of_them_has_reported() -> None:
    """protocol 1.5: its next birth names no epoch before the moves, so that the entry may be of any line."""
    group = GroupMembership(60 * S)
    group.change("m", Members(0, (Leaf("g", 5, 1),)))
    group.leave("m", Leaf("g", 5, 2))
    group.change("n", Members(0, (Leaf("g", 5),)))
    group.member("n").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.leave("a", Leaf("g", 5, 1))
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_merger_that_lists_another_line_of_a_leaf_does_not_say_that_the_former_has_ended() -> None:
    """protocol 1.5: it goes on elsewhere below, and its leave is awaited; a leaf that is back has left."""
    group = GroupMembership(60 * S)
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.change("m", Members(0, (Leaf("g", 3, 2),)))
    assert group.moves.left == {}
    group.change("g", Members(0, (Leaf("g", 6, 5),)))
    group.change("g", Members(0, (Leaf("g", 8, 7),)))
    assert group.moves.left == {"g": [6]}


@pytest.mark.parametrize("member", ["g", "m"])
def test_starts_of_a_leaf_take_the_place_of_no_report(member: str) -> None:
    """Found by seed 86712 of the simulation: a gateway started 70 times while its merger moved. protocol 1.5."""
    group = GroupMembership(60 * S)
    group.change("old", Members(0, (Leaf("g", 1),)))
    group.change("old", left(1, 5))
    for epoch in range(100, 170):
        group.change(member, Members(0, (Leaf("g", epoch, 3),)))
    assert not group.moves.awaited(Leaf("g", 1, 5))


def test_a_leaf_has_arrived_also_where_a_merger_lists_another_line_of_it_before_its_former_parent_reports() -> None:
    """protocol 1.5: of the two lines below m the one that came from a is not the one that m lists now."""
    group = family(a=10 * S)
    group.change("m", Members(0, (Leaf("g", 1, 7),)))
    group.change("m", Members(0, (Leaf("g", 2, 8),)))
    group.member("m").promise(30 * S, 30 * S)
    group = GroupMembership.restore(60 * S, group.snapshot())
    group.change("a", left(1, 7))
    assert group.moves.transit == {}
    group.change("b", left(2, 8))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leaf_has_arrived_also_if_its_former_parent_lists_it_after_the_new_one_has_another_line(
    restarted: bool,
) -> None:
    """Found by seed 70012 of the simulation: a merger that moved away had not spoken for long. protocol 1.5."""
    group = GroupMembership(60 * S)
    group.change("new", Members(0, (Leaf("g", 5, 1),)))  # merger `old` moved below `new`, in an epoch that followed 1
    group.change("new", Members(0, (Leaf("g", 6, 2),)))  # and there g moved on
    group.member("new").promise(30 * S, 30 * S)
    group.moves.take_skipped()  # as a step does
    if restarted:
        group = GroupMembership.restore(60 * S, group.snapshot())
    group.change("old", Members(0, (Leaf("g", 5),)))
    group.member("old").promise(10 * S, 10 * S)
    group.change("old", left(5, 1))
    group.change("third", left(6, 2))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_leaf_is_missing_while_the_parent_before_its_last_move_but_one_may_have_rows() -> None:
    """protocol 1.5"""
    group = GroupMembership(60 * S)
    group.change("new", Members(0, (Leaf("g", 5, 1),)))
    group.change("new", Members(0, (Leaf("g", 6, 2),)))
    group.member("new").promise(30 * S, 30 * S)
    group.change("new", Members(0, (Leaf("g", 6, 2), Leaf("h", 1))))
    group.change("third", left(6, 2))
    assert group.leaf_frontiers()["g"] == (NEVER_US, NEVER_US)
    group.change("old", left(5, 1))
    assert group.leaf_frontiers()["g"] == (30 * S, 30 * S)


def test_a_leaf_has_gone_on_also_if_its_leave_is_reported_for_an_entry_that_was_replaced_first() -> None:
    """protocol 1.5: both reports are of epoch 20, and the leaf had come on from there in 21, later 22, before them."""
    root, now = family(m=10 * S), Members(0, (Leaf("g", 50, 49),))
    for entry, report in [
        (Leaf("g", 22, 20), left(30, 22)),
        (Leaf("g", 20, 10), left(20, 20)),
        (Leaf("g", 20, 10), left(21, 20)),
        (Leaf("g", 30, 22), left(50, 49)),
    ]:
        for change in (now, Members(0, (entry,)), report, now):
            root.change("m", change)
    assert GroupMembership.restore(60 * S, root.snapshot()).moves.transit == {}


def test_the_tier_above_hears_of_a_line_that_a_merger_no_longer_listed_when_it_moved_on() -> None:
    """protocol 1.5: g began anew below m1, which had come from the root. m1 and m2 are below m, and list it."""
    m, root, other = GroupMembership(60 * S), family(m1=10 * S), Leaf("g", 5, 19)
    m.change("m2", Members(0, (other,)))
    m.change("m1", Members(0, (Leaf("g", 3, 20),)))
    m.change("m1", Members(0, (Leaf("g", 6, 21),)))
    assert m.leaves()["g"] == other
    root.change("m", Members(0, (other,)))
    root.member("m").promise(10 * S, 10 * S)
    root.change("m1", left(3, 20))
    assert root.moves.transit["g"].keys() == {20}
    m.leave("m1", Leaf("g", 6, 22))
    above: set[str] = set()
    for entry, report in m.moves.passed_on():
        assert entry is not None
        root.change("m", Members(0, (entry,)), above)
        root.change("m", Members(0, (report,), ("g",)), above)
    root.change("m", Members(0, (other,)), above)
    assert root.moves.transit == {"g": {22: (6, 10 * S, 10 * S)}}
    root.change("m1", Members(0, (Leaf("g", 6, 22),)))
    assert root.moves.transit == {}


def test_a_child_that_is_listed_by_the_merger_from_which_it_came_has_come_as_far_as_both() -> None:
    """protocol 1.5: what is passed on is the older line, and that not all of the newer one's past is here."""
    group = GroupMembership(60 * S)
    group.change("g", Members(0, (Leaf("g", 3, 2),)))
    group.member("g").promise(40 * S, 40 * S)
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.member("m").promise(10 * S, 10 * S)
    assert group.leaves() == {"g": Leaf("g", 2, 1)}
    assert [(each.node, each.frontier_us) for each in group.exceptions_at(20 * S)] == [("g", 10 * S)]
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("m", Members(0, (Leaf("g", 8, 7),)))  # of no line that it says it came from
    assert group.leaves() == {"g": Leaf("g", 3, 2)}


def test_a_leaf_of_two_lines_that_both_came_from_elsewhere_is_missing_for_the_tier_above() -> None:
    """protocol 1.5: one line is passed on and judged above; of the other nobody there would hear."""
    group = GroupMembership(60 * S)
    for child, epochs in (("a", (3, 2)), ("b", (5, 4))):
        group.change(child, Members(0, (Leaf("g", *epochs),)))
        group.member(child).promise(30 * S, 30 * S)
    assert [(each.node, each.frontier_us) for each in group.exceptions_at(20 * S)] == [("g", NEVER_US)]
    group.change("a", left(4, 3))
    assert group.leaves() == {"g": Leaf("g", 5, 4)}


def test_an_exception_whose_sessions_alone_are_behind_is_passed_on() -> None:
    """protocol 4.6, 5.1: its frontier is that of the group, its bound is not."""
    group = family(m=20 * S)
    group.member("m").except_leaves([ExcludedLeaf("g", 20 * S, 15 * S)])
    assert group.exceptions_at(20 * S) == (ExcludedLeaf("g", 20 * S, 15 * S),)


# --- which parent -----------------------------------------------------------------------------------------------------


def test_a_query_that_only_a_leaf_which_moved_away_served_is_not_believed_to_go_on_there() -> None:
    """protocol 6.3, 1.5: b, which stays, serves another query of the same group."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    other = replace(query, id="other")
    one, two = Sender("a", query, other), Sender("b", other)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for sender in (one, two):
        host.do(Arrived(((sender.node, journalled(sender.birth(), host.machine), None),)), T0)
    for tick_us in (T0 + S, T0 + GRACE + 2 * S):
        host.do(Tick(), tick_us)
    above = GroupMembership(GRACE)
    taken = apply(host, above, 0)
    assert above.members["m"].serving.keys() == {("q", 1), ("other", 1)}
    host.do(Arrived((("a", leaving(one), None),)), T0 + GRACE + 3 * S)
    host.do(Tick(), T0 + GRACE + 5 * S)
    apply(host, above, taken)
    assert above.members["m"].leaves.keys() == {"b"}
    assert above.members["m"].serving.keys() == {("other", 1)}
    assert above.members["m"].serving == Member.restore(above.members["m"].snapshot()).serving


def test_what_a_leaf_on_its_way_served_is_known_until_it_is_listed_again() -> None:
    """protocol 1.5, 6.3: else rows would claim it beyond the removal of their query, or before it served that."""
    group = family(a=10 * S)
    ended, late, whole = Serving("ended", 1, None, None, 30 * S), Serving("late", 1, 20 * S), Serving("whole", 1)
    group.change("b", Members(0, (Leaf("h", 9),), (), tuple(Serving(name, 1) for name in ("ended", "late", "whole"))))
    group.member("b").promise(50 * S, 50 * S)
    group.serving(0)
    group.serving(60 * S)  # told, without g
    group.change("a", Members(0, serving=(ended, late, whole)))
    before = group.begins(), group.ends()
    assert before == ({("late", 1): {"g": 20 * S}}, {("ended", 1): {"g": 30 * S}})
    group.change("a", left(2, 1))
    for each in (group, GroupMembership.restore(60 * S, group.snapshot())):
        assert (each.begins(), each.ends()) == before
    group.change("c", Members(0, (Leaf("g", 2, 1),), (), (ended, late, whole)))
    assert group.moves.served == {}


def test_a_leaf_on_its_way_serves_no_query_that_it_did_not_serve_when_it_left() -> None:
    """protocol 1.5, 6.3: else rows of a query that was added meanwhile would count it, as far as it had promised."""
    group = family(a=50 * S)
    group.change("b", Members(0, (Leaf("h", 9),), (), (Serving("old", 1), Serving("of-h", 1))))
    group.change("a", Members(0, serving=(Serving("old", 1),)))
    group.serving(0)
    assert set(group.serving(60 * S)) == {("old", 1), ("of-h", 1)}
    group.change("a", Members(0, serving=(Serving("of-g", 1),)))  # not announced yet, because h may serve it too
    group.serving(61 * S)
    group.change("a", left(2, 1))
    group.change("b", Members(0, serving=(Serving("added", 1), Serving("of-g", 1))))
    group.serving(61 * S)
    for each in (group, GroupMembership.restore(60 * S, group.snapshot())):
        assert each.begins() == {("of-h", 1): {"g": LATEST_US}, ("added", 1): {"g": LATEST_US}}
        assert each.ends() == {}
    group.change("b", Members(0, serving=(Serving("added", 1, LATEST_US), Serving("of-h", 1, LATEST_US))))
    assert not group.serves(QueryKey("added", 1))
    group.change("c", Members(0, (Leaf("g", 2, 1),), (), (Serving("old", 1),)))
    assert group.moves.served == {}


@pytest.mark.parametrize("alone", [False, True])
def test_a_merger_says_that_a_query_is_served_no_longer_after_it_has_reported_who_left(alone: bool) -> None:
    """protocol 1.5, 6.3: the tier above knows then until when the leaf on its way served it."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    other = replace(query, id="other")
    one, two = Sender("a", query, other), Sender("b", other)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    births = [(one, one.birth(servings=(Serving("q", 1, None, None, 20 * S), Serving("other", 1))))]
    births += [] if alone else [(two, two.birth())]
    for sender, birth in births:
        host.do(Arrived(((sender.node, journalled(birth, host.machine), None),)), T0)
    for tick_us in (T0 + S, T0 + GRACE + 2 * S):
        host.do(Tick(), tick_us)
    above = GroupMembership(GRACE)
    above.change("n", Members(0, (Leaf("c", 5),), (), (Serving("q", 1),)))
    taken = apply(host, above, 0)
    above.serving(T0)
    assert above.ends() == {("q", 1): {"a": 20 * S} if alone else {"a": 20 * S, "b": 20 * S}}
    host.do(Arrived((("a", leaving(one), None),)), T0 + GRACE + 3 * S)
    for tick_us in (T0 + GRACE + 5 * S, T0 + GRACE + 7 * S):
        host.do(Tick(), tick_us)
        taken = apply(host, above, taken)
        assert above.ends()[QueryKey("q", 1)]["a"] == 20 * S
    assert "m" not in above.expected() if alone else ("q", 1) not in above.members["m"].serving
    assert len(host.machine.parent.children.memberships) == (0 if alone else 1)


def test_a_merger_states_no_ranges_with_its_last_leaves_and_all_of_them_with_the_next() -> None:
    """protocol 6.3: the tier above forgets the ranges of the last leaves when a leaf is listed again."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    one, two, three = (Sender(name, query) for name in "abc")
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)

    def ranges(at_us: int, *arrived: tuple[str, Frame]) -> list[Serving]:
        """The ranges that it states after these frames."""
        first = len(host.frames)
        host.do(Arrived(tuple((node, frame, None) for node, frame in arrived)), at_us)
        for tick_us in (at_us + S, at_us + 2 * S):
            host.do(Tick(), tick_us)
        return [each for frame in host.frames[first:] for change in frame.members for each in change.serving]

    until = {one: T0 + 20 * S, two: T0 + 30 * S}
    births = [(x.node, x.birth(servings=(Serving("q", 1, None, None, us),))) for x, us in until.items()]
    births = [(node, journalled(birth, host.machine)) for node, birth in births]
    longest, shorter = Serving("q", 1, None, None, T0 + 30 * S), Serving("q", 1, 0, None, T0 + 20 * S, "a")
    assert ranges(T0, *births) == [longest, shorter]
    assert ranges(T0 + GRACE + 3 * S, ("a", leaving(one)), ("b", leaving(two))) == []
    birth = journalled(three.birth(), host.machine)
    assert ranges(T0 + GRACE + 6 * S, ("c", birth)) == [Serving("q", 1)]


def apply(host: SimulatedHost[Merger], above: GroupMembership, first: int) -> int:
    """The definition sections of its frames from the first one on, at the tier above. Returns how many frames."""
    for frame in host.frames[first:]:
        for change in frame.members:
            above.change("m", change)
    return len(host.frames)
