"""Custody upward: numbering, births, publishing, receipts, giving up (docs/protocol.md 1 to 3)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import LOST, MAX_FRAME_BYTES, MAX_KEYS, Birth, Frame, Gap, Leaf, Plan, Receipt
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.events import Note, Publish, Relieve, SpooledFrame
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder, KeysExhausted
from edge_agent.machines.uplink.former_lines import OTHER_JOURNALS, FormerLine
from edge_agent.machines.uplink.outbox import KEPT_JOURNALS, OLD_RECEIPTS, Outbox
from edge_agent.machines.uplink.pending_frames import POISON_TRIES, RESEND_US
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire.frames import decode, encode

S = 1_000_000
GROUP = Group("boiler", "", ("machine",), 0)
PLAN = Plan(b"12345678", "slice", ("count", "sum"), None, S, (("q", 1),))


def release(keys: list[str], codes: list[int], *, late: bool = False) -> StepRows:
    n = len(codes)
    starts = np.zeros(n, np.int64)
    states = {"count": np.ones(n, np.int64), "sum": np.arange(n, dtype=np.float64)}
    return StepRows(PLAN, late, Partials(starts, starts + S, np.array(codes, np.int64), states), keys, ["a"])


def step(*releases: StepRows, frontier_us: int | None = None) -> Step:
    return Step((GroupStep(GROUP, frontier_us, releases),))


def outbox(*, journal: int | None = 7) -> Outbox:
    box = Outbox("a", Random(1), version="1", in_flight=3)
    box.journal = journal
    return box


def opened(*, journal: int | None = 7) -> Outbox:
    box = outbox(journal=journal)
    box.draw()
    box.open(Step((GroupStep(GROUP, None, leaves=(Leaf("a", box.epoch),)),)))
    box.link(up=True)
    box.marks()
    box.committed()
    return box


def test_an_epoch_begins_with_a_birth_and_has_no_hole() -> None:
    """protocol 1.1, 1.2."""
    box = opened()
    first = box.epoch
    frames = box.put(step(release(["x"], [0]), frontier_us=5)) + box.put(step(release(["x"], [0]), frontier_us=6))
    assert [f.seq for f in frames] == [1, 2]
    box.draw()
    again = box.open(Step())
    assert again[0].birth is not None
    assert again[0].birth.predecessor == (first, 2)
    assert again[0].seq == 0
    assert box.epoch == again[0].birth.epoch_id >> 32 != first


def test_nothing_is_published_before_the_journal_is_known_and_the_birth_names_it() -> None:
    """protocol 1.2, 3.7."""
    box = opened(journal=None)
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    assert box.publish(0) == []
    beat = box.beat(10 * S, S, {})
    assert beat is not None
    assert beat.last_seq == -1
    box.receipt(Receipt(0, 99, 0), no_frame)
    (birth,) = box.learnt_journal()
    assert birth.birth is not None
    assert birth.birth.journal == 99
    assert len(box.marks()) == 2
    assert box.publish(11 * S) == []  # the birth is not committed yet: in a rim it is the next thing done
    box.committed()
    assert [p.seq for p in box.publish(11 * S)] == [0, 1]


def no_frame(epoch: int, seq: int) -> Frame:
    raise AssertionError((epoch, seq))


def test_nothing_is_published_ahead_of_its_commit_and_sent_is_marked_before() -> None:
    """protocol 3.1, 3.3."""
    box = opened()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    box.put(step(release(["x"], [0])))
    assert box.publish(0) == []
    assert box.marks() == [(box.epoch, 1)]
    box.committed()
    assert box.publish(0) == [Publish(box.epoch, 1)]
    box.check()


def test_flight_is_bounded_by_what_the_broker_confirms_and_a_puback_frees_nothing_else() -> None:
    """protocol 3."""
    box = opened()
    for _ in range(5):
        box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    assert [p.seq for p in box.publish(0)] == [0, 1, 2]
    assert box.publish(0) == []
    box.sent(box.epoch, 0)
    assert [p.seq for p in box.publish(0)] == [3]
    assert box.spooled == 6
    box.receipt(Receipt(box.epoch, 7, 2, ((4, 5),)), no_frame)
    assert [seq for _, seq in box.take_forgotten()] == [0, 1, 4, 5]
    assert box.spooled == 2
    box.check()


def test_numbers_that_the_parent_has_of_another_device_are_passed_over() -> None:
    """protocol 1.4: the receipt for the flush of a twin is none for what this node sends."""
    box = opened()
    box.put(step(release(["x"], [0])))
    (note,) = box.receipt(Receipt(box.epoch, 7, 1, ((2, 3), (5, 5))), no_frame)
    assert note == Note("frame.numbers_taken", {"epoch": box.epoch, "seqs": [2, 3]})
    (frame,) = box.put(step(release(["x"], [0])))
    assert frame.seq == 4
    assert box.receipt(Receipt(box.epoch, 7, 1, ((2, 3), (5, 5))), no_frame) != []
    (frame,) = box.put(step(release(["x"], [0])))
    assert frame.seq == 6
    box.check()


def test_numbers_of_an_epoch_that_a_process_has_found_are_those_of_its_flush_whatever_the_parent_has() -> None:
    """protocol 1.3: the spool is an older copy, and only so does the parent see that."""
    before = opened()
    box = outbox()
    box.restore(before.snapshot(), before.encoder, ())
    assert box.receipt(Receipt(box.epoch, 7, 9), no_frame) == []
    (frame,) = box.flush(step(release(["x"], [0])))
    assert (frame.seq, frame.flush and frame.flush.after) == (1, 0)


def test_what_is_not_receipted_is_sent_again_after_the_back_off_and_after_a_reconnect() -> None:
    """protocol 3.3."""
    box = opened()
    assert len(box.publish(0)) == 1
    box.sent(box.epoch, 0)
    assert box.publish(RESEND_US // 2) == []
    assert len(box.publish(2 * RESEND_US)) == 1
    box.link(up=False)
    assert box.publish(3 * RESEND_US) == []
    box.link(up=True)
    assert len(box.publish(3 * RESEND_US)) == 1


def test_a_frame_that_later_ones_overtake_is_given_up_after_five_re_sendings() -> None:
    """protocol 3.6: a gap record stands at its seq and says what is lost."""
    box = opened()
    frame = box.put(step(release(["x", "y"], [0, 1]), frontier_us=9))[0]
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    spooled = decode(encode(frame))  # as it is found: columns without names
    assert isinstance(spooled, Frame)
    now_us = 0
    for _ in range(POISON_TRIES + 1):
        now_us += 200 * S
        for publish in box.publish(now_us):
            box.sent(publish.epoch, publish.seq)
        assert not box.replaced
        box.receipt(Receipt(box.epoch, 7, 1, ((2, 2),)), lambda _e, _s: spooled)
        if box.replaced:
            break
    (gap,) = box.take_replaced()
    assert (gap.epoch, gap.seq) == (frame.epoch, 1)
    assert gap.gaps[0].readings == 2
    assert gap.gaps[0].groups == (GROUP,)
    assert gap.gaps[0].reason == "poison"
    assert gap.define == frame.define
    assert gap.groups[0].frontier_us == 9
    assert not gap.groups[0].sections


@pytest.mark.parametrize(("journal", "kept"), [(7, True), (99, False)])
@pytest.mark.parametrize("frames", [1, 3])
def test_an_epoch_whose_birth_is_for_a_journal_that_is_no_more_is_not_sent_for_ever(
    journal: int, frames: int, kept: bool
) -> None:
    """protocol 3.7, 1.2: of a node that lost its slots, and knows no journal; one that its parent may take goes on."""
    past = opened(journal=journal)
    spooled = {(past.epoch, 0): Frame(past.epoch, 0, Birth(past.epoch_id, journal, None, "1"))}
    box = Outbox("a", Random(3), version="1", in_flight=10)
    box.predecessor = LOST
    box.take_over(tuple(SpooledFrame(past.epoch, seq, True) for seq in range(frames)))
    box.draw()
    box.open(Step())
    box.link(up=True)
    box.receipt(Receipt(0, 7, 0), lambda *key: spooled[key])
    box.learnt_journal()
    notes: list[Note] = []
    for tries in range(POISON_TRIES + 2):
        assert not notes or tries > POISON_TRIES
        for publish in box.publish((tries + 1) * 200 * S):
            box.sent(publish.epoch, publish.seq)
        notes += box.receipt(Receipt(past.epoch, 7, 0), lambda *key: spooled[key])
    assert (past.epoch in box.pending.epochs()) == kept
    forgotten = [] if kept else [(past.epoch, seq) for seq in range(frames)]
    assert box.take_forgotten() == forgotten
    assert [note.fields for note in notes] == ([] if kept else [{"epoch": past.epoch, "seq": 0, "frames": frames}])


def test_a_parent_that_is_only_down_never_makes_a_frame_poison() -> None:
    """protocol 3.6: giving up needs the parent's word that it is alive and has later frames."""
    box = opened()
    for i in range(50):
        for publish in box.publish(i * 200 * S):
            box.sent(publish.epoch, publish.seq)
        box.receipt(Receipt(box.epoch, 7, 0), no_frame)
    assert not box.replaced


