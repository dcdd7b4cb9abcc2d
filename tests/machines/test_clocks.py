"""Clocks that are wrong for a while: an hour's flags, never an hour's silence (docs/protocol.md 1.1, 3.1, 4.1, 4.4)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import BEGAN, Heartbeat, Leaf, Members
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import CountTumbling, Session, Sliding, Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.clock_steps import ClockSteps
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.events import (
    Arrived,
    ClockChanged,
    LowerLink,
    Quarantine,
    Tick,
)
from edge_agent.machines.gateway import held_readings
from edge_agent.machines.gateway.gateway import NEVER_KNOWN
from edge_agent.machines.gateway.held_readings import MOST_HELD, HeldReadings
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.runtime.region import pack, unpack
from tests.support.machines.scripted_child import SUM, Sender, root_of
from tests.support.machines.simulated_host import JOURNAL, S, SimulatedHost
from tests.support.machines.wrong_clock import DAY, GRACE, T0, Line, N, query


def shown(line: Line) -> dict[int, float | None]:
    """Start of each window that has a row -> readings in it."""
    return {row.start: row.values["n"] for row in line.rows.values() if not row.withdrawn}


@pytest.mark.parametrize("wrong_us", [3_600 * S, 30 * DAY, 4 * 60 * S, 3 * S])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("window", [Tumbling(S), Sliding(4 * S, S)])
def test_a_clock_that_was_ahead_for_five_seconds_costs_no_silence(
    wrong_us: int, restart: bool, window: Tumbling | Sliding
) -> None:
    """protocol 4.1, 4.4: alone in its group; also where the process ended while its clock was ahead.

    Every reading is in the windows of its time, whether they closed before, in or after the wrong hour.
    """
    line = Line(query(window))
    line.seconds(20)
    line.wrong_us = wrong_us
    line.seconds(5)
    line.wrong_us = 0
    if restart:
        line.start()
    line.seconds(60)
    upto_us = line.now_us - 3 * S
    _, start = window.assign(np.array(line.stamped), np.array(line.stamped) + 1)
    want = Counter(us for us in start.tolist() if window.ends(np.array([us]))[0] <= upto_us)
    got = {start: n for start, n in shown(line).items() if window.ends(np.array([start]))[0] <= upto_us}
    assert got == want
    assert max(got) == upto_us - window.longest_us


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("window", [Tumbling(S), Sliding(4 * S, S), Session(2 * S)])
def test_what_changes_while_a_clock_is_ahead_holds_once_it_is_right(window: Tumbling | Session, restart: bool) -> None:
    """protocol 6.3, 4.1: a query that is added, and one that is removed, of a gateway that promises by its clock."""
    stays, goes, added = (replace(query(window), id=name) for name in ("stays", "goes", "added"))
    line = Line(stays, goes)
    line.seconds(20)
    for second in range(40):
        line.wrong_us = 3_600 * S if second >= 35 else 0
        line.second(0)
    line.configure(stays, added)
    line.wrong_us = 0
    changed_us = line.now_us
    if restart:
        line.start()
    for second in range(68):
        line.second(1 if 8 <= second < 28 else 0)
        changed_us = line.now_us if second == 5 else changed_us
    got = {name: {start for q, start in line.rows if q == name and start >= changed_us} for name in ("stays", "added")}
    assert got["added"] == got["stays"] != set()
    assert not [start for q, start in line.rows if q == "goes" and start >= changed_us]


@pytest.mark.parametrize("restart", [False, True])
def test_sessions_and_positions_go_on_after_a_wrong_hour(restart: bool) -> None:
    """protocol 4.1, 7.4: no position is given to the hour that was promised by mistake."""
    line = Line(query(Session(2 * S)), Query("p", 1, "s", CountTumbling(5), N, lateness_us=S))
    for i in range(100):
        if i in {40, 45}:
            line.wrong_us = 3_600 * S if i == 40 else 0
            if restart and i == 45:
                line.start()
        line.second(0 if i % 20 > 15 else 1)
    for _ in range(45):
        line.second(0)
    true = [us for us in line.stamped if us < line.now_us]
    sessions = [row for row in line.rows.values() if row.query == "q" and row.start < line.now_us]
    assert [row.values["n"] for row in sessions] == [16, 16, 11, 16, 16]
    positions = [row.values["n"] for row in line.rows.values() if row.query == "p"]
    assert len(positions) == len(true) // 5
    assert not line.root.beyond


def test_a_lander_that_was_ahead_leaves_no_live_child_out_and_lets_no_dead_one_hold_the_frontier() -> None:
    """protocol 4.4, 8.1: grace goes on from where it was, by ticks that stepped ahead for two seconds and back."""
    decider = Decider(JOURNAL, GRACE)
    children, group = decider.parent.children, Group("s", "", (), 0)
    membership = children.membership(group)
    before_us: int | None = None
    for second in range(1, 200):
        true_us = T0 + second * S
        now_us = true_us + (600 * S if 100 <= second < 102 else 0)
        decider.tick(now_us, before_us, connected=True)
        before_us = now_us
        for node in ("live", "dead") if second < 101 else ("live",):
            membership.member(node).change(Members(0, (Leaf(node, 1),)))
            children.heard(node, now_us)
            membership.member(node).promise(true_us - S, now_us)
        decider.decide(now_us)
        assert not membership.members["live"].out
        if not 158 < second < 164:
            assert membership.members["dead"].out == (second > 160), second
    assert membership.published_us == T0 + 198 * S


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("stands", [False, True])
def test_a_child_that_is_as_far_ahead_as_the_lander_is_believed_once_that_has_stood_for_a_minute(
    stands: bool, restart: bool
) -> None:
    """protocol 4.4, 8.1: both were wrong for 20 seconds, or both are right after a stop of an hour."""
    ahead_us, before_us = 3_600 * S, None
    child = Sender("a", Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0))
    decider = root_of(child).decider
    for second in range(120):
        true_us = T0 + second * S
        now_us = true_us + (ahead_us if second >= 20 and (stands or second < 40) else 0)
        if restart and second == 30:
            state, decider = decider.snapshot(pack), Decider(JOURNAL, GRACE)
            decider.restore(state, unpack)
        decider.tick(now_us, before_us, connected=True)
        before_us = now_us
        decider.take("a", child.send(frontier_us=now_us - S), now_us)
        decider.decide(now_us)
        member = family(decider).members["a"]
        if 20 <= second < 40:
            assert (member.frontier_us, member.ahead) == (T0 + 18 * S, True), second
        elif not stands or not 20 <= second < 80:
            assert (member.frontier_us, member.out) == (now_us - S, False), second


@pytest.mark.parametrize("known", [False, True])
def test_a_child_that_is_as_far_ahead_as_its_region_is_believed_once_that_has_stood_for_a_minute(known: bool) -> None:
    """protocol 4.3, 4.4: unless the region had not known its time before."""
    ahead_us = 3_600 * S
    child = Sender("a", Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0))
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(ClockChanged(known, "boot", 0), T0)
    birth = child.birth()
    assert birth.birth is not None
    birth = replace(birth, birth=replace(birth.birth, journal=host.machine.journal))
    host.do(Arrived((("a", birth, None),)), T0)
    for second in range(100):
        now_us = T0 + second * S + (ahead_us if second >= 20 else 0)
        host.do(ClockChanged(True, "boot", 0, ahead_us) if second == 20 else Tick(), now_us)
        host.do(Arrived((("a", child.send(frontier_us=now_us - S), None),)), now_us)
        (membership,) = host.machine.parent.children.memberships.values()
        doubted = known and 20 <= second < 80
        assert membership.members["a"].frontier_us == (T0 + 18 * S if doubted else now_us - S), second


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("by_us", [3_600 * S, -3_600 * S])
def test_a_step_of_a_region_s_clock_is_no_silence_of_a_line_and_ends_none(by_us: int, known: bool) -> None:
    """protocol 1.4, 4.3: the newer of two lines waits as long as before. known: the step is seen."""
    query = Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0 - 2 * GRACE)
    host.do(LowerLink(up=True), T0 - 2 * GRACE)  # so that its silence counts
    lines = [Sender("a", query), Sender("a", query)]
    lines[1].outbox.random = Random(5)
    births = [line.birth() for line in lines]
    for birth in births:
        assert birth.birth is not None
        birth = replace(birth, birth=replace(birth.birth, journal=host.machine.journal))
        host.do(Arrived((("a", birth, None),)), T0)
    inbox, now_us, in_force = host.machine.parent.inbox, T0, list[int]()
    for second in range(1, 101):
        now_us += S + (by_us if second == 30 else 0)
        seen = second == 30 and (known or by_us > 0)  # a step forward that nobody sees is time that passes
        host.do(ClockChanged(True, "boot", 0, by_us) if seen else Tick(), now_us)
        in_force.append(inbox.current["a"])
    assert in_force[55:95:39] == [births[0].epoch, births[1].epoch]


@pytest.mark.parametrize("restart", [False, True])
def test_a_region_that_was_an_hour_ahead_with_its_child_costs_no_silence_once_both_are_right(restart: bool) -> None:
    """protocol 4.1, 4.4: also where the process ended while its clock was ahead, and the next one sees no step."""
    ahead_us, query = 3_600 * S, Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0)
    child = Sender("a", query)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    for second in range(200):
        now_us = T0 + second * S + (ahead_us if second < 150 else 0)
        if second == 150 and restart:
            restored = host.disk.restored()
            host = SimulatedHost(
                Merger(NodeSettings("m"), Random(3), restored, grace_us=GRACE, pack=pack, unpack=unpack), host.disk
            )
            host.do(Tick(), now_us)
        if second in (0, 150):
            birth = child.birth()
            assert birth.birth is not None
            birth = replace(birth, birth=replace(birth.birth, journal=host.machine.journal))
            host.do(Arrived((("a", birth, None),)), now_us)
        host.do(Arrived((("a", child.send(frontier_us=now_us - S), None),)), now_us)
        host.do(Tick(), now_us)
        assert host.machine.sent.of(query.group).frontier_us <= now_us, second
    assert host.machine.sent.of(query.group).frontier_us == now_us - S


def test_leaves_that_came_with_a_step_back_are_listed_before_their_rows() -> None:
    """protocol 1.3, 1.5: else a row would contain readings of a leaf that it does not expect."""
    query = Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    for name, value, now_us in (("a", 1.0, T0 + 3_600 * S), ("b", 2.0, T0 + 10 * S)):
        child = Sender(name, query)
        birth, rows = child.birth(), child.send((T0, T0 + S, "", value), frontier_us=T0 + 5 * S)
        assert birth.birth is not None
        birth = replace(birth, birth=replace(birth.birth, journal=host.machine.journal))
        host.do(Arrived(((name, birth, None), (name, rows, None))), now_us)
    host.do(Tick(), T0 + 12 * S)
    listed, total = set[str](), 0.0
    for frame in host.frames:
        listed |= {leaf.node for members in frame.members for leaf in members.leaves}
        for part in frame.groups:
            total += sum(float(section.partials.states["sum"].sum()) for section in (*part.sections, *part.late))
        assert total <= ("a" in listed) + 2 * ("b" in listed)
    assert total == 3.0
    assert listed == {"a", "b"}


def test_a_heartbeat_that_a_parent_heard_while_its_clock_was_ahead_is_judged_by_the_right_one() -> None:
    """protocol 4.1, 4.4: the frames that it names come once both clocks are right."""
    month_us, query = 30 * DAY, Query("q", 1, "s", Tumbling(S), SUM, lateness_us=0)
    child = Sender("a", query)
    birth, frame = child.birth(), child.send((T0, T0 + S, "", 1.0))
    parent = ChildFrames(child.outbox.journal or 0, GRACE)
    number = child.outbox.encoder.groups[query.group]
    beat = Heartbeat(child.outbox.epoch, 1, ((number, T0 + month_us),))
    parent.take("a", birth, T0 + month_us)
    parent.take("a", beat, T0 + month_us)
    parent.take("a", frame, T0)
    assert parent.children.memberships[query.group].members["a"].frontier_us < T0


def test_what_a_lander_writes_after_short_stops_again_and_again_puts_no_child_off() -> None:
    """protocol 8.1: each of these steps is doubted for a minute, and all of them are less than five."""
    clock, now_us = ClockSteps(), T0
    for _ in range(100):
        assert 20 * S <= clock.look(now_us, now_us + 20 * S) <= 60 * S
        assert clock.look(now_us + 20 * S, now_us + 30 * S) <= 60 * S
        now_us += 30 * S
    assert clock.look(now_us, now_us - 60 * S) == 0, "it was ahead"
    assert clock.look(now_us - 60 * S, now_us + 3_540 * S) == 3_600 * S
    assert clock.look(now_us + 3_540 * S, now_us + 40 * S) == 100 * S, "it has come back, but for that"
    assert clock.look(now_us + 40 * S, now_us + 101 * S) == 61 * S


def family(decider: Decider) -> GroupMembership:
    (found,) = decider.parent.children.memberships.values()
    return found


def test_a_lander_that_was_down_lets_every_child_be_heard_first() -> None:
    """protocol 4.4: silence counts only while it listens."""
    decider = Decider(JOURNAL, GRACE)
    decider.tick(T0, None, connected=True)
    decider.parent.children.heard("a", T0)
    decider.tick(T0 + 3_600 * S, T0, connected=True)
    assert decider.parent.children.silent(T0 + 3_600 * S) == {"a": False}


def test_rows_are_revised_again_soon_after_the_landers_clock_went_back() -> None:
    """protocol 8.3: `revise_every` is counted from no later than now."""
    state = RootState(RootLimits(60 * S, 7 * DAY))
    state.at(T0 + 3_600 * S)
    state.revised[QueryPlace("q", 1, "")] = T0 + 3_600 * S
    state.at(T0)
    assert state.revised == {QueryPlace("q", 1, ""): T0}


UNDER_WAY_US = 2 * S  # delay and lateness


@pytest.mark.parametrize("behind_us", [0, 600 * S])
def test_a_stop_is_declared_also_where_the_clock_is_behind_the_last_commit(behind_us: int) -> None:
    """protocol 3.1: how long it was is not known then, so the record covers all times until the clock is past it."""
    line = Line(query(Tumbling(S)))
    line.seconds(10)
    stopped_us = line.now_us
    line.now_us += 100 * S
    line.wrong_us = -100 * S - behind_us
    before = set(line.disk.frames)
    line.start()
    (gap,) = (gap for place in line.disk.frames.keys() - before for gap in line.disk.frames[place][0].gaps)
    assert gap.reason == "stopped"
    assert (gap.start_us, gap.end_us) == (stopped_us - behind_us - UNDER_WAY_US, stopped_us + 1)


@pytest.mark.parametrize(
    ("wrong_us", "restart"), [(-30 * 365 * DAY, False), (-7 * 60 * S, True), (3_600 * S, True), (3_600 * S, False)]
)
def test_readings_of_an_unknown_clock_are_in_the_windows_of_their_corrected_times(wrong_us: int, restart: bool) -> None:
    """protocol 4.3: a boot in 1970, a clock that goes on from the last stop, one that is ahead."""
    line = Line(query(Tumbling(10 * S)), known=False)
    line.wrong_us = wrong_us
    line.tell()
    line.seconds(100)
    if restart:
        line.start()
    line.seconds(100)
    assert not line.rows
    assert len(line.host.machine.held) == 200
    line.learn()
    line.seconds(60)
    want = Counter(us // (10 * S) * (10 * S) for us in line.true)
    assert shown(line) == {start: want[start] for start in range(T0, T0 + 250 * S, 10 * S)}
    stop = [("stopped", T0 + 100 * S + 1)] * restart  # from the last reading of the process before
    assert {row.start - T0 for row in line.rows.values() if not row.complete} == {*[90 * S, 100 * S] * restart}
    assert {(gap.reason, gap.end_us) for _, gap in line.root.decider.gaps} == {(BEGAN, T0), *stop}
    assert not [slot for slot in line.disk.slots if slot.startswith("held/")]


def test_readings_of_a_clock_that_was_never_known_are_in_no_window_and_declared() -> None:
    """protocol 4.3, 9.1: they are quarantined where they are, and their number is told upward and in the books."""
    line = Line(query(Tumbling(S)))
    line.seconds(10)
    committed_us, line.known, line.wrong_us = line.now_us, False, -30 * 365 * DAY
    line.now_us += 100 * S
    line.boot, line.booted_us = "boot-2", line.now_us
    line.start()
    line.seconds(20)
    line.now_us += 100 * S
    line.boot, line.booted_us, line.known, line.wrong_us = "boot-3", line.now_us, True, 0
    line.start()
    line.seconds(40)
    assert not [start for start in shown(line) if committed_us <= start < line.booted_us]
    (gap,) = (gap for _, gap in line.root.decider.gaps if gap.reason == NEVER_KNOWN)
    assert (gap.start_us, gap.end_us, gap.readings) == (committed_us, line.booted_us + 1, 20)
    kept = [json.loads(each.payload) for each in line.host.done if isinstance(each, Quarantine)]
    assert [us for page in kept for us in page["since"]] == [second * S + S // 2 for second in range(20)]
    assert line.host.machine.book()["undated"] == 20
    line.start()
    assert line.host.machine.book()["undated"] == 20  # counted once, and for good


def test_readings_that_wait_are_bounded_and_what_had_to_go_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 4.3, 3.5."""
    monkeypatch.setattr(held_readings, "MOST_HELD", 100)
    line = Line(query(Tumbling(S)), known=False)
    line.seconds(150)
    assert (len(line.host.machine.held), line.host.machine.held.dropped) == (100, 50)
    line.learn()
    line.seconds(10)
    (gap,) = (gap for _, gap in line.root.decider.gaps if gap.reason == "clock unknown")
    assert (gap.readings, gap.start_us, gap.end_us) == (50, T0 + S // 2, T0 + 49 * S + S // 2 + 1)
    assert line.host.machine.book()["undated"] == 50


def test_windows_of_readings_that_a_wrong_clock_stamped_are_flagged() -> None:
    """protocol 4.3: it is learnt too late to correct them, so they and the windows they belong to are not complete."""
    line = Line(query(Tumbling(S)))
    line.wrong_us = 100 * S
    line.tell(100 * S)
    line.seconds(20)
    line.wrong_us = 0
    offset_us = line.booted_us
    wrong = (T0, line.now_us + 100 * S)
    line.host.do(ClockChanged(True, line.boot, offset_us, -100 * S, wrong), line.now_us)
    line.seconds(150)
    assert not [row for row in line.rows.values() if wrong[0] <= row.start < wrong[1] and row.complete]
    assert [row for row in line.rows.values() if row.start >= wrong[1] and row.complete]


def test_jitter_between_two_looks_takes_nothing_back() -> None:
    """protocol 4.3"""
    steps = ClockSteps()
    assert steps.look(T0, T0 + 100 * S) == 100 * S
    assert steps.look(T0 + 100 * S, T0 + 100 * S - 500_000) == 100 * S
    assert steps.look(T0 + 100 * S, T0 + 60 * S) == 60 * S


def test_what_had_no_room_while_the_clock_was_unknown_is_declared_once() -> None:
    """protocol 4.3"""
    held, page = HeldReadings(), MOST_HELD // 2 + 1
    for first in (0, page):
        time_us = np.arange(first, first + page)
        held.add("s", "boot", Batch(time_us, time_us, np.zeros(page, np.int64), [()]))
    assert list(held.lost("boot", 10)) == [("s", 10, 10 + page, page)]
    assert list(held.lost("boot", 10)) == []
