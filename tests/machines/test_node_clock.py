"""What time it is at a node, and whether that is known: scripts of clocks (docs/protocol.md 4.3)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import ParentTime
from edge_agent.machines.node_clock import (
    ASK_AGAIN_US,
    ASK_US,
    COMPUTER,
    PARENT,
    SERVICE,
    SETTLED_US,
    STEP_US,
    UNKNOWN,
    ClockReading,
    NodeClock,
)

S = 1_000_000
RELEASED = 1_767_225_600 * S
NOW = 1_800_000_000 * S  # at boot
DAY = 86_400 * S


class Computer:
    """Boots at NOW, true time; its clock is wrong by wrong_us. boot_us: its first look. vouched: as in ClockReading."""

    def __init__(
        self,
        wrong_us: int = 0,
        vouched: bool | None = None,
        trust: str = "auto",
        floor_us: int = RELEASED,
        boot_us: int = 0,
    ) -> None:
        self.boot_us, self.wrong_us, self.vouched = boot_us, wrong_us, vouched
        self.clock = NodeClock(self.reading, trust=trust, max_error_us=2 * S, floor_us=floor_us)

    @property
    def reading(self) -> ClockReading:
        return ClockReading(NOW + self.boot_us + self.wrong_us, self.boot_us, self.vouched)

    def after(self, us: int, wrong_us: int | None = None, vouched: bool | None = None) -> str:
        """The source of the clock that much later."""
        self.boot_us += us
        self.wrong_us = self.wrong_us if wrong_us is None else wrong_us
        self.vouched = vouched
        return self.clock.look(self.reading).source

    def asks(self, round_trip_us: int = 200_000, error_us: int | None = 0, late_us: int = 0) -> str:
        """The source after the parent's answer. late_us: how much of the way is the answer's."""
        asked_us, self.boot_us = self.boot_us, self.boot_us + round_trip_us
        time_us = NOW + asked_us + round_trip_us - late_us
        return self.clock.answered(ParentTime(time_us, error_us, asked_us), self.boot_us).source

    @property
    def off_us(self) -> int:
        """How far the node's time is off."""
        return self.clock.state.offset_us - NOW


def test_a_plausible_clock_counts_where_there_is_no_service_to_ask() -> None:
    """protocol 4.3: an ordinary machine works at once."""
    assert (Computer().clock.state.source, Computer().off_us) == (COMPUTER, 0)
    assert Computer(vouched=False).clock.state.source == UNKNOWN
    assert Computer(trust="synced").clock.state.source == UNKNOWN
    assert Computer(-30 * 365 * DAY, trust="always").clock.state.source == SERVICE


def test_a_boot_in_1970_waits_for_the_service() -> None:
    """protocol 4.3."""
    computer = Computer(wrong_us=-NOW)
    assert (computer.clock.state.source, computer.off_us) == (UNKNOWN, RELEASED - NOW)
    assert computer.after(3_600 * S) == UNKNOWN
    assert computer.after(S, wrong_us=0, vouched=True) == SERVICE
    assert (computer.off_us, computer.clock.wrong) == (0, None)
    assert Computer(wrong_us=-NOW, boot_us=40 * S).off_us == RELEASED - NOW - 40 * S


def test_a_clock_behind_the_last_commit_is_not_right() -> None:
    """protocol 4.3: as with fake-hwclock, which goes on from the last stop; a parent's answer sets it."""
    computer = Computer(wrong_us=-600 * S, floor_us=NOW - 60 * S)
    assert (computer.clock.state.source, computer.off_us) == (UNKNOWN, -60 * S)
    assert computer.asks(late_us=200_000) == PARENT
    assert abs(computer.off_us) <= computer.clock.state.error_us == 100_000
    assert computer.after(S, vouched=None) == PARENT  # and the computer's clock is not asked any more
    assert computer.after(S, wrong_us=0, vouched=True) == SERVICE
    assert Computer(floor_us=NOW).clock.state.source == COMPUTER


def test_an_answer_that_took_too_long_is_not_taken() -> None:
    """protocol 4.3: within a stated error."""
    computer = Computer(wrong_us=-NOW)
    assert computer.asks(round_trip_us=5 * S) == UNKNOWN
    assert computer.asks(round_trip_us=3 * S, error_us=S) == UNKNOWN
    assert computer.asks(round_trip_us=3 * S, error_us=None) == PARENT
    assert abs(computer.off_us) <= 1_500_000
    assert Computer(wrong_us=-NOW).asks(round_trip_us=4 * S) == PARENT  # off by the 2 s that are allowed
    assert Computer(wrong_us=-NOW).asks(round_trip_us=0) == PARENT