def test_a_receipt_of_another_journal_frees_nothing_and_stops_publishing() -> None:
    """protocol 3.7: until the node is born for it."""
    box = opened()
    notes = box.receipt(Receipt(box.epoch, 8, 1), no_frame)
    assert [n.name for n in notes] == ["parent.journal_changed"]
    assert box.spooled == 1
    assert box.outdated
    assert box.publish(1_000 * S) == []


def test_first_use_defines_a_number_and_it_is_never_given_to_another() -> None:
    """protocol 2.4."""
    numbering, book = EpochEncoder(), EpochDictionary()
    keys = ["x", "y", "z"]
    first = numbering.encode_step(1, 0, step(release(keys, [2])))
    second = numbering.encode_step(1, 1, step(release(keys, [0, 2])))
    third = numbering.encode_step(1, 2, step(release(keys, [0, 2])))
    for frame in (*first, *second, *third):
        if frame.define is not None:
            book.learn(frame.define)
    assert third[0].define is None
    names = [book.keys[n] for n in third[0].groups[0].sections[0].partials.key]
    assert names == ["x", "z"]
    again = EpochEncoder.restore(numbering.snapshot(), list(numbering.keys), numbering.hints.snapshot().items())
    assert again.encode_step(1, 3, step(release(list(keys), [0, 1])))[0].define is not None
    assert again.keys == {"z": 0, "x": 1, "y": 2}


