"""When late rows were sent, and where they lie (protocol 3.7): over starts, steps of the clock, and many of them."""

from __future__ import annotations

from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.late_sendings import LATE_US, MINUTE_US, MOST, LateSendings
from edge_agent.wire import snapshot

S = 1_000_000
T0 = 1_000_000 * S
ONE, TWO = (Group(name, "", (), 0, "revise") for name in ("s", "t"))


def started_again(sendings: LateSendings, now_us: int) -> LateSendings:
    again = LateSendings(snapshot.loads(snapshot.dumps(sendings.changes())))
    again.pass_time(now_us)
    return again


def wait(sendings: LateSendings, from_us: int, upto_us: int) -> None:
    """A node that runs: events are seconds apart."""
    for now_us in range(from_us, upto_us + 1, S):
        sendings.pass_time(now_us)


def test_it_knows_after_a_start_what_the_parent_may_still_hold() -> None:
    sendings = LateSendings({})
    sendings.note(ONE, 5 * S, 6 * S)
    wait(sendings, T0, T0 + LATE_US // 2)
    sendings.note(ONE, 7 * S, 9 * S)
    sendings.note(TWO, 1 * S, 2 * S)
    again = started_again(sendings, T0 + LATE_US // 2)
    wait(again, T0 + LATE_US // 2, T0 + LATE_US - S)
    assert list(again.recent()) == [(ONE, 5 * S, 6 * S), (ONE, 7 * S, 9 * S), (TWO, 1 * S, 2 * S)]
    again.pass_time(T0 + LATE_US)
    assert list(again.recent()) == [(ONE, 7 * S, 9 * S), (TWO, 1 * S, 2 * S)]


def test_the_slot_is_written_when_it_changes_and_forgets_what_has_left_the_parent() -> None:
    sendings = LateSendings({})
    assert sendings.changes() == {}
    sendings.note(ONE, 5 * S, 6 * S)
    assert sendings.changes()
    assert sendings.changes() == {}
    wait(sendings, T0, T0 + LATE_US)
    sendings.note(TWO, 5 * S, 6 * S)
    assert list(started_again(sendings, T0).recent()) == [(TWO, 5 * S, 6 * S)]


def test_a_step_of_the_clock_is_no_time_that_passed() -> None:
    """Not even one that nobody reports; found by seed 27700 of the simulation."""
    sendings = LateSendings({})
    sendings.pass_time(T0)
    sendings.note(ONE, 5 * S, 6 * S)
    for now_us in (T0 + S, T0 + 30 * 86_400 * S, T0 + 2 * S):
        sendings.pass_time(now_us)
        assert list(sendings.recent()) == [(ONE, 5 * S, 6 * S)]
    assert list(started_again(sendings, T0 - 86_400 * S).recent()) == [(ONE, 5 * S, 6 * S)]
    wait(sendings, T0, T0 + LATE_US)
    assert list(sendings.recent()) == []


def test_of_many_sendings_none_is_forgotten_early_and_those_of_a_minute_share_an_entry() -> None:
    sendings, sent = LateSendings({}), dict[int, int]()
    for second in range(2 * LATE_US // S):
        now_us, sent[second] = T0 + second * S, second * 10 * S
        sendings.pass_time(now_us)
        sendings.note(ONE, sent[second], sent[second] + S)
        sendings.changes()
    found = list(sendings.recent())
    assert len(found) <= MOST
    for second, start_us in sent.items():
        known = any(low <= start_us < high for _, low, high in found)
        if T0 + second * S > now_us - LATE_US:
            assert known, second
        elif T0 + second * S <= now_us - LATE_US - MINUTE_US:
            assert not known, second


def test_sendings_of_a_minute_share_an_entry_that_holds_for_all_whatever_their_order() -> None:
    """protocol 3.7: late rows come from anywhere."""
    sendings, starts = LateSendings({}), [((37 * at) % 101) * S for at in range(101)]
    for start_us in starts:
        sendings.note(ONE, start_us, start_us + S)
    ((group, first_us, last_us),) = {*sendings.recent()} - {(ONE, at, at + S) for at in starts}
    assert (group, first_us, last_us) == (ONE, 0, 101 * S)
