"""What the lander takes of frames that lie ahead of a hole in their epoch."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.algebra.earliest_start import earliest_start
from edge_agent.algebra.frame import LOST, Birth, Flush, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines import lander as rules
from edge_agent.machines.downlink.epochs import frames_ahead, landed_ranges
from edge_agent.machines.downlink.epochs.ended_epochs import MOST_FLUSHES
from edge_agent.machines.downlink.epochs.frames_ahead import SETTLED_US
from edge_agent.machines.downlink.epochs.landed_flushes import LandedFlushes
from edge_agent.machines.downlink.epochs.landed_ranges import LAST_SEQ, LandedRanges
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges
from edge_agent.machines.events import Tick
from edge_agent.machines.lander import (
    Land,
    Landed,
    Lander,
    LanderMessage,
    LanderSettings,
    MessagesArrived,
)
from edge_agent.wire import frames
from tests.support.machines.lander_runs import SECOND, Run


def gap(run: int) -> Gap:
    return Gap((), 0, 1, 0, ("gw",), "quota", run, "")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_ahead, "MOST_FRAMES", 5)
    monkeypatch.setattr(frames_ahead, "MOST_BYTES", 10_000)
    monkeypatch.setattr(frames_ahead, "MOST_EPOCHS", 3)


def test_frames_ahead_of_a_hole_land_within_a_bound_and_all_do_once_it_is_closed() -> None:
    """protocol 2.2: neither stored nor receipted beyond it, and sent again."""
    run = Run()
    run.take(7, 0, *range(2, 20))
    assert len(run.landed) == 6
    assert run.lander.refused == 13
    assert run.received["gw/7"] == [1, [[2, 6]]]
    run.take(7, *range(1, 20))  # as the child sends it again
    assert run.received["gw/7"] == [20, []]
    assert len(run.landed) == len(set(run.landed)) == 20


@pytest.mark.parametrize("again", [False, True])
def test_a_question_for_the_journal_is_not_written_behind_the_birth_that_follows_it(again: bool) -> None:
    """protocol 3.7, 2.5: the birth may come before the next file, in which heartbeats come last."""
    lander, birth = Lander(1, LanderSettings()), Birth(7 << 32 | 99, 1, None, "test")
    lander.handle(Tick(), 0)
    lander.handle(Landed(), 0)
    question = LanderMessage("gw", 98 if again else 99, None, "question", 10)
    frame = LanderMessage("gw", 7, 0, "birth", 100, birth=birth)
    lander.handle(MessagesArrived((question, frame)), 1)
    (land,) = [each for each in lander.handle(Tick(), SECOND) if isinstance(each, Land)]
    assert land.objects == (("birth", "question") if again else ("birth",))


def test_bytes_and_epochs_have_a_bound_of_each_child_alone() -> None:
    """protocol 2.2: one child's holes take nothing from another one."""
    run = Run()
    run.take(7, 2, 3, size=9_000)
    run.take(8, 2)
    assert len(run.landed) == 2
    run.take(7, 0, 1)
    run.take(8, 2)
    run.take(9, 2)
    run.take(10, 2)
    run.take(11, 2)  # the fourth epoch with a hole
    run.take(8, 3)  # one more of an epoch that has one
    run.take(11, 0)
    run.take(11, 2, node="other")
    assert set(run.landed) == {
        *(("gw", 7, seq) for seq in range(4)),
        *(("gw", epoch, 2) for epoch in (8, 9, 10)),
        ("gw", 8, 3),
        ("gw", 11, 0),
        ("other", 11, 2),
    }


