"""Flushes of an epoch that came to its end, copies of a device, and lines that wait for each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Birth, Flush, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.ended_epochs import MOST_FLUSHES
from edge_agent.machines.downlink.epochs.epoch_frames import (
    AFTER_FLUSH,
    ANOTHER_FLUSH,
    OTHERS_HERE,
    SECOND_LINE,
)
from edge_agent.machines.downlink.inbox import Inbox
from tests.support.machines.inbox_frames import GROUP, JOURNAL, applied, born, count_waiting, flush, restarted, seqs


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
        assert inbox.rivals == {"a": (1, 2)}, "for the operator"


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


def test_a_flush_below_frames_that_are_here_is_dropped_whole() -> None:
    """protocol 1.3: so a restored card adds nothing twice."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 1), Frame(1, 2)):
        seqs(inbox, "a", frame)
    effects = inbox.take("a", Frame(1, 3, flush=Flush(1)))
    assert [(e.frame, bool(e.why)) for e in effects] == [(None, True)]
    ok = inbox.take("a", Frame(1, 4, flush=Flush(3)))
    assert [e.frame is not None for e in ok] == [True]


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


def test_of_two_lines_of_one_name_the_newer_one_waits_until_the_first_has_been_silent() -> None:
    """protocol 1.4: two devices; the results of the first stay right."""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), Frame(1, 1)):
        inbox.take("a", frame, 0)
    for now_us in range(10, 200, 10):
        assert inbox.take("a", Frame(2, now_us // 10 - 1) if now_us > 10 else born(2), now_us) == []
        assert [e.seq for e in inbox.take("a", Frame(1, 1 + now_us // 10), now_us + 5)] == [1 + now_us // 10]
    assert inbox.rivals == {"a": (2, 1)}
    for epoch, now_us in ((1, 200), (1, 150), (2, 230)):  # a heartbeat that was read late; one of the other line
        inbox.spoke("a", epoch, now_us)
    assert inbox.look("a", 259) == []
    assert [(e.epoch, e.seq) for e in inbox.look("a", 260)] == [(2, seq) for seq in range(19)]
    assert inbox.restored == {"a"}
    assert inbox.current == {"a": 2}
    late = inbox.take("a", Frame(1, 30), 270)  # the first one speaks again: its data only, and an alarm
    assert [(e.epoch, e.seq, e.stale) for e in late] == [(1, 30, True)]


def test_what_waited_of_a_second_device_when_its_epoch_ended_is_declared() -> None:
    """protocol 1.4: it was told that its frame had been received, and forgets it."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 1), late(1, 4, 5)):
        inbox.take("a", frame)
    effects = inbox.take("a", born(2, (1, 1)))
    assert [(e.epoch, e.seq, e.frame is None, e.why, e.since_us) for e in effects] == [
        (1, 4, True, SECOND_LINE, 5),
        (2, 0, False, "", None),
    ]
    assert EpochKey("a", 1) in inbox.ended
    assert inbox.rivals == {"a": (1, 1)}, "for the operator"


def test_since_when_a_line_waits_is_stored_anew_after_a_step_of_the_clock() -> None:
    """protocol 1.4, 8.1"""
    inbox = Inbox(JOURNAL, silence_us=60)
    for frame in (born(1), born(2)):
        inbox.take("a", frame, 10)
    inbox.changed.clear()
    inbox.shift(1_000)
    assert inbox.changed == {EpochKey("a", 2)}


@pytest.mark.parametrize("behind_a_hole", [False, True])
def test_a_line_that_speaks_by_frames_alone_is_not_silent(behind_a_hole: bool) -> None:
    """protocol 1.4, 2.5: while it has frames to send, it sends no heartbeat. Copies that were under way are older."""
    inbox = Inbox(JOURNAL, silence_us=60)
    inbox.take("a", born(1), 0)
    inbox.take("a", born(2), 1)
    for seq in range(1, 11):
        inbox.take("a", Frame(1, seq + behind_a_hole), 20 * seq)
    inbox.take("a", Frame(1, 3), 150)
    inbox.take("a", Frame(2, 1), 230)
    assert inbox.look("a", 259) == []
    assert {e.epoch for e in inbox.look("a", 260) if not e.stale} == {2}


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
    count_waiting(inbox)
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


@pytest.mark.parametrize("why", [OTHERS_HERE, ANOTHER_FLUSH])
def test_a_frame_whose_number_a_refused_flush_of_a_twin_has_taken_is_declared_from_where_it_begins(why: str) -> None:
    """protocol 1.3, 1.4: it was taken for a repeat, and its device was told that it had come."""
    inbox = Inbox(JOURNAL)
    second = Frame(1, 2) if why == OTHERS_HERE else Frame(1, 2, flush=Flush(1, 2))
    for frame in (born(1), Frame(1, 1), second):
        inbox.take("a", frame)
    assert [e.why for e in inbox.take("a", Frame(1, 3, flush=Flush(1, 9)))] == [why]
    assert inbox.take("a", Frame(1, 3, flush=Flush(1, 9))) == [], "a repeat"
    own = late(1, 3, 5) if why == OTHERS_HERE else replace(late(1, 3, 5), flush=Flush(1, 2))
    assert [(e.seq, e.frame, e.stale, e.since_us) for e in inbox.take("a", own)] == [(3, None, True, 5)]
    assert inbox.take("a", own) == [], "once"
    following = Frame(1, 4, flush=own.flush)
    assert [e.frame for e in inbox.take("a", following)] == [following], "the line goes on"


def test_such_a_frame_is_declared_in_its_turn_if_the_flush_waits() -> None:
    """protocol 1.3, 1.4"""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), Frame(1, 2), Frame(1, 3, flush=Flush(1, 9))):
        inbox.take("a", frame)
    assert inbox.take("a", late(1, 3, 5)) == []
    count_waiting(inbox)
    effects = inbox.take("a", Frame(1, 1))
    assert [(e.seq, e.why, e.since_us) for e in effects] == [(1, "", None), (2, "", None), (3, OTHERS_HERE, 5)]
    assert inbox.take("a", late(1, 3, 5)) == [], "once"


def test_such_a_frame_of_the_first_of_two_flushes_is_declared_also_once_the_next_epoch_is_in_force() -> None:
    """protocol 1.4: the second device's frame came with its number."""
    inbox = Inbox(JOURNAL)
    birth = replace(born(2, (1, 3)), birth=Birth(2 << 32, JOURNAL, (1, 3), "1", flush=1))
    for frame in (born(1), Frame(1, 1), Frame(1, 2, flush=Flush(1, 2)), Frame(1, 3, flush=Flush(1, 9)), birth):
        inbox.take("a", frame)
    assert EpochKey("a", 1) in inbox.ended
    own = replace(late(1, 3, 5), flush=Flush(1, 2))
    assert [(e.seq, e.why, e.since_us) for e in inbox.take("a", own)] == [(3, ANOTHER_FLUSH, 5)]
    assert inbox.take("a", own) == [], "once"
    assert inbox.take("a", Frame(1, 3, flush=Flush(1, 9))) == [], "a repeat"
