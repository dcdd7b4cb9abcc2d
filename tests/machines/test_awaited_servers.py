"""A query that begins in another group than its former revision, or in a new one, waits for the other nodes (6.3)."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.algebra.frame import Leaf, Members, Serving
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership

S = 1_000_000
GRACE = 60 * S
OLD = Group("s", "", (), 0)
NEW = replace(OLD, where="value > 0")
ELSEWHERE = replace(OLD, source="other")
ONE = Serving("q", 1)


def parent_of(**groups: Group) -> ChildFrames:
    """A parent whose children, by name, have listed themselves in their group and serve revision 1 of query q."""
    parent = ChildFrames(1, GRACE)
    for child, group in groups.items():
        join(parent, child, group, ONE)
    return parent


def join(parent: ChildFrames, child: str, group: Group, *servings: Serving) -> GroupMembership:
    membership = parent.children.membership(group)
    membership.change(child, Members(0, (Leaf(child, 1),), serving=servings))
    return membership


def starts(parent: ChildFrames, now_us: int) -> dict[tuple[str, int], int | None]:
    """Query -> its agreed start, of the queries announced in the new group."""
    return {key: each.start_from_us for key, each in parent.servings(now_us)[NEW].items()}


def test_a_revision_with_another_filter_starts_where_the_last_node_begins_that_served_the_one_before() -> None:
    """protocol 6.3: else the rows between the two would count the first node only, and be complete."""
    parent = parent_of(a=OLD, b=OLD)
    new = join(parent, "a", NEW, Serving("q", 2, 10 * S))
    new.member("a").promise(30 * S, 30 * S)
    new.advance_frontier(30 * S, {"a": False})
    assert starts(parent, 30 * S) == {}
    join(parent, "b", NEW, Serving("q", 2, 20 * S)).member("b").promise(20 * S, 30 * S)
    new.advance_frontier(30 * S, {"a": False, "b": False})
    assert new.members["b"].out, "a new member behind the frontier is left out at first; its start counts all the same"
    assert starts(parent, 30 * S) == {("q", 2): 20 * S}


def test_a_node_that_does_not_get_the_revision_holds_it_back_for_a_grace_time_only() -> None:
    """protocol 6.3."""
    parent = parent_of(a=OLD, b=OLD)
    join(parent, "a", NEW, Serving("q", 2, 10 * S))
    assert starts(parent, 30 * S) == starts(parent, 30 * S + GRACE - 1) == {}
    assert starts(parent, 30 * S + GRACE) == {("q", 2): 10 * S}
    join(parent, "b", NEW, Serving("q", 2, 90 * S))
    assert starts(parent, 31 * S + GRACE) == {("q", 2): 10 * S}, "an agreed start does not move"


def test_a_revision_does_not_wait_for_nodes_that_are_left_out_or_have_removed_the_query() -> None:
    """protocol 6.3."""
    parent = parent_of(a=OLD, b=OLD)
    join(parent, "a", NEW, Serving("q", 2, 10 * S))
    old = parent.children.memberships[OLD]
    for _ in range(2):  # a new member is judged once before it can be left out
        old.advance_frontier(30 * S, {"a": False, "b": True})
    assert old.members["b"].out
    assert starts(parent, 30 * S) == {("q", 2): 10 * S}

    parent = parent_of(a=OLD, b=OLD)
    join(parent, "b", OLD, replace(ONE, end_until_us=15 * S))
    join(parent, "a", NEW, Serving("q", 2, 10 * S))
    assert starts(parent, 30 * S) == {("q", 2): 10 * S}


def test_only_nodes_that_served_the_revision_before_are_waited_for() -> None:
    """protocol 6.3: a query for some nodes only goes on without the others."""
    parent = parent_of(a=OLD)
    join(parent, "b", OLD, Serving("p", 1))
    join(parent, "a", NEW, Serving("q", 2, 10 * S))
    assert starts(parent, 30 * S) == {("q", 2): 10 * S}
    join(parent, "b", OLD, Serving("q", 3, 10 * S))
    assert starts(parent, 30 * S) == {("q", 2): 10 * S}, "a newer revision is no reason to wait"


def test_a_new_query_with_slices_of_its_own_waits_for_the_nodes_that_have_its_sensor() -> None:
    """protocol 6.3: as one whose slices others share waits for the nodes that have those."""
    parent = parent_of(a=OLD, b=replace(OLD, by=("site",)), c=ELSEWHERE)
    join(parent, "a", NEW, Serving("p", 1, 10 * S))
    assert starts(parent, 30 * S) == {}
    join(parent, "b", NEW, Serving("p", 1, 20 * S))
    assert starts(parent, 30 * S) == {("p", 1): 20 * S}


def test_a_query_waits_for_no_node_that_says_it_serves_that_revision_in_another_group() -> None:
    """protocol 6.5: what it says contradicts the definition, so it will not serve it here."""
    parent = parent_of(a=replace(OLD, by=("site",)))
    join(parent, "b", OLD, Serving("p", 1))
    new = join(parent, "a", NEW, Serving("p", 1, 10 * S))
    assert starts(parent, 30 * S) == {("p", 1): 10 * S}
    assert list(new.members) == ["a"]


def test_a_query_of_single_nodes_waits_for_no_other() -> None:
    """protocol 6.2: scope local, and windows that merge by number, have a group for each node."""
    parent = parent_of(a=OLD, b=OLD)
    local = replace(NEW, node="a")
    join(parent, "a", local, Serving("q", 2, 10 * S))
    assert parent.servings(30 * S)[local] == {("q", 2): Serving("q", 2, 10 * S)}


def test_what_a_revision_waits_for_outlives_a_restart() -> None:
    """protocol 6.3: the time since the first node serves it, and who served the revision before, are in the slots."""
    parent = parent_of(a=OLD, b=OLD)
    join(parent, "a", NEW, Serving("q", 2, 10 * S))
    assert starts(parent, 30 * S) == {}
    again = ChildFrames(1, GRACE)
    again.restore_memberships(parent.snapshot_memberships(), parent.children.retired_leaves.snapshot())
    assert starts(again, 30 * S + GRACE - 1) == {}
    assert starts(again, 30 * S + GRACE) == {("q", 2): 10 * S}