def test_a_large_step_is_split_and_only_its_last_frame_carries_the_frontier() -> None:
    """protocol 2.1, 2.3."""
    keys = [f"machine={i:05d}" for i in range(20_000)]
    frames = EpochEncoder().encode_step(1, 0, step(release(keys, list(range(20_000))), frontier_us=S))
    assert len(frames) > 5
    promises = [part.frontier_us for frame in frames for part in frame.groups]
    assert promises[-1] == S
    assert set(promises[:-1]) == {None}
    assert sum(len(s.partials) for f in frames for p in f.groups for s in p.sections) == 20_000
    assert MAX_FRAME_BYTES == 128 * 1024


def test_an_epoch_without_room_for_the_keys_says_so_before_it_numbers_anything() -> None:
    """protocol 2.4: after 2^16 keys a new epoch begins."""
    numbering = EpochEncoder()
    keys = [str(i) for i in range(MAX_KEYS + 1)]
    numbering.encode_step(1, 0, step(release(keys, list(range(MAX_KEYS)))))
    with pytest.raises(KeysExhausted):
        numbering.encode_step(1, 1, step(release(keys, [MAX_KEYS])))
    assert len(numbering.keys) == MAX_KEYS


def test_frames_of_a_spool_whose_slots_are_lost_are_sent_before_a_birth_that_says_so() -> None:
    """protocol 1.2: they count once each, as data of an epoch that was declared lost."""
    box = Outbox("a", Random(1), version="1", in_flight=9, lost=True)
    box.take_over((SpooledFrame(5, 3, True), SpooledFrame(5, 4, False)))
    box.journal = 7
    box.draw()
    (birth,) = box.open(Step((GroupStep(GROUP, None, leaves=(Leaf("a", box.epoch),)),)))
    assert birth.birth is not None
    assert birth.birth.predecessor == LOST
    box.link(up=True)
    box.marks()
    box.committed()
    assert [(p.epoch, p.seq) for p in box.publish(0)] == [(5, 3), (5, 4), (box.epoch, 0)]
    box.receipt(Receipt(5, 7, 5), no_frame)
    assert box.take_forgotten() == [(5, 3), (5, 4)]


