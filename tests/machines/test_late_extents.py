"""A damaged frame of the spool had late rows: the windows that they lie in are marked, far below the frontier."""

from __future__ import annotations

from edge_agent.algebra.frame import DAMAGED, Frame, Receipt
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.checkpoint.slots import LateExtentState
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.uplink.late_extents import MOST, LateExtents
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
    assert LateExtents([entry]).needed({(7, 6)}.__contains__) == []
