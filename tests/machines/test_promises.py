"""Promises and what may move them: heartbeats, stale frames, retired nodes, clocks of sources, numbers of an epoch."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import LOST, Define, Heartbeat, Leaf, Members, Receipt
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.errors import WireError
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.events import (
    Arrived,
    Commit,
    Committed,
    Damaged,
    Event,
    LowerLink,
    Publish,
    Receipted,
    Retire,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.source import Source
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.completeness import Decider
from tests.support.machines.scripted_child import JOURNAL, SUM, Sender, journalled, root_of
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read

SUMS = Query("sums", 1, "door", Tumbling(S), SUM)
VISITS = Query("visits", 1, "door", Session(5 * S), SUM)
GROUP = SUMS.group


def parent_of(sender: Sender) -> ChildFrames:
    parent = ChildFrames(JOURNAL, 600 * S)
    parent.take(sender.node, sender.birth(T0), T0)
    return parent


def frontier_us(parent: ChildFrames, node: str) -> int:
    return parent.children.membership(GROUP).member(node).frontier_us


def test_a_heartbeat_holds_once_the_frames_that_it_names_are_applied() -> None:
    """protocol 2.5."""
    child = Sender("a", SUMS)
    parent = parent_of(child)
    first, second = child.send((T0, T0 + S, "", 1.0)), child.send((T0 + S, T0 + 2 * S, "", 1.0))
    parent.take("a", Heartbeat(child.outbox.epoch, 2, ((0, T0 + 9 * S),)), T0)
    parent.take("a", second, T0)
    assert frontier_us(parent, "a") == T0
    parent.take("a", first, T0)
    assert frontier_us(parent, "a") == T0 + 9 * S


def test_a_frame_of_an_epoch_declared_lost_moves_neither_frontier_nor_membership() -> None:
    """protocol 1.2: only its data counts."""
    child = Sender("a", SUMS)
    parent = parent_of(child)
    before = child.outbox.epoch
    late = replace(child.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 90 * S), seq=2)
    child.outbox.predecessor = None
    birth = child.birth(T0 + S)
    assert birth.birth is not None
    parent.take("a", replace(birth, birth=replace(birth.birth, predecessor=LOST)), T0)
    (applied,) = parent.take("a", late, T0)
    assert (applied.effect.epoch, applied.effect.stale) == (before, True)
    assert applied.effect.frame is not None
    assert frontier_us(parent, "a") == T0 + S


def test_frames_of_a_retired_node_count_no_more() -> None:
    """protocol 1.5."""
    child = Sender("a", SUMS)
    parent = parent_of(child)
    parent.children.retire("a")
    assert parent.take("a", child.send((T0, T0 + S, "", 1.0)), T0) == []
    parent.children.advance_frontiers(T0)
    assert not parent.children.membership(GROUP).expected()


def test_a_node_is_retired_as_long_as_the_settings_say_so() -> None:
    """protocol 1.5: at a merger, which lacks nothing then: the node sends again what was discarded."""
    child, disk = Sender("a", SUMS), Disk()

    def started(*retired: str) -> SimulatedHost[Merger]:
        host = SimulatedHost(Merger(NodeSettings("m"), Random(1), disk.restored(), disk.load, grace_us=60 * S), disk)
        for node in retired:
            host.do(Retire(node), T0)
        host.do(LowerLink(up=True), T0)
        host.accepted(T0)
        return host

    host = started()
    first, second = journalled(child.birth(), host.machine), child.send((T0, T0 + S, "", 1.0), frontier_us=T0 + S)
    host.do(Arrived((("a", first, None),)), T0)
    host.do(Tick(), T0 + S)
    host = started("a")
    host.do(Arrived((("a", second, None),)), T0 + 2 * S)
    host.do(Tick(), T0 + 3 * S)
    assert host.machine.parent.received == 0
    host = started()
    again = journalled(child.birth(), host.machine)
    host.do(Arrived((("a", second, None), ("a", again, None))), T0 + 4 * S)
    host.do(Tick(), T0 + 5 * S)
    assert host.machine.parent.received == 1
    (membership,) = host.machine.parent.children.memberships.values()
    assert list(membership.expected()) == ["a"]
    assert membership.published_us == T0 + S


def test_a_root_that_starts_decides_again_without_what_was_retired_then_and_then_asks_its_settings() -> None:
    """protocol 1.5, 8.2: a region was dead, is repaired, and its entry is deleted."""
    child = Sender("m", SUMS, leaves=("x", "y"))
    root = Decider(JOURNAL, 60 * S)
    root.take("m", child.birth(), T0)
    root.retire(("m",), T0)
    again = Decider(JOURNAL, 60 * S)
    again.parent.restore(root.parent.snapshot(lambda frame: frame), lambda frame: frame)
    again.take("m", child.send((T0, T0 + S, "", 1.0)), T0 + S)
    assert again.decide(T0 + S).effects == ()
    again.retire((), T0)
    repaired = Sender("m", SUMS, leaves=("x", "y"))
    repaired.outbox.random.seed(5)
    repaired.outbox.predecessor = LOST  # as of a merger without its spool
    again.take("m", repaired.birth(), T0 + 2 * S)
    again.take("m", repaired.send((T0, T0 + S, "", 1.0), frontier_us=T0 + S), T0 + 2 * S)
    (view,) = again.decide(T0 + 2 * S).groups.values()
    assert (set(view.leaves), view.frontier_us) == ({"x", "y"}, T0 + S)


def test_a_retired_leaf_below_a_merger_is_expected_no_more() -> None:
    """protocol 1.5."""
    children = Children(600 * S)
    member = children.membership(GROUP).member("m")
    member.change(Members(0, (Leaf("x", 1), Leaf("y", 1))))
    children.retire("y")
    assert set(children.membership(GROUP).leaf_frontiers()) == {"x"}


def test_heartbeats_that_overtake_each_other_lower_nothing() -> None:
    """protocol 4.1, 2.5."""
    child = Sender("a", SUMS)
    parent = parent_of(child)
    for second in (9, 7):
        parent.take("a", Heartbeat(child.outbox.epoch, 0, ((0, T0 + second * S),)), T0)
    assert frontier_us(parent, "a") == T0 + 9 * S


def test_registers_of_the_epoch_before_end_with_the_first_frontier_of_the_new_one() -> None:
    """protocol 1.2: else the session would wait for ever, since nobody clears them."""
    child = Sender("a", VISITS)
    root = root_of(child)
    opened = child.send((T0, T0 + 1, "", 1.0), frontier_us=T0 + 60 * S)
    (part,) = opened.groups
    root.take("a", replace(opened, groups=(replace(part, registers=((0, T0 + 3 * S),)),)), T0)
    root.take("a", child.birth(), T0)
    assert root.step(T0) == []
    root.take("a", child.send(frontier_us=T0 + 61 * S), T0)  # what was open there is lost, or ended without a reading
    assert [row.values["sum"] for row in root.step(T0)] == [1.0]


def test_a_number_of_an_epoch_never_means_another_text() -> None:
    """protocol 2.4: repeating is allowed, contradicting is not, and nothing of such a section counts."""
    known = EpochDictionary()
    known.learn(Define(keys=(0, ("x", "y"))))
    known.learn(Define(keys=(1, ("y", "z"))))
    with pytest.raises(WireError, match="already assigned to other texts"):
        known.learn(Define(keys=(2, ("w", "v"))))
    assert known.keys == ["x", "y", "z"]


def test_a_source_moves_with_its_clock_minus_its_delay_once_it_is_silent_and_never_beyond_its_clock() -> None:
    """protocol 4.1."""
    source = Source(replace(SENSOR, own_clock=False, timeout_us=3 * S, delay_us=2 * S), T0)
    source.newest_us = T0 + 90 * S  # a reading with a wrong time
    assert source.reached_us(T0 + S) == T0 + S
    source.newest_us = T0 + S
    assert source.reached_us(T0 + 2 * S) == T0 + S
    assert source.reached_us(T0 + 9 * S) == T0 + 7 * S


def test_a_frame_is_given_up_after_five_re_sendings_and_not_before() -> None:
    """protocol 3.6: a gap record stands at its seq; the frames behind it are not touched."""
    host = gateway_host()
    host.accepted(T0)
    for second in (0, 5):
        read(host, T0 + second * S, 1, T0 + second * S)
        host.do(Tick(), T0 + (second + 4) * S)
    epoch, journal, last = host.machine.outbox.epoch, host.machine.outbox.journal, host.machine.outbox.seq - 1
    assert journal is not None
    assert last > 1
    for attempt in range(1, 20):
        now_us = T0 + (20 + 200 * attempt) * S
        taken = [Sent(epoch, seq) for seq in range(last + 1)] * 2  # the broker takes all, also what that makes room for
        refusing = Receipted(Receipt(epoch, journal, 1, ((2, last),)))
        events: tuple[Event, ...] = (Tick(), *taken, refusing, Tick(), *taken)
        for event in events:
            host.do(event, now_us)
        given_up = [key for key, (frame, _) in host.disk.frames.items() if frame.gaps]
        if given_up:
            break
    assert given_up == [(epoch, 1)]
    sent = [a for a in host.done if isinstance(a, Publish) and (a.epoch, a.seq) == (epoch, 1)]
    assert len(sent) >= 6  # new, and five times again
    (gap,) = host.disk.frames[epoch, 1][0].gaps
    assert (gap.reason, gap.groups) == ("poison", (QUERY.group,))


def test_a_damaged_frame_of_the_spool_becomes_a_gap_record_at_its_place() -> None:
    """protocol 3.6, 2.1: without one the line would wait for its seq for ever."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + 9 * S)
    epoch = host.machine.outbox.epoch
    assert host.machine.outbox.seq > 1
    done = host.do(Damaged(epoch, 1), T0 + 10 * S)
    replaced = [frame for action in done if isinstance(action, Commit) for frame in action.replace]
    assert [(frame.epoch, frame.seq) for frame in replaced] == [(epoch, 1)]
    assert [gap.reason for frame in replaced for gap in frame.gaps] == ["damaged"]
    assert (epoch, 1) in host.disk.frames