def test_a_former_parent_whose_journal_was_not_known_has_not_lost_it_when_it_answers() -> None:
    """protocol 1.5: the slots were lost, and with them for which journal the frames were."""
    box = Outbox("a", Random(1), version="1", lost=True)
    box.parent = "region-1"
    box.take_over((SpooledFrame(5, 3, True), SpooledFrame(5, 4, False)))
    assert box.end_line("region-2", no_frame) is None
    assert box.former_lines.waiting() == {"region-1": 2}
    for _ in range(2 * OTHER_JOURNALS):
        box.receipt(Receipt(5, 99, 0), no_frame)
    assert box.lost_lines == []
    box.receipt(Receipt(5, 99, 4), no_frame)
    assert box.take_forgotten() == [(5, 3)]


def test_a_late_answer_to_the_question_to_another_parent_is_not_of_the_present_one() -> None:
    """protocol 1.5, 3.7: nothing was sent to the first one, so the epoch goes to the second one as it is."""
    box = opened(journal=None)
    box.several, box.parent, asked = True, "region-1", box.ask_epoch
    assert box.end_line("region-2", no_frame) is None
    box.receipt(Receipt(asked, 99, 0), no_frame)
    assert box.journal is None
    box.receipt(Receipt(box.ask_epoch, 7, 0), no_frame)
    assert box.journal == 7


def test_frames_that_have_still_to_move_are_gone_with_the_journal_to_which_they_were_to_go() -> None:
    """protocol 3.7: they are declared in doubt, and in no spool any more."""
    box, spool = opened(), dict[tuple[int, int], Frame]()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    for second in range(5):
        spool |= {(f.epoch, f.seq): f for f in box.put(step(release(["x"], [0]), frontier_us=second * S))}
    moving = {*spool}

    def load(*key: int) -> Frame:
        return spool[key[0], key[1]]

    for journal in (8, 9):
        box.receipt(Receipt(0, journal, 0), load)
        box.take_forgotten()
        joined = box.join_journal(load, {}, {})
        if journal == 8:
            assert (joined.begins, joined.gaps, box.take_forgotten()) == (True, (), [])
            box.draw(anew=True)
            spool.update({(f.epoch, f.seq): f for f in box.open(Step())})
    assert {*box.take_forgotten()} >= moving
    assert sum(gap.readings for frame in joined.frames for gap in frame.gaps if gap.readings > 0) == 5


def test_an_epoch_that_goes_to_a_new_journal_as_it_is_says_nothing_of_the_former_one() -> None:
    """protocol 1.2, 1.3, 3.7: it follows the record of what is in doubt, and its other frames wait behind it."""
    box, spool = opened(), dict[tuple[int, int], Frame]()
    published = box.epoch
    for frame in box.put(step(release(["x"], [0]), frontier_us=S)) + box.flush(step(release(["x"], [0]))):
        spool[frame.epoch, frame.seq] = frame
    box.marks()
    box.committed()
    box.draw()
    unsent = [*box.open(Step((GroupStep(GROUP, S, leaves=(Leaf("a", box.epoch),)),)))]
    unsent += box.put(step(release(["x"], [0]), frontier_us=2 * S))
    spool |= {(frame.epoch, frame.seq): frame for frame in unsent}
    assert unsent[0].birth is not None
    assert (unsent[0].birth.flush, unsent[0].birth.held) == (1, (published,))
    box.receipt(Receipt(0, 8, 0), no_frame)
    joined = box.join_journal(lambda *key: spool[key[0], key[1]], {GROUP: S}, {GROUP: ("a",)})
    last = joined.frames[-1]
    (birth,) = box.take_replaced()
    assert birth.birth is not None
    before = last.epoch, last.seq
    assert (birth.birth.journal, birth.birth.predecessor) == (8, before)
    assert (birth.birth.flush, birth.birth.held) == (None, None)
    assert box.snapshot().births[box.epoch].predecessor == before
    waiting = [(frame.epoch, frame.seq) for frame in (*joined.frames, *unsent)]
    assert list(box.pending) == waiting


