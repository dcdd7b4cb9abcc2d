"""A group of a merger that all have left and others come into: what it had promised stands (protocol 4.4, 4.6)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Frame
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.events import Arrived, LowerLink, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.sent_upward import SentUpward
from edge_agent.machines.uplink.step import GroupStep
from tests.support.machines.scripted_child import GRACE, SUM, Sender
from tests.support.machines.simulated_host import T0, S, SimulatedHost

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


def hear(host: SimulatedHost[Merger], node: str, frame: Frame, at_us: int) -> None:
    if frame.birth is not None:
        frame = replace(frame, birth=replace(frame.birth, journal=host.machine.journal))
    host.do(Arrived(((node, frame, None),)), at_us)
    host.do(Tick(), at_us + 2 * S)


def merger(host: SimulatedHost[Merger] | None = None) -> SimulatedHost[Merger]:
    """A region; another process of it where one is given."""
    disk = None if host is None else host.disk
    restored = None if disk is None else disk.restored()
    load = None if disk is None else disk.load
    out = SimulatedHost(Merger(NodeSettings("m"), Random(2), restored, load, grace_us=GRACE), disk)
    out.accepted(T0)
    out.do(LowerLink(up=True), T0)
    return out


@pytest.mark.parametrize("again", [False, True])
def test_a_gateway_in_a_group_that_had_ended_comes_behind_what_was_promised_of_it(again: bool) -> None:
    """protocol 4.4, 4.6: without the exception the tier above took it to be as far as those who had left."""
    host = merger()
    one, two = Sender("a", QUERY), Sender("b", QUERY)
    hear(host, "a", one.birth(), T0)
    hear(host, "a", one.send(frontier_us=T0 + 20 * S), T0 + 3 * S)
    leave = Frame(one.outbox.epoch, one.outbox.seq, leave=9)
    hear(host, "a", leave, T0 + 6 * S)
    assert not host.machine.parent.children.memberships
    if again:
        host = merger(host)
        host.do(Tick(), T0 + 8 * S)
    before = len(host.frames)
    hear(host, "b", two.birth(), T0 + 9 * S)
    parts = [part for frame in host.frames[before:] for part in frame.groups]
    assert [part.exceptions for part in parts][-1] == (ExcludedLeaf("b", NEVER_US, NEVER_US),)
    hear(host, "b", two.send(frontier_us=T0 + 30 * S), T0 + 12 * S)
    assert host.frames[-1].groups[0].frontier_us == T0 + 30 * S
    assert host.frames[-1].groups[0].exceptions == ()


def test_what_was_promised_of_a_group_that_begins_again_is_what_it_has_sent_and_published() -> None:
    """protocol 4.4: rows below it are late."""
    sent, membership = SentUpward(), GroupMembership(GRACE)
    sent.end(QUERY.group, T0)
    sent.begin_again({QUERY.group: membership})
    assert (sent.frontiers(), membership.published_us, sent.ended) == ({QUERY.group: T0}, T0, {})


def test_the_last_frontier_of_a_group_goes_up_with_the_leave_of_its_last_leaf() -> None:
    """protocol 4.4: after a backlog it may come together with the leave; else the tier above closed nothing by it."""
    host, one = merger(), Sender("a", QUERY)
    hear(host, "a", one.birth(), T0)
    hear(host, "a", one.send(frontier_us=T0), T0 + 3 * S)
    before = len(host.frames)
    rows = (one._release([(T0, T0 + 10 * S, "", 1.0)], late=False, kind=None),)
    hear(host, "a", one._put(GroupStep(QUERY.group, T0 + 20 * S, rows, dropped=("a",))), T0 + 6 * S)
    assert not host.machine.parent.children.memberships
    parts = [part for frame in host.frames[before:] for part in frame.groups]
    assert [part.frontier_us for part in parts if part.frontier_us is not None] == [T0 + 20 * S]
    assert sum(len(part.sections) for part in parts) == 1
