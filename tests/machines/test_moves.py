"""A node that gets another parent: what was sent stays with the old one, and all counts once (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import Flush, Frame, Leaf, Receipt
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.errors import PortError
from edge_agent.machines.downlink.epochs.epoch_frames import AFTER_FLUSH, EpochFrames
from edge_agent.machines.events import Arrived, LowerLink, Publish, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.parent_choice import ParentChoice
from edge_agent.machines.uplink.step import GroupStep, Step
from tests.support.machines.scripted_child import GRACE, SUM, Sender, journalled, leaving, root_of
from tests.support.machines.simulated_host import T0, Disk, SimulatedHost

S = 1_000_000
GROUP = Group("s", "", (), 0)
OLD, NEW, ASKS = 7, 8, 0


class Spooled(dict[tuple[int, int], Frame]):
    """Frames by (epoch, seq)."""

    def add(self, frames: list[Frame]) -> list[Frame]:
        self.update({(frame.epoch, frame.seq): frame for frame in frames})
        return frames


def listing(number: int) -> Step:
    return Step((GroupStep(GROUP, number * S, leaves=(Leaf("g", number),)),))


def outbox(spool: Spooled, sent: int, unsent: int) -> Outbox:
    """One with a parent that has receipted its birth, and frames that were published, or not."""
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    spool.add(box.open(listing(1)))
    box.receipt(Receipt(0, OLD, 0), load(spool))
    box.learnt_journal()
    box.link(up=True)
    for number in range(sent):
        spool.add(box.put(listing(number + 2)))
    box.marks()
    box.committed()
    box.publish(0)
    box.receipt(Receipt(box.epoch, OLD, 1), load(spool))
    for number in range(unsent):
        spool.add(box.put(listing(number + 50)))
    return box


def load(spool: Spooled) -> Callable[[int, int], Frame]:
    return lambda epoch, seq: spool[epoch, seq]


def move(box: Outbox, spool: Spooled, parent: str) -> list[Frame]:
    line = box.end_line(parent, load(spool))
    assert line is not None
    box.draw(anew=True)
    left = spool.add(box.leave(line, {GROUP: (Leaf("g", 1),)}))
    spool.add(box.open(Step()))
    return left


def test_what_was_sent_stays_with_the_old_parent_and_ends_by_a_leave_that_names_the_successor() -> None:
    """protocol 1.5: what was never sent goes to the new one."""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=3)
    old = box.epoch
    (left,) = move(box, spool, "region-2")
    assert (left.epoch, left.seq, left.leave) == (old, 3, box.epoch)
    assert [leaf for change in left.members for leaf in change.leaves] == [Leaf("g", 1)]
    assert len(box.moved_steps(load(spool), 100)) == 3
    assert box.former_lines.waiting() == {"region-1": 3}
    box.marks()
    box.committed()
    out = box.publish(100 * S)
    assert out == [Publish(old, 1), Publish(old, 2), Publish(old, 3)]
    assert {publish.to for publish in out} == {"region-1"}
    assert box.journal is None  # nothing goes to the new parent before its journal is known
    box.receipt(Receipt(old, OLD, 4), load(spool))
    assert box.former_lines.waiting() == {}


def test_a_late_receipt_of_the_old_parent_is_not_taken_for_the_journal_of_the_new_one() -> None:
    """protocol 1.5, 3.7"""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    move(box, spool, "region-2")
    box.receipt(Receipt(0, OLD, 0), load(spool))
    box.receipt(Receipt(box.epoch, 99, 0), load(spool))  # of a third one that was asked once
    assert box.journal is None
    beat = box.beat(10 * S, S, {})
    assert beat is not None
    box.receipt(Receipt(beat.epoch, NEW, 0), load(spool))
    assert box.journal == NEW


def test_back_at_a_former_parent_the_birth_follows_the_leave_there() -> None:
    """protocol 1.2, 1.5"""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    (left,) = move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    spool.add(box.learnt_journal())
    box.marks()
    box.committed()
    box.publish(0)
    (again,) = move(box, spool, "region-1")
    assert again.leave == box.epoch
    birth = spool[box.epoch, 0].birth
    assert birth is not None
    assert (birth.journal, birth.predecessor) == (OLD, (left.epoch, left.seq))


def test_a_merger_that_moves_on_lists_in_the_leave_whose_leave_at_the_parent_before_is_awaited() -> None:
    """protocol 1.5: else the report of that, where it comes last, has the leaf awaited for ever."""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    first = box.epoch
    move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    spool.add(box.learnt_journal())
    box.marks()
    box.committed()
    box.publish(0)
    (left,) = move(box, spool, "region-3")
    assert [leaf for change in left.members for leaf in change.leaves] == [Leaf("g", 1, before_move=first)]


def test_frames_that_nobody_got_go_to_the_new_parent_as_they_are() -> None:
    """protocol 1.5: a parent that never answered is left without a word."""
    spool = Spooled()
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    spool.add(box.open(listing(1)))
    assert box.end_line("region-2", load(spool)) is None
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    (birth,) = box.learnt_journal()
    assert birth.birth is not None
    assert (birth.birth.journal, birth.birth.predecessor) == (NEW, None)


def test_a_birth_that_nobody_got_and_that_is_damaged_goes_to_the_new_parent_as_a_record_of_it() -> None:
    """protocol 1.5, 3.6: the process goes on."""

    def damaged(epoch: int, seq: int) -> Frame:
        raise PortError(f"frame ({epoch}, {seq}) fails its checksum")

    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.learnt_journal()
    box.draw()
    box.open(listing(1))
    box.births.clear()  # as after a restart
    assert box.end_line("region-2", damaged) is None
    box.receipt(Receipt(box.ask_epoch, NEW, 0), damaged)
    frame = {(each.epoch, each.seq): each for each in (*box.take_replaced(), *box.learnt_journal())}[box.epoch, 0]
    assert frame.birth is not None
    assert (frame.birth.journal, [gap.reason for gap in frame.gaps]) == (NEW, ["damaged"])
    assert box.book()["lost_frames"] == 1


def test_a_damaged_birth_for_the_parent_before_is_replaced_by_one_for_its_journal() -> None:
    """protocol 1.2, 3.6: that parent discards a birth for any other journal, and waits for this one for ever."""
    spool = Spooled()
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    (birth,) = spool.add(box.open(listing(1)))
    box.receipt(Receipt(0, OLD, 0), load(spool))
    spool.add(box.learnt_journal())
    box.link(up=True)
    box.marks()
    box.committed()
    box.publish(0)
    move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    box.take_replaced()
    box.damaged(birth.epoch, birth.seq)
    (record,) = [frame for frame in box.take_replaced() if frame.epoch == birth.epoch]
    assert record.birth is not None
    assert (record.birth.journal, [gap.reason for gap in record.gaps]) == (OLD, ["damaged"])


def test_an_old_parent_with_another_journal_makes_what_was_sent_to_it_doubtful() -> None:
    """protocol 3.7"""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=0)
    old = box.epoch
    move(box, spool, "region-2")
    for _ in range(3):
        assert box.lost_lines == []
        box.receipt(Receipt(old, 99, 0), load(spool))
    assert box.lost_lines == ["region-1"]
    box.accept_loss("region-1", {}, {}, load(spool))
    assert box.former_lines.waiting() == {}
    assert box.moved_from == (0, {})


# --- a parent of both -------------------------------------------------------------------------------------------------


@pytest.fixture
def choice() -> ParentChoice:
    return ParentChoice(("region-1", "region-2"), 60 * S, 30 * S)


def test_another_parent_after_a_time_and_back_when_the_first_has_answered_for_a_while(choice: ParentChoice) -> None:
    """protocol 1.5"""

    def wanted(present: str, at_s: int, *, waits: bool, unfinished: tuple[str, ...] = ()) -> str:
        return choice.wanted(present, at_s * S, waits=waits, unfinished=unfinished)

    assert wanted("region-1", 0, waits=True) == "region-1"
    assert wanted("region-1", 60, waits=True) == "region-1"
    choice.well(60 * S)
    assert wanted("region-1", 119, waits=True) == "region-1"
    assert wanted("region-1", 121, waits=True) == "region-2"
    choice.well(122 * S)  # the second one has answered, so that only the first is asked
    for at_s in range(125, 175, 5):
        assert choice.asks("region-2", at_s * S) == ("region-1",)
        assert choice.asks("region-2", at_s * S) == ()
        choice.answered("region-1", at_s * S)
        assert wanted("region-2", at_s, waits=False, unfinished=("region-1",)) == "region-2"  # not all is there yet
        want = "region-2" if at_s < 155 else "region-1"
        if at_s < 155:
            assert wanted("region-2", at_s, waits=False) == want
    assert wanted("region-2", 171, waits=False) == "region-1"


def test_a_first_parent_that_comes_and_goes_is_not_gone_back_to(choice: ParentChoice) -> None:
    """protocol 1.5"""
    for at_s in range(0, 300, 5):
        if choice.asks("region-2", at_s * S) and at_s % 50 < 25:
            choice.answered("region-1", at_s * S)
        assert choice.wanted("region-2", at_s * S, waits=False, unfinished=()) == "region-2"


def test_a_parent_that_is_not_configured_any_more_is_left(choice: ParentChoice) -> None:
    assert choice.wanted("region-9", 0, waits=False, unfinished=()) == "region-1"
    assert ParentChoice((), 1, 1).wanted("region-9", 0, waits=True, unfinished=()) == "region-9"


# --- a child that leaves ----------------------------------------------------------------------------------------------


def hinted(frame: Frame, start_us: int) -> Frame:
    """With a register: its child holds a piece of a session from there on."""
    return replace(frame, groups=(replace(frame.groups[0], registers=((0, start_us),)),))


def test_a_leave_has_its_effect_behind_a_flush() -> None:
    """protocol 1.5, 1.3: a node that restarts with another parent flushes, and then it leaves."""
    line = EpochFrames()
    line.note(Frame(1, 4, flush=Flush(3)))
    assert line.refuses(Frame(1, 5)) == AFTER_FLUSH
    assert line.refuses(Frame(1, 5, leave=2)) == ""
    line.note(Frame(1, 5, leave=2))
    assert line.ordinary == -1


def test_sessions_that_a_child_had_open_go_on_elsewhere_once_it_has_left() -> None:
    """protocol 1.5, 5.2: no register of it holds a session of others back."""
    sender = Sender("a", Query("q", 1, "s", Session(5 * S), SUM, lateness_us=0))
    root = root_of(sender)
    root.take("a", hinted(sender.send((8 * S, 8 * S, "", 1.0), frontier_us=10 * S), 9 * S), 0)
    member = root.decider.parent.children.memberships[sender.queries[0].group].members["a"]
    root.step(0)
    assert member.hints
    root.take("a", leaving(sender), 0)
    root.step(0)
    assert (member.hints, member.held) == ({}, {})


def test_what_a_merger_holds_of_a_child_goes_up_with_the_report_that_it_left() -> None:
    """protocol 1.5: the report stands behind all of it."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    one, other = Sender("a", query), Sender("b", query)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for sender in (one, other):
        host.do(Arrived(((sender.node, journalled(sender.birth(), host.machine), None),)), T0)
    host.do(Arrived((("a", one.send((T0, T0 + 10 * S, "", 1.0), frontier_us=T0 + 10 * S), None),)), T0 + S)
    host.do(Tick(), T0 + 2 * S)
    assert sum(frame.readings for frame in host.frames) == 0, "it waits for b"
    host.do(Arrived((("a", leaving(one), None),)), T0 + 3 * S)
    host.do(Tick(), T0 + 5 * S)
    assert sum(frame.readings for frame in host.frames) == 1
    reports = [leaf for frame in host.frames for each in frame.members for leaf in each.leaves if leaf.epoch == 99]
    assert [(leaf.node, leaf.before_move) for leaf in reports] == [("a", one.outbox.epoch)]


