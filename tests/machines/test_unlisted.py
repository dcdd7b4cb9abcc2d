"""Leaves that only a lost frame of their child listed: what it held of them is declared once they are listed again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import DAMAGED, FRAMES_LOST, Birth, Frame, Gap, Heartbeat, Leaf, Members, Serving
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.downlink.child_frames import Applied, ChildFrames
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.losses.let_go import LET_GO, WAIT_US
from edge_agent.machines.downlink.losses.unlisted import LostListing, Unlisted
from edge_agent.machines.events import Arrived, BadFrame, LowerLink, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.step import GroupStep, Step
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender
from tests.support.machines.simulated_host import SimulatedHost

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
NOW = 100 * S
Loss = tuple[str, int, int, tuple[str, ...]]


def rows(sender: Sender, number: int) -> Frame:
    """A window that closes, and the promise that it is complete."""
    return sender.send((number * 10 * S, (number + 1) * 10 * S, "", 1.0), frontier_us=(number + 1) * 10 * S)


def lists(sender: Sender, *leaves: str) -> Frame:
    """A frame that lists leaves for the first time."""
    sender.leaves += leaves
    (frame,) = sender.outbox.put(Step((GroupStep(QUERY.group, leaves=tuple(Leaf(leaf, 1) for leaf in leaves)),)))
    return frame


def damaged(sender: Sender) -> Frame:
    """The record in the place of the last frame, which held all that it listed."""
    box = sender.outbox
    box.link(up=True)
    box.committed()
    box.marks()
    box.damaged(box.epoch, box.seq - 1)
    (record,) = box.take_replaced()
    return record


def losses(applied: list[Applied]) -> list[Loss]:
    """What the parent itself declares of any window."""
    found = [gap for each in applied for gap in each.losses if gap.groups]
    return [(gap.reason, gap.start_us, gap.end_us, gap.nodes) for gap in found]


def taken(parent: ChildFrames, *frames: Frame, now_us: int = NOW) -> list[Applied]:
    return [applied for frame in frames for applied in parent.take("m", frame, now_us)]


def test_a_child_that_says_more_before_it_lists_its_leaves_has_them_declared_all_the_same() -> None:
    """protocol 1.3: the record was of nobody, for what came first of the child was a range of a query."""
    sender, parent, now_us = Sender("m", QUERY, leaves=("a",)), ChildFrames(JOURNAL, GRACE), NOW
    sender.birth()
    taken(parent, rows(sender, 0), sender.tell(Serving("q", 1, 0)), rows(sender, 1))
    beat, found = Heartbeat(sender.outbox.epoch, sender.outbox.seq - 1, ()), list[Applied]()
    for _ in range(WAIT_US // S + 2):
        now_us += S
        found += parent.take("m", beat, now_us)
    assert losses(found) == []
    found = taken(parent, *sender.outbox.restate(), sender.birth(), now_us=now_us + S)
    ((reason, start_us, end_us, nodes),) = losses(found)
    assert (reason, start_us, nodes) == (LET_GO, 0, ("a",))
    assert NOW + WAIT_US < end_us <= now_us + 1
    assert losses(taken(parent, lists(sender, "b"), now_us=now_us + S)) == [], "of whom nothing can have been lost"


@pytest.mark.parametrize("loss_first", [False, True])
def test_leaves_whose_leave_was_in_a_lost_frame_have_left_once_another_child_lists_them(loss_first: bool) -> None:
    """protocol 1.5, 3.2: they were expected below both for ever, and what the frame had of a new one was not said."""
    old, new, parent = Sender("m", QUERY, leaves=("a",)), Sender("n", QUERY, leaves=("c",)), ChildFrames(JOURNAL, 0)
    taken(parent, old.birth(), rows(old, 0))
    lists(old, "b")  # and reports after it that all leave: both are lost
    epoch = old.outbox.epoch
    moved = tuple(Leaf(leaf, 1, before_move=epoch) for leaf in ("a", "b"))
    parent.take("n", new.birth(), NOW)
    (listing,) = new.outbox.put(Step((GroupStep(QUERY.group, leaves=moved),)))
    loss = BadFrame(epoch, 2, f"{FRAMES_LOST}: 2 to 3", b"", run=2)
    found = []
    for step in (loss, listing) if loss_first else (listing, loss):
        if isinstance(step, BadFrame):
            found += parent.settle("m", step, NOW)
        else:
            found += parent.take("n", step, NOW)
    membership = parent.children.memberships[QUERY.group]
    assert membership.members["m"].leaves == {}
    assert not any(map(membership.moves.missing, membership.leaves().values()))
    assert {name for _, _, _, names in losses(found) for name in names} == {"a", "b"}


def test_a_leave_in_a_lost_frame_is_found_though_frames_of_another_child_were_lost_before() -> None:
    """protocol 1.5: in the lists of other children as they are now."""
    old, new, other = (Sender(name, QUERY, leaves=(leaf,)) for name, leaf in (("m", "a"), ("n", "c"), ("o", "d")))
    parent = ChildFrames(JOURNAL, 0)
    taken(parent, old.birth(), rows(old, 0))
    for sender in (new, other):
        parent.take(sender.node, sender.birth(), NOW)
    parent.settle("o", BadFrame(other.outbox.epoch, 1, FRAMES_LOST, b"", run=1), NOW)
    moved = Leaf("a", 1, before_move=old.outbox.epoch)
    (listing,) = new.outbox.put(Step((GroupStep(QUERY.group, leaves=(moved,)),)))
    parent.take("n", listing, NOW)
    parent.settle("m", BadFrame(old.outbox.epoch, 2, FRAMES_LOST, b"", run=1), NOW)
    assert parent.children.memberships[QUERY.group].members["m"].leaves == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_leaf_that_a_damaged_frame_listed_is_declared_with_the_times_of_that_frame(restarts: bool) -> None:
    """protocol 3.6: the record in its place named those that its parent knew. restarts: the parent."""
    sender, parent = Sender("m", QUERY, leaves=("a",)), ChildFrames(JOURNAL, GRACE)
    taken(parent, sender.birth(), rows(sender, 0))
    lists(sender, "b")
    found = taken(parent, damaged(sender))
    assert found[0].effect.frame is not None
    assert [(gap.start_us, gap.nodes) for gap in found[0].effect.frame.gaps] == [(10 * S, ("a",))]
    if restarts:
        again = ChildFrames(JOURNAL, GRACE)
        again.restore(parent.snapshot(lambda frame: frame), lambda frame: frame)
        parent = again
    found = taken(parent, *sender.outbox.restate(), sender.birth(), now_us=NOW + 50 * S)
    assert losses(found) == [(DAMAGED, 10 * S, NOW + 1, ("b",))]
    assert losses(taken(parent, lists(sender, "c"))) == []


def test_a_damaged_frame_may_have_ended_the_sessions_that_were_open_before() -> None:
    """protocol 3.6, 5.2: they began below the frontier."""
    query = Query("q", 1, "s", Session(5 * S), SUM, lateness_us=0)
    sender, parent = Sender("m", query, leaves=("a",)), ChildFrames(JOURNAL, GRACE)
    birth, frame = sender.birth(), sender.send((8 * S, 8 * S, "", 1.0), frontier_us=10 * S)
    taken(parent, birth, replace(frame, groups=(replace(frame.groups[0], registers=((0, 9 * S),)),)))
    sender.send((8 * S, 9 * S, "", 1.0), frontier_us=20 * S)
    (applied,) = taken(parent, damaged(sender))
    assert applied.effect.frame is not None
    assert [gap.start_us for gap in applied.effect.frame.gaps] == [9 * S]


def test_a_leave_lists_all_leaves_too() -> None:
    """protocol 1.5, 3.6: behind it the child has none here."""
    sender, parent = Sender("m", QUERY, leaves=("a",)), ChildFrames(JOURNAL, GRACE)
    taken(parent, sender.birth())
    lists(sender, "b")
    record = damaged(sender)
    leaves = tuple(Leaf(leaf, 1) for leaf in sender.leaves)
    leave = Frame(record.epoch, record.seq + 1, members=(Members(0, leaves),), leave=5)
    assert losses(taken(parent, record, leave)) == [(DAMAGED, 0, NOW + 1, ("b",))]
    assert parent.children.unlisted.of == {}


def test_a_damaged_birth_of_several_frames_lists_nobody() -> None:
    """protocol 1.2, 3.6: the next birth does."""
    sender, parent = Sender("m", QUERY, leaves=("a",)), ChildFrames(JOURNAL, GRACE)
    sender.birth()
    record = damaged(sender)
    assert record.birth is not None
    rest = sender.tell(Serving("q", 1, 0))
    found = taken(parent, replace(record, birth=replace(record.birth, frames=2)), rest, sender.birth())
    assert losses(found) == [(DAMAGED, 0, NOW + 1, ("a",))]


def test_a_merger_that_is_killed_in_between_declares_it_all_the_same() -> None:
    """protocol 3.1, 3.6: it has receipted the record."""
    sender = Sender("m", QUERY, leaves=("a",))
    host = SimulatedHost(Merger(NodeSettings("hall"), Random(1), grace_us=GRACE))
    host.do(LowerLink(up=True), NOW)
    sender.outbox.journal = host.machine.journal
    birth = sender.birth()
    lists(sender, "b")
    host.do(Arrived((("m", birth, None), ("m", damaged(sender), None))), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    host = SimulatedHost(Merger(NodeSettings("hall"), Random(2), host.disk.restored(), grace_us=GRACE), host.disk)
    host.do(LowerLink(up=True), NOW + 3 * S)
    host.do(Arrived(tuple(("m", frame, None) for frame in (*sender.outbox.restate(), sender.birth()))), NOW + 4 * S)
    host.do(Tick(), NOW + 5 * S)
    assert ("b",) in [gap.nodes for frame in host.frames for gap in frame.gaps if gap.reason == DAMAGED]


def lost(epoch: int) -> Effect:
    return Effect("m", epoch, 0, None)


def test_lost_frames_of_a_child_have_one_range_until_it_lists_its_leaves_again() -> None:
    """protocol 1.3, 3.2: a leaf may have been in any of them."""
    unlisted = Unlisted()
    unlisted.lost(lost(1), 10, 20, FRAMES_LOST)
    unlisted.lost(lost(2), 15, 40, LET_GO)
    assert unlisted.of == {"m": LostListing(2, 10, 40, FRAMES_LOST)}
    unlisted.lost(lost(3), 5, 30, LET_GO)
    assert unlisted.of == {"m": LostListing(3, 5, 40, FRAMES_LOST)}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_gap_record_in_the_place_of_a_birth_lists_nobody(damaged: bool) -> None:
    """protocol 3.6"""
    unlisted, gaps = Unlisted(), (Gap((), 0, 0, -1, (), DAMAGED, 1),) if damaged else ()
    unlisted.lost(lost(1), 10, 20, FRAMES_LOST)
    frame = Frame(2, 0, Birth(2 << 32, JOURNAL, None, "1"), gaps=gaps)
    assert [*unlisted.listed(lost(2), frame, (), {}, None)] == []
    assert ("m" in unlisted.of) == damaged


def test_a_birth_of_several_frames_lists_its_leaves_with_the_last_of_them() -> None:
    """protocol 1.2, 1.3: until then, and behind it in the epoch of the lost frames, leaves may be missing."""
    unlisted, many = Unlisted(), 3
    unlisted.lost(lost(1), 10, 20, FRAMES_LOST)
    found = list[Gap]()
    for seq, leaf in enumerate(("a", "b", "c", "d")):
        birth = Birth(2 << 32, JOURNAL, None, "1", frames=many) if seq == 0 else None
        changes = [(QUERY.group, Members(0, (Leaf(leaf, 2),)))]
        epoch = EpochFrames(birth_frames=many)
        found += unlisted.listed(Effect("m", 2, seq, None), Frame(2, seq, birth), changes, {}, epoch)
        assert ("m" in unlisted.of) == (seq < many - 1)
    assert [gap.nodes for gap in found] == [("a",), ("b",), ("c",)]
