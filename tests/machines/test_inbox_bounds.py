"""What an inbox keeps of a child has a bound, and what has ended is forgotten."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import LOST, Birth, Define, Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink import inbox as inbox_module
from edge_agent.machines.downlink.epochs import ended_epochs, waiting_frames
from edge_agent.machines.downlink.epochs.ended_epochs import UNDER_WAY
from edge_agent.machines.downlink.epochs.epoch_frames import (
    RECEIPT_QUARANTINED,
)
from edge_agent.machines.downlink.epochs.waiting_frames import WaitingFrames
from edge_agent.machines.downlink.inbox import MOST_LINES, Inbox
from edge_agent.machines.events import BadFrame
from tests.support.machines.inbox_frames import JOURNAL, applied, born, flush, lost_past, restarted, seqs


def test_frames_of_an_epoch_that_has_ended_never_count_again_however_many_came_since() -> None:
    """protocol 3.4: a crash loop while the parent is away sends all of it again when the receipts are lost."""
    inbox, frames = Inbox(JOURNAL), list[Frame]()
    for epoch in range(1, 200):
        held = tuple(range(1, epoch))
        predecessor = (epoch - 1, 2) if epoch > 1 else None
        frames += [Frame(epoch, 0, Birth(epoch << 32, JOURNAL, predecessor, "1", held=held))]
        frames += [Frame(epoch, 1), flush(epoch, 2, 1)]
    for frame in frames:
        assert applied(inbox, frame) == [(frame.epoch, frame.seq)]
    inbox = restarted(inbox)
    for frame in frames:
        for again in (frame, BadFrame(frame.epoch, frame.seq, "a copy that was damaged on its way", b"")):
            assert applied(inbox, again) == []
        assert inbox.receipt("a", frame.epoch).upto == 3
    assert len(inbox.epochs) == 1


def test_an_epoch_is_forgotten_once_its_node_can_no_longer_send_it() -> None:
    """protocol 3.4: its birth says which ones it still holds; copies of others may be under way for a while."""
    inbox = Inbox(JOURNAL)
    for epoch in range(1, UNDER_WAY + 200):
        predecessor = (epoch - 1, 0) if epoch > 1 else None
        held = tuple(e for e in (5, epoch - 1) if e < epoch)
        inbox.take("a", Frame(epoch, 0, Birth(epoch << 32, JOURNAL, predecessor, "1", held=held)))
    assert len(inbox.ended.of["a"]) == UNDER_WAY + 1
    assert 5 in inbox.ended.of["a"]
    assert 6 not in inbox.ended.of["a"]


def test_frames_that_wait_have_a_bound_and_what_takes_effect_at_once_needs_no_room() -> None:
    """protocol 2.2: beyond it a frame is neither stored nor receipted; it is sent again."""
    inbox = Inbox(JOURNAL)
    inbox.waiting = WaitingFrames(most_frames=3)
    seqs(inbox, "a", born(1))
    for seq in (2, 3, 4, 5, 6):
        assert seqs(inbox, "a", Frame(1, seq)) == []
    assert inbox.receipt("a", 1).above == ((2, 4),)
    assert inbox.refused == 2
    assert seqs(inbox, "b", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 6))) == []
    assert not inbox.known("a", 2)
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert seqs(inbox, "a", Frame(1, 5)) == [(1, 5)]
    assert seqs(inbox, "a", born(2, (1, 6))) == []
    assert seqs(inbox, "a", Frame(1, 6)) == [(1, 6), (2, 0)]


def test_large_frames_and_many_epochs_without_a_birth_have_a_bound() -> None:
    """protocol 2.2, 3.4."""
    inbox = Inbox(JOURNAL)
    inbox.waiting = WaitingFrames(most_bytes=10_000)
    for seq in range(2, 40):
        inbox.take("a", BadFrame(1, seq, "not CBOR", b"x" * 1_000))
    assert len(inbox.epochs[EpochKey("a", 1)].waiting) == 7
    inbox = Inbox(JOURNAL)
    for epoch in range(MOST_LINES + 50):
        inbox.take("a", Frame(epoch, 1))
    assert len(inbox.epochs) == MOST_LINES
    assert inbox.refused == 50
    inbox.take("a", Frame(5, 2))
    assert inbox.refused == 50, "it opens no epoch"


def test_a_long_flush_and_a_long_birth_need_no_more_room_than_there_is() -> None:
    """protocol 1.2, 1.3, 2.2: what waits is bounded, and still all of it takes effect."""
    frames = [born(1), *(flush(1, seq, 0) for seq in range(1, 30))]
    frames += [Frame(2, 0, Birth(2 << 32, JOURNAL, (1, 29), "1", frames=30)), *(Frame(2, seq) for seq in range(1, 30))]
    inbox = Inbox(JOURNAL)
    inbox.waiting = WaitingFrames(most_frames=4)
    seen: list[tuple[int, int]] = []
    for _ in range(70):  # sent again until there is a receipt
        for frame in reversed(frames):
            if not inbox.received("a", frame.epoch, frame.seq):
                seen += seqs(inbox, "a", frame)
    assert seen == [(frame.epoch, frame.seq) for frame in frames]


def test_a_child_of_which_frames_wait_keeps_its_epochs_when_it_is_retired() -> None:
    """protocol 1.5, 8.4: what they contain would otherwise be taken for duplicates."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert not inbox.retire("a")
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (1, 2)]
    assert inbox.retire("a")
    assert (inbox.current, inbox.epochs, inbox.spoke_us) == ({}, {}, {})