def test_a_leaf_that_has_moved_since_a_merger_moved_is_listed_with_its_own_move() -> None:
    """protocol 1.5"""
    box = outbox()
    box.moved_from = 5, {GROUP: {"x": Leaf("x", 1)}}
    assert box.as_moved(GROUP, Leaf("x", 1)) == Leaf("x", 1, 5)
    assert box.as_moved(GROUP, Leaf("x", 2, 9)) == Leaf("x", 2, 9)
    assert box.as_moved(GROUP, Leaf("y", 3)) == Leaf("y", 3)


def test_a_loss_that_is_accepted_leaves_the_move_before_it_as_it_was() -> None:
    """protocol 1.5: the leaves are listed with the epoch that the parent before has."""
    box, listed = opened(), {GROUP: {"x": Leaf("x", 1)}}
    for parent, epoch in (("A", 5), ("B", 6)):
        box.former_lines.lines[parent] = FormerLine(epoch, (epoch, 3))
    box.moved_from, box.lost_lines = (6, listed), ["A", "B"]
    box.accept_loss("B", {}, {}, no_frame)
    assert (box.moved_from, box.lost_lines) == ((5, listed), ["A"])
    box.accept_loss("A", {}, {}, no_frame)
    assert (box.moved_from, box.lost_lines) == ((0, {}), [])


def test_a_parent_that_quarantines_what_it_has_receipted_asks_once_for_all_to_be_stated_again() -> None:
    """protocol 2.4: numbers of this epoch may be undefined there; a frame that still waits is not receipted."""
    box = opened()
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    first = box.epoch
    assert not box.asked_anew(Receipt(first, 7, 1, quarantined=(1,))), "it is on its way"
    box.receipt(Receipt(first, 7, 2), no_frame)
    assert not box.asked_anew(Receipt(first, 8, 2, quarantined=(0,))), "of another journal"
    assert box.asked_anew(Receipt(first, 7, 2, quarantined=(0, 1)))
    assert not box.asked_anew(Receipt(first, 7, 2, quarantined=(0, 1)))
    box.draw()
    box.open(Step())
    box.marks()
    assert not box.asked_anew(Receipt(first, 7, 2, quarantined=(0, 1))), "of an epoch that has ended"
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    assert box.asked_anew(Receipt(box.epoch, 7, 1, quarantined=(0,))), "seq 0 of the epoch before is another frame"


def test_a_birth_names_the_flush_before_it() -> None:
    """protocol 1.2, 1.3: by this the parent recognises a copy that was restored."""
    box = opened()
    box.put(step(release(["x"], [0])))
    after = box.seq - 1
    box.flush(step(release(["x"], [0])))
    box.draw()
    (birth,) = box.open(Step())
    assert birth.birth is not None
    assert (birth.birth.flush, birth.birth.predecessor) == (after, (box.former[0], after + 1))


def test_of_epochs_whose_frames_are_all_receipted_nothing_is_stored() -> None:
    """protocol 3.3: a node that starts again and again writes each commit no more than before."""
    box = opened()
    for _ in range(50):
        box.receipt(Receipt(box.epoch, 7, box.seq), no_frame)
        box.draw()
        box.open(Step())
        box.marks()
        box.committed()
    assert len(box.snapshot().births) <= 2


