"""Dedupe, order and receipts (docs/protocol.md 1 to 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import LOST, Birth, Define, Flush, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink import inbox as inbox_module
from edge_agent.machines.downlink.epochs import ended_epochs, waiting_frames
from edge_agent.machines.downlink.epochs.ended_epochs import MOST_FLUSHES, UNDER_WAY
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import (
    AFTER_FLUSH,
    ANOTHER_FLUSH,
    MOST_QUARANTINED,
    OTHERS_HERE,
    RECEIPT_QUARANTINED,
    SECOND_LINE,
)
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedSeqs
from edge_agent.machines.downlink.epochs.waiting_frames import WaitingFrames
from edge_agent.machines.downlink.inbox import MOST_LINES, Inbox
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
    (other,) = inbox.take("a", Frame(1, 3))  # of another line: without content
    assert (other.frame, other.why) == (None, SECOND_LINE)


def test_a_device_that_begins_an_epoch_on_the_way_does_not_follow_the_flush_of_its_twin() -> None:
    """protocol 1.4: its birth names no flush, and all the frames that are here."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1, 3)), Frame(1, 3)):
        inbox.take("a", frame, 0)
    assert inbox.take("a", born(2, (1, 3)), 1) == []
    assert inbox.rivals == {"a": (2, 1)}


def test_a_node_that_comes_back_follows_its_leave_behind_a_flush_that_names_an_epoch_for_another_parent() -> None:
    """protocol 1.5, 1.3: that epoch was never sent here. What comes again of the flush is a repeat."""
    inbox = Inbox(JOURNAL, silence_us=60)
    flush = Frame(1, 2, flush=Flush(1, 3))
    for frame in (born(1), Frame(1, 1), flush, Frame(1, 3, leave=4), flush):
        inbox.take("a", frame, 0)
    again = Inbox(JOURNAL, silence_us=60)
    state = inbox.snapshot(EpochKey("a", 1))
    assert state is not None
    again.restore(EpochKey("a", 1), state, {})
    for each in (inbox, again):
        assert each.take("a", flush, 1) == []
        assert [(e.epoch, e.seq) for e in each.take("a", born(2, (1, 3)), 1)] == [(2, 0)]
        assert each.rivals == {}


def test_frames_of_a_second_line_behind_an_epoch_that_has_ended_are_taken_in_their_order() -> None:
    """protocol 1.4, 3.4: one number is kept of it, and one that had come ahead hid those before it."""
    for bounded in (True, False):
        inbox = Inbox(JOURNAL, bounded=bounded)
        for frame in (born(1), Frame(1, 1), born(2, (1, 1))):
            inbox.take("a", frame)
        ahead = inbox.take("a", Frame(1, 3))
        assert [e.why for e in ahead] == ([] if bounded else [SECOND_LINE]), "a lander has receipted it"
        assert inbox.receipt("a", 1).upto == 2
        assert [e.why for e in inbox.take("a", Frame(1, 2))] == [SECOND_LINE]
        assert [e.why for e in inbox.take("a", Frame(1, 3))] == [SECOND_LINE]
        assert inbox.take("a", Frame(1, 3)) == []
        assert inbox.receipt("a", 1).upto == 4


@pytest.mark.parametrize("again", [False, True])
def test_a_frame_of_a_second_device_in_the_place_of_a_flush_is_declared_also_once_the_next_epoch_is_in_force(
    again: bool,
) -> None:
    """protocol 1.3, 1.4: the second device was told that its frame had been received, and forgets it."""
    inbox = Inbox(JOURNAL)
    birth = replace(born(2, (1, 2)), birth=Birth(2 << 32, JOURNAL, (1, 2), "1", flush=1))
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1, 2)), birth):
        inbox.take("a", frame)
    assert EpochKey("a", 1) in inbox.ended
    inbox = restarted(inbox) if again else inbox
    assert inbox.take("a", Frame(1, 2, flush=Flush(1, 2))) == [], "a repeat"
    assert inbox.take("a", Frame(1, 1)) == []
    assert [(e.seq, e.frame, e.why, e.since_us) for e in inbox.take("a", late(1, 2, 5))] == [(2, None, AFTER_FLUSH, 5)]
    inbox = restarted(inbox) if again else inbox
    assert inbox.take("a", late(1, 2, 5)) == [], "once"
    for epoch in range(3, 3 + 2 * MOST_FLUSHES):
        inbox.take("a", Frame(epoch - 1, 1, flush=Flush(0, epoch)))
        inbox.take(
            "a", replace(born(epoch, (epoch - 1, 1)), birth=Birth(epoch << 32, JOURNAL, (epoch - 1, 1), "1", flush=0))
        )
    assert inbox.current["a"] == epoch
    assert len(inbox.ended.flushes["a"]) == MOST_FLUSHES


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
    effects = inbox.take("a", Frame(1, 3, flush=Flush(1)))
    assert [(e.frame, bool(e.why)) for e in effects] == [(None, True)]
    ok = inbox.take("a", Frame(1, 4, flush=Flush(3)))
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
    fresh = Inbox(inbox.journal, silence_us=inbox.silence_us)
    flushes = [(node, found) for node in inbox.ended.of if (found := inbox.ended.snapshot_flushes(node)) is not None]
    fresh.ended.restore(inbox.ended.of.items(), flushes)
    for key, line in inbox.epochs.items():
        state = inbox.snapshot(key)
        assert state is not None
        fresh.restore(key, state, {s: replace(f) for s, f in line.waiting.items()})
    return fresh


