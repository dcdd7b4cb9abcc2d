"""Dedupe, order and receipts (docs/protocol.md 1 to 3)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import LOST, Birth, Define, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import (
    SECOND_LINE,
)
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedSeqs
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame
from tests.support.machines.inbox_frames import GROUP, JOURNAL, born, count_waiting, flush, restarted, seqs


def test_frames_take_effect_in_order_and_those_ahead_count_as_received() -> None:
    """protocol 2.2, 3.2."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert inbox.receipt("a", 1).upto == 1
    assert inbox.receipt("a", 1).above == ((2, 2),)
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (1, 2)]
    assert inbox.receipt("a", 1).upto == 3
    assert inbox.receipt("a", 1).above == ()


def test_a_duplicate_takes_effect_once_whatever_its_content() -> None:
    """protocol 1.1: (node, epoch, seq) is the identity, nothing else."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    gap = Gap((GROUP,), 0, 1, 1, (), "quota")
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1)]
    assert seqs(inbox, "a", Frame(1, 1, gaps=(gap,))) == []
    assert seqs(inbox, "b", born(1)) == [(1, 0)]


def test_a_birth_waits_for_the_predecessor_it_names_and_for_no_other() -> None:
    """protocol 1.2."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 2))) == []
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (1, 2), (2, 0)]
    assert inbox.current["a"] == 2
    (other,) = inbox.take("a", Frame(1, 3))  # of another line: without content
    assert (other.frame, other.why) == (None, SECOND_LINE)


def test_a_birth_for_another_journal_is_discarded() -> None:
    """protocol 1.2, 3.7."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1, journal=5)) == []
    assert not inbox.known("a", 1)


def test_births_that_wait_for_a_former_journal_are_discarded_with_it() -> None:
    """protocol 1.2, 3.7, 3.8: their node sends others for the new one; its frames that wait are of the same epoch."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 5))) == []
    assert seqs(inbox, "a", Frame(2, 1)) == []
    inbox.change_journal(JOURNAL + 1)
    count_waiting(inbox)
    receipt = inbox.receipt("a", 2)
    assert (receipt.journal, receipt.upto, receipt.above) == (JOURNAL + 1, 0, ((1, 1),))
    assert seqs(inbox, "a", born(2, (1, 0))) == [], "for the former one"
    assert seqs(inbox, "a", born(2, (1, 0), JOURNAL + 1)) == [(2, 0), (2, 1)]


def test_frames_of_a_discarded_birth_do_not_count_when_their_line_is_lost() -> None:
    """protocol 1.2: they may be for the former journal, whose content the parent has."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), born(2, (1, 5)), Frame(2, 1)):
        inbox.take("a", frame)
    inbox.change_journal(JOURNAL + 1)
    assert seqs(inbox, "a", Frame(9, 0, Birth(9 << 32, JOURNAL + 1, LOST, "1", held=(2,)))) == [(9, 0)]


def test_a_receipt_of_an_unknown_epoch_tells_the_journal() -> None:
    """protocol 3.7: a child learns the journal before it publishes anything."""
    receipt = Inbox(JOURNAL).receipt("a", 9)
    assert (receipt.journal, receipt.upto, receipt.above) == (JOURNAL, 0, ())


@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=12), st.integers(0, 12))
def test_any_order_and_any_duplicates_apply_every_frame_once_in_order(
    order: list[int], again: list[int], cut: int
) -> None:
    """protocol 2.2, 3.4; and a restart in the middle changes nothing."""
    frames = [born(1), *(Frame(1, s) for s in range(1, 6)), born(2, (1, 5)), *(Frame(2, s) for s in range(1, 6))]
    inbox = Inbox(JOURNAL)
    seen: list[tuple[int, int]] = []
    for i, n in enumerate([*order, *again]):
        if i == cut:
            inbox = restarted(inbox)
        seen += seqs(inbox, "a", frames[n])
    assert seen == [(f.epoch, f.seq) for f in frames]
    assert inbox.receipt("a", 2).upto == 6


def test_a_birth_of_several_frames_takes_effect_when_all_are_here() -> None:
    """protocol 1.2: nobody decides in between."""
    inbox = Inbox(JOURNAL)
    first = Frame(1, 0, Birth(1 << 32, JOURNAL, None, "1", frames=3))
    assert seqs(inbox, "a", first) == []
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert inbox.receipt("a", 1).above == ((2, 2),)
    inbox = restarted(inbox)
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 0), (1, 1), (1, 2)]


def test_a_receipt_joins_neighbours_and_what_continues_the_prefix() -> None:
    """protocol 3.2."""
    received = ReceivedSeqs()
    assert received.receipt() == (0, ())
    for seq in (1, 2, 3, 7, 9, 10):
        received.add(seq)
    assert received.receipt() == (0, ((1, 3), (7, 7), (9, 10)))
    assert received.receipt([0]) == (4, ((7, 7), (9, 10)))
    received.add(0)
    assert (received.next, received.above) == (4, {7, 9, 10})
    assert [seq for seq in range(12) if seq in received] == [0, 1, 2, 3, 7, 9, 10]


def test_a_birth_that_waits_for_its_predecessor_is_receipted_as_received() -> None:
    """protocol 2.2, 3.2: what is stored counts as received, from the first seq that is missing on."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(2, (1, 0))) == []
    assert seqs(inbox, "a", Frame(2, 1)) == []
    assert seqs(inbox, "a", Frame(2, 3)) == []
    receipt = inbox.receipt("a", 2)
    assert (receipt.upto, receipt.above) == (2, ((3, 3),))