def test_a_damaged_frame_is_not_sent_again_before_its_record_is_committed() -> None:
    """Found by seed 114027: while a full disk held the commit up, it was sent and found damaged again without end."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + 9 * S)
    damaged = Damaged(host.machine.outbox.epoch, 1)
    before = host.machine.handle(Tick(), T0 + 20 * S)
    assert any(isinstance(action, Commit) for action in before)
    held_up = host.machine.handle(damaged, T0 + 21 * S)
    assert [action for action in held_up if isinstance(action, Publish)] == []
    done = host.do(Committed(0), T0 + 30 * S)
    replaced = [frame for action in done if isinstance(action, Commit) for frame in action.replace]
    assert [(frame.epoch, frame.seq) for frame in replaced] == [(damaged.epoch, 1)]
    assert [(each.epoch, each.seq) for each in done if isinstance(each, Publish)].count((damaged.epoch, 1)) == 1


def test_after_a_damaged_frame_a_new_epoch_states_everything_again() -> None:
    """protocol 3.6: the frame may have contained what no other one states, such as a leaf or an end of a query."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + 9 * S)
    epoch = host.machine.outbox.epoch
    host.do(Damaged(epoch, 1), T0 + 10 * S)
    host.do(Tick(), T0 + 12 * S)
    births = [frame.epoch for frame in host.frames if frame.birth is not None]
    assert births == [epoch, host.machine.outbox.epoch]
    host.do(Damaged(epoch, 1), T0 + 13 * S)
    host.do(Tick(), T0 + 15 * S)
    assert host.machine.outbox.epoch == births[-1], "the frame is of an epoch before"


def test_a_gap_record_marks_a_window_that_closes_in_a_later_batch() -> None:
    """protocol 3.5, 4.7."""
    child = Sender("a", SUMS)
    root = root_of(child)
    root.take("a", child.lose(T0, T0 + S), T0)
    assert root.step(T0) == []
    root.take("a", child.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 9 * S), T0)
    (row,) = root.step(T0)
    assert row.coverage.missing == (("a", "lost"),)
