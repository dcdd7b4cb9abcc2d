"""What one child may name: within its bounds, in however many frames, and nobody but itself (protocol 2.2, 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.algebra.frame import Define, ExcludedLeaf, Frame, Gap, GroupPart, Leaf, Members, Serving
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.downlink import room
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.senders import Senders

GROUP = Group("s", "", (), 0)


def knowing(node: str, change: Members) -> GroupMembership:
    """A membership with one child."""
    membership = GroupMembership(0)
    membership.change(node, change)
    return membership


@pytest.mark.parametrize("what", ["leaves", "queries"])
def test_what_a_child_lists_in_many_frames_has_the_bound_of_one(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2: what it lists again takes no more room."""
    monkeypatch.setattr(room, "MOST_LEAVES", 3)
    monkeypatch.setattr(room, "MOST_SERVINGS", 3)

    def naming(*numbers: int) -> Members:
        leaves = tuple(Leaf(f"l-{n}", 1) for n in numbers) if what == "leaves" else ()
        return Members(0, leaves, (), () if leaves else tuple(Serving(f"q-{n}", 1) for n in numbers))

    memberships = {GROUP: knowing("a", naming(1, 2))}
    for some in ((1, 2, 3), (3,), (2, 3)):
        room.check_room(memberships, "a", [(GROUP, naming(*some))])
    for many in ((3, 4), (1, 3, 4)):
        with pytest.raises(WireError, match=f"more than 3 {what}"):
            room.check_room(memberships, "a", [(GROUP, naming(*many))])
    room.check_room(memberships, "b", [(GROUP, naming(3, 4))])


def test_queries_of_which_a_child_only_states_when_a_leaf_begins_count_as_those_that_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 2.2, 6.3: such a statement takes room of its own, until it is taken back."""
    monkeypatch.setattr(room, "MOST_SERVINGS", 3)

    def begins(*numbers: int, at_us: int | None = 5) -> Members:
        return Members(0, (), (), tuple(Serving(f"q-{n}", 1, at_us, None, at_us, "a") for n in numbers))

    membership = knowing("a", Members(0, (Leaf("a", 1),), (), (Serving("q-0", 1),)))
    for some in (begins(0, 1), begins(2)):
        room.check_room({GROUP: membership}, "a", [(GROUP, some)])
        membership.change("a", some)
    with pytest.raises(WireError, match="more than 3 queries"):
        room.check_room({GROUP: membership}, "a", [(GROUP, begins(3))])
    membership.change("a", begins(1, 2, at_us=None))
    room.check_room({GROUP: membership}, "a", [(GROUP, begins(3, 4))])


def test_registers_of_epochs_without_a_frontier_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2, 2.2: those of an epoch stay in force until the next one promises; the same keys take no more."""
    monkeypatch.setattr(room, "MOST_REGISTERS", 4)
    member = (membership := knowing("a", Members(0, (Leaf("a", 1),)))).member("a")
    for keys in (("k", "l"), ("k", "l")):
        room.check_room({GROUP: membership}, "a", [], [(GROUP, GroupPart(0, registers=((0, 5), (1, 5))))])
        member.begin(anew=False)
        member.take_hints((), [(key, 5) for key in keys])
    more = GroupPart(0, registers=((0, 5), (1, 5), (2, 5)))
    with pytest.raises(WireError, match="more than 4 registers"):
        room.check_room({GROUP: membership}, "a", [], [(GROUP, more)])
    room.check_room({GROUP: membership}, "b", [], [(GROUP, more)])
    member.begin(anew=True)
    room.check_room({GROUP: membership}, "a", [], [(GROUP, more)])


def test_groups_that_a_child_names_in_many_frames_have_the_bound_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2: those of another child take none of its room."""
    monkeypatch.setattr(room, "MOST_GROUPS", 2)
    groups = [Group(f"s-{n}", "", (), 0) for n in range(4)]
    listed = Members(0, (Leaf("a", 1),))
    memberships = {
        groups[0]: knowing("a", listed),
        groups[1]: knowing("b", listed),
        groups[2]: knowing("b", listed),
    }
    room.check_room(memberships, "a", [(groups[0], listed), (groups[1], listed)])
    with pytest.raises(WireError, match="more than 2 groups"):
        room.check_room(memberships, "a", [(groups[1], listed), (groups[3], listed)])
    with pytest.raises(WireError, match="more than 2 groups"):
        room.check_room(memberships, "b", [], [(groups[3], GroupPart(0))])


def naming(node: str) -> dict[str, dict[str, Any]]:
    """Every way in which a frame names a node."""
    excluded = ExcludedLeaf(node, 1, 1)
    return {
        "a group": {"define": Define(groups=((1, Group("s", "", (), 0, node=node)),))},
        "a leaf": {"members": (Members(0, (Leaf(node, 1),)),)},
        "a leaf that goes": {"members": (Members(0, (), (node,)),)},
        "a range": {"members": (Members(0, (), (), (Serving("q", 1, node=node),)),)},
        "a loss of a group": {"gaps": (Gap((Group("s", "", (), 0, node=node),), 0, 1, 1, ("a",), "quota"),)},
        "a loss": {"gaps": (Gap((GROUP,), 0, 1, 1, (node,), "quota"),)},
        "an exception": {"groups": (GroupPart(0, exceptions=(excluded,)),)},
        "an exception more": {"groups": (GroupPart(0, more=(excluded,)),)},
        "an exception less": {"groups": (GroupPart(0, ended=(node,)),)},
    }


@pytest.mark.parametrize("what", naming("b"))
def test_a_gateway_names_itself_and_nobody_else(what: str) -> None:
    """protocol 4.6: one that says it is a leaf, or of which the settings say so; a merger names those below it."""
    own, foreign = (Frame(7, 1, **naming(node)[what]) for node in ("a", "b"))
    gateway = {GROUP: knowing("a", Members(0, (Leaf("a", 1),)))}
    merger = {GROUP: knowing("a", Members(0, (Leaf("b", 1),)))}
    for gateways_only, known in ((True, {}), (True, merger), (None, gateway)):
        Senders(gateways_only).check(known, "a", own)
        with pytest.raises(WireError, match="speaks for b"):
            Senders(gateways_only).check(known, "a", foreign)
    for gateways_only, known in ((False, gateway), (None, merger), (None, {})):
        Senders(gateways_only).check(known, "a", foreign)


def test_a_group_that_a_refused_frame_has_defined_is_that_of_its_node_still() -> None:
    """protocol 2.4, 4.6: the numbers of a frame are learnt before it is checked."""
    used = [Group("s", "", (), 0, node="b")]
    Senders(None).check({}, "a", Frame(7, 1), used)
    with pytest.raises(WireError, match="speaks for b"):
        Senders(True).check({}, "a", Frame(7, 1), used)


def test_a_child_that_has_listed_itself_stays_a_gateway_in_no_group() -> None:
    senders = Senders(None)
    senders.check({}, "a", Frame(7, 1, members=(Members(0, (Leaf("a", 1),)),)))
    with pytest.raises(WireError, match="speaks for b"):
        senders.check({}, "a", Frame(7, 2, members=(Members(0, (Leaf("b", 1),)),)))


def test_a_merger_that_names_itself_in_a_record_of_no_group_is_no_gateway() -> None:
    """protocol 3.5: the record of a function that failed names its node."""
    failed = Gap((), 5, 6, 0, ("a",), "a function failed")
    Senders(None).check({}, "a", Frame(7, 1, members=(Members(0, (Leaf("b", 1),)),), gaps=(failed,)))