def flush(epoch: int, seq: int, after: int) -> Frame:
    return Frame(epoch, seq, flush=Flush(after))


def applied(inbox: Inbox, message: Frame | BadFrame) -> list[tuple[int, int]]:
    """Those with content."""
    effects = inbox.take("a", message)
    inbox.check()
    return [(e.epoch, e.seq) for e in effects if e.frame is not None]


@given(st.permutations(range(7)), st.integers(0, 7), st.booleans())
def test_a_flush_of_several_frames_counts_whole(order: list[int], cut: int, damaged: bool) -> None:
    """protocol 1.3: its own frames do not speak against it, nor a gap record in the place of one; nor does a restart
    of the parent in its middle.
    """
    second = Frame(1, 3, gaps=(Gap((GROUP,), 0, 1, -1, (), "damaged", 1),)) if damaged else flush(1, 3, 1)
    frames = [born(1), Frame(1, 1), flush(1, 2, 1), second, flush(1, 4, 1), born(2, (1, 4)), Frame(2, 1)]
    inbox, seen = Inbox(JOURNAL), list[tuple[int, int]]()
    for i, n in enumerate(order):
        if i == cut:
            inbox = restarted(inbox)
        seen += applied(inbox, frames[n])
    assert seen == [(frame.epoch, frame.seq) for frame in frames]


@given(st.permutations(range(5)), st.integers(0, 5))
def test_of_a_flush_and_later_frames_of_another_line_one_counts_whole(order: list[int], cut: int) -> None:
    """protocol 1.3: a card that was restored adds nothing twice, whatever comes first."""
    frames = [Frame(1, 2), Frame(1, 3), *(flush(1, seq, 0) for seq in (1, 2, 3))]
    inbox = Inbox(JOURNAL)
    inbox.take("a", born(1))
    came: list[bool] = []
    for i, n in enumerate(order):
        if i == cut:
            inbox = restarted(inbox)
        effects = inbox.take("a", frames[n])
        came += [effect.frame.flush is not None for effect in effects if effect.frame is not None]
    assert len(set(came)) <= 1, came


def test_a_birth_of_several_frames_takes_effect_when_all_are_here() -> None:
    """protocol 1.2: nobody decides in between."""
    inbox = Inbox(JOURNAL)
    first = Frame(1, 0, Birth(1 << 32, JOURNAL, None, "1", frames=3))
    assert seqs(inbox, "a", first) == []
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert inbox.receipt("a", 1).above == ((2, 2),)
    inbox = restarted(inbox)
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 0), (1, 1), (1, 2)]


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
        assert applied(inbox, frame) == []
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