def test_a_full_disk_lets_frames_of_earlier_commits_go_and_be_marked_but_none_of_the_commit_under_way() -> None:
    """protocol 3.1, 3.3: what is published is committed, and marked as sent before."""
    box = opened()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    box.take_forgotten()
    box.link(up=False)
    box.put(step(release(["x"], [0])))
    assert box.marks() == []
    box.committed()
    box.put(step(release(["x"], [0])))  # in the commit that the disk refuses
    box.link(up=True)
    assert box.publish(0) == []
    assert box.relieve() == Relieve((), ((box.epoch, 1),))
    assert box.relieve() is None
    assert box.publish(0) == []
    box.relieved([(box.epoch, 1)])
    assert box.publish(0) == [Publish(box.epoch, 1)]
    box.receipt(Receipt(box.epoch, 7, 2), no_frame)
    assert box.relieve() == Relieve(((box.epoch, 1),), ())
    assert box.publish(10 * RESEND_US) == []
    box.marks()
    box.committed()
    assert box.publish(10 * RESEND_US) == [Publish(box.epoch, 2)]


def test_births_of_a_spool_that_wait_for_a_journal_are_completed_after_a_restart_too() -> None:
    """protocol 1.2, 3.7: a parent discards an epoch whose birth names no journal of it."""
    before = opened(journal=None)
    birth = before.births[before.epoch]
    box = outbox(journal=None)
    box.restore(before.snapshot(), before.encoder, (SpooledFrame(birth.epoch, 0, False, birth),))
    box.link(up=True)
    box.receipt(Receipt(0, 99, 0), no_frame)
    assert box.publish(0) == []
    (completed,) = box.learnt_journal()
    assert completed.birth is not None
    assert (completed.epoch, completed.birth.journal) == (birth.epoch, 99)


def test_a_full_disk_lets_no_birth_go_that_the_spool_has_without_a_journal() -> None:
    """protocol 1.2, 3.1: the frame that completes it is in the commit that the disk refuses."""
    box = opened(journal=None)
    box.receipt(Receipt(0, 99, 0), no_frame)
    assert box.relieve() is None
    box.link(up=False)
    assert len(box.learnt_journal()) == 1
    assert box.marks() == []
    box.link(up=True)
    assert box.relieve() is None
    box.committed()
    assert box.relieve() == Relieve((), ((box.epoch, 0),))


def test_a_frame_is_not_sent_while_a_gap_record_takes_its_place() -> None:
    """protocol 3.1, 3.5: the spool still has the frame, whose readings would count although they are declared lost."""
    box = opened()
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    box.damaged(box.epoch, 1)
    (record,) = box.take_replaced()
    assert (record.seq, record.readings) == (1, 0)
    assert box.publish(0) == [Publish(box.epoch, 0)]
    box.committed()
    assert box.publish(0) == [Publish(box.epoch, 1)]


def test_a_full_disk_does_not_let_a_frame_go_that_a_record_of_the_commit_under_way_replaces() -> None:
    """protocol 3.5: its receipt would delete the record, and with it the frames behind that it stands for."""
    box = opened()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    box.take_forgotten()
    box.link(up=False)
    spooled = {(f.epoch, f.seq): f for _ in range(3) for f in box.put(step(release(["x"], [0])))}
    box.committed()
    box.drop(2, lambda *key: decoded(spooled[key]))
    (record,) = box.take_replaced()
    assert [gap.run for gap in record.gaps] == [3]
    box.link(up=True)
    relief = box.relieve()
    assert relief is not None
    assert relief.mark_sent == ()


def decoded(frame: Frame) -> Frame:
    found = decode(encode(frame))
    assert isinstance(found, Frame)
    return found


def test_a_full_disk_lets_nothing_go_of_an_epoch_that_declares_losses_and_is_not_in_the_spool_yet() -> None:
    """protocol 3.1, 3.7"""
    box = opened()
    box.link(up=False)
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    box.take_forgotten()
    box.put(step(release(["x"], [0])))
    box.committed()
    box.open_ahead((Gap((GROUP,), 0, S, -1, (), "lost"),))
    assert box.marks() == []
    box.link(up=True)
    assert box.relieve() is None


