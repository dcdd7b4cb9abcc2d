"""When late rows were sent, and where they lie (protocol 3.7): over starts, steps of the clock, and many of them."""

from __future__ import annotations

from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.late_sendings import LATE_US, MINUTE_US, MOST, LateSendings
from edge_agent.wire import snapshot

S = 1_000_000
T0 = 1_000_000 * S
ONE, TWO = (Group(name, "", (), 0, "revise") for name in ("s", "t"))


def started_again(sendings: LateSendings, now_us: int) -> LateSendings:
    return LateSendings(snapshot.loads(snapshot.dumps(sendings.changes(now_us))))


def test_it_knows_after_a_start_what_the_parent_may_still_hold() -> None:
    sendings = LateSendings({})
    sendings.note(T0, ONE, 5 * S, 6 * S)
    sendings.note(T0 + LATE_US // 2, ONE, 7 * S, 9 * S)
    sendings.note(T0 + LATE_US // 2, TWO, 1 * S, 2 * S)
    again = started_again(sendings, T0 + LATE_US // 2)
    assert list(again.recent(T0 + LATE_US - 1)) == [(ONE, 5 * S, 6 * S), (ONE, 7 * S, 9 * S), (TWO, 1 * S, 2 * S)]
    assert list(again.recent(T0 + LATE_US)) == [(ONE, 7 * S, 9 * S), (TWO, 1 * S, 2 * S)]


def test_the_slot_is_written_when_it_changes_and_forgets_what_has_left_the_parent() -> None:
    sendings = LateSendings({})
    assert sendings.changes(T0) == {}
    sendings.note(T0, ONE, 5 * S, 6 * S)
    assert sendings.changes(T0)
    assert sendings.changes(T0 + S) == {}
    sendings.note(T0 + LATE_US, TWO, 5 * S, 6 * S)
    again = started_again(sendings, T0 + LATE_US)
    assert list(again.recent(T0)) == [(TWO, 5 * S, 6 * S)]


def test_a_step_of_the_clock_is_no_time_that_passed() -> None:
    sendings = LateSendings({})
    sendings.note(T0, ONE, 5 * S, 6 * S)
    sendings.shift(2 * LATE_US)
    assert list(started_again(sendings, T0 + 2 * LATE_US).recent(T0 + 2 * LATE_US)) == [(ONE, 5 * S, 6 * S)]
    assert list(sendings.recent(T0 + 3 * LATE_US)) == []


def test_of_many_sendings_none_is_forgotten_early_and_those_of_a_minute_share_an_entry() -> None:
    sendings, sent = LateSendings({}), dict[int, int]()
    for second in range(2 * LATE_US // S):
        now_us, sent[second] = T0 + second * S, second * 10 * S
        sendings.note(now_us, ONE, sent[second], sent[second] + S)
        sendings.changes(now_us)
    found = list(sendings.recent(now_us))
    assert len(found) <= MOST
    for second, start_us in sent.items():
        known = any(low <= start_us < high for _, low, high in found)
        if T0 + second * S > now_us - LATE_US:
            assert known, second
        elif T0 + second * S <= now_us - LATE_US - MINUTE_US:
            assert not known, second