def test_an_hour_ahead_for_five_seconds_changes_nothing() -> None:
    """protocol 4.3: time goes on by the time since boot, and readings wait until it is known whether it stepped."""
    computer = Computer()
    for _ in range(5):
        assert computer.after(S, wrong_us=3_600 * S) == UNKNOWN
        assert computer.off_us == 0
    assert computer.after(S, wrong_us=0) == COMPUTER
    assert (computer.off_us, computer.clock.wrong) == (0, None)


def test_a_step_counts_once_the_parent_or_a_minute_confirms_it() -> None:
    """protocol 4.3: what was stamped before it was wrong, and is known as that."""
    by_parent, alone = Computer(wrong_us=3_600 * S), Computer(wrong_us=3_600 * S)
    for computer in (by_parent, alone):
        assert computer.after(10 * S) == COMPUTER
        assert computer.after(S, wrong_us=0) == UNKNOWN
    assert by_parent.asks() == COMPUTER
    assert alone.after(SETTLED_US - S) == UNKNOWN
    assert alone.after(S) == COMPUTER
    for computer in (by_parent, alone):
        assert computer.off_us == 0
        assert computer.clock.wrong == (NOW, NOW + 3_611 * S)


def test_a_step_that_the_parent_denies_does_not_count() -> None:
    computer = Computer()
    assert computer.after(S, wrong_us=3_600 * S) == UNKNOWN
    assert computer.asks() == PARENT
    assert computer.after(2 * SETTLED_US) == PARENT
    assert abs(computer.off_us) <= 100_000


def test_a_step_of_the_service_counts_at_once() -> None:
    computer = Computer(vouched=True)
    for wrong_us in (3 * S, -3 * S, -DAY, 50 * 365 * DAY):
        assert computer.after(S, wrong_us=wrong_us, vouched=True) == SERVICE
        assert (computer.off_us, computer.clock.wrong) == (wrong_us, None)
    assert computer.after(S, wrong_us=7 * S, vouched=False) == UNKNOWN  # somebody set it
    assert computer.after(S, wrong_us=0, vouched=True) == SERVICE


def test_a_parent_that_somebody_vouches_for_knows_better_than_the_computer() -> None:
    computer = Computer(wrong_us=3_600 * S)
    assert computer.after(60 * S) == COMPUTER
    assert computer.asks(error_us=None) == COMPUTER
    assert computer.asks(error_us=0) == PARENT
    assert computer.clock.wrong is not None
    low, high = computer.clock.wrong
    assert low <= NOW + 200_000
    assert high >= NOW + 3_660 * S


def test_the_parent_is_asked_while_the_clock_is_unknown_and_sometimes_later() -> None:
    computer = Computer(wrong_us=-NOW)
    asks = computer.clock.asks
    assert [asks(us) for us in (0, 0, ASK_US - 1, ASK_US)] == [True, False, False, True]
    assert [asks(us) for us in (2 * ASK_US - 1, 2 * ASK_US)] == [False, True]
    assert computer.asks() == PARENT
    assert [asks(2 * ASK_US + us) for us in (ASK_AGAIN_US - 1, ASK_AGAIN_US)] == [False, True]
    computer.after(S, wrong_us=0, vouched=True)
    assert not asks(9 * ASK_AGAIN_US)


def test_an_answer_to_a_question_of_another_boot_is_not_taken() -> None:
    """protocol 4.3: it would be of a question that is still to come."""
    computer = Computer(vouched=False)
    assert computer.asks(round_trip_us=-200_000) == UNKNOWN
    assert computer.asks() != UNKNOWN


def test_a_parent_does_not_know_better_than_a_time_service() -> None:
    """protocol 4.3"""
    computer = Computer(vouched=True)
    assert computer.asks(late_us=-3_600 * S) == SERVICE
    assert computer.off_us == 0


def test_a_step_of_the_clock_says_nothing_about_the_time_of_the_parent() -> None:
    """protocol 4.3"""
    computer = Computer(wrong_us=-NOW)
    assert computer.asks() == PARENT
    off_us = computer.off_us
    assert computer.after(S, wrong_us=-NOW + 3_600 * S) == PARENT
    assert computer.off_us == off_us