def test_a_birth_that_lists_many_epochs_does_not_make_its_parent_keep_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2"""
    monkeypatch.setattr(inbox_module, "MOST_LOST", 5)
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    birth = Birth(99 << 32, JOURNAL, LOST, "1", held=tuple(range(10, 40)))
    assert seqs(inbox, "a", Frame(99, 0, birth)) == [(99, 0)]
    assert len(inbox.epochs) <= 7


def test_frames_that_wait_take_their_room_also_after_a_restart() -> None:
    """protocol 2.2"""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 2), Frame(1, 3)):
        inbox.take("a", frame)
    again = restarted(inbox)
    again.waiting.most_frames = 3
    for seq in (4, 5):
        assert seqs(again, "a", Frame(1, seq)) == []
    assert again.receipt("a", 1).above == ((2, 4),)
    assert again.refused == 1


def test_losses_that_are_declared_of_epochs_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2: what a child names in heartbeats and births may be settled as lost."""
    monkeypatch.setattr(inbox_module, "MOST_EPOCHS", 5)
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    for epoch in range(2, 20):
        inbox.take("a", BadFrame(epoch, 1, "lost", b"", 1))
    assert len(inbox.epochs) == 5
    assert not inbox.known("a", 15), "at a merger it comes again, and is no duplicate then"
    assert seqs(inbox, "a", BadFrame(1, 1, "lost", b"", 1)) == [(1, 1)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_frame_with_unknown_numbers_gives_way_when_no_frame_that_defines_them_has_room(lost: bool) -> None:
    """protocol 2.2, 2.4: else its child would send what is refused for ever. A lost epoch has no order."""
    inbox = Inbox(JOURNAL, explains=lambda key, frame, ahead: key.epoch != 1 or frame.seq == 0)
    inbox.waiting = WaitingFrames(most_frames=3)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (1, 2, 3)] == [[], [], []]
    if lost:
        assert seqs(inbox, "a", lost_past(2, 1)) == [(2, 0)]
    assert seqs(inbox, "a", Frame(1, 4)) == ([] if lost else [(1, 1), (1, 2), (1, 3)])
    assert inbox.refused == 1


def test_epochs_that_have_ended_do_not_begin_again_because_a_birth_lists_them() -> None:
    """protocol 1.2, 3.4"""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 0))) == [(2, 0)]
    assert seqs(inbox, "a", lost_past(9, 1, 2)) == [(9, 0)]
    assert EpochKey("a", 1) not in inbox.epochs