def test_a_merger_that_has_moved_reports_a_leave_behind_the_entry_as_it_had_listed_it() -> None:
    """protocol 1.5: else the tier above would no longer wait for the leave of the merger's own former line."""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.machine.outbox.moved_from = (77, {one.queries[0].group: {"a": Leaf("a", 1)}})
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.do(Arrived((("a", leaving(one), None),)), T0 + 2 * S)
    host.do(Tick(), T0 + 4 * S)
    listed = [leaf for frame in host.frames for each in frame.members for leaf in each.leaves]
    assert listed == [Leaf("a", 1, 77), Leaf("a", 1, 77), Leaf("a", 99, one.outbox.epoch)]


def merger_of(parent: str, disk: Disk) -> SimulatedHost[Merger]:
    """A merger that has started on a disk, with this parent."""
    settings = NodeSettings("m", parents=(parent,))
    return SimulatedHost(Merger(settings, Random(2), disk.restored(), disk.load, grace_us=GRACE), disk)


@pytest.mark.parametrize("starts", [False, True], ids=["goes on", "starts again"])
def test_a_report_that_nobody_got_goes_to_the_new_parent_and_the_leave_lists_its_leaf(starts: bool) -> None:
    """protocol 1.5: without it the tiers above would wait for ever for the leaf in the merger's former line."""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    host = merger_of("A", Disk())
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.machine.outbox.link(up=False)
    host.do(Arrived((("a", one.send((T0, T0 + 10 * S, "", 1.0), frontier_us=T0 + 5 * S), None),)), T0 + 2 * S)
    host.do(Arrived((("a", leaving(one), None),)), T0 + 2 * S)
    host.do(Tick(), T0 + 4 * S)
    former, report = host.machine.outbox.epoch, Leaf("a", 99, one.outbox.epoch)
    assert report in listed_in(host.frames)
    known, promised = len(host.frames), host.machine.sent.promised()
    again = merger_of("B", host.disk) if starts else host
    again.machine.choice.parents = ("B",)
    for second in range(5, 9):
        again.do(Tick(), T0 + second * S)
    frames = again.frames if starts else again.frames[known:]
    (leave,) = (frame for frame in frames if frame.leave is not None)
    assert (leave.epoch, listed_in([leave])) == (former, [Leaf("a", 1)])
    moved = [frame for frame in frames if frame.epoch == leave.leave]
    assert listed_in(moved) == [Leaf("a", 1, former), report]
    assert [bool(frame.readings) for frame in moved if frame.readings or frame.members] == [True, False]
    assert not again.machine.parent.children.memberships, "the group ends once more"
    assert again.machine.sent.promised() == promised


