"""Expected members, who is left out, and the frontier (docs/protocol.md 4.4 to 4.6)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import LATEST_US, NEVER_US, ExcludedLeaf, Leaf, Members, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.losses.loss_records import of_message
from edge_agent.machines.downlink.member import AHEAD_US, Member

S = 1_000_000
GRACE = 60 * S
GROUP = Group("boiler", "", (), 0)
KEY = QueryKey("q", 1)


def family_of(*nodes: str) -> GroupMembership:
    family = GroupMembership(GRACE)
    for node in nodes:
        family.member(node).change(Members(0, (Leaf(node, 1),)))
    return family


def loud(family: GroupMembership) -> dict[str, bool]:
    return dict.fromkeys(family.members, False)


def test_the_frontier_is_the_minimum_over_expected_members() -> None:
    """protocol 4.4."""
    family = family_of("a", "b")
    family.member("a").promise(10 * S, 10 * S)
    assert family.advance_frontier(10 * S, loud(family)) == NEVER_US
    family.member("b").promise(7 * S, 10 * S)
    assert family.advance_frontier(10 * S, loud(family)) == 7 * S


def test_of_an_empty_set_the_frontier_is_minus_infinity() -> None:
    """protocol 4.5; and a child that lists no leaves is not counted (4.6)."""
    family = GroupMembership(GRACE)
    family.member("a").promise(10 * S, 10 * S)
    assert family.advance_frontier(10 * S, {"a": False}) == NEVER_US


def test_a_silent_member_is_left_out_and_counts_again_when_heard() -> None:
    """protocol 4.4: the published frontier never falls and waits for the returned one."""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(10 * S, 10 * S)
    family.advance_frontier(10 * S, loud(family))
    family.member("a").promise(100 * S, 100 * S)
    assert family.advance_frontier(100 * S, {"a": False, "b": True}) == 100 * S
    assert [e.node for e in family.exceptions_at(100 * S)] == ["b"]
    family.member("b").promise(50 * S, 101 * S)
    family.member("a").promise(101 * S, 101 * S)
    assert family.advance_frontier(101 * S, loud(family)) == 100 * S
    assert [e.node for e in family.exceptions_at(100 * S)] == ["b"]
    family.member("b").promise(105 * S, 105 * S)
    assert family.advance_frontier(105 * S, loud(family)) == 101 * S
    assert family.exceptions_at(101 * S) == ()


@pytest.mark.parametrize("nodes", ["ab", "ba", "bac", "cab"])
def test_a_member_that_lags_a_grace_time_behind_the_others_is_left_out(nodes: str) -> None:
    """protocol 4.4: the others' minimum was past its present frontier one grace time ago."""
    family = family_of(*nodes)
    family.member("b").promise(1 * S, 1 * S)
    published = NEVER_US
    for t in range(1, 63):
        for node in sorted({*nodes} - {"b"}):
            family.member(node).promise(t * S, t * S)
        published = family.advance_frontier(t * S, loud(family))
        if t < 62:
            assert published == 1 * S
    assert published == 62 * S


def test_frontiers_between_pauses_of_the_parent_are_not_remembered_for_ever() -> None:
    """protocol 4.4: no time passes in a pause, so the last of them is the one that is past first."""
    family = family_of("a", "b")
    for second in range(0, 1000, 10):
        family.shift(10 * S)
        for node in ("a", "b"):
            family.member(node).promise(second * S, second * S)
        family.advance_frontier(second * S, loud(family))
    assert len(family.snapshot().history) == 1
    for second in (991, 1051):
        family.member("a").promise(second * S, second * S)
        frontier_us = family.advance_frontier(second * S, loud(family))
    assert frontier_us == 1051 * S, "b was behind a minute ago"


def test_of_frontiers_of_one_time_the_last_are_remembered() -> None:
    """protocol 4.4: in a recording the time stands still while thousands of frames are read."""
    family = family_of("a", "b")
    for frontier in range(100):
        for node in ("a", "b"):
            family.member(node).promise(frontier * S, 10 * S)
        family.advance_frontier(10 * S, loud(family))
    assert [low_us for _, low_us, _, _ in family.snapshot().history] == [99 * S]