@pytest.mark.parametrize("why", ["frames move", "another journal"])
def test_a_heartbeat_promises_nothing_while_earlier_rows_have_still_to_come(why: str) -> None:
    """protocol 1.5, 3.7: frames that move into an epoch lie below what the node has promised before."""
    box = opened()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    beat = box.beat(10 * S, S, {GROUP: 5 * S})
    assert beat is not None
    assert (beat.last_seq, beat.frontiers) == (0, ((0, 5 * S),))
    if why == "frames move":
        box.leaving = 1
    else:
        box.receipt(Receipt(box.epoch, 8, 0), no_frame)
    beat = box.beat(20 * S, S, {GROUP: 5 * S})
    assert beat is not None
    assert (beat.last_seq, beat.frontiers) == (-1, ())


def test_a_heartbeat_does_not_promise_for_groups_whose_open_sessions_cannot_be_sent() -> None:
    """protocol 5.2"""
    box = opened()
    box.withheld = frozenset((GROUP,))
    beat = box.beat(10 * S, S, {GROUP: 5 * S})
    assert beat is not None
    assert (beat.last_seq, beat.frontiers) == (0, ())


def test_receipts_of_a_former_journal_are_counted_in_a_row_only() -> None:
    """protocol 3.7: late ones come one by one; a parent that was restored from a copy sends nothing else."""
    box = opened()
    box.left = [5]
    for _ in range(3):
        for _ in range(OLD_RECEIPTS - 1):
            assert box.receipt(Receipt(box.epoch, 5, 0), no_frame) == []
        box.receipt(Receipt(box.epoch, 7, 0), no_frame)
    assert (box.journal, box.outdated) == (7, False)
    for _ in range(OLD_RECEIPTS):
        box.receipt(Receipt(box.epoch, 5, 0), no_frame)
    assert (box.journal, box.outdated) == (5, True)


def test_of_the_journals_that_a_parent_had_the_last_ones_are_remembered() -> None:
    """protocol 3.7"""
    box = opened()
    for journal in range(100, 100 + 3 * KEPT_JOURNALS):
        box.receipt(Receipt(box.epoch, journal, 0), no_frame)
    assert box.left == list(range(100 + 2 * KEPT_JOURNALS - 1, 100 + 3 * KEPT_JOURNALS - 1))


def test_the_numbers_of_an_ended_epoch_are_forgotten_with_its_last_frame() -> None:
    """protocol 2.4: it may have many keys."""
    box = opened()
    old = box.epoch
    box.draw()
    box.open(Step())
    box.marks()
    box.committed()
    box.receipt(Receipt(box.epoch, 7, 1), no_frame)
    box.take_forgotten()
    assert box.former[0] == old
    box.receipt(Receipt(old, 7, 1), no_frame)
    box.take_forgotten()
    assert box.former == (0, box.encoder)


def test_a_former_parent_has_lost_its_journal_once_it_names_another_several_times_in_a_row() -> None:
    """protocol 1.5, 3.7: until then, what was sent to it is its own."""
    box = opened()
    box.former_lines.leave("B", 5, (77, 0), [((77, 0), True)], up=True)
    for _ in range(3):
        for _ in range(OTHER_JOURNALS - 1):
            assert box.receipt(Receipt(77, 6, 0), no_frame) == []
        box.receipt(Receipt(77, 5, 0), no_frame)
    assert box.lost_lines == []
    notes = [note.name for _ in range(2 * OTHER_JOURNALS) for note in box.receipt(Receipt(77, 6, 0), no_frame)]
    assert (notes, box.lost_lines) == (["parent.journal_lost"], ["B"])
    box.accept_loss("B", {GROUP: 9 * S}, {GROUP: ("a",)}, Frame)
    assert (box.lost_lines, box.take_forgotten()) == ([], [(77, 0)])
    assert box.spooled == 1


