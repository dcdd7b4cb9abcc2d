"""A merger that moves, or whose children do: what it lists, holds and has promised goes on (protocol 1.5)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Frame, Leaf, Members
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines import node
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.events import Arrived, Commit, Committed, LinkDown, LowerLink, Retire, Sent, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.wire.frames import decode, encode
from tests.support.machines.scripted_child import GRACE, SUM, Sender, journalled, leaving
from tests.support.machines.simulated_host import JOURNAL, T0, Disk, S, SimulatedHost


def test_a_merger_that_moves_lists_in_the_leave_whose_leave_it_has_still_to_report() -> None:
    """protocol 1.5: else it is awaited below the old parent for ever: the report goes to the new one."""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    host = SimulatedHost(Merger(NodeSettings("m", parents=("r1", "r2")), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.machine.choice.parents = ("r2",)
    before, old = len(host.frames), host.machine.outbox.epoch
    host.do(Arrived((("a", leaving(one), None),)), T0 + 2 * S)
    host.do(Tick(), T0 + 4 * S)
    after = host.frames[before:]
    found = [(f.epoch == old, leaf) for f in after for each in f.members for leaf in each.leaves]
    assert [frame.leave is not None for frame in after if frame.epoch == old] == [True]
    assert found == [(True, Leaf("a", 1)), (False, Leaf("a", 1, old)), (False, Leaf("a", 99, one.outbox.epoch))]


@pytest.mark.parametrize("others", [0, 3_000])
def test_a_gateway_that_is_retired_where_its_region_moves_is_not_awaited_for_ever(others: int) -> None:
    """protocol 1.5: the old parent reported that it had left with the region, and the new one never lists it."""
    query, disk = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0), Disk()
    host = SimulatedHost(
        Merger(NodeSettings("m", parents=("r1",)), Random(2), disk.restored(), disk.load, grace_us=GRACE), disk
    )
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for name in ("g", "h"):
        host.do(Arrived(((name, journalled(Sender(name, query).birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + 2 * S)
    settings = NodeSettings("m", parents=("r2",))
    again = SimulatedHost(Merger(settings, Random(3), disk.restored(), disk.load, grace_us=GRACE), disk)
    for name in ("g", *(f"gateway-{n:05}" for n in range(others))):
        again.machine.parent.retire(name, T0 + 3 * S) if name != "g" else again.do(Retire(name), T0 + 3 * S)
    again.do(Tick(), T0 + 5 * S)
    parent, left = ChildFrames(JOURNAL, GRACE), list[str]()
    for frame, _ in disk.frames.values():
        message = decode(encode(frame))
        assert isinstance(message, Frame)
        parent.take("m", message, T0 + 6 * S)
        for membership in parent.children.memberships.values():
            left += [report.node for _, report in membership.moves.passed_on()]
    assert {*left} == {"h"}
    assert membership.leaf_frontiers().keys() == set()


@pytest.mark.parametrize("restarted", [False, True])
def test_who_comes_to_a_merger_that_all_of_its_group_had_left_is_behind_what_it_had_promised(restarted: bool) -> None:
    """protocol 4.4, 1.5: the tier above has that promise still, and would count the leaf as far as that."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    one, two = Sender("a", query), Sender("b", query)
    disk = Disk()
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), disk.restored(), disk.load, grace_us=GRACE), disk)
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Arrived((("a", one.send(frontier_us=T0 + 30 * S), None),)), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    host.do(Arrived((("a", leaving(one), None),)), T0 + 4 * S)
    host.do(Tick(), T0 + 6 * S)
    host.do(Tick(), T0 + 8 * S)
    assert host.machine.parent.children.memberships == {}
    if restarted:
        host = SimulatedHost(Merger(NodeSettings("m"), Random(3), disk.restored(), disk.load, grace_us=GRACE), disk)
        host.accepted(T0 + 9 * S)
        host.do(LowerLink(up=True), T0 + 9 * S)
    before = len(host.frames)
    host.do(Arrived((("b", journalled(two.birth(), host.machine), None),)), T0 + 10 * S)
    host.do(Tick(), T0 + 12 * S)
    listed = [leaf.node for f in host.frames[before:] for each in f.members for leaf in each.leaves]
    excepted = [each for f in host.frames[before:] for part in f.groups for each in part.exceptions or ()]
    assert listed == ["b"]
    assert excepted == [ExcludedLeaf("b", NEVER_US, NEVER_US)]
    host.do(Arrived((("b", two.send(frontier_us=T0 + 20 * S), None),)), T0 + 13 * S)
    host.do(Tick(), T0 + 15 * S)
    assert list(host.machine._frontiers().values()) == [T0 + 30 * S]


