"""A damaged frame of the spool had late rows: the windows that they lie in are marked, far below the frontier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from edge_agent.algebra.frame import DAMAGED, LATEST_US, Frame, Leaf, Receipt
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.errors import PortError
from edge_agent.machines.checkpoint.slots import LateExtentState
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.events import SpooledFrame
from edge_agent.machines.uplink.late_extents import MOST, LateExtents
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.wire.frames import encode
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


def at_work() -> Sender:
    """One whose birth is receipted, and a frame with late rows is on its way."""
    sender = Sender("g", QUERY)
    sender.birth()
    sender.outbox.link(up=True)
    sender.outbox.marks()
    sender.outbox.receipt(Receipt(sender.outbox.epoch, JOURNAL, 1), lambda *_: Frame(0, 0))
    sender.send((20 * S, 30 * S, "", 1.0), late=True)
    sender.outbox.marks()
    return sender


def test_the_record_of_a_damaged_frame_covers_its_late_rows_and_names_its_leaves_above() -> None:
    """protocol 3.5, 3.6"""
    sender = at_work()
    box = sender.outbox
    assert [(each.start_us, each.end_us) for each in box.snapshot().late] == [(20 * S, 30 * S)]
    box.damaged(box.epoch, 1)
    (record,) = box.replaced
    assert [(gap.reason, gap.start_us, gap.end_us) for gap in record.gaps] == [
        (DAMAGED, 0, 0),
        (DAMAGED, 20 * S, 30 * S),
    ]
    parent, above = ChildFrames(JOURNAL, GRACE), Sender("g", QUERY)
    parent.take("g", above.birth(frontier_us=90 * S), 100 * S)
    (applied,) = parent.take("g", Frame(above.outbox.epoch, 1, gaps=record.gaps), 100 * S)
    assert applied.effect.frame is not None
    found = [(gap.start_us, gap.end_us, gap.nodes) for gap in applied.effect.frame.gaps]
    assert found == [(90 * S, 100 * S + 1, ("g",)), (20 * S, 30 * S, ("g",))]


def unsent() -> tuple[Sender, dict[tuple[int, int], Frame]]:
    """One whose birth is receipted; then its parent was away. Its first frame has late rows and all definitions."""
    sender = at_work()
    sender.outbox.receipt(Receipt(sender.outbox.epoch, JOURNAL, 2), lambda *_: Frame(0, 0))
    sender.outbox.link(up=False)
    sender.outbox.snapshot()  # a commit
    sent = [
        sender.send((at * S, (at + 10) * S, key, 1.0), late=at < 50) for at, key in ((30, "k=2"), (60, ""), (70, ""))
    ]
    return sender, {(frame.epoch, frame.seq): frame for frame in sent}


def damaged(frames: Mapping[tuple[int, int], Frame], *bad: int) -> Callable[[int, int], Frame]:
    """Reads a spool in which the frames with some seqs are damaged."""

    def load(epoch: int, seq: int) -> Frame:
        if seq in bad:
            raise PortError(f"frame ({epoch}, {seq}) fails its checksum")
        return frames[epoch, seq]

    return load


def test_the_record_of_a_damaged_frame_that_a_full_spool_drops_covers_its_late_rows_too() -> None:
    """protocol 3.5, 3.6, 2.4, 9.1: and defines its numbers. Its readings are in no book any more."""
    sender, frames = unsent()
    sender.outbox.drop(5, damaged(frames, 2))
    (record,) = sender.outbox.take_replaced()
    assert {(gap.reason, gap.start_us, gap.end_us) for gap in record.gaps if gap.reason == DAMAGED} == {
        (DAMAGED, 0, 0),
        (DAMAGED, 30 * S, 40 * S),
    }
    assert record.define is not None
    assert "k=2" in record.define.keys[1]
    assert (sender.outbox.book()["lost"], sender.outbox.book()["lost_frames"]) == (2, 1)


def test_a_damaged_birth_stays_where_a_full_spool_drops_frames() -> None:
    """protocol 1.2, 3.5: with a record in its place its epoch would never begin, and none after it."""
    sender = Sender("g", QUERY)
    sent = [sender.birth(), *(sender.send((at * S, (at + 1) * S, "", 1.0)) for at in range(3))]
    frames = {(frame.epoch, frame.seq): frame for frame in sent}
    sender.outbox.drop(5, damaged(frames, 0))
    assert [record.seq for record in sender.outbox.take_replaced() if record.birth is None] == [1]
    assert (sender.outbox.epoch, 0) in sender.outbox.pending


def test_a_full_spool_drops_damaged_frames_in_a_row_as_one_record_that_defines_all_numbers() -> None:
    """protocol 3.5, 3.6, 2.4: else a spool of which a stretch is damaged outgrows its quota."""
    sender, frames = unsent()
    for at in range(8, 28):
        frame = sender.send((at * 10 * S, (at + 1) * 10 * S, "k=3" if at > 12 else "k=2", 1.0))
        frames[frame.epoch, frame.seq] = frame
    box, read, load = sender.outbox, list[int](), damaged(frames, *range(2, 8))

    def noted(epoch: int, seq: int) -> Frame:
        read.append(seq)
        return load(epoch, seq)

    before = box.spooled
    box.drop(5, noted)
    (record,) = box.take_replaced()
    assert (box.spooled, read) == (before - 5, [2, 3, 4, 5, 6, 7])
    assert [(gap.reason, gap.start_us) for gap in record.gaps] == [("quota", 0), (DAMAGED, 0), (DAMAGED, 30 * S)]
    assert box.book()["lost_frames"] == 6
    parent, above = ChildFrames(JOURNAL, GRACE), Sender("g", QUERY)
    parent.take("g", above.birth(frontier_us=30 * S), 100 * S)
    parent.take("g", above.send((20 * S, 30 * S, "", 1.0), late=True), 100 * S)
    behind = [frame for (_, seq), frame in sorted(frames.items()) if seq > 7]
    came = [applied for frame in (record, *behind) for applied in parent.take("g", frame, 100 * S)]
    assert [applied.effect.why for applied in came if applied.effect.frame is None] == []
    assert len(came) == 1 + len(behind)


def test_a_record_of_many_damaged_frames_names_all_groups_once() -> None:
    """protocol 2.1, 3.5: it would be larger than a frame may be, and the process would end at each commit."""
    box = Outbox("g", Random(1), version="1")
    box.journal = JOURNAL
    steps = tuple(GroupStep(Group(f"sensor-{n}", "", (), 0), leaves=(Leaf("g", 1),)) for n in range(200))
    for _ in range(2):  # the numbers of the first epoch are not known any more, as after a start
        box.draw()
        box.open(Step(steps))
        box.pending.add(box.epoch, box.seq, 300)
        box.seq += 300
    box.former = (0, box.encoder)
    box.drop(500, damaged({}, *range(600)))
    (record,) = box.take_replaced()
    assert len(encode(record)) < 10_000


@pytest.mark.parametrize("restarted", [False, True])
def test_of_a_damaged_frame_that_moves_to_a_new_journal_the_late_rows_are_declared(restarted: bool) -> None:
    """protocol 3.6, 3.7, 9.1: also if the move takes several commits. restarted: after the first one."""
    sender, frames = unsent()
    box, load = sender.outbox, damaged(frames, 2)
    box.receipt(Receipt(0, JOURNAL + 1, 0), load)
    joined = box.join_journal(load, {QUERY.group: 50 * S}, {QUERY.group: ("g",)})
    assert joined.begins
    box.draw(anew=True)
    box.open(Step((GroupStep(QUERY.group, leaves=(Leaf("g", box.epoch),)),)))
    assert [(each.start_us, each.end_us) for each in box.snapshot().late] == [(30 * S, 40 * S)]
    if restarted:
        state, known = box.snapshot(), tuple(SpooledFrame(epoch, seq, False) for epoch, seq in (*frames, *box.pending))
        again = Outbox("g", Random(2), version="1")
        again.restore(state, box.encoder, known)
        again.former = box.former  # as if the frames defined their numbers themselves
        box = again
        assert [(each.start_us, each.end_us) for each in box.snapshot().late] == [(30 * S, 40 * S)]
    moved = box.moved_steps(load, 10)
    found = {(gap.reason, gap.start_us, gap.end_us) for step in moved for gap in step.gaps}
    assert found == {(DAMAGED, 0, 0), (DAMAGED, 30 * S, 40 * S)}
    assert box.book()["lost_frames"] == 1
    assert box.snapshot().late == []


def test_what_is_receipted_is_remembered_no_more() -> None:
    """protocol 3.3"""
    box = at_work().outbox
    box.receipt(Receipt(box.epoch, JOURNAL, 2), lambda *_: Frame(0, 0))
    assert box.snapshot().late == []


def test_many_frames_share_entries_that_hold_for_all_of_them() -> None:
    sender = Sender("g", QUERY)
    extents, spooled = LateExtents(), set[tuple[int, int]]()
    sender.birth()
    for number in range(3 * MOST):
        frame = sender.send((number * S, (number + 1) * S, "", 1.0), late=True)
        extents.note(frame, sender.outbox.encoder.groups)
        spooled.add((frame.epoch, frame.seq))
        assert len(extents.needed(spooled.__contains__)) <= MOST
    for epoch, seq in spooled:
        (gap,) = extents.gaps(epoch, seq)
        assert gap.start_us <= (seq - 1) * S
        assert gap.end_us >= seq * S


def test_an_entry_of_several_frames_stays_until_the_last_of_them_is_receipted() -> None:
    """protocol 3.5"""
    entry = LateExtentState(7, 1, 5, QUERY.group, 0, S)
    assert LateExtents([entry]).needed({(7, 5)}.__contains__) == [entry]
    assert LateExtents([entry]).needed({(7, 1), (7, 2)}.__contains__) == [entry]
    assert LateExtents([entry]).needed({(7, 3)}.__contains__) == [entry]  # a parent may lack one between others (2.2)
    for other in ((7, 0), (7, 6), (8, 3)):
        assert LateExtents([entry]).needed({other}.__contains__) == []


def test_the_late_rows_of_frames_in_doubt_are_found_in_an_entry_that_they_share_with_others() -> None:
    """protocol 3.7: else the record of more than 2 000 such frames begins after them."""
    entry = LateExtentState(7, 1, 5, QUERY.group, 3 * S, 4 * S)
    for seq in (1, 3, 5):
        assert LateExtents([entry]).earliest_us([(7, seq), (7, 9)]) == 3 * S
    assert LateExtents([entry]).earliest_us([(7, 0), (7, 6), (8, 3)]) == LATEST_US