def test_what_is_remembered_of_bad_frames_and_of_those_of_another_line_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 3.4"""
    monkeypatch.setattr(ended_epochs, "MOST_CONTESTED", 5)
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    for seq in range(1, 100):
        inbox.take("a", BadFrame(1, seq, "bad", b""))
    newest = tuple(range(100 - RECEIPT_QUARANTINED, 100))
    state = inbox.snapshot(EpochKey("a", 1))
    assert state is not None
    assert (inbox.receipt("a", 1).quarantined, tuple(state.quarantined)) == (newest, newest)
    for seq in range(100, 120):
        inbox.take("a", flush(1, seq, 99))
    assert seqs(inbox, "a", born(2, (1, 119))) == [(2, 0)]
    declared = [each for seq in range(100, 120) for each in inbox.take("a", Frame(1, seq))]
    assert len(declared) == 5


def test_births_that_name_each_other_end_no_process() -> None:
    """protocol 1.2: a hostile child, or two devices."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    for epoch, before in ((5, 6), (6, 5)):
        assert seqs(inbox, "a", born(epoch, (before, 0))) == []
    assert (9, 0) in seqs(inbox, "a", lost_past(9, 5, 6))


def test_a_birth_of_any_size_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2"""
    monkeypatch.setattr(waiting_frames, "MOST_BIRTH_BYTES", 5_000)
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", Frame(1, 0, Birth(1 << 32, JOURNAL, None, "1", frames=100))) == []
    for seq in range(2, 100):
        inbox.take("a", Frame(1, seq, define=Define(keys=(seq, ("k" * 500,)))))
    assert len(inbox.epochs[EpochKey("a", 1)].waiting) < 10
    assert inbox.refused > 80


def test_births_that_name_frames_which_nobody_has_open_no_epochs_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2, 3.4: at the root, where nobody sends them again."""
    monkeypatch.setattr(inbox_module, "MOST_EPOCHS", 3)
    inbox = Inbox(JOURNAL, bounded=False)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    for epoch in range(2, 20):
        inbox.take("a", born(epoch, (1, 5)))
    assert len(inbox.epochs) == 3
    assert inbox.forgotten == 16
    inbox.take("a", Frame(30, 0, Birth(30 << 32, JOURNAL, (1, 0), "1", frames=2)))
    assert (len(inbox.epochs), inbox.forgotten) == (3, 17), "its other frame may never come"


def test_a_birth_that_waits_opens_no_epoch_too_many_and_one_that_has_begun_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 1.2, 2.2"""
    monkeypatch.setattr(inbox_module, "MOST_EPOCHS", 2)
    inbox, birth = Inbox(JOURNAL), Frame(2, 0, Birth(2 << 32, JOURNAL, (1, 0), "1", frames=2))
    assert [seqs(inbox, "a", frame) for frame in (born(1), birth)] == [[(1, 0)], []]
    assert seqs(inbox, "a", Frame(6, 0, Birth(6 << 32, JOURNAL, (1, 0), "1", frames=2))) == []
    assert not inbox.known("a", 6)
    assert seqs(inbox, "a", Frame(2, 1)) == [(2, 0), (2, 1)]


def test_a_birth_that_ends_another_epoch_or_all_older_ones_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2, 2.2: else a child with many epochs would never go on."""
    monkeypatch.setattr(inbox_module, "MOST_EPOCHS", 3)
    inbox = Inbox(JOURNAL, bounded=False)
    assert [seqs(inbox, "a", frame) for frame in (born(1), Frame(5, 1), Frame(6, 1))] == [[(1, 0)], [], []]
    assert seqs(inbox, "a", born(7, (1, 0))) == [(7, 0)]
    assert applied(inbox, born(8)) == []
    assert 8 in inbox.ended.of["a"], "one more, which may never take effect"
    assert applied(inbox, lost_past(9)) == [(9, 0)]