def test_of_two_lines_of_one_name_the_newer_one_waits_until_the_first_has_been_silent() -> None:
    """protocol 1.4: two devices; the results of the first stay right."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1)):
        inbox.take("a", frame, 0)
    for now_us in range(10, 200, 10):
        assert inbox.take("a", Frame(2, now_us // 10 - 1) if now_us > 10 else born(2), now_us) == []
        assert [e.seq for e in inbox.take("a", Frame(1, 1 + now_us // 10), now_us + 5)] == [1 + now_us // 10]
    assert inbox.rivals == {"a": (2, 1)}
    inbox.spoke("a", 1, 200)
    assert inbox.look("a", 259) == []
    assert [(e.epoch, e.seq) for e in inbox.look("a", 260)] == [(2, seq) for seq in range(19)]
    assert inbox.restored == {"a"}
    assert inbox.current == {"a": 2}
    late = inbox.take("a", Frame(1, 30), 270)  # the first one speaks again: its data only, and an alarm
    assert [(e.epoch, e.seq, e.stale) for e in late] == [(1, 30, True)]


def test_a_flush_behind_another_flush_of_its_epoch_is_of_another_device() -> None:
    """protocol 1.3, 1.4: a twin's flush came in the place of a frame of the first device."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1))):  # the last one is the twin's
        inbox.take("a", frame, 0)
    # the first device goes on, and is started again behind it
    assert [e.why for e in inbox.take("a", Frame(1, 2), 1)] == [AFTER_FLUSH]
    assert inbox.take("a", Frame(1, 2), 1) == [], "declared once"
    assert [e.frame for e in inbox.take("a", Frame(1, 3, flush=Flush(2)), 2)] == [None], "quarantined, and declared"
    birth = replace(born(2, (1, 3)), birth=Birth(2 << 32, JOURNAL, (1, 3), "1", flush=2))
    assert inbox.take("a", birth, 3) == []
    assert inbox.rivals == {"a": (2, 1)}
    assert [(e.epoch, e.copied) for e in inbox.look("a", 70)] == [(2, True)], "what it reads again counts once"


def late(epoch: int, seq: int, since_us: int) -> Frame:
    """A frame with something that lies before what its node had promised."""
    return Frame(epoch, seq, gaps=(Gap((GROUP,), since_us, since_us + 1, 1, ("a",), "poison"),))


def test_a_frame_where_a_flush_waits_speaks_against_that_and_what_was_in_it_is_declared() -> None:
    """protocol 1.3, 1.4: the first device was let go it for the receipt of its twin's flush."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (Frame(1, 1), Frame(1, 2, flush=Flush(1)), Frame(1, 3, flush=Flush(1))):  # the last two are the twin's
        inbox.take("a", frame, 0)
    assert inbox.take("a", late(1, 2, 5), 1) == []
    effects = inbox.take("a", born(1), 2)
    assert [(e.seq, e.why, e.since_us) for e in effects if e.frame is None] == [
        (2, OTHERS_HERE, 5),
        (3, OTHERS_HERE, None),
    ]
    assert [e.frame for e in inbox.take("a", Frame(1, 4), 3)] == [Frame(1, 4)], "the first device goes on"
    twin = replace(born(2, (1, 3)), birth=Birth(2 << 32, JOURNAL, (1, 3), "1", flush=1))
    assert inbox.take("a", twin, 3) == []
    assert inbox.rivals == {"a": (2, 1)}


def test_what_comes_of_another_line_behind_a_flush_is_declared_from_where_it_begins() -> None:
    """protocol 1.3, 1.4: late rows lie before what its node had promised."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1))):
        inbox.take("a", frame, 0)
    for seq in (2, 3):
        assert [(e.seq, e.why, e.since_us) for e in inbox.take("a", late(1, seq, 5), 1)] == [(seq, AFTER_FLUSH, 5)]
    assert inbox.take("a", late(1, 2, 5), 2) == [], "once"
    assert inbox.take("a", Frame(1, 2, flush=Flush(1)), 2) == []
    assert [inbox.ended_before("a", 1, seq) for seq in (1, 2)] == [False, True]


def test_two_devices_that_flush_in_the_same_place_are_told_apart_by_the_epochs_that_follow() -> None:
    """protocol 1.4: the flush of the second one looks like a repeat, and its birth like that of the first one."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1, 2))):
        inbox.take("a", frame, 0)
    other = replace(late(1, 2, 5), flush=Flush(1, 3))
    assert [(e.frame, e.why, e.since_us) for e in inbox.take("a", other, 1)] == [(None, ANOTHER_FLUSH, 5)]
    assert inbox.take("a", other, 1) == [], "declared once"
    longer = replace(late(1, 3, 5), flush=Flush(1, 3))
    assert [(e.frame, e.why, e.since_us) for e in inbox.take("a", longer, 1)] == [(None, ANOTHER_FLUSH, 5)]
    assert inbox.take("a", copied(3, (1, 3), 1), 2) == [], "a second line: it waits"
    assert inbox.rivals == {"a": (3, 1)}
    assert [(e.epoch, e.copied) for e in inbox.look("a", 70)] == [(3, True)]


def test_of_two_devices_that_flush_in_the_same_place_the_first_goes_on_as_after_any_start() -> None:
    """protocol 1.4: the birth of the second one comes first, and names as many frames."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1, 2)), Frame(1, 2, flush=Flush(1, 3))):
        inbox.take("a", frame, 0)
    assert inbox.take("a", copied(3, (1, 2), 1), 2) == []
    assert [(e.epoch, e.copied) for e in inbox.take("a", copied(2, (1, 2), 1), 3)] == [(2, False)]
    assert inbox.current["a"] == 2