def test_a_report_that_was_sent_is_not_repeated_to_the_new_parent() -> None:
    """protocol 1.5"""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    host = merger_of("A", Disk())
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Arrived((("a", leaving(one), None),)), T0 + 2 * S)
    for second in range(4, 8):
        host.do(Tick(), T0 + second * S)
    again = merger_of("B", host.disk)
    for second in range(8, 12):
        again.do(Tick(), T0 + second * S)
    assert any(frame.leave is not None for frame in again.frames)
    assert listed_in(again.frames) == []


def listed_in(frames: Iterable[Frame]) -> list[Leaf]:
    """All entries of leaves in frames, in order."""
    return [leaf for frame in frames for each in frame.members for leaf in each.leaves]


def test_what_is_on_its_way_to_former_parents_is_sent_again_when_the_clock_goes_back() -> None:
    """protocol 3.3, 4.1: else it would wait until the wrong time has come."""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=0)
    (left,) = move(box, spool, "region-2")
    box.link(up=True, parent="region-1")
    box.marks()
    box.committed()
    late_us = 3_600 * S
    first = [(each.epoch, each.seq) for each in box.publish(late_us) if each.to == "region-1"]
    assert first[-1] == (left.epoch, left.seq)
    for key in first:
        box.sent(*key)
    assert [each for each in box.publish(S) if each.to == "region-1"] == []
    box.resend()
    assert [(each.epoch, each.seq) for each in box.publish(S) if each.to == "region-1"] == first
