"""Epochs that are declared lost, gap records that stand for frames, and frames that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge_agent.algebra.frame import LOST, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink import inbox as inbox_module
from edge_agent.machines.downlink.epochs.epoch_frames import (
    MOST_QUARANTINED,
    RECEIPT_QUARANTINED,
    EpochFrames,
)
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame
from tests.support.machines.inbox_frames import GROUP, JOURNAL, applied, born, lost_past, restarted, seqs


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
    gaps = Gap((GROUP,), 0, 1, 9, (), "poison"), Gap((GROUP,), 0, 1, 9, (), "quota", run=2)
    assert seqs(inbox, "a", Frame(1, 5, gaps=gaps)) == [(1, 5)], "while no frame waits"
    assert inbox.receipt("a", 1).upto == 7


def test_no_frame_waits_below_a_gap_record_that_stands_for_it() -> None:
    """protocol 2.2, 3.5: it would take room for ever."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (2, 3, 4)] == [[], [], []]
    assert seqs(inbox, "a", Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", 3),))) == [(1, 1), (1, 4)]
    assert not inbox.waits("a")


class LookedAt(dict[int, Frame | BadFrame]):
    """Frames that wait. looks: how many were gone through."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        for seq in super().__iter__():
            self.looks += 1
            yield seq


@pytest.mark.parametrize("apart", [2, 500])
def test_gap_records_that_wait_are_gone_through_once_when_the_frame_before_them_comes(apart: int) -> None:
    """protocol 2.2, 3.5: 10 000 of a child held up its region for many seconds, or for each that came behind."""
    inbox = Inbox(JOURNAL)
    seqs(inbox, "a", born(1))
    for n in range(100):
        lost = Gap((GROUP,), 0, 1, 1, (), "quota", run=apart)
        assert seqs(inbox, "a", Frame(1, 2 + n * apart, gaps=(lost,))) == []
    frames = inbox.epochs[EpochKey("a", 1)]
    frames.waiting = looked_at = LookedAt(frames.waiting)
    assert len(seqs(inbox, "a", Frame(1, 1))) == 101
    assert inbox.receipt("a", 1).upto == 2 + 100 * apart
    assert looked_at.looks <= 200


def test_what_a_gap_record_stands_for_is_dropped_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest of many waiting seqs is found by going through them, so it must not be dropped again and again."""
    inbox, dropped = Inbox(JOURNAL), list[int]()
    seqs(inbox, "a", born(1))
    for seq in reversed(range(2, 20)):
        seqs(inbox, "a", Frame(1, seq))
    real = inbox._drop

    def drop(key: EpochKey, frames: EpochFrames, seq: int) -> Frame | BadFrame:
        dropped.append(seq)
        return real(key, frames, seq)

    monkeypatch.setattr(inbox, "_drop", drop)
    seqs(inbox, "a", Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", run=18),)))
    assert dropped == [1, *range(2, 19), 19]
    assert not inbox.waits("a")


def test_an_epoch_that_waits_for_one_without_a_past_follows_it_and_is_not_lost_with_the_older_ones() -> None:
    """protocol 1.2: frames arrive in any order."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(3, (2, 0))) == []
    effects = inbox.take("a", born(2, LOST))
    assert [(each.epoch, each.seq, each.stale) for each in effects] == [(2, 0, False), (3, 0, False)]
    assert inbox.current == {"a": 3}


def test_of_an_epoch_declared_lost_nothing_counts_before_its_birth_has_come() -> None:
    """protocol 1.2, 3.7: it may be for another journal of this parent, which counted it."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", Frame(5, 1)) == []
    assert seqs(inbox, "a", lost_past(9, 5)) == [(9, 0)]
    assert seqs(inbox, "a", born(5, journal=JOURNAL + 1)) == []
    assert seqs(inbox, "a", born(5)) == [(5, 0), (5, 1)]


def test_an_epoch_that_nobody_had_heard_when_it_was_declared_lost_is_known_as_such() -> None:
    """protocol 1.2, 1.3: its rows may be repeats of what a gateway reads again."""
    inbox = Inbox(JOURNAL)
    for frame in (born(1), lost_past(9, 1, 5)):
        inbox.take("a", frame)
    assert [effect.unheard for effect in inbox.take("a", Frame(1, 1))] == [False]
    assert [effect.unheard for effect in inbox.take("a", born(5))] == [True]
    assert inbox.lost_epochs("a") == [1]


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


def test_a_gap_record_behind_the_end_of_an_epoch_stands_for_all_its_frames() -> None:
    """protocol 1.4, 3.5: what the second line sends behind them follows."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2, (1, 0))) == [(2, 0)]
    assert seqs(inbox, "a", Frame(1, 1, gaps=(Gap((GROUP,), 0, 1, 1, (), "quota", 3),))) == [(1, 1)]
    assert [seqs(inbox, "a", Frame(1, seq)) for seq in (3, 5, 4)] == [[], [], [(1, 4)]]
    assert inbox.receipt("a", 1).upto == 5


def test_a_line_that_nobody_heard_and_that_begins_without_a_past_is_no_copy() -> None:
    """protocol 1.2, 1.3: its rows are its own, whichever line is in force."""
    inbox = Inbox(JOURNAL, silence_us=60)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    assert seqs(inbox, "a", born(2)) == []
    effects = inbox.take("a", lost_past(3, 2))
    assert [(e.epoch, e.unheard, e.copied) for e in effects] == [(3, False, False), (2, True, False)]
    assert [(e.epoch, e.unheard, e.copied) for e in inbox.take("a", Frame(2, 1))] == [(2, True, False)]
    assert inbox.copies("a") == []


class AskedFor(dict[int, EpochFrames]):
    """The epochs of a child. asked: how often one of them was looked at by its number."""

    asked = 0

    def get(self, epoch: int, default: Any = None) -> Any:
        self.asked += 1
        return super().get(epoch, default)

    def __getitem__(self, epoch: int) -> EpochFrames:
        self.asked += 1
        return super().__getitem__(epoch)


def test_a_birth_without_a_past_looks_once_at_each_epoch_that_waits_however_long_their_line_is() -> None:
    """protocol 1.2, 2.2: behind 1 000 births in a row, each such message cost its region a fifth of a second."""
    inbox = Inbox(JOURNAL)
    assert seqs(inbox, "a", born(1)) == [(1, 0)]
    for n in range(100):
        assert seqs(inbox, "a", born(100 + n, (99 + n, 0) if n else (1, 5))) == []
    inbox._lines["a"] = asked = AskedFor(inbox._lines["a"])
    inbox.take("a", lost_past(2, *range(100, 200)))
    assert asked.asked < 1_000
    assert len(inbox.copies("a")) == 0, "they follow the line that was heard"
    assert inbox.current == {"a": 2}


def test_epochs_that_a_birth_names_do_not_end_lines_that_were_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2: frames of these may still come, and their data counts."""
    monkeypatch.setattr(inbox_module, "MOST_LOST", 2)
    inbox = Inbox(JOURNAL)
    assert [seqs(inbox, "a", frame) for frame in (born(1), lost_past(2), lost_past(3))] == [
        [(1, 0)],
        [(2, 0)],
        [(3, 0)],
    ]
    assert seqs(inbox, "a", lost_past(4, 50, 51)) == [(4, 0)]
    assert applied(inbox, Frame(3, 1)) == [(3, 1)]
    assert applied(inbox, Frame(2, 1)) == [(2, 1)]
    assert (EpochKey("a", 1) in inbox.ended, inbox.forgotten) == (True, 1)


def test_the_books_of_a_line_go_on_with_its_next_epoch_and_those_of_another_one_do_not() -> None:
    """protocol 9.1: a spool from a copy counts from before the copy, so nothing can be compared with it."""
    inbox = Inbox(JOURNAL, silence_us=60)

    def line(now_us: int, *messages: Frame) -> tuple[int, int | None, int]:
        for message in messages:
            inbox.take("a", message, now_us)
        inbox.look("a", now_us + 60)
        found = inbox.in_force("a")
        assert found is not None
        return inbox.current["a"], found.readings, found.refused

    assert line(0, born(1)) == (1, 0, 0)
    inbox.count("a", 5)
    inbox.count("a", None)
    assert line(100, born(2, (1, 0))) == (2, 5, 1)
    assert line(200, born(9)) == (9, 0, 0)
    inbox.count("a", 3)
    assert line(300, Frame(9, 1), born(10, (9, 0))) == (10, None, 0)
    inbox.count("a", 3)
    assert line(400) == (10, None, 0)


def test_a_child_waits_while_a_frame_of_it_does() -> None:
    """protocol 1.2, 2.2"""
    inbox = Inbox(JOURNAL)
    frames = born(1), Frame(1, 2), Frame(1, 1), born(2, (1, 3)), Frame(1, 3), Frame(7, 1)
    waits = []
    for frame in frames:
        inbox.take("a", frame)
        waits.append(inbox.waits("a"))
    assert waits == [False, True, False, True, False, True]