def test_what_the_root_settles_as_lost_does_not_count_for_ever() -> None:
    """protocol 2.2, 1.3: of a damaged record for many frames only one number comes; its child was refused for ever."""
    run = Run()
    run.take(7, 0, *range(9, 20))
    assert run.lander.refused == 6
    for _ in range(SETTLED_US // SECOND + 2):
        run.take(7, 19)
    refused = run.lander.refused
    run.take(7, *range(14, 40))
    assert run.lander.refused == refused
    assert run.received["gw/7"] == [1, [[9, 39]]], "what the child lacks, it may still send"
    run.take(7, 1)
    assert run.received["gw/7"] == [2, [[9, 39]]]


@pytest.mark.parametrize("known", [True, False])
def test_an_epoch_that_waits_for_one_that_the_root_settles_does_not_count_for_ever(known: bool) -> None:
    """protocol 2.2, 1.3: the last frames of the epoch before are in no spool, or all of them."""
    run = Run()
    run.take(7, 0)
    run.born(8, (7, 3) if known else (6, 3))
    run.born(9, (8, 9))
    run.take(9, *range(1, 9))
    assert run.lander.refused == 5
    for _ in range(SETTLED_US // SECOND + 2):
        run.take(9, 8)
    refused = run.lander.refused
    run.take(9, *range(1, 40))
    assert run.lander.refused == refused
    assert run.received["gw/9"] == [40, []]
    assert not run.lander._ahead._ahead["gw"]
    assert not run.lander._ahead._awaited
    run.take(9, 40)
    assert "gw" not in run.lander._ahead._missing


def test_a_child_that_is_silent_has_time_to_send_what_is_missing() -> None:
    """protocol 3.3: it counts only while it speaks."""
    run = Run()
    run.take(7, 0, *range(2, 8))
    run.now_us += 10 * SETTLED_US
    run.take(7, 8)
    for _ in range(SETTLED_US // SECOND - 30):
        run.take(7, 8)
    run.take(7, *range(8, 20))
    assert run.received["gw/7"] == [1, [[2, 6]]]


def test_a_gap_record_for_many_frames_leaves_no_hole() -> None:
    """protocol 2.2, 3.5: frames that were never published do not come; what follows them is not ahead."""
    run = Run()
    run.take(7, 0)
    run.take(7, 1, run=1_000)
    run.take(7, *range(1_001, 1_050))
    assert len(run.landed) == 51
    assert run.lander.refused == 0
    later = Run(run.received)  # its journal has a hole of as many
    later.take(7, *range(1_050, 1_100))
    assert len(later.landed) == 50


def test_how_many_frames_a_message_stands_for_is_read_from_its_gap_records() -> None:
    plain, gaps = Frame(1, 5), Frame(1, 5, gaps=(gap(7), gap(0), gap(3)))
    assert frames.run_of(frames.envelope(frames.encode(plain))) == 1
    assert frames.run_of(frames.envelope(frames.encode(gaps))) == 9
    assert frames.run_of(frames.Envelope(1, 1, 5, b"\x00")) == 1


@pytest.mark.parametrize("seed", range(20))
def test_ranges_hold_the_numbers_that_were_added(seed: int) -> None:
    random, ranges, numbers = Random(seed), ReceivedRanges(), set[int]()
    for _ in range(60):
        first = random.randrange(80)
        last = first + random.choice((0, 0, 0, 3, 15))
        if first == last and first not in numbers:
            ranges.add(first)
        else:
            ranges.add_run(first, last)
        numbers |= {*range(first, last + 1)}
        upto = next(n for n in range(200) if n not in numbers)
        above = {n for a, b in ranges.above for n in range(a, b + 1)}
        assert (ranges.next, above) == (upto, {n for n in numbers if n > upto})
        assert ranges.ahead == len(above)
        assert ranges.top == max(numbers) + 1
        assert all(a[1] + 1 < b[0] for a, b in zip(ranges.above, ranges.above[1:], strict=False))
        assert ReceivedRanges.restore(ranges.next, ranges.above) == ranges


def test_the_lander_forgets_nothing_that_it_refused() -> None:
    """A frame that was turned away is new when it comes again."""
    run = Run()
    run.take(7, *range(1, 9))
    assert EpochKey("gw", 7) in run.lander.received
    run.take(7, 0)
    run.take(7, *range(1, 9))
    assert run.received["gw/7"] == [9, []]


def test_epochs_of_which_a_child_has_no_frame_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.4: a gateway that is started every minute for years does not fill the lander's journal."""
    monkeypatch.setattr(rules, "UNDER_WAY", 3)
    run = Run()
    run.born(1, None, held=())
    run.born(2, (1, 0), held=(1,))
    run.take(2, 5)  # behind a hole, and still in the child's spool
    for epoch in range(3, 40):
        run.now_us += 60 * SECOND
        assert run.born(epoch, (epoch - 1, 0), held=(2, epoch - 1))
        run.take(2, *range(1, 5))
        assert run.received.keys() <= {f"gw/{each}" for each in run.lander._epochs["gw"]}
    assert len(run.received) < 12
    assert run.received["gw/2"] == [6, []]
    again = Run(run.received)
    assert again.born(40, (39, 0), held=(39,))
    assert again.lander.refused == 0


def test_an_epoch_that_others_wait_for_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "UNDER_WAY", 1)
    monkeypatch.setattr(rules, "STATEMENTS", 1)
    run = Run()
    run.born(1, None, held=())
    run.take(1, 2)  # frame 1 is missing
    run.born(2, (1, 2), held=())
    for epoch in range(3, 6):
        run.now_us += 60 * SECOND
        run.born(epoch, (epoch - 1, 0), held=())
    assert {"gw/1", "gw/2"} <= run.received.keys()


def late(epoch: int, seq: int, start_us: int) -> MessagesArrived:
    return MessagesArrived((LanderMessage("gw", epoch, seq, seq, 100, earliest_us=start_us),))


def test_a_statement_names_the_earliest_late_row_of_today_and_the_day_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.2: over a restart too."""
    monkeypatch.setattr(rules, "A_DAY", 2)
    run = Run()
    run.do(late(7, 0, 500))
    run.do(late(7, 1, 300))
    run.take(7, 2)
    assert run.received["gw/7"] == [3, [], 300]
    run = Run(run.received)
    found = []
    for seq in range(3, 10):
        run.now_us += rules.LanderSettings().statement_us
        messages = (LanderMessage("gw", 7, seq, seq, 100, earliest_us=900 if seq == 5 else None),)
        for event in (MessagesArrived(messages), Tick()):
            for action in run.lander.handle(event, run.now_us):
                if isinstance(action, Land):
                    found += [receipt.earliest_us for _, receipt in action.statement]
                    run.lander.handle(Landed(), run.now_us)
    assert found == [300, 300, 300, 300, 900, 900, None]


def test_a_start_that_is_not_known_hides_no_other() -> None:
    """Found by seed 40419 of the simulation: a gap record of a lost journal hid late rows of other frames."""
    assert earliest_start([]) is None
    assert earliest_start([500, 300]) == 300
    assert earliest_start([0, -5]) == 0
    assert earliest_start([500, 0, 300]) == -300
    late_starts = rules.LateStarts()
    key = EpochKey("gw", 7)
    for start_us, want_us in ((500, 500), (0, -500), (300, -300), (-200, -200), (400, -200)):
        late_starts.note(key, start_us)
        assert late_starts.of(key) == want_us


def seqs(run: Run, epoch: int) -> list[int]:
    return sorted(each[2] for each in run.landed if isinstance(each, tuple) and each[1] == epoch)


def test_an_epoch_whose_predecessor_is_not_here_waits_as_a_whole_and_counts_so() -> None:
    """protocol 2.2: its frames are in order, but the root can use none of them; what it waits for lands always."""
    run = Run()
    run.born(7, None)
    assert run.born(8, (7, 3))
    run.take(8, *range(1, 20))
    assert seqs(run, 8) == [0, 1, 2, 3, 4]
    assert run.lander.refused == 15
    assert not run.born(9, (8, 19)), "there is no room for its birth"
    run.take(7, 1, 2)
    run.take(8, 5)
    assert seqs(run, 8) == [0, 1, 2, 3, 4]
    run.take(7, 3)
    run.take(8, *range(5, 20))
    assert run.born(9, (8, 19))
    run.take(9, *range(1, 50))
    assert (len(seqs(run, 8)), len(seqs(run, 9))) == (20, 50)


def test_epochs_that_wait_for_each_other_have_a_bound_and_all_go_on_once_the_first_is_here() -> None:
    """protocol 2.2: a crash loop while one frame is under way. Other children are not concerned."""
    run = Run()
    run.born(7, None)
    run.take(7, 2)
    assert [run.born(epoch, (epoch - 1, 0 if epoch > 8 else 2)) for epoch in (8, 9, 10, 11)] == [
        True,
        True,
        False,
        False,
    ]
    assert run.born(8, (7, 2), node="other"), "of that child nothing waits yet"
    run.take(7, 1)
    assert [run.born(epoch, (epoch - 1, 0)) for epoch in (10, 11, 12, 13)] == [True] * 4


def test_epochs_that_do_not_say_what_they_follow_have_a_bound_for_a_child_that_was_heard() -> None:
    """protocol 1.4, 2.2: at the root each would wait as of a second line. What says it lands, and is as before."""
    run = Run()
    run.born(7, None)
    assert [run.born(epoch, None) for epoch in (8, 9)] == [True, True]
    run.take(10, 0)  # it has no birth that can be read
    assert not run.born(11, None)
    assert not run.born(12, (1, 3), journal=2), "the root discards it, and waits for a birth"
    run.take(13, 0)
    assert (seqs(run, 13), run.lander.refused) == ([], 3)
    assert EpochKey("gw", 13) not in run.lander.received
    run.take(8, *range(1, 50))
    assert len(seqs(run, 8)) == 50, "its line may be the one that goes on"
    assert run.born(14, (7, 0))
    assert run.born(15, LOST)
    assert run.born(8, None, node="other")
    assert run.born(9, None, node="other")


def test_an_epoch_that_said_nothing_of_what_it_follows_counts_until_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 1.4, 2.2: a gateway that loses its spool now and then is not refused after years."""
    monkeypatch.setattr(rules, "UNDER_WAY", 1)
    monkeypatch.setattr(frames_ahead, "MOST_EPOCHS", 8)
    run = Run()
    for epoch in range(1, 30):
        run.now_us += 3 * rules.LanderSettings().statement_us
        assert run.born(epoch, None, held=())
        for _ in range(3):
            run.now_us += rules.LanderSettings().statement_us
            run.do(Tick())
    assert len(run.lander._ahead._lines) < 10


def test_a_step_of_the_clock_neither_puts_off_nor_hastens_what_the_root_settles() -> None:
    """protocol 1.3, 2.2: as at the root, only time in which the child spoke counts."""
    run = Run()
    run.take(7, 0, *range(2, 8))
    for back in (False, True, False):
        run.now_us -= 10 * SETTLED_US if back else 0
        for _ in range(SETTLED_US // SECOND // 3 + 10):
            run.take(7, 2)
    run.take(7, *range(7, 20))
    assert run.received["gw/7"] == [1, [[2, 19]]]


def test_frames_ahead_of_a_hole_in_an_epoch_that_waits_no_longer_count_as_before() -> None:
    """protocol 2.2"""
    run = Run()
    run.born(7, None)
    run.born(8, (7, 1))
    run.take(8, 1, 3, 4)
    run.take(7, 1)
    run.take(8, *range(5, 20))
    assert seqs(run, 8) == [0, 1, 3, 4, 5, 6, 7], "five of them are ahead of 2"
    run.take(8, 2)
    run.take(8, *range(8, 20))
    assert len(seqs(run, 8)) == 20


def test_a_birth_for_another_journal_or_of_a_child_that_declares_its_past_lost_waits_for_nothing() -> None:
    """protocol 1.2: the root discards the one, and nothing waits for what is declared lost."""
    run = Run()
    run.born(7, None)
    run.born(6, (5, 3), journal=2)
    run.take(6, *range(1, 20))
    run.born(8, (7, 3))
    run.take(8, *range(1, 20))
    assert (len(seqs(run, 6)), len(seqs(run, 8))) == (20, 5)
    assert run.born(7, None, node="other")
    assert run.born(8, (7, 3), node="other")
    assert run.born(9, LOST)
    run.take(9, *range(1, 20), 25)
    assert len(seqs(run, 9)) == 21
    run.take(7, 1, 2, 3)  # of the lost past, which ends nothing
    assert run.lander._ahead._waits.keys() == {EpochKey("other", 8)}, "another child has lost nothing"
    assert run.lander._ahead._awaited.keys() == {EpochKey("other", 7)}


def test_what_an_earlier_run_received_and_did_not_note_holds_nobody_up() -> None:
    """protocol 2.2, 3.2: a power cut takes the newest notes of what was receipted; the child sends it no more."""
    first = Run()
    first.born(7, None)
    first.take(7, 1, 2, 3)
    noted = dict(first.received)
    first.take(7, 4, 5)
    run = Run(noted)
    run.take(7, *range(6, 40))
    assert len(seqs(run, 7)) == 34
    assert run.born(8, (7, 39))
    run.take(8, *range(1, 40))
    again = Run(noted)  # nothing of the older epoch is left to send
    assert again.born(8, (7, 5))
    again.take(8, *range(1, 40))
    assert again.born(9, (8, 39))
    again.take(9, *range(1, 40))
    assert (len(seqs(run, 8)), len(seqs(again, 8)), len(seqs(again, 9))) == (40, 40, 40)
    assert again.born(10, (6, 2)), "but nobody names an epoch that never was here twice"
    again.take(10, *range(1, 40))
    assert len(seqs(again, 10)) == 5


def test_a_lander_whose_journal_was_deleted_goes_on_with_what_comes() -> None:
    """protocol 3.8 j: nothing is lost with it."""
    run = Run(rebuilt=True)
    run.take(7, *range(600, 640))
    assert run.born(8, (7, 639))
    run.take(8, *range(1, 40))
    assert (len(seqs(run, 7)), len(seqs(run, 8))) == (40, 40)
    run.take(8, *range(41, 60))
    assert len(seqs(run, 8)) == 45, "ahead of a hole"


def test_a_frame_between_others_that_landed_is_not_refused_until_its_child_gives_it_up() -> None:
    """protocol 2.2, 3.6: what lies behind it is receipted, so that its child would take it for poison."""
    run = Run()
    run.born(7, None)
    run.born(8, (7, 9))
    run.take(8, 1, 2, 4, 6, 7)
    assert seqs(run, 8) == [0, 1, 2, 4, 6], "five wait"
    run.take(8, 3, 5, 7)
    assert seqs(run, 8) == [0, 1, 2, 3, 4, 5, 6]
    run.take(7, 2, 30)
    assert seqs(run, 7) == [0], "no room for what lies ahead of all others"


@pytest.mark.parametrize("states", ["nothing", "all", "for another journal"])
def test_the_epochs_of_one_child_have_a_bound_whatever_its_births_state(
    monkeypatch: pytest.MonkeyPatch, states: str
) -> None:
    """protocol 2.2"""
    monkeypatch.setattr(rules, "UNDER_WAY", 3)
    monkeypatch.setattr(rules, "MOST_KNOWN", 20)
    monkeypatch.setattr(frames_ahead, "MOST_EPOCHS", 1_000)
    run = Run()
    for epoch in range(1, 200):
        run.now_us += 60 * SECOND
        before = (epoch - 1, 0) if epoch > 1 else None
        journal, held = (2 if "journal" in states else 1), (tuple(range(1, epoch)) if states == "all" else None)
        assert run.born(epoch, before, journal=journal, held=held)
    assert 10 <= len(run.received) < 40
    assert run.received["gw/199"] == [1, []]


def test_an_epoch_for_which_another_one_waits_is_not_forgotten() -> None:
    """protocol 2.2, 3.4: else that one would count as waiting for ever."""
    run = Run()
    assert run.born(1, None)
    assert run.born(2, (1, 1))
    assert not run.lander._ahead.forget(EpochKey("gw", 1))
    run.take(1, 1)
    assert run.lander._ahead.forget(EpochKey("gw", 1))


def test_room_for_ranges_returns_once_holes_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.4: what a file took is counted as what it has become."""
    monkeypatch.setattr(landed_ranges, "MOST_RANGES", 2)
    ranges, key = LandedRanges(), EpochKey("a", 1)
    for seq in (2, 5):
        assert ranges.room(key, seq, ())
        ranges.add(key, {seq: 1})
        ranges.landed()
    assert not ranges.room(key, 8, ())
    ranges.add(key, dict.fromkeys((0, 1, 3, 4), 1))
    ranges.landed()
    assert ranges.room(key, 8, ())


def test_room_for_ranges_is_counted_file_by_file_and_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.4"""
    monkeypatch.setattr(landed_ranges, "MOST_RANGES", 1)
    run = Run()
    run.take(7, 2)
    run.take(7, 0, 1)
    run.take(7, 5, 8)
    assert run.received["gw/7"] == [3, [[5, 5]]]
    again = Run(run.received)
    again.take(7, 8)
    assert again.lander.refused == 1


def test_an_epoch_that_is_forgotten_gives_its_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.4"""
    monkeypatch.setattr(landed_ranges, "MOST_RANGES", 1)
    ranges, one, other = LandedRanges(), EpochKey("a", 1), EpochKey("a", 2)
    assert ranges.room(one, 2, ())
    ranges.add(one, {2: 1})
    ranges.landed()
    assert not ranges.room(other, 2, ())
    ranges.forget(one)
    assert ranges.room(other, 2, ())


def test_a_run_of_frames_beyond_every_number_is_one_frame() -> None:
    """protocol 3.5: whoever sends it decides how many it says it stands for."""
    received = LandedRanges().add(EpochKey("a", 1), {LAST_SEQ - 1: 9, LAST_SEQ + 5: 9})
    assert received.above == [[LAST_SEQ - 1, LAST_SEQ], [LAST_SEQ + 5, LAST_SEQ + 5]]


def test_a_frame_in_the_place_of_a_flush_lands_once_more_because_it_may_be_of_another_device() -> None:
    """protocol 1.3, 1.4: it was taken for a repeat, receipted and deleted; the root declares what is in it."""
    run, flush = Run(), Flush(1, 9)

    def take(seq: int, flush: Flush | None, what: str) -> None:
        run.do(MessagesArrived((LanderMessage("gw", 7, seq, what, 100, earliest_us=5, flush=flush),)))
        run.now_us += SECOND
        run.do(Tick())

    run.take(7, 0, 1)
    for seq, of, what in [(2, flush, "flush"), (2, flush, "again"), (2, None, "first device"), (2, None, "again")]:
        take(seq, of, what)
    assert run.received["gw/7"] == [3, [], 5, [1, 9]]
    run = Run(run.received)
    for seq, of, what in [(2, Flush(1, 3), "another flush"), (2, Flush(1), "again"), (1, None, "again")]:
        take(seq, of, what)
    assert run.landed == ["another flush"]
    run.take(8, 0, 1, 1)
    assert run.received["gw/8"] == [2, []]


def test_flushes_of_the_newest_epochs_are_remembered() -> None:
    """protocol 1.3, 2.2: a child decides how many there are."""
    flushes = LandedFlushes()
    for epoch in range(MOST_FLUSHES + 1):
        flushes.landed(EpochKey("gw", epoch), 2, Flush(1, 9))
        flushes.landed(EpochKey("gw", epoch), 3, Flush(1, 3))
    assert len(flushes.of["gw"]) == MOST_FLUSHES
    assert flushes.contest(EpochKey("gw", 0), 2, None) is False
    newest = EpochKey("gw", MOST_FLUSHES)
    assert [flushes.contest(newest, 2, of) for of in (Flush(1, 9), Flush(1, 3), None)] == [False, True, False]
    flushes.forget(newest)
    assert flushes.state(newest) == []


def test_a_frame_of_the_first_of_two_flushes_lands_also_if_one_of_the_second_came_with_its_number() -> None:
    """protocol 1.4: the root declares what is in it."""
    run = Run()
    run.take(7, 0, 1)
    first, second = Flush(1, 3), Flush(1, 9)
    for seq, of, what in [
        (2, first, "a"),
        (3, second, "b"),
        (3, first, "c"),
        (3, first, "again"),
        (3, second, "again"),
    ]:
        run.do(MessagesArrived((LanderMessage("gw", 7, seq, what, 100, flush=of),)))
        run.now_us += SECOND
        run.do(Tick())
    assert run.landed[2:] == ["a", "b", "c"]