def test_a_flush_that_waits_is_not_dropped_for_that_of_another_device() -> None:
    """protocol 1.4."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (Frame(1, 1), Frame(1, 2, flush=Flush(1, 2))):
        inbox.take("a", frame, 0)
    assert [e.why for e in inbox.take("a", Frame(1, 2, flush=Flush(1, 3)), 1)] == [ANOTHER_FLUSH]
    assert [(e.seq, e.frame is None) for e in inbox.take("a", born(1), 2)] == [(0, False), (1, False), (2, False)]


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


def copied(epoch: int, predecessor: tuple[int, int], flush: int) -> Frame:
    """A birth behind a flush of the epoch before."""
    frame = born(epoch, predecessor)
    assert frame.birth is not None
    return replace(frame, birth=replace(frame.birth, flush=flush))


def test_a_copy_whose_flush_has_as_many_frames_as_came_after_the_copy_is_recognised() -> None:
    """protocol 1.3: by its number the flush is a duplicate, and the birth names all that is here."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), Frame(1, 2), flush(1, 2, 1), copied(2, (1, 2), 1)):
        inbox.take("a", frame, 0)
    assert inbox.current == {"a": 1}
    (effect,) = inbox.look("a", 60)
    assert (effect.epoch, effect.copied) == (2, True)
    assert inbox.restored == {"a"}


def test_a_copy_is_recognised_by_frames_that_wait_behind_its_flush() -> None:
    """protocol 1.3"""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 3), flush(1, 1, 0), copied(2, (1, 1), 0)):
        inbox.take("a", frame, 0)
    assert inbox.current == {"a": 1}


def test_a_restart_that_flushed_goes_on_at_once() -> None:
    """protocol 1.2, 1.3"""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), flush(1, 2, 1), copied(2, (1, 2), 1)):
        inbox.take("a", frame, 0)
    assert inbox.current == {"a": 2}
    assert inbox.restored == set()


def test_a_clock_that_steps_makes_no_line_wait_longer() -> None:
    """protocol 1.4, 8.1: the time of silence goes on from where it was."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1), born(2)):
        inbox.take("a", frame, 1_000_030)  # by a clock that is ahead
    inbox.shift(-1_000_000)
    assert inbox.look("a", 89) == []
    assert [e.epoch for e in inbox.look("a", 90)] == [2]
    inbox.take("a", born(3), 1_000_100)
    inbox.stepped_back(100)
    assert [e.epoch for e in inbox.look("a", 160)] == [3]


def test_a_line_that_waits_since_a_time_ahead_of_the_clock_waits_from_now_on() -> None:
    """protocol 1.4, 4.3: a parent started again with a clock of 1970; once it is set, its times go on with it."""
    inbox = Inbox(JOURNAL, silence_us=60)
    inbox.take("a", born(1), 1_000)
    inbox.take("a", born(2), 1_010)
    assert inbox.current["a"] == 1
    again = restarted(inbox)
    assert list(again.look("a", 5)) == []
    again.shift(1_100 - 5)
    assert list(again.look("a", 1_150)) == []
    assert [(e.epoch, e.seq) for e in again.look("a", 1_161)] == [(2, 0)]
    assert again.current["a"] == 2


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


def test_no_frame_waits_below_a_gap_record_that_stands_for_it() -> None:
    """protocol 2.2, 3.5: it would take room for ever."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (2, 3, 4)] == [[], [], []]
    assert seqs(inbox, "a", Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", 3),))) == [(1, 1), (1, 4)]
    assert not inbox.waits("a")


def test_an_epoch_that_waits_for_one_without_a_past_follows_it_and_is_not_lost_with_the_older_ones() -> None:
    """protocol 1.2: frames arrive in any order."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(3, (2, 0))) == []
    effects = inbox.take("a", born(2, LOST))
    assert [(each.epoch, each.seq, each.stale) for each in effects] == [(2, 0, False), (3, 0, False)]
    assert inbox.current == {"a": 3}


def test_a_child_of_which_frames_wait_keeps_its_epochs_when_it_is_retired() -> None:
    """protocol 1.5, 8.4: what they contain would otherwise be taken for duplicates."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 2)) == []
    assert not inbox.retire("a")
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1), (1, 2)]
    assert inbox.retire("a")
    assert (inbox.current, inbox.epochs) == ({}, {})


