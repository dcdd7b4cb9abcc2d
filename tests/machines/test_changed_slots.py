"""A commit has only those slots without names whose values changed, and a spool still has all of them (3.1)."""

from __future__ import annotations

import pickle
from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import Leaf, Members, Serving
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import encode, encode_without
from edge_agent.machines.checkpoint.membership_slots import OF_MEMBERS, MembershipSlots
from edge_agent.machines.checkpoint.slot import ChangedSlots
from edge_agent.machines.checkpoint.slots import HORIZON, MEMBERSHIPS, PROMISED, MembershipState
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, Commit, LowerLink, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.wire import snapshot
from tests.support.machines.scripted_child import Sender, journalled
from tests.support.machines.simulated_host import QUERY, T0, Disk, S, SimulatedHost, gateway_host, read

GROUP = Group("s", "", ("machine",), 0)
CONSTANT = ("layout", "horizon", "outbox", "journal", "journal_again", "received")


def commits(host: SimulatedHost[Gateway] | SimulatedHost[Merger]) -> list[Commit]:
    return [action for action in host.done if isinstance(action, Commit)]


def membership() -> GroupMembership:
    found = GroupMembership(60 * S)
    found.change("a", Members(0, (Leaf("a", 1),), (), (Serving("q", 1),)))
    found.member("a").promise(T0, T0)
    return found


def test_a_slot_is_written_once_and_again_when_its_value_changed() -> None:
    changed = ChangedSlots()
    assert changed.changes(HORIZON, 5) == {"horizon": 5}
    assert changed.changes(HORIZON, 5) == {}
    assert changed.changes(PROMISED, {GROUP: 1}) == PROMISED.write({GROUP: 1})
    assert changed.changes(HORIZON, 6) == {"horizon": 6}
    assert changed.changes(HORIZON, 5) == {"horizon": 5}


@pytest.mark.parametrize("kind", ["gateway", "merger"])
def test_a_quiet_commit_has_no_slot_that_stays_and_the_spool_has_them_all(kind: str) -> None:
    host = gateway_host() if kind == "gateway" else _merger()
    host.accepted(T0)
    for i in range(1, 5):
        host.do(Tick(), T0 + i * S)
    first, *_, last = commits(host)
    stay = [name for name in CONSTANT if name in first.state]
    assert len(stay) == (3 if kind == "gateway" else 6)
    assert not last.state.keys() & set(stay)
    assert set(stay) <= host.disk.slots.keys()


def test_a_merger_writes_as_much_in_the_sixtieth_second_of_a_group_as_in_the_second_one() -> None:
    """protocol 3.1, 4.4: after a start no lag of before counts, so the frontiers of the past are in no commit."""
    host, child = _merger(), Sender("a", QUERY)
    host.accepted(T0)
    host.do(Arrived((("a", journalled(child.birth(), host.machine), None),)), T0)
    for i in range(1, 60):
        host.do(Arrived((("a", child.send(frontier_us=T0 + i * S), None),)), T0 + i * S)
    written = [each.state[MEMBERSHIPS.name] for each in commits(host)[3:] if MEMBERSHIPS.name in each.state]
    sizes = [len(snapshot.dumps(each)) for each in written]
    assert len(sizes) > 50
    assert max(sizes) < 1.2 * min(sizes)
    known = host.machine.parent.children.memberships[QUERY.group].snapshot()
    assert len(known.history) > 50, "a lag within this process counts"


def _merger(disk: Disk | None = None) -> SimulatedHost[Merger]:
    disk = disk or Disk()
    machine = Merger(NodeSettings("m"), Random(3), disk.restored(), disk.load, grace_us=60 * S)
    host = SimulatedHost(machine, disk)
    host.do(LowerLink(up=True), T0)
    return host


def test_what_a_gateway_sent_since_its_first_commit_is_in_its_outbox_after_a_start() -> None:
    host = gateway_host()
    host.accepted(T0)
    for i in range(6):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    known = host.machine.outbox.snapshot()
    restored = Gateway(NodeSettings("a"), host.machine.outbox.random, host.disk.restored(), host.disk.load)
    assert restored.outbox.snapshot() == known
    assert known.sent


def test_a_membership_is_written_when_it_changed_and_always_while_leaves_move() -> None:
    slots, found = MembershipSlots({}), membership()

    def written() -> bool:
        return MEMBERSHIPS.name in slots.changes({GROUP: found.snapshot()})

    assert written()
    assert not written()
    found.member("a").promise(T0 + S, T0 + S)
    assert written()
    assert not written()
    found.leave("a", Leaf("a", 9, 1))  # its lists are changed where they are
    assert written()
    assert written()


def test_a_membership_is_encoded_as_its_state_without_the_parts_in_slots_of_their_own() -> None:
    state = membership().snapshot()
    rows = MembershipSlots({}).changes({GROUP: state})
    members = {
        node: replace(member, leaves=None, serving=None, begins=None, ends=None)
        for node, member in state.members.items()
    }
    moving: dict[Group, MembershipState] = {GROUP: replace(state, members=members, since=None, starts=None)}
    assert rows[MEMBERSHIPS.name] == MEMBERSHIPS.write(moving)[MEMBERSHIPS.name]
    assert MembershipSlots({}).changes({})[MEMBERSHIPS.name] == MEMBERSHIPS.write({})[MEMBERSHIPS.name]


def test_fields_that_are_left_out_are_none() -> None:
    member = Member(T0, {"a": Leaf("a", 1)}).snapshot()
    empty = replace(member, leaves=None, serving=None, begins=None, ends=None)
    assert encode_without(member, OF_MEMBERS) == encode(empty) != encode(member)


def test_a_copy_of_a_group_finds_its_hash_anew() -> None:
    assert hash(GROUP) == hash(replace(GROUP))
    again = pickle.loads(pickle.dumps(GROUP))
    assert not hasattr(again, "_hash")  # texts have other hashes in another process
    assert (again, hash(again)) == (GROUP, hash(GROUP))


def test_groups_are_kept_in_the_order_of_a_frame_in_every_process() -> None:
    """A seed of the simulation would else give other numbers, and damage another slot, under other hashes."""
    groups = [Group("s", f"value > {n}", (), 0) for n in range(20)]
    children = Children(60 * S)
    children.change("a", [(group, Members(n, (Leaf("a", 1),))) for n, group in enumerate(groups)])
    assert list(children.memberships) == groups
