"""Dedupe, order and receipts (docs/protocol.md 1 to 3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import LOST, Birth, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.received_seqs import ReceivedSeqs
from edge_agent.machines.events import BadFrame

JOURNAL = 77
GROUP = Group("boiler", "", (), 0)


def born(epoch: int, predecessor: tuple[int, int] | str | None = None, journal: int = JOURNAL) -> Frame:
    return Frame(epoch, 0, Birth(epoch << 32, journal, predecessor, "1"))


def seqs(inbox: Inbox, node: str, message: Frame | BadFrame) -> list[tuple[int, int]]:
    effects = inbox.take(node, message)
    inbox.check()
    return [(e.epoch, e.seq) for e in effects]


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
    assert seqs(inbox, "a", Frame(1, 3)) == []


def test_frames_of_an_epoch_declared_lost_still_apply_once_for_their_data() -> None:
    """protocol 1.2."""
    inbox = Inbox(JOURNAL)
    seqs(inbox, "a", born(1))
    seqs(inbox, "a", Frame(1, 2))
    effects = inbox.take("a", born(2, LOST))
    assert [(e.epoch, e.seq, e.stale) for e in effects] == [(1, 2, True), (2, 0, False)]
    later = inbox.take("a", Frame(1, 1))
    assert [(e.epoch, e.seq, e.stale) for e in later] == [(1, 1, True)]
    assert inbox.take("a", Frame(1, 2)) == []


def test_a_birth_for_another_journal_is_discarded() -> None:
    """protocol 1.2, 3.7."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1, journal=5)) == []
    assert not inbox.known("a", 1)


def test_a_flush_below_frames_that_are_here_is_dropped_whole() -> None:
    """protocol 1.3: so a restored card adds nothing twice."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 1), Frame(1, 2)):
        seqs(inbox, "a", frame)
    effects = inbox.take("a", Frame(1, 3, flush=1))
    assert [(e.frame, bool(e.why)) for e in effects] == [(None, True)]
    ok = inbox.take("a", Frame(1, 4, flush=3))
    assert [e.frame is not None for e in ok] == [True]


def test_a_bad_body_is_settled_receipted_and_does_not_stop_the_line() -> None:
    """protocol 3.6."""
    inbox = Inbox(JOURNAL)
    seqs(inbox, "a", born(1))
    effects = inbox.take("a", BadFrame(1, 1, "not CBOR", b"x"))
    assert [(e.frame, e.why) for e in effects] == [(None, "not CBOR")]
    assert inbox.receipt("a", 1).upto == 2
    assert inbox.receipt("a", 1).quarantined == (1,)
    assert seqs(inbox, "a", Frame(1, 2)) == [(1, 2)]


def test_one_gap_record_may_stand_for_a_run_of_frames() -> None:
    """protocol 3.5."""
    inbox = Inbox(JOURNAL)
    seqs(inbox, "a", born(1))
    assert seqs(inbox, "a", Frame(1, 4)) == []
    run = Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 9, (), "quota", run=3),))
    assert seqs(inbox, "a", run) == [(1, 1), (1, 4)]
    assert inbox.receipt("a", 1).upto == 5


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


def restarted(inbox: Inbox) -> Inbox:
    fresh = Inbox(inbox.journal)
    for key, line in inbox.epochs.items():
        state = inbox.snapshot(key)
        assert state is not None
        fresh.restore(key, state, {s: replace(f) for s, f in line.waiting.items()})
    return fresh


def test_two_devices_with_one_name_are_noticed() -> None:
    """protocol 1.4: named here, set apart later."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 1), born(2), Frame(2, 1)):
        seqs(inbox, "a", frame)
    assert not inbox.rivals
    seqs(inbox, "a", Frame(1, 2))
    assert inbox.rivals == {"a": (1, 2)}


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