def test_a_birth_that_lists_many_epochs_does_not_make_its_parent_keep_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2"""
    monkeypatch.setattr(inbox_module, "MOST_LOST", 5)
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    birth = Birth(99 << 32, JOURNAL, LOST, "1", held=tuple(range(10, 40)))
    assert seqs(inbox, "a", Frame(99, 0, birth)) == [(99, 0)]
    assert len(inbox.epochs) <= 7


def lost_past(epoch: int, *held: int) -> Frame:
    """A birth that does not know its past. held: epochs of which its node still has frames."""
    return Frame(epoch, 0, Birth(epoch << 32, JOURNAL, LOST, "1", held=held))


def test_of_an_epoch_declared_lost_nothing_counts_before_its_birth_has_come() -> None:
    """protocol 1.2, 3.7: it may be for another journal of this parent, which counted it."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(5, 1)) == []
    assert seqs(inbox, "a", lost_past(9, 5)) == [(9, 0)]
    assert seqs(inbox, "a", born(5, journal=JOURNAL + 1)) == []
    assert seqs(inbox, "a", born(5)) == [(5, 0), (5, 1)]


def test_a_gap_record_of_an_epoch_declared_lost_passes_over_no_frame_that_may_still_come() -> None:
    """protocol 1.2: the order of its frames no longer matters, and each counts once."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", lost_past(9)) == [(9, 0)]
    assert seqs(inbox, "a", Frame(1, 3, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", 4),))) == [(1, 3)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (1, 2, 2)] == [[(1, 1)], [(1, 2)], []]


@pytest.mark.parametrize("why", ["it is lost", "it has more frames"])
def test_a_birth_that_cannot_follow_the_epoch_that_it_names_is_of_another_line(why: str) -> None:
    """protocol 1.2, 1.3, 1.4"""
    inbox = Inbox(JOURNAL, silence_us=10)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 1)) == [(1, 1)]
    if why == "it is lost":
        assert seqs(inbox, "a", lost_past(2)) == [(2, 0)]
    else:
        assert seqs(inbox, "a", Frame(1, 2)) == [(1, 2)]
    assert seqs(inbox, "a", born(3, (1, 1))) == []
    assert inbox.rivals == {"a": (3, inbox.current["a"])}


def test_epochs_that_have_ended_do_not_begin_again_because_a_birth_lists_them() -> None:
    """protocol 1.2, 3.4"""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 0))) == [(2, 0)]
    assert seqs(inbox, "a", lost_past(9, 1, 2)) == [(9, 0)]
    assert EpochKey("a", 1) not in inbox.epochs


def test_definitions_in_frames_that_wait_are_known_after_a_restart_too() -> None:
    """protocol 2.4"""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(1, 2, define=Define(keys=(0, ("x",))))) == []
    dictionary = EpochDictionary()
    assert restarted(inbox).epochs[EpochKey("a", 1)].ahead.learn(dictionary)
    assert list(dictionary.keys) == ["x"]


def test_a_refused_birth_is_told_also_after_many_bad_frames() -> None:
    """protocol 2.4"""
    inbox = Inbox(JOURNAL)
    inbox.take("a", BadFrame(1, 0, "bad", b""))
    for seq in range(1, 1_000):
        inbox.take("a", BadFrame(1, seq, "bad", b""))
    again = restarted(inbox)
    for each in (inbox, again):
        assert each.receipt("a", 1).quarantined == (0, *range(1_001 - RECEIPT_QUARANTINED, 1_000))
        assert each.unborn("a", 1)
        assert len(each.epochs[EpochKey("a", 1)].quarantined) <= MOST_QUARANTINED


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


def test_a_gap_record_behind_the_end_of_an_epoch_stands_for_all_its_frames() -> None:
    """protocol 1.4, 3.5: what the second line sends behind them follows."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 0))) == [(2, 0)]
    assert seqs(inbox, "a", Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", 3),))) == [(1, 1)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (3, 5, 4)] == [[], [], [(1, 4)]]
    assert inbox.receipt("a", 1).upto == 5


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