def test_a_leaf_in_another_line_is_an_exception_until_the_last_frame_of_the_step_that_lists_it() -> None:
    """protocol 2.3, 1.5: late rows of that line are in the frames behind the first."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, by=("k",), lateness_us=0)
    below = Sender("n", query, leaves=("g",))
    host = SimulatedHost(Merger(NodeSettings("m", frame_bytes=500), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("n", journalled(below.birth(), host.machine), None),)), T0)
    host.do(Arrived((("n", below.send(frontier_us=T0 + 20 * S), None),)), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    before = len(host.frames)
    (listed,) = below.outbox.put(Step((GroupStep(query.group, leaves=(Leaf("g", 2, 8),)),)))
    late = below.send(*((T0, T0 + 10 * S, f"k={i:040}", 1.0) for i in range(40)), late=True)
    host.do(Arrived((("n", listed, None), ("n", late, None))), T0 + 4 * S)
    host.do(Tick(), T0 + 6 * S)
    first, *_, last = frames = host.frames[before:]
    assert [[leaf for each in frame.members for leaf in each.leaves] for frame in frames[:1]] == [[Leaf("g", 2, 8)]]
    assert [part.exceptions for part in first.groups] == [(ExcludedLeaf("g", NEVER_US, NEVER_US),)]
    assert [part.exceptions for frame in frames[1:-1] for part in frame.groups if part.exceptions is not None] == []
    assert [part.exceptions for part in last.groups] == [()]


def test_what_comes_to_a_merger_while_its_frames_move_is_in_the_commit_that_receipts_it() -> None:
    """protocol 3.1, 1.5: late rows leave with it, others are in the spool; an epoch that ends then takes none along."""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    disk, settings = Disk(), NodeSettings("m", parents=("r1", "r2"))
    host = SimulatedHost(Merger(settings, Random(2), disk.restored(), disk.load, grace_us=GRACE), disk)
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.do(LinkDown(), T0 + S)
    closed = one.send((T0, T0 + 10 * S, "", 1.0), frontier_us=T0 + 10 * S)
    host.do(Arrived((("a", closed, None),)), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    before = len(host.frames)
    late = one.send((T0, T0 + 10 * S, "", 2.0), late=True)
    opened = one.send((T0 + 10 * S, T0 + 20 * S, "", 3.0))
    host.machine.choice.parents = ("r2",)
    host.machine.settings = replace(host.machine.settings, commit_interval_us=60 * S)
    host.do(Arrived((("a", late, None), ("a", opened, None), ("a", leaving(one), None))), T0 + 4 * S)
    assert host.machine.outbox.parent == "r2"
    assert [frame.readings for frame in host.frames[before:] if frame.readings] == [1, 1]  # moved, and late
    again = Merger(settings, Random(3), disk.restored(), disk.load, grace_us=GRACE)
    assert again.book()["open"] == 1
    host.do(Tick(), T0 + 70 * S)
    assert sum(frame.readings for frame in host.frames[before:]) == 3


def region_moved() -> tuple[SimulatedHost[Merger], Sender, GroupMembership]:
    """A merger m, a region below it, and the tier above, from which the region came; there it lists g in epoch 3."""
    region = Sender("n", Query("q", 1, "s", Tumbling(10 * S), SUM, by=("k",), lateness_us=0), leaves=("i",))
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("n", journalled(region.birth(), host.machine), None),)), T0)
    host.do(Arrived((("n", region.send(frontier_us=T0 + 20 * S), None),)), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    above = GroupMembership(GRACE)
    above.change("n", Members(0, (Leaf("g", 3),)))
    above.member("n").promise(T0 + 10 * S, T0 + 10 * S)
    return host, region, above


def lists(region: Sender, *leaves: Leaf) -> tuple[str, Frame, None]:
    """A frame of the region that lists leaves."""
    (frame,) = region.outbox.put(Step((GroupStep(region.queries[0].group, leaves=leaves),)))
    return region.node, frame, None


@pytest.mark.parametrize("leave_first", [False, True])
def test_the_tier_above_hears_of_an_entry_that_a_region_replaced_between_two_steps(leave_first: bool) -> None:
    """protocol 1.5: in it the leaf had come from there with its region, and it stayed on its way for ever."""
    host, region, above = region_moved()
    before, leave = len(host.frames), Members(0, (Leaf("g", 3, 20),), ("g",))
    if leave_first:
        above.change("n", leave)
    for entry in (Leaf("g", 3, 20), Leaf("g", 6, 21)):
        host.do(Arrived((lists(region, entry),)), T0 + 3 * S)
    host.do(Tick(), T0 + 5 * S)
    for change in (change for frame in host.frames[before:] for change in frame.members):
        above.change("m", change)
    if not leave_first:
        above.change("n", leave)
    assert above.members["m"].leaves["g"] == Leaf("g", 6, 21)
    assert above.moves.transit == {}
    before = len(host.frames)
    host.do(Tick(), T0 + 7 * S)
    assert [frame.members for frame in host.frames[before:] if frame.members] == []


def test_an_entry_that_was_stated_before_it_was_replaced_is_not_stated_again() -> None:
    """protocol 1.5"""
    host, region, _ = region_moved()
    before = len(host.frames)
    for at_s, entry in ((4, Leaf("g", 3, 20)), (8, Leaf("g", 6, 21))):
        host.do(Arrived((lists(region, entry),)), T0 + at_s * S)
        host.do(Tick(), T0 + (at_s + 2) * S)
    listed = [leaf for frame in host.frames[before:] for change in frame.members for leaf in change.leaves]
    assert listed == [Leaf("g", 3, 20), Leaf("g", 6, 21)]


@pytest.mark.parametrize("killed", [False, True])
def test_an_entry_that_was_replaced_while_frames_of_the_merger_move_is_listed(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.5: what comes meanwhile is committed before the step that lists it."""
    monkeypatch.setattr(node, "MOVED_AT_ONCE", 1)
    region = Sender("n", Query("q", 1, "s", Tumbling(10 * S), SUM, by=("k",), lateness_us=0), leaves=("i",))
    disk, settings = Disk(), NodeSettings("m", parents=("r1", "r2"))
    host = SimulatedHost(Merger(settings, Random(2), disk.restored(), disk.load, grace_us=GRACE), disk)
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("n", journalled(region.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.do(Sent(host.machine.outbox.epoch, 0), T0 + S)
    host.do(LinkDown(), T0 + S)
    for number in range(8):
        window_us = T0 + number * 10 * S
        sent = region.send((window_us, window_us + 10 * S, "k=1", 1.0), frontier_us=window_us + 10 * S)
        host.do(Arrived((("n", sent, None),)), window_us + 11 * S)
        host.do(Tick(), window_us + 12 * S)
    host.machine.choice.parents = ("r2",)
    entries = (Leaf("g", 3, 20), Leaf("g", 6, 21))
    came = Arrived(tuple(lists(region, entry) for entry in entries))
    for at_s, event in ((83, Tick()), (83, came), (83, Committed(0)), (85, Tick())):
        for commit in host.machine.handle(event, T0 + at_s * S):
            if isinstance(commit, Commit):
                disk.commit(commit)
    assert host.machine.outbox.leaving
    if killed:
        host = SimulatedHost(
            Merger(replace(settings, parents=("r2",)), Random(3), disk.restored(), disk.load, grace_us=GRACE), disk
        )
    else:
        host.do(Committed(0), T0 + 85 * S)
    host.accepted(T0 + 85 * S, 8)
    for at_s in range(86, 110):
        host.do(Tick(), T0 + at_s * S)
    listed = [leaf for frame in host.frames for change in frame.members for leaf in change.leaves if leaf.node == "g"]
    assert listed[-2:] == list(entries)
