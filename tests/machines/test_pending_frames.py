"""The frames that wait for a receipt: as a dictionary would hold them, in the memory of a few ranges."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, Receipt
from edge_agent.machines.downlink.losses.let_go import WAIT_US
from edge_agent.machines.events import SpooledFrame
from edge_agent.machines.uplink.frame_queue import MARK_AHEAD, MARK_UNANSWERED
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.pending_frames import POISON_TRIES, RESEND_MOST_US, RESEND_US, PendingFrames

S = 1_000_000
MONTH = 30 * 86_400
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5)),
        st.tuples(st.just("mark"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 40)),
    ),
    max_size=40,
)


@given(STEPS)
def test_they_are_the_frames_that_a_list_would_hold_in_its_order(steps: list[tuple[str, int]]) -> None:
    pending, marked, unmarked = PendingFrames(), list[tuple[int, int]](), list[tuple[int, int]]()
    seq = 0
    for what, number in steps:
        if what == "add":
            pending.add(9 - seq // 7, seq % 7, 1)  # a new epoch every 7 frames, whose id is lower
            unmarked.append((9 - seq // 7, seq % 7))
            seq += 1
        elif what == "mark":
            fresh = pending.mark(number, frozenset(unmarked[3:]))
            assert fresh == unmarked[: min(number, 3)]
            marked, unmarked = marked + fresh, unmarked[len(fresh) :]
        elif (all_of_them := marked + unmarked)[number : number + 1]:
            key = all_of_them[number]
            del pending[key]
            assert key not in pending
            marked, unmarked = ([each for each in found if each != key] for found in (marked, unmarked))
        assert list(pending) == marked + unmarked
        assert len(pending) == len(marked) + len(unmarked)
        assert pending.epochs() == {epoch for epoch, _ in pending}
        assert pending.unsent() == tuple(dict.fromkeys(epoch for epoch, _ in unmarked))
        for epoch in range(10):
            assert pending.highest(epoch) == max((s for of, s in pending if of == epoch), default=-1)
        assert all(key in pending for key in marked + unmarked)


def nothing(epoch: int, seq: int) -> Frame:
    """Reads no frame."""
    raise AssertionError((epoch, seq))


def test_a_month_of_outage_at_a_frame_a_second_takes_no_memory_and_drains_in_order() -> None:
    """protocol 3.3"""
    box = Outbox("a", Random(1), version="1")
    box.journal = 7
    tracemalloc.start()
    box.take_over((SpooledFrame(5, 3, False, run=MONTH),))
    box.link(up=True)
    box.receipt(Receipt(5, 7, 3), nothing)
    upto = 3
    for second in range(5):
        marks = box.marks()
        box.committed()
        assert marks == [(5, seq) for seq in range(upto, upto + MARK_AHEAD)]
        while published := box.publish(second * 1_000_000):
            for each in published:
                box.sent(each.epoch, each.seq)
        upto += MARK_AHEAD
        box.receipt(Receipt(5, 7, upto), nothing)
        assert box.take_forgotten() == marks
    assert box.spooled == MONTH - 5 * MARK_AHEAD
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_frame_without_a_receipt_is_sent_at_least_every_75_seconds() -> None:
    """protocol 3.3: a parent settles frames as lost that have not come for WAIT_US while their child speaks (1.3)."""
    pending, flying, sent_us = PendingFrames(), set[tuple[int, int]](), list[int]()
    pending.add(5, 0)
    pending.mark(1)
    for second in range(1_800):
        if pending.due(second * S, 20, flying, frozenset(), Random(second)):
            sent_us.append(second * S)
            flying.clear()  # the broker has confirmed it
    pauses = [after - before for before, after in pairwise(sent_us)]
    assert len(sent_us) > 20
    assert max(pauses) <= RESEND_MOST_US * 5 // 4 < WAIT_US
    for sent, pause_us in enumerate(pauses):  # 5 s, 10 s, … 60 s, each a quarter shorter or longer; seen each second
        wanted_us = min(RESEND_US << sent, RESEND_MOST_US)
        assert wanted_us * 3 // 4 <= pause_us <= wanted_us * 5 // 4 + S


def test_a_frame_that_receipts_skip_is_given_up_once_it_was_sent_again_five_times() -> None:
    """protocol 3.6: however many receipts skip it meanwhile; what lies behind all that they name is only on its way."""
    pending, flying = PendingFrames(), {(5, 0), (5, 1), (5, 3)}
    pending.add(5, 0, 4)
    pending.add(6, 0)
    pending.mark(4)
    for each in pending.marked.values():
        each.tries = 1
    assert pending.receipted(Receipt(5, 7, 0, ((1, 1),)), flying) == ([(5, 1)], [])
    assert flying == {(5, 0), (5, 3)}
    for tries in range(1, POISON_TRIES + 2):
        for each in pending.marked.values():
            each.tries = tries
        assert pending.receipted(Receipt(6, 7, 9), flying) == ([], [])
        poison = [(5, 0)] if tries > POISON_TRIES else []
        for found in (poison, []):
            assert pending.receipted(Receipt(5, 7, 0, ((1, 1),)), flying) == ([], found)
    assert list(pending.marked) == [(5, 0), (5, 2), (5, 3)]
    pending.void()
    assert pending.receipted(Receipt(5, 7, 2, ((3, 3),)), flying) == ([(5, 0), (5, 3)], [])
    assert list(pending) == [(5, 2), (6, 0)]


def test_no_more_frames_are_marked_as_sent_than_may_have_to_be_sent_again() -> None:
    """protocol 3.3"""
    box = Outbox("a", Random(1), version="1")
    box.journal = 7
    box.take_over((SpooledFrame(5, 3, False, run=3 * MARK_AHEAD),))
    box.link(up=True)
    box.receipt(Receipt(5, 7, 3), nothing)
    assert len(box.marks()) == MARK_AHEAD
    assert box.marks() == []
    box.receipt(Receipt(5, 7, 3 + 10), nothing)
    assert len(box.marks()) == 10


def test_few_frames_are_marked_as_sent_before_the_parent_has_answered() -> None:
    """protocol 3.7: it may have lost its journal meanwhile, and then all of them are in doubt; 3.3."""
    box = Outbox("a", Random(1), version="1")
    box.journal = 7
    box.take_over((SpooledFrame(5, 3, False, run=3 * MARK_AHEAD),))
    box.link(up=True)
    assert len(box.marks()) == MARK_UNANSWERED
    box.committed()
    assert box.marks() == []
    box.receipt(Receipt(5, 7, 3), nothing)
    assert len(box.marks()) == MARK_AHEAD - MARK_UNANSWERED
    box.receipt(Receipt(5, 7, 3 + MARK_AHEAD), nothing)
    box.link(up=False)
    box.link(up=True)
    assert len(box.marks()) == MARK_UNANSWERED, "another connection: another parent may be behind it"


def test_a_parent_that_owes_a_receipt_gets_few_frames_more() -> None:
    """protocol 3.7: its broker lives on, but perhaps not its disk."""
    box = Outbox("a", Random(1), version="1")
    box.journal = 7
    box.take_over((SpooledFrame(5, 3, False, run=3 * MARK_AHEAD),))
    box.link(up=True)
    box.receipt(Receipt(5, 7, 3), nothing)
    box.pending.mark(5)
    assert [each.seq for each in box.publish(0)] == [*range(3, 8)]
    for each in box.pending.marked:
        box.sent(*each)
    box.publish(20 * S)
    assert len(box.marks()) == MARK_UNANSWERED - 5
    box.receipt(Receipt(5, 7, 4), nothing)
    assert len(box.marks()) == MARK_AHEAD - MARK_UNANSWERED + 1