def test_a_damaged_frame_takes_no_place_among_those_in_flight_and_its_record_is_sent_at_once() -> None:
    """protocol 3.5: nobody confirms a publish that did not happen."""
    box = opened()
    for _ in range(2):
        box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    assert len(box.publish(0)) == 3
    for seq in range(3):
        box.damaged(box.epoch, seq)
    box.take_replaced()
    box.committed()
    assert [publish.seq for publish in box.publish(0)] == [0, 1, 2]
    box.receipt(Receipt(box.epoch, 7, 3), no_frame)
    assert box.damaged(box.epoch, 1) == []
    assert (box.take_replaced(), box.spooled) == ([], 0)


def give_up(box: Outbox, epoch: int, frame: Frame) -> int:
    """The parent receipts frame 2 but never frame 1, until that is given up. Returns the time [us]."""
    now_us = 0
    while not box.replaced:
        now_us += 200 * S
        for publish in box.publish(now_us):
            box.sent(publish.epoch, publish.seq)
        box.receipt(Receipt(epoch, 7, 1, ((2, 2),)), lambda _epoch, _seq: decoded(frame))
    return now_us


def test_the_record_of_a_frame_that_is_given_up_keeps_all_but_its_rows() -> None:
    """protocol 3.6: else the parent would expect a leaf that has gone, or not know a number."""
    box = opened()
    group = GroupStep(GROUP, S, (release(["x"], [0]),), leaves=(Leaf("b", 3),), dropped=("c",))
    (frame,) = box.put(Step((group,), ("a definition",)))
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    give_up(box, box.epoch, frame)
    (record,) = box.take_replaced()
    kept = decoded(frame)
    assert frame.readings == 1
    assert (record.readings, record.gaps[0].groups) == (0, (GROUP,))
    assert (record.define, record.members) == (kept.define, kept.members)
    assert [part.frontier_us for part in record.groups] == [S]
    assert {name for change in record.members for name in change.dropped} == {"c"}


def test_a_frame_that_is_given_up_twice_is_still_declared() -> None:
    """protocol 3.6: the record of the record had no rows, and replaced the first one."""
    box = opened()
    frame = box.put(step(release(["x"], [0])))[0]
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    records = []
    for _ in range(2):
        give_up(box, box.epoch, frame)
        (frame,) = box.take_replaced()
        records.append(frame.gaps)
        box.committed()
    assert records[0][-1].readings == 1
    assert records[1] == records[0]


def test_a_frame_that_is_given_up_keeps_the_record_of_one_that_a_child_gave_up() -> None:
    """protocol 3.5, 3.6: it travels up unchanged."""
    box, of_child = opened(), Gap((GROUP,), S, 2 * S, 3, ("b",), "poison")
    frame = box.put(Step(step(release(["x"], [0])).groups, gaps=(of_child,)))[0]
    box.put(step(release(["x"], [0])))
    box.marks()
    box.committed()
    give_up(box, box.epoch, frame)
    (record,) = box.take_replaced()
    assert [(gap.nodes, gap.readings) for gap in record.gaps] == [(("b",), 3), ((), 1)]


def test_a_frame_of_an_earlier_epoch_that_is_given_up_is_declared_for_all_groups() -> None:
    """protocol 3.6: the numbers of groups in it are not known any more."""
    box, other = opened(), Group("other", "", (), 0)
    old, frame = box.epoch, box.put(step(release(["x"], [0])))[0]
    box.put(step(release(["x"], [0])))
    box.draw()
    box.open(Step(tuple(GroupStep(group, None, leaves=(Leaf("a", box.epoch),)) for group in (other, GROUP))))
    box.marks()
    box.committed()
    now_us = give_up(box, old, frame)
    (record,) = box.take_replaced()
    assert (record.epoch, record.seq, record.gaps[0].groups) == (old, 1, (other, GROUP))
    box.committed()
    box.receipt(Receipt(old, 7, 1, ((2, 2),)), no_frame)
    assert not box.replaced
    assert Publish(old, 1) in box.publish(now_us)  # the record has not been sent yet


def test_a_node_that_moves_has_no_frame_of_the_former_line_in_flight() -> None:
    """protocol 1.5"""
    box = opened()
    box.put(step(release(["x"], [0])))
    assert len(box.publish(0)) == 1
    line = box.end_line("B", no_frame)
    assert line is not None
    box.check()