@pytest.mark.parametrize(("vouched", "trust"), [(False, "auto"), (None, "synced")])
def test_a_minute_confirms_no_step_where_the_clock_alone_does_not_count(vouched: bool | None, trust: str) -> None:
    """protocol 4.3: a time service is there and has not confirmed it, or only a service may."""
    computer = Computer(vouched=True, trust=trust)
    assert computer.after(S, wrong_us=3_600 * S, vouched=vouched) == UNKNOWN
    assert computer.after(2 * SETTLED_US, vouched=vouched) == UNKNOWN
    assert computer.after(S, wrong_us=0, vouched=vouched) == COMPUTER  # it is back at the time that was confirmed


def test_half_a_second_is_a_step_and_anything_less_is_none() -> None:
    """protocol 4.3: the readings before it were stamped wrongly by as much."""
    computer = Computer(boot_us=40 * S)
    assert computer.after(S, wrong_us=STEP_US - 1) == COMPUTER
    assert computer.after(S, wrong_us=STEP_US) == UNKNOWN
    assert computer.after(S) == UNKNOWN  # nor is it back
    assert computer.after(SETTLED_US) == COMPUTER
    assert computer.off_us == STEP_US
    assert computer.clock.wrong == (NOW + 40 * S, NOW + 42 * S + STEP_US)


def test_what_was_stamped_before_a_step_and_its_way_back_is_wrong_as_well() -> None:
    """protocol 4.3: the clock counted without confirmation from the beginning."""
    computer = Computer(wrong_us=3_600 * S, boot_us=40 * S)
    assert computer.after(S, wrong_us=7_200 * S) == UNKNOWN
    assert computer.after(S, wrong_us=3_600 * S) == COMPUTER
    assert computer.after(S, wrong_us=0) == UNKNOWN
    assert computer.after(SETTLED_US) == COMPUTER
    assert computer.clock.wrong == (NOW + 40 * S, NOW + 43 * S + 3_600 * S)


@pytest.mark.parametrize("by", [SERVICE, COMPUTER])
def test_what_was_stamped_before_the_clock_was_confirmed_is_not_wrong(by: str) -> None:
    """protocol 4.3: by a service or a parent's answer; what a step makes wrong begins after it."""
    computer = Computer()
    assert computer.after(60 * S) == COMPUTER
    found = computer.after(200_000, vouched=True) if by == SERVICE else computer.asks()
    assert found == by
    assert computer.after(S, wrong_us=3_600 * S, vouched=None) == UNKNOWN
    assert computer.after(SETTLED_US) == COMPUTER
    assert computer.clock.wrong == (None if by == SERVICE else (NOW + 60_200_000, NOW + 3_661_200_000))


@pytest.mark.parametrize(("wrong_us", "source"), [(STEP_US + 100_000, COMPUTER), (STEP_US + 100_001, PARENT)])
@pytest.mark.parametrize("stepped", [False, True], ids=["known", "after a step"])
def test_a_clock_within_half_a_second_and_the_error_of_the_answer_is_right(
    wrong_us: int, source: str, *, stepped: bool
) -> None:
    """protocol 4.3: an answer that took 0.2 s may be off by 0.1 s."""
    computer = Computer(wrong_us=7_200 * S if stepped else wrong_us)
    assert computer.after(S, wrong_us=wrong_us) == (UNKNOWN if stepped else COMPUTER)
    assert computer.asks(late_us=100_000) == source
    assert computer.off_us == (wrong_us if source == COMPUTER else 0)


def test_a_parent_corrects_its_own_answer_only_beyond_the_errors_of_both() -> None:
    """protocol 4.3"""
    computer = Computer(wrong_us=-NOW)
    assert computer.asks(late_us=100_000) == PARENT
    assert computer.asks(late_us=100_000 - 200_000 - STEP_US) == PARENT
    assert computer.off_us == 0
    assert computer.asks(late_us=100_000 - 200_001 - STEP_US) == PARENT
    assert computer.off_us == 200_001 + STEP_US


def test_the_time_of_a_parent_counts_where_only_a_service_may_confirm_the_clock() -> None:
    """protocol 4.3"""
    assert Computer(trust="synced").asks() == PARENT