@pytest.mark.parametrize("again", [False, True])
def test_a_frame_with_unknown_numbers_waits_though_it_is_the_next_one(again: bool) -> None:
    """protocol 2.4: its node may define them again; settled as bad, its rows would be lost. again: after a restart."""
    known = set[int]()

    def explains(key: EpochKey, frame: Frame, ahead: object) -> bool:
        return frame.seq in known

    inbox = Inbox(JOURNAL, explains=explains)
    known.add(0)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 1)) == []
    assert inbox.receipt("a", 1).upto == 2
    if again:
        inbox = restarted(inbox)
        inbox._explains = explains
    known.update((1, 2))
    assert seqs(inbox, "a", Frame(1, 2)) == [(1, 1), (1, 2)]


def test_a_frame_whose_numbers_can_come_no_more_ends_its_epoch_at_once() -> None:
    """protocol 2.4: the birth of the next epoch is here, and names no frame that is not."""

    def explains(key: EpochKey, frame: Frame, ahead: object) -> bool:
        return frame.seq == 0

    inbox = Inbox(JOURNAL, explains=explains)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 1))) == []
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (2, 0)]


EPOCHS, SEQS = st.integers(1, 3), st.integers(0, 4)

PREDECESSORS = st.one_of(st.none(), st.just(LOST), st.tuples(EPOCHS, SEQS))

MESSAGES = st.one_of(
    st.builds(Frame, EPOCHS, st.integers(1, 4)),
    st.builds(Frame, EPOCHS, st.integers(1, 4)),
    st.builds(born, EPOCHS, PREDECESSORS),
    st.builds(lambda epoch, seq, after: flush(epoch, max(seq, after + 1), after), EPOCHS, SEQS, st.integers(0, 2)),
    st.builds(lambda epoch, seq, run: BadFrame(epoch, seq, "bad", b"", run), EPOCHS, SEQS, st.integers(0, 2)),
)


@given(st.lists(MESSAGES, max_size=14))
@example([born(1), Frame(1, 1), Frame(1, 2)])
@example([born(1), Frame(1, 1), flush(1, 2, 1), Frame(1, 2)])
@example([born(1), flush(1, 1, 0), born(2, (1, 1)), Frame(1, 1), Frame(1, 2)])
def test_whatever_changes_is_written_with_the_next_commit(messages: list[Frame | BadFrame]) -> None:
    """protocol 3.1, 1.1: else a frame whose rows are stored would count once more after a restart."""
    inbox = Inbox(JOURNAL, silence_us=3)
    epochs: dict[EpochKey, object] = {}
    ended: dict[int, object] = {}
    for now_us, message in enumerate(messages):
        inbox.changed.clear()
        inbox.ended.changed.clear()
        inbox.take("a", message, now_us)
        inbox.check()
        before, epochs = epochs, {key: inbox.snapshot(key) for key in inbox.epochs}
        assert {key for key in {**before, **epochs} if before.get(key) != epochs.get(key)} <= inbox.changed
        flushes = inbox.ended.snapshot_flushes("a") or {}
        known, ended = ended, {each: (upto, flushes.get(each)) for each, upto in inbox.ended.of.get("a", {}).items()}
        assert known == ended or inbox.ended.changed == {"a"}


def test_of_the_epochs_of_a_child_one_is_in_force_after_a_restart_though_a_birth_was_lost() -> None:
    """protocol 1.2, 3.2: the rows of both epochs in the spool must say which."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    inbox.changed.clear()
    assert seqs(inbox, "a", BadFrame(2, 0, "lost", b"", 1)) == [(2, 0)]
    assert inbox.changed == {EpochKey("a", 1), EpochKey("a", 2)}
    again = restarted(inbox)
    assert again.current == {"a": 2}
    assert seqs(again, "a", Frame(2, 1)) == [(2, 1)]


def test_definitions_in_frames_that_wait_are_known_after_a_restart_too() -> None:
    """protocol 2.4"""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 2, define=Define(keys=(0, ("x",))))) == []
    dictionary = EpochDictionary()
    assert restarted(inbox).epochs[EpochKey("a", 1)].ahead.learn(dictionary)
    assert list(dictionary.keys) == ["x"]