def test_after_a_step_back_of_the_clock_a_member_that_lags_is_left_out_as_before() -> None:
    """protocol 4.4: not only once the clock has caught up."""
    family = family_of("a", "b")
    for node, now_us in (("a", 998 * S), ("b", 999 * S), ("a", 1_000 * S)):
        family.member(node).promise(now_us // 999, now_us)
        family.advance_frontier(now_us, loud(family))
    family.stepped_back(10 * S)
    for t in range(10, 73):
        family.member("a").promise(t * S, t * S)
        published = family.advance_frontier(t * S, loud(family))
    assert published == 72 * S


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_members_that_are_retired_one_after_the_other_the_highest_promise_is_the_group_s(order: str) -> None:
    """protocol 1.5, 4.4: all rows up to it have come."""
    family = family_of("a", "b")
    for node, frontier in (("a", 30), ("b", 10)):
        family.member(node).promise(frontier * S, 30 * S)
    assert family.advance_frontier(30 * S, loud(family)) == 10 * S
    for node in order:
        family.retire(node)
    assert family.list_last()
    assert family.published_us == 30 * S


def test_a_leaf_that_a_merger_lists_lives_elsewhere_also_after_a_restart() -> None:
    """protocol 1.2, 1.4: its own line does not know that one."""
    family = family_of("m")
    family.change("m", Members(0, (Leaf("x", 1),)))
    for each in (family, GroupMembership.restore(GRACE, family.snapshot())):
        assert each.lives_elsewhere("x", Leaf("x", 5))
        assert not each.lives_elsewhere("y", Leaf("y", 5))


def test_a_frontier_far_in_the_future_is_left_out() -> None:
    """protocol 4.4."""
    family = family_of("a", "b")
    family.member("a").promise(10 * S, 10 * S)
    family.member("b").promise(10 * S + AHEAD_US + 1, 10 * S)
    family.advance_frontier(10 * S, loud(family))
    assert family.advance_frontier(10 * S, loud(family)) == 10 * S
    assert family.members["b"].out


def test_if_all_are_left_out_the_frontier_stays() -> None:
    """protocol 4.4."""
    family = family_of("a")
    family.member("a").promise(10 * S, 10 * S)
    family.advance_frontier(10 * S, loud(family))
    assert family.advance_frontier(100 * S, {"a": True}) == 10 * S


def test_exceptions_of_a_child_merger_are_passed_on_with_their_own_frontier() -> None:
    """protocol 4.6."""
    family = family_of("m")
    family.member("m").change(Members(0, (Leaf("x", 1), Leaf("y", 1)), dropped=("m",)))
    family.member("m").promise(20 * S, 20 * S)
    family.member("m").except_leaves((ExcludedLeaf("y", 5 * S, 5 * S),))
    assert family.advance_frontier(20 * S, loud(family)) == 20 * S
    assert family.exceptions_at(20 * S) == (ExcludedLeaf("y", 5 * S, 5 * S),)
    assert family.leaf_frontiers() == {"x": (20 * S, 20 * S), "y": (5 * S, 5 * S)}


def test_a_leaf_that_is_listed_again_after_it_was_dropped_is_no_exception_any_more() -> None:
    """protocol 2.3, 4.6: its merger states exceptions as changes, and a dropped leaf is none."""
    member = family_of("m").member("m")
    member.change(Members(0, (Leaf("x", 1), Leaf("y", 1))))
    member.promise(20 * S, 20 * S)
    member.except_leaves((ExcludedLeaf("x", 5 * S, 5 * S),))
    member.change(Members(0, (), ("x",)))
    member.change(Members(0, (Leaf("x", 2),)))
    assert member.times_of("x") == (20 * S, 20 * S)


def test_of_a_birth_with_a_lost_frame_the_ranges_of_single_leaves_hold_on_too() -> None:
    """protocol 1.2, 6.3: one that the lost frame stated again would count as serving the query for all time."""
    member, own = family_of("m").member("m"), {KEY: {"x": 7 * S}}
    member.change(Members(0, (Leaf("x", 1),), serving=(Serving("q", 1), Serving("q", 1, 7 * S, None, 7 * S, "x"))))
    assert (member.begins, member.ends) == (own, own)
    member.begin(anew=False)
    assert (member.begins, member.ends) == ({}, {})
    member.keep_earlier()
    assert (member.begins, member.ends) == (own, own)


def test_what_another_frame_of_a_birth_says_holds_also_if_a_second_frame_of_it_is_lost() -> None:
    """protocol 1.2: each lost frame of up to 65 536 took up all ranges from before the birth again."""
    member = family_of("a").member("a")
    member.change(Members(0, (Leaf("a", 1),), serving=(Serving("q", 1), Serving("r", 1))))
    member.begin(anew=False)
    member.keep_earlier()
    member.change(Members(0, (), (), (Serving("q", 1, LATEST_US),)))
    member.keep_earlier()
    assert [*member.serving] == [("r", 1)]


def test_a_register_of_the_epoch_before_bounds_its_key_until_the_new_epoch_promises() -> None:
    """protocol 1.2, 4.7, 5.1"""
    family = family_of("a")
    member = family.member("a")
    member.promise(20 * S, 20 * S)
    member.take_hints((), (("k", 5 * S),))
    member.begin(anew=False)
    assert (member.hint("k"), member.lowest_us) == (5 * S, 5 * S)
    assert family.registers() == {"a": {"k": 5 * S}}


def test_what_a_lost_journal_had_of_a_leaf_that_was_dropped_is_not_what_its_next_line_has_sent() -> None:
    """protocol 3.7"""
    member = family_of("m").member("m")
    member.change(Members(0, (Leaf("x", 1), Leaf("y", 1))))
    member.promise(20 * S, 20 * S)
    member.lose("m", 20 * S)
    member.anew = {"x", "y"}
    member.begin(anew=True)
    member.promise(10 * S, 20 * S)
    member.change(Members(0, (), ("x",)))
    member.change(Members(0, (Leaf("x", 2),)))
    assert member.times_of("x") == (10 * S, 10 * S)
    assert member.times_of("y") == (20 * S, 20 * S)
    assert (member.unsaid, member.anew) == ({"y": 1}, {"y"}), "another epoch of x shows no lost spool"


def test_a_node_that_is_retired_on_its_way_to_another_parent_is_expected_no_longer() -> None:
    """protocol 1.5"""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(10 * S, 10 * S)
    family.leave("a", Leaf("a", 2, 1))
    assert family.leaf_frontiers().keys() == {"a", "b"}
    family.retire("a")
    assert family.leaf_frontiers().keys() == {"b"}


def test_a_leaf_that_moved_twice_has_arrived_where_it_is_listed() -> None:
    """protocol 1.5: nobody lists it in the epoch in between any more."""
    family = family_of("m", "n")
    family.member("m").change(Members(0, (Leaf("x", 1),)))
    for node in ("m", "n"):
        family.member(node).promise(10 * S, 10 * S)
    family.leave("m", Leaf("x", 2, 1))
    family.leave("n", Leaf("x", 3, 2), {"x"})
    family.change("m", Members(0, (Leaf("x", 3, 2),)))
    family.member("m").promise(20 * S, 20 * S)
    assert family.moves.transit == {}
    assert family.leaf_frontiers()["x"] == (20 * S, 20 * S)


def test_a_leaf_below_two_members_has_the_earlier_register_of_both() -> None:
    """protocol 1.5, 4.7: an open session may be at either of them."""
    family = family_of("m", "n")
    for node, us in (("m", 5 * S), ("n", 8 * S)):
        family.member(node).change(Members(0, (Leaf("x", 1),)))
        family.member(node).promise(20 * S, 20 * S)
        family.member(node).take_hints((), (("k", us),))
    assert family.registers()["x"] == {"k": 5 * S}


def test_a_message_that_is_read_late_makes_no_child_silent() -> None:
    """protocol 4.4"""
    children = Children(GRACE)
    for second in (100, 50):
        children.heard("a", second * S)
    assert children.silent(150 * S) == {"a": False}
    assert children.silent(161 * S) == {"a": True}


def test_a_step_of_the_clock_is_no_time_in_which_a_parent_was_connected() -> None:
    """protocol 4.4, 1.4"""
    children = Children(GRACE)
    children.link(0, up=True)
    children.shift(1_000 * S)
    assert not children.heard_for_long(1_059 * S)
    assert children.heard_for_long(1_061 * S)


def test_a_group_is_stuck_from_the_step_of_the_clock_on_if_its_frontier_rises_no_more() -> None:
    """protocol 4.4: by the clock, it rose in the future."""
    family = family_of("a")
    family.member("a").promise(10 * S, 1_000 * S)
    family.advance_frontier(1_000 * S, loud(family))
    assert family.moved_us == 1_000 * S
    family.stepped_back(100 * S)
    assert family.moved_us == 100 * S


def test_silence_counts_from_the_step_of_the_clock_on_and_not_from_when_it_has_caught_up() -> None:
    """protocol 4.4: by the clock, the child was heard in the future, and the parent was connected then."""
    children = Children(GRACE)
    children.link(0, up=False)
    children.link(1_000 * S, up=True)
    children.heard("a", 1_000 * S)
    children.stepped_back(100 * S)
    assert children.silent(159 * S) == {"a": False}
    assert children.silent(161 * S) == {"a": True}


def test_a_group_is_not_stuck_because_its_parent_was_not_connected() -> None:
    """protocol 4.4"""
    children = Children(GRACE)
    children.membership(GROUP)
    children.link(0, up=False)
    children.link(1_000 * S, up=True)
    assert not children.stuck(GROUP, 1_059 * S)
    assert children.stuck(GROUP, 1_061 * S)


def test_a_revision_ends_for_all_members_where_it_ends_for_the_first() -> None:
    """protocol 6.3"""
    family = family_of("a", "b")
    for node, until_us in (("a", 20 * S), ("b", 10 * S)):
        family.member(node).change(Members(0, serving=(Serving("q", 1, None, until_us),)))
    assert family.serving(0)[KEY].start_until_us == 10 * S


def test_a_step_of_the_clock_is_no_time_in_which_others_were_waited_for() -> None:
    """protocol 6.3: a query that some members do not serve yet begins a grace time after the first one does."""
    family = family_of("a", "b")
    family.member("a").change(Members(0, serving=(Serving("q", 1),)))
    assert family.serving(0) == {}
    family.shift(1_000 * S)
    assert family.serving(1_000 * S + GRACE - S) == {}
    assert family.serving(1_000 * S + GRACE + S).keys() == {KEY}


def test_who_lists_leaves_after_the_last_one_was_retired_is_alone_in_the_group() -> None:
    """protocol 1.5: what that one had promised is the group's, but its leaves are not expected any more."""
    family = family_of("a")
    family.member("a").promise(10 * S, 10 * S)
    family.retire("a")
    assert family.expected().keys() == {"a"}, "until the next step"
    family.change("b", Members(0, (Leaf("b", 1),)))
    assert family.expected().keys() == {"b"}


def test_a_member_that_comes_back_behind_the_frontier_does_not_hold_up_the_others() -> None:
    """protocol 4.4: it had left for another parent, and is judged as a new one."""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(10 * S, 10 * S)
    family.advance_frontier(10 * S, loud(family))
    family.leave("a", Leaf("a", 2, 1))
    family.member("b").promise(100 * S, 100 * S)
    assert family.advance_frontier(100 * S, loud(family)) == 100 * S
    family.change("a", Members(0, (Leaf("a", 3, 2),)))
    family.member("a").promise(50 * S, 101 * S)
    family.member("b").promise(110 * S, 110 * S)
    assert family.advance_frontier(110 * S, loud(family)) == 110 * S
    assert [each.node for each in family.exceptions_at(110 * S)] == ["a"]


def test_a_query_starts_at_the_latest_of_its_members_and_ends_when_all_removed_it() -> None:
    """protocol 6.3."""
    family = family_of("a", "b")
    family.member("a").change(Members(0, serving=(Serving("q", 1, 5 * S, None, 50 * S),)))
    family.member("b").change(Members(0, serving=(Serving("q", 1, 8 * S, None, None),)))
    assert family.serving(0) == {("q", 1): Serving("q", 1, 8 * S, None, None)}
    family.member("b").change(Members(0, serving=(Serving("q", 1, 8 * S, None, 60 * S),)))
    assert family.serving(0) == {("q", 1): Serving("q", 1, 8 * S, None, 60 * S)}


def test_a_query_ends_where_its_members_say_also_if_all_of_them_are_left_out() -> None:
    """protocol 6.3; found by seed 33886 of the simulation: rows behind the end were complete."""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(10 * S, 10 * S)
    family.member("a").change(Members(0, serving=(Serving("q", 1), Serving("new", 1))))
    family.member("b").change(Members(0, serving=(Serving("p", 1),)))
    family.advance_frontier(10 * S, loud(family))
    family.serving(10 * S)
    assert family.serving(10 * S + GRACE)[QueryKey("q", 1)] == Serving("q", 1)
    family.advance_frontier(10 * S + GRACE, {"a": True, "b": False})
    family.member("a").change(Members(0, serving=(Serving("q", 1, None, None, 50 * S), Serving("later", 1))))
    found = family.serving(11 * S + GRACE)
    assert found[QueryKey("q", 1)] == Serving("q", 1, None, None, 50 * S)
    assert QueryKey("later", 1) not in found, "it waits until its member is back"


def test_a_query_is_told_when_all_members_serve_it_or_a_grace_time_after_the_first() -> None:
    """protocol 6.3: one that came to a node late starts there, one meant for some nodes only does not wait for ever."""
    family = family_of("a", "b")
    family.member("a").change(Members(0, serving=(Serving("q", 1, 5 * S), Serving("p", 1, 5 * S))))
    assert family.serving(100 * S) == {}
    family.member("b").change(Members(0, serving=(Serving("q", 1, 9 * S),)))
    assert family.serving(110 * S) == {("q", 1): Serving("q", 1, 9 * S)}
    again = GroupMembership.restore(GRACE, family.snapshot())
    assert set(again.serving(100 * S + GRACE)) == {("q", 1), ("p", 1)}


def test_silence_counts_only_while_the_parent_is_connected() -> None:
    """protocol 4.4."""
    children = Children(GRACE)
    children.heard("a", 10 * S)
    children.link(20 * S, up=False)
    assert children.silent(1_000 * S) == {"a": False}
    children.link(1_000 * S, up=True)
    assert children.silent(1_000 * S + GRACE) == {"a": False}
    assert children.silent(1_001 * S + GRACE) == {"a": True}


def test_a_named_child_is_waited_for_until_the_grace_time_is_over() -> None:
    """protocol 4.5: configuration names members before they were ever heard."""
    children = Children(GRACE, ["a", "b"])
    family = children.membership(GROUP)
    family.member("a").change(Members(0, (Leaf("a", 1),)))
    children.heard("a", 1 * S)
    family.member("a").promise(1 * S, 1 * S)
    assert children.advance_frontiers(2 * S)[GROUP] == NEVER_US
    children.heard("a", 61 * S)
    family.member("a").promise(61 * S, 61 * S)
    assert children.advance_frontiers(61 * S)[GROUP] == 61 * S


def test_a_retired_node_is_no_longer_expected() -> None:
    """protocol 1.5: leaves are retired by configuration."""
    children = Children(GRACE)
    family = children.membership(GROUP)
    for node, frontier in (("a", 10 * S), ("b", 1 * S)):
        children.heard(node, 10 * S)
        family.member(node).change(Members(0, (Leaf(node, 1),)))
        family.member(node).promise(frontier, 10 * S)
    assert children.advance_frontiers(10 * S)[GROUP] == 1 * S
    children.retire("b")
    assert children.advance_frontiers(11 * S)[GROUP] == 10 * S
    assert set(family.leaf_frontiers()) == {"a"}


def test_a_snapshot_restores_to_the_same_decisions() -> None:
    family = family_of("a", "b")
    family.member("a").promise(10 * S, 10 * S)
    family.member("b").promise(5 * S, 10 * S)
    family.member("b").except_leaves((ExcludedLeaf("b", 4 * S, 3 * S),))
    family.advance_frontier(10 * S, loud(family))
    again = GroupMembership.restore(GRACE, family.snapshot())
    assert again.snapshot() == family.snapshot()
    assert again.advance_frontier(90 * S, loud(again)) == family.advance_frontier(90 * S, loud(family))


def test_a_leaf_that_serves_a_query_later_than_it_was_told_of_is_not_expected_before() -> None:
    """protocol 4.5, 6.3: who was offline when a query was added joins it later, and rows before say so."""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(10 * S, 10 * S)
    for _ in range(2):  # a new member is weighed once before it can be left out
        family.advance_frontier(10 * S, {"a": False, "b": True})
    family.member("a").change(Members(0, serving=(Serving("q", 1, 5 * S),)))
    assert family.serving(10 * S) == {("q", 1): Serving("q", 1, 5 * S)}
    assert family.begins() == {("q", 1): {"b": LATEST_US}}
    family.member("b").change(Members(0, serving=(Serving("q", 1, 30 * S),)))
    family.advance_frontier(11 * S, loud(family))
    assert family.serving(11 * S) == {("q", 1): Serving("q", 1, 5 * S)}
    assert family.begins() == {("q", 1): {"b": 30 * S}}
    family.member("a").change(Members(0, (Leaf("x", 1),), serving=(Serving("q", 1, 40 * S, node="x"),)))
    assert family.begins() == {("q", 1): {"b": 30 * S, "x": 40 * S}}
    early = window_coverage({"a": 99 * S, "b": 99 * S}, (), GROUP, 20 * S, 25 * S, begins={"b": 30 * S})
    assert (early.expected, early.complete) == (("a",), True)
    later = window_coverage({"a": 99 * S, "b": 99 * S}, (), GROUP, 30 * S, 35 * S, begins={"b": 30 * S})
    assert later.expected == ("a", "b")


def test_a_promise_ahead_of_its_receipt_is_not_taken_and_a_lower_one_of_a_new_epoch_is() -> None:
    """protocol 4.1, 4.4: neither its coverage nor the frontier of the group runs ahead with a wrong clock."""
    family = family_of("a")
    member = family.member("a")
    member.promise(10 * S, 10 * S)
    assert family.advance_frontier(10 * S, loud(family)) == 10 * S
    member.promise(3_610 * S, 11 * S)
    assert family.advance_frontier(11 * S, loud(family)) == 10 * S
    assert family.leaf_frontiers() == {"a": (10 * S, 10 * S)}
    member.promise(15 * S, 16 * S)
    assert family.advance_frontier(16 * S, loud(family)) == 15 * S
    member.promise(12 * S, 17 * S)  # the clock went back by a few seconds: what is published stays
    assert family.advance_frontier(17 * S, loud(family)) == 15 * S
    assert family.exceptions_at(15 * S) == (ExcludedLeaf("a", 12 * S, 12 * S),)


def test_a_new_member_whose_clock_is_ahead_never_counts() -> None:
    """protocol 4.4."""
    family = family_of("a")
    family.member("a").promise(3_610 * S, 10 * S)
    assert family.advance_frontier(10 * S, loud(family)) == NEVER_US
    assert family.members["a"].out


@pytest.mark.parametrize("far", [False, True])
def test_a_promise_that_a_parent_took_because_its_own_clock_was_ahead_too_holds_for_nothing_once_it_is_right(
    far: bool,
) -> None:
    """protocol 4.4: rows above the parent do not claim the child up to a time that has not come; far: nobody else."""
    family = family_of("a") if far else family_of("a", "b")
    ahead_us = 3_600 * S
    for node in family.members:
        family.member(node).promise(10 * S if node == "b" else ahead_us, ahead_us)
    assert family.advance_frontier(ahead_us, loud(family)) == (ahead_us if far else 10 * S)
    family.stepped_back(40 * S)
    assert family.leaf_frontiers()["a"][0] == (NEVER_US if far else 10 * S)
    family.member("a").promise(39 * S, 40 * S)
    assert family.leaf_frontiers()["a"][0] == 39 * S


def test_a_parent_whose_clock_goes_back_promises_anew() -> None:
    """protocol 4.1: it took its children's promises while its own clock was ahead."""
    children = Children(GRACE)
    children.link(0, up=True)
    family = children.membership(GROUP)
    family.member("a").change(Members(0, (Leaf("a", 1),)))
    children.heard("a", 3_610 * S)
    family.member("a").promise(3_610 * S, 3_610 * S)
    assert children.advance_frontiers(3_610 * S)[GROUP] == 3_610 * S
    children.stepped_back(12 * S)
    assert children.advance_frontiers(12 * S)[GROUP] == 12 * S
    family.member("a").promise(13 * S, 13 * S)
    assert children.advance_frontiers(13 * S)[GROUP] == 13 * S


def test_a_birth_ends_what_the_epoch_before_stated_except_the_registers_until_the_new_promise() -> None:
    """protocol 1.2, 5.2"""
    for anew, held in ((False, {"k": 5}), (True, {})):
        member = Member(frontier_us=50, hints={"k": 5}, serving={KEY: Serving("q", 1)})
        member.begins[KEY] = {"a": 7}
        member.begin(anew=anew)
        assert (member.hints, member.held) == ({}, held)
        assert (member.serving, member.begins, member.ends) == ({}, {}, {})


def test_of_a_child_without_its_journal_each_leaf_has_come_as_far_as_its_open_sessions_say() -> None:
    """protocol 3.7, 5.1"""
    member = Member(frontier_us=50, leaves={"a": Leaf("a", 1)}, hints={"k": 5})
    member.lose("m", 60)
    assert member.reached == {"a": (50, 5)}


def test_a_new_member_that_is_behind_does_not_hold_up_the_others() -> None:
    """protocol 4.4: what it sends until it has caught up is late."""
    membership = GroupMembership(60)
    for node, frontier_us in (("a", 100), ("b", 50)):
        membership.member(node).leaves[node] = Leaf(node, 1)
        membership.member(node).promise(frontier_us, 0)
        assert membership.advance_frontier(0, {"a": False, "b": False}) == 100
    membership.member("a").promise(200, 0)
    assert membership.members["b"].out
    membership.member("b").promise(150, 0)
    assert membership.advance_frontier(1, {"a": False, "b": False}) == 150
    assert not membership.members["b"].out


def test_registers_of_a_member_that_is_left_out_hold_up_no_key() -> None:
    """protocol 5.2: its exceptions state its unsent sessions."""
    family = family_of("a", "b")
    for node, start_us in (("a", 9 * S), ("b", 5 * S)):
        family.member(node).hints["k"] = start_us
    assert family.hints() == {"k": 5 * S}
    family.member("b").out = True
    assert family.hints() == {"k": 9 * S}


def test_a_member_that_lags_is_left_out_though_another_one_that_is_out_lags_more() -> None:
    """protocol 4.4"""
    family = family_of("a", "b", "c")
    for second in range(3 * GRACE // S):
        for node, frontier_us in (("a", (100 + second) * S), ("b", 20 * S), ("c", 10 * S)):
            family.member(node).promise(frontier_us, second * S)
        family.advance_frontier(second * S, {"a": False, "b": False, "c": True})
    assert {node: member.out for node, member in family.members.items()} == {"a": False, "b": True, "c": True}


def test_a_member_whose_clock_was_ahead_as_well_is_left_out_until_it_promises_anew() -> None:
    """protocol 4.1, 4.4: where it stands is not known."""
    family = family_of("a", "b")
    for node in ("a", "b"):
        family.member(node).promise(9_000 * S, 9_000 * S)
    assert family.advance_frontier(9_000 * S, loud(family)) == 9_000 * S
    family.stepped_back(100 * S)
    family.member("b").promise(90 * S, 100 * S)
    family.advance_frontier(100 * S, loud(family))
    assert {node: member.out for node, member in family.members.items()} == {"a": True, "b": False}


def test_a_member_of_a_child_that_was_never_heard_is_left_out() -> None:
    """protocol 4.4: as below a merger that was restored from a copy."""
    family = family_of("a", "b")
    for _ in range(2):
        family.advance_frontier(0, {"a": False})
    assert {node: member.out for node, member in family.members.items()} == {"a": False, "b": True}


def test_a_message_that_cannot_be_used_may_have_contained_the_sessions_that_its_sender_had_open() -> None:
    """protocol 3.6, 5.2"""
    family = family_of("a")
    member = family.member("a")
    member.promise(50 * S, 50 * S)
    member.hints["k"] = 20 * S
    (gap,) = of_message({GROUP: family}, "a", "bad", b"", 60 * S)
    assert (gap.start_us, gap.end_us, gap.nodes) == (20 * S, 60 * S + 1, ("a",))
    (gap,) = of_message({GROUP: family}, "a", "bad", b"", 60 * S, since_us=5 * S)
    assert gap.start_us == 5 * S
