"""What the root believes of its children when its lander was away, and for how long it remembers their losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import Gap, Leaf, Receipt, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import CountTumbling, Punctuation, Tumbling
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.root.completeness import Decider, Decision, GroupView
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
T0 = 1_000 * S
HOUR = 3_600 * S


class Root:
    """A decider with one child and a lander that writes a tick a second while it runs."""

    def __init__(self, *named: str) -> None:
        self.decider, self.child, self.now_us = Decider(JOURNAL, GRACE, named), Sender("a", QUERY), T0
        self.decider.tick(T0, None, connected=True)
        self.decider.take("a", self.child.birth(), T0)

    def run(self, seconds: int, *, connected: bool = True) -> None:
        for _ in range(seconds):
            self.passes(S, connected=connected)

    def passes(self, by_us: int, *, connected: bool = True) -> None:
        self.decider.tick(self.now_us + by_us, self.now_us, connected=connected)
        self.now_us += by_us

    def promises(self, frontier_us: int) -> None:
        self.decider.take("a", self.child.send(frontier_us=frontier_us), self.now_us)

    def restart(self) -> None:
        state, self.decider = self.decider.snapshot(lambda frame: frame), Decider(JOURNAL, GRACE)
        self.decider.restore(state, lambda frame: frame)

    @property
    def silent(self) -> bool:
        return self.decider.parent.children.silent(self.now_us)["a"]


def test_a_child_that_the_settings_name_is_missing_until_it_is_heard() -> None:
    """protocol 4.5"""
    root = Root("a", "never")
    root.promises(T0 - 10 * S)
    root.run(2 * GRACE // S)
    root.promises(T0)
    view = root.decider.decide(root.now_us).groups[QUERY.group]
    assert view.frontier_us == T0
    found = window_coverage(view.leaves, [], QUERY.group, T0 - 20 * S, T0 - 10 * S)
    assert (found.expected, found.missing) == (("a", "never"), (("never", "behind"),))


def test_a_time_without_a_lander_is_no_silence_of_a_child() -> None:
    """protocol 4.4, 8.1"""
    root = Root()
    root.passes(HOUR)
    assert not root.silent
    root.run(GRACE // S - 1)
    assert not root.silent
    root.run(2)
    assert root.silent


def test_after_a_step_back_of_the_lander_s_clock_a_child_is_silent_as_soon_as_before() -> None:
    """protocol 4.4, 8.1"""
    root = Root()
    root.run(10)
    root.passes(-HOUR)
    root.run(GRACE // S - 11)
    assert not root.silent
    root.run(2)
    assert root.silent


def test_what_was_noticed_of_a_child_is_an_alarm_of_that_time_and_what_was_refused_is_counted_once() -> None:
    """protocol 1.4, 8.1: an alarm ends a day later, however long its child speaks on."""
    root = Root()
    inbox = root.decider.parent.inbox
    for noticed in ("rivals", "restored"):
        inbox.rivals |= {"a": (1, 2)} if noticed == "rivals" else {}
        inbox.restored |= {"a"} if noticed == "restored" else set()
        root.promises(root.now_us)
        since_us = root.now_us
        root.run(5)
        root.promises(root.now_us)
        assert root.decider.alarms["a"][1] == since_us
    root.decider.beyond_bounds["gaps"] += 3
    assert [root.decider.take_beyond(), root.decider.take_beyond()] == [{"gaps": 3}, {}]


def test_a_time_in_which_the_lander_had_no_broker_is_no_silence_of_a_child() -> None:
    """protocol 4.4"""
    root = Root()
    root.run(3 * GRACE // S, connected=False)
    assert not root.silent
    root.run(GRACE // S + 2)
    assert root.silent


def test_a_time_without_a_lander_is_no_silence_of_the_first_of_two_lines() -> None:
    """protocol 1.4, 8.1"""
    root = Root()
    root.run(2 * GRACE // S)
    root.promises(T0)
    first, second = root.decider.parent.inbox.current["a"], Sender("a", QUERY)
    second.outbox.random.seed(5)
    root.decider.take("a", second.birth(), root.now_us)
    assert second.outbox.epoch != first
    root.passes(HOUR)
    root.run(GRACE // S - 2)
    root.decider.decide(root.now_us)
    assert root.decider.parent.inbox.current["a"] == first
    root.run(2 * GRACE // S)
    root.decider.decide(root.now_us)
    assert root.decider.parent.inbox.current["a"] == second.outbox.epoch


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "beside a record of no known start"])
def test_frames_that_the_lander_has_are_lost_after_the_grace_time_in_which_it_ran_and_not_if_they_have_come(
    unknown: bool,
) -> None:
    """protocol 3.2, 8.1: files need not be listed in their order."""
    root = Root()
    box, frames = root.child.outbox, [root.child.send(frontier_us=T0 + i) for i in range(4)]
    root.decider.take("a", frames[3], root.now_us)
    stated = Receipt(box.epoch, JOURNAL, 5, earliest_us=(T0 - 9 * S) * (-1 if unknown else 1))
    root.decider.stated([("a", stated)], root.now_us)
    root.passes(HOUR)
    root.run(GRACE // S - 2)
    assert [effect.seq for effect in root.decider.decide(root.now_us).effects] == [0]
    root.decider.take("a", frames[0], root.now_us)
    root.run(4)
    decision = root.decider.decide(root.now_us)
    assert [(effect.seq, effect.frame is None) for effect in decision.effects] == [(1, False), (2, True), (4, False)]
    (gap,) = (gap for _, gap in decision.gaps)
    assert (gap.start_us, gap.nodes) == (T0 - 9 * S, ("a",))
    assert root.decider.parent.inbox.epochs[EpochKey("a", box.epoch)].applied.next == 5


def test_nothing_is_noted_for_a_spool_beyond_a_decision() -> None:
    """A root has none, so it kept a number for each frame that ever waited, and for each epoch."""
    root = Root()
    late, next_one = root.child.send(frontier_us=T0), root.child.send(frontier_us=T0 + S)
    for frame in (next_one, late, root.child.flush((0, S, "", 1.0)), root.child.birth()):
        root.decider.take("a", frame, root.now_us)
    inbox = root.decider.parent.inbox
    noted = (inbox.changed, inbox.ended.changed, inbox.waiting.changed, root.decider.parent.changed_dictionaries)
    assert all(noted)
    root.decider.decide(root.now_us)
    assert not any(noted)


def test_a_loss_is_remembered_while_a_row_that_it_touches_may_be_computed_again() -> None:
    """protocol 4.2, 4.7: windows reach beyond the end of the record."""
    root, horizon_us = Root(), 20 * S
    root.decider.take("a", root.child.lose(T0, T0 + 50 * S), root.now_us)
    for frontier_us, kept in ((T0 + 79 * S, 1), (T0 + 80 * S, 0)):
        root.run(40)
        root.promises(frontier_us)
        decision = root.decider.decide(root.now_us)
        assert decision.groups[QUERY.group].frontier_us == frontier_us
        root.decider.release(decision, horizon_us, lambda key: 10 * S)
        assert len(root.decider.gaps) == kept


def test_a_query_that_ended_long_ago_is_served_no_more_whoever_still_states_it() -> None:
    """protocol 8.4: its readings may be deleted, also if a longer horizon is configured since."""
    root, ended = Root(), Serving("q", 1, end_until_us=T0 + 10 * S)
    root.decider.take("a", root.child.tell(ended), root.now_us)
    root.run(150)
    root.promises(T0 + 150 * S)
    decision = root.decider.decide(root.now_us)
    assert QUERY.key in decision.groups[QUERY.group].serving
    assert root.decider.let_go(decision, 20 * S, lambda place, end_us: True) == [], "a row of it is put off"
    assert root.decider.let_go(decision, 20 * S, lambda place, end_us: False) == [(QUERY.group, QUERY.key)]
    assert root.decider.serves(QUERY.group, QUERY.key) is False
    root.decider.let_go(root.decider.decide(root.now_us), 10_000 * S, lambda place, end_us: False)
    for _ in range(2):
        root.decider.take("a", root.child.tell(ended), root.now_us)
        assert QUERY.key not in root.decider.decide(root.now_us).groups[QUERY.group].serving
        assert root.decider.serves(QUERY.group, QUERY.key) is False
        root.restart()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leaf_that_was_behind_when_it_left_its_group_catches_up_when_it_is_listed_again(restarted: bool) -> None:
    """protocol 4.7: windows in between were written without its rows."""
    root, other = Root(), Sender("b", QUERY)
    root.decider.take("b", other.birth(T0), T0)
    root.run(2 * GRACE // S)
    root.promises(T0 + 60 * S)
    frontiers = [root.decider.decide(root.now_us).groups[QUERY.group].frontier_us for _ in range(2)]
    assert frontiers == [T0, T0 + 60 * S], "b is left out"
    (gone,) = other.outbox.put(Step((GroupStep(QUERY.group, dropped=("b",)),)))
    root.decider.take("b", gone, root.now_us)
    assert "b" not in root.decider.decide(root.now_us).groups[QUERY.group].leaves
    if restarted:
        root.restart()
    (back,) = other.outbox.put(Step((GroupStep(QUERY.group, leaves=(Leaf("b", 1),)),)))
    root.decider.take("b", back, root.now_us)
    root.decider.take("b", other.send(frontier_us=T0 + 70 * S), root.now_us)
    assert root.decider.decide(root.now_us).caught_up == {(QUERY.group, "b"): (T0, T0 + 70 * S)}


@pytest.mark.parametrize(("ahead_us", "from_us"), [(0, T0), (HOUR, T0), (-10 * S, T0 - 10 * S)])
def test_a_loss_in_a_group_without_members_is_remembered_for_two_horizons_of_time_that_has_passed(
    ahead_us: int, from_us: int
) -> None:
    """protocol 8.4: members may come back; an error of the clock makes no loss old."""
    root, horizon_us, empty = Root(), 20 * S, replace(QUERY.group, source="empty")
    undated = Gap((empty,), 0, 0, -1, ("a",), "damaged")
    old, new = (Gap((empty,), 0, from_us - 2 * horizon_us + us, 1, ("a",), "lost") for us in (0, 1))
    root.decider.gaps = [("a", gap) for gap in (undated, old, new)]
    decision = replace(root.decider.decide(T0), now_us=T0 + ahead_us)
    root.decider.release(decision, horizon_us, lambda key: 10 * S)
    assert [gap for _, gap in root.decider.gaps] == [undated, new]


def test_a_loss_is_remembered_for_windows_of_which_nobody_knows_the_length() -> None:
    """protocol 4.7: those between markers and of positions have none; that of a definition may not be known yet."""
    root, timed = Root(), QUERY.group
    marked = Query("m", 1, "s", Punctuation(), SUM, lateness_us=0).group
    counted = Query("c", 1, "s", CountTumbling(10), SUM, lateness_us=0).group
    for group, reach_us, kept in ((timed, 10 * S, 0), (timed, None, 1), (marked, 10 * S, 1), (counted, 10 * S, 1)):
        view = GroupView(T0, LeafTimes.of({}), {QueryKey("q", 1): Serving("q", 1)}, {})
        root.decider.gaps = [("a", Gap((group,), 0, 5 * S, 1, ("a",), "lost"))]
        root.decider.release(Decision(T0, (), {group: view}, {}, (), (), ()), 20 * S, {QueryKey("q", 1): reach_us}.get)
        assert len(root.decider.gaps) == kept
