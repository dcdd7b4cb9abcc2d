"""Who is missing from windows between markers: held up for, or left out and named; and what happens on the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import LATEST_US, NEVER_US, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.punctuation.markers import MARKER_KEY, role_key, window_key
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.downlink.children import Children
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.root.punctuation_windows import JointWindow, WindowChanges
from edge_agent.wire import snapshot

KEY = QueryKey("q", 1)
HORIZON_US = 10**9
Spans = list[tuple[int, int]]


@dataclass
class Bench:
    """The windows of one query, step by step; every step ends with a restart."""

    interpretation: str
    on_missing: str
    marked: PunctuationWindows = field(default_factory=PunctuationWindows)
    from_us: int | None = None  # the first window start that the query serves
    away: dict[str, int] = field(default_factory=dict)  # leaf -> how far its line to a parent that is away has come

    def __post_init__(self) -> None:
        window = Punctuation(self.interpretation)
        self.query = Query(*KEY, "s", window, (Aggregate("sum", "sum"),), on_missing=self.on_missing)
        self.shared = self.query.group_at("a") == self.query.group_at("b")

    def cut(self, *times_us: int) -> None:
        self.marked.add_markers("", [role_key("")] * len(times_us), times_us, [us + 1 for us in times_us])

    def number(self, node: str, number: int, start_us: int, end_us: int) -> None:
        self.marked.add_markers(node, [window_key(number)], [start_us], [end_us])

    def step(
        self, *, stuck: str = "", due_us: int = LATEST_US, unheard: tuple[str, ...] = (), **leaves: int
    ) -> WindowChanges:
        """leaves: how far each is."""
        serving = {KEY: Serving(*KEY, self.from_us)}
        counted = [us for leaf, us in leaves.items() if leaf not in stuck] or [NEVER_US]
        views = {"": GroupView(min(counted), LeafTimes.of(leaves), serving, {}, unheard=unheard)}
        if not self.shared:
            views = {
                leaf: GroupView(
                    us, LeafTimes.of({leaf: self.away.get(leaf, us)}), serving, {}, stuck=leaf in stuck, unheard=unheard
                )
                for leaf, us in leaves.items()
            }
        members = {node: (self.query.group_at(node), view) for node, view in views.items()}
        decision = Decision(0, (), {}, {}, (), (), ())
        found = self.marked.step(KEY, members, decision, (), due_us=due_us, horizon_us=HORIZON_US)
        self.marked = PunctuationWindows.restore(snapshot.loads(snapshot.dumps(self.marked.snapshot())))
        return found


def spans(joints: tuple[JointWindow, ...]) -> Spans:
    return [joint.place[1:] for joint in joints]


def missing(joint: JointWindow) -> list[str]:
    return [leaf for leaf, _ in joint.coverage.missing]


def test_one_stream_waits_for_a_node_that_is_left_out() -> None:
    """protocol 7.4"""
    bench = Bench("central", "hold")
    bench.cut(10, 20)
    assert bench.step(a=30, b=15, stuck="b") == WindowChanges()
    (closing,) = bench.step(a=30, b=21, stuck="b").closing
    assert (closing.place, closing.coverage.complete) == (("", 10, 20), True)


def test_one_stream_waits_for_a_node_longer_than_rows_are_revised() -> None:
    """protocol 7.4, 4.2: the horizon is counted from what has been shown, not from where the others are."""
    bench = Bench("central", "hold")
    bench.cut(10, 20)
    assert bench.step(a=3 * HORIZON_US, b=15, stuck="b") == WindowChanges()
    assert bench.step(a=3 * HORIZON_US + 1, b=15, stuck="b") == WindowChanges()
    bench.cut(17)
    assert spans(bench.step(a=3 * HORIZON_US, b=30).closing) == [(10, 17), (17, 20)]


def test_one_stream_goes_on_without_it_where_the_query_says_so_and_is_cut_anew_when_it_is_back() -> None:
    """protocol 7.4, 4.7: what it marked meanwhile parts what was shown; no reading is in two rows."""
    bench = Bench("central", "skip")
    bench.cut(10, 20)
    (closing,) = bench.step(a=30, b=5, stuck="b").closing
    assert missing(closing) == ["b"]
    bench.cut(14)
    found = bench.step(a=30, b=30)
    assert (spans(found.closing), found.gone, found.revising) == ([(10, 14), (14, 20)], (("", 10, 20),), ())
    assert all(joint.coverage.complete for joint in found.closing)


def test_a_window_is_not_cut_anew_more_often_than_rows_are_revised() -> None:
    """protocol 8.3: the old row and the new ones change places together."""
    bench = Bench("central", "skip")
    bench.cut(10, 20)
    bench.step(a=30, b=5, stuck="b")
    bench.cut(14)
    bench.step(a=30, b=30)
    bench.cut(12, 40)
    found = bench.step(a=50, b=50, due_us=NEVER_US)
    assert (spans(found.closing), found.gone) == ([(20, 40)], ())
    assert bench.marked.waiting
    found = bench.step(a=50, b=50)
    assert (spans(found.closing), found.gone) == ([(10, 12), (12, 14)], (("", 10, 14),))
    assert not bench.marked.waiting


def test_a_window_that_is_one_again_is_no_first_row() -> None:
    """Its row stands in the table, withdrawn."""
    bench = Bench("central", "hold")
    bench.marked.add_markers("", [role_key("start"), role_key("end")], [60, 100], [61, 101])
    assert spans(bench.step(a=200).closing) == [(60, 100)]
    bench.marked.add_markers("", [role_key("start")], [55], [56])
    assert spans(bench.step(a=200).closing) == [(55, 100)]
    bench.marked.add_markers("", [role_key("end")], [57], [58])
    found = bench.step(a=200)
    assert (spans(found.closing), spans(found.revising), found.gone) == ([(55, 57)], [(60, 100)], (("", 55, 100),))


def test_windows_by_number_wait_for_a_node_that_says_nothing() -> None:
    bench = Bench("order", "hold")
    bench.number("a", 0, 10, 20)
    assert bench.step(a=30, b=5, stuck="b") == WindowChanges()
    bench.number("b", 0, 15, 40)
    (closing,) = bench.step(a=50, b=50).closing
    assert (closing.place, closing.coverage.complete) == (("", 10, 40), True)


def test_windows_by_number_leave_out_a_node_that_stands_still_where_the_query_says_so() -> None:
    """protocol 4.4, 4.7: its own windows of those numbers join them when it is back."""
    bench = Bench("order", "skip")
    bench.number("a", 0, 10, 20)
    bench.number("a", 1, 20, 30)
    assert bench.step(a=50, b=50) == WindowChanges()  # it is there, and has no first window yet
    found = bench.step(a=50, b=5, stuck="b", unheard=("c",))
    assert spans(found.closing) == [(10, 20), (20, 30)]
    assert [missing(joint) for joint in found.closing] == [["b", "c"], ["b", "c"]]
    bench.number("b", 0, 12, 18)
    bench.number("b", 1, 18, 44)
    found = bench.step(a=50, b=50)
    assert (spans(found.revising), spans(found.closing), found.gone) == ([(10, 20)], [(18, 44)], (("", 20, 30),))
    assert all(joint.coverage.complete for joint in (*found.revising, *found.closing))
    assert {(of, low, high) for of, low, high in found.closing[0].picks} == {("a", 20, 30), ("b", 18, 44)}


def test_two_nodes_that_are_back_in_one_step_leave_one_row() -> None:
    """protocol 4.7: what one of them changes, the other may change again at once."""
    bench = Bench("order", "skip")
    bench.number("a", 0, 10, 20)
    bench.step(a=50, b=5, c=5, stuck="bc")
    bench.number("b", 0, 10, 20)
    bench.number("c", 0, 5, 20)
    found = bench.step(a=50, b=50, c=50)
    assert (spans(found.closing), found.revising, found.gone) == ([(5, 20)], (), (("", 10, 20),))
    assert found.closing[0].coverage.complete


def test_a_group_stands_still_once_its_frontier_has_not_risen_for_the_grace_time_that_its_parent_heard() -> None:
    """protocol 4.4: silence counts only while the parent itself is connected."""
    group = Bench("order", "skip").query.group_at("a")
    children = Children(100)
    children.link(0, up=True)
    children.membership(group)
    assert not children.stuck(group, 100)
    assert children.stuck(group, 101)
    children.link(150, up=False)
    assert not children.stuck(group, 200)
    children.link(200, up=True)
    assert not children.stuck(group, 300)
    assert children.stuck(group, 301)
    children.stepped_back(50)
    assert not children.stuck(group, 150)


def test_the_windows_of_a_node_keep_their_numbers_whatever_comes_first() -> None:
    """A merger that has promised more passes on what is late after what is on time (protocol 4.2)."""
    bench = Bench("order", "wait")
    bench.number("a", 1, 20, 30)
    bench.number("a", 0, 10, 20)
    bench.number("a", 2, 30, 40)
    assert spans(bench.step(a=50).closing) == [(10, 20), (20, 30), (30, 40)]


def test_windows_by_number_begin_with_the_first_of_each_node_that_the_query_serves() -> None:
    """protocol 6.3: the numbers of a node go on from one revision to the next."""
    bench = Bench("order", "wait", from_us=100)
    bench.number("a", 8, 110, 120)  # a merger may pass it on before the next
    bench.number("a", 7, 100, 110)
    bench.number("a", 6, 80, 100)
    bench.number("b", 3, 90, 104)
    bench.number("b", 4, 104, 140)
    assert bench.step(a=105, b=105) == WindowChanges()
    assert spans(bench.step(a=120, b=140).closing) == [(100, 140)]
    bench.number("b", 5, 140, 150)
    assert spans(bench.step(a=150, b=150).closing) == [(110, 150)]
    bench.step(a=2 * HORIZON_US, b=2 * HORIZON_US)
    assert bench.marked.known == {"a": {}, "b": {}}, "what is not served is forgotten"


def test_a_number_that_does_not_come_is_not_waited_for_and_moves_no_other() -> None:
    """protocol 4.7, 6.2: the node has promised that nothing before its next window follows, so that one was lost."""
    bench = Bench("order", "hold", from_us=100)
    for number in (7, 8, 9):
        bench.number("a", number, 30 + number * 10, 40 + number * 10)
    bench.number("b", 3, 100, 110)
    bench.number("b", 5, 120, 130)
    assert spans(bench.step(a=200, b=125).closing) == [(100, 110)], "the next one of b is not over"
    (without, whole) = bench.step(a=200, b=200).closing
    assert (spans((without, whole)), missing(whole)) == ([(110, 120), (120, 130)], [])
    assert without.coverage.missing == (("b", "lost"),)
    assert (without.coverage.expected, without.picks) == (("a", "b"), (("a", 110, 120),))
    assert bench.step(a=300, b=300) == WindowChanges(), "what is missing from it stays so"
    bench.number("b", 4, 112, 120)
    (revised,) = bench.step(a=300, b=300).revising
    assert (spans((revised,)), missing(revised)) == ([(110, 120)], [])


def test_a_number_that_no_node_has_any_more_gives_no_row_and_holds_nothing() -> None:
    """protocol 6.2: also if it is lost for a very long time."""
    bench = Bench("order", "hold")
    for number in (0, 2_000):
        bench.number("a", number, 10 + number, 11 + number)
        bench.number("b", number + (number > 0), 10 + number, 12 + number)
    found = bench.step(a=3_000, b=3_000)
    assert [(spans((joint,)), joint.coverage.missing) for joint in found.closing] == [
        ([(10, 12)], ()),
        ([(2_010, 2_011)], (("b", "lost"),)),
    ]
    bench.number("a", 2_001, 2_011, 2_020)
    (closing,) = bench.step(a=3_000, b=3_000).closing
    assert (closing.place, missing(closing)) == (("", 2_010, 2_020), [])
    bench.step(a=4_000 + 2 * HORIZON_US, b=4_000 + 2 * HORIZON_US)
    assert (bench.marked.numbered, bench.marked.shown, bench.marked.known) == ({}, {}, {"a": {}, "b": {}})


def test_a_number_that_a_line_which_is_away_may_still_have_is_waited_for() -> None:
    """protocol 1.5: the node has moved, and what it sent to the former parent has not come yet; `skip` goes on."""
    for on_missing, wanted in (("hold", []), ("skip", [(20, 30)])):
        bench = Bench("order", on_missing)
        bench.away = {"b": 15}
        for number in (0, 1, 2):
            bench.number("a", number, 10 + number * 10, 20 + number * 10)
            if number != 1:
                bench.number("b", number, 10 + number * 10, 20 + number * 10)
        assert spans(bench.step(a=40, b=40).closing)[1:2] == wanted
        bench.away = {}
        bench.number("b", 1, 20, 30)
        found = bench.step(a=40, b=40)
        assert (spans((*found.closing, *found.revising))[:1], missing((*found.closing, *found.revising)[0])) == (
            [(20, 30)],
            [],
        )


@pytest.mark.parametrize("number", [5, 3_000, 4_097])
def test_a_node_that_counts_anew_because_it_lost_its_spool_goes_on_with_the_next_window(number: int) -> None:
    """protocol 1.2, 6.2: rows stopped until it had had as many windows as before."""
    bench = Bench("order", "hold", from_us=100)
    for node in "ab":
        bench.number(node, number, 100, 110)
    assert spans(bench.step(a=110, b=110).closing) == [(100, 110)]
    for at in (1, 2, 3):
        bench.number("a", number + at, 100 + at * 10, 110 + at * 10)
    bench.number("b", 0, 125, 131)
    assert spans(bench.step(a=200, b=131).closing) == [(110, 131)]
    bench.number("b", 2, 137, 140)  # its second one is lost
    found = bench.step(a=200, b=200).closing
    assert [joint.coverage.missing for joint in found] == [(("b", "lost"),), ()]
    assert spans(found) == [(120, 130), (130, 140)]


def test_a_node_that_counts_anew_while_others_went_on_joins_the_next_window() -> None:
    """protocol 4.4, 6.2: nobody knows how many windows it has missed."""
    bench = Bench("order", "skip")
    for number in range(5):
        bench.number("a", number, 10 + number * 10, 20 + number * 10)
    for number in (0, 1):
        bench.number("b", number, 10 + number * 10, 20 + number * 10)
    assert len(bench.step(a=60, b=30, stuck="b").closing) == 5
    bench.number("b", 0, 55, 64)
    bench.number("a", 5, 60, 70)
    (closing,) = bench.step(a=70, b=70).closing
    assert (closing.place, missing(closing)) == (("", 55, 70), [])


def test_a_state_of_an_older_version_goes_on_after_a_number_that_was_lost() -> None:
    """It had waited for it."""
    bench = Bench("order", "hold")
    for number in (0, 1):
        bench.number("a", number, 10 + number * 10, 20 + number * 10)
    bench.number("b", 1, 20, 30)
    state = bench.marked.snapshot()
    del state["passed"]
    bench.marked = PunctuationWindows.restore(state)
    assert spans(bench.step(a=30, b=30).closing) == [(10, 20), (20, 30)]


def test_a_node_that_joins_later_takes_part_from_the_next_window_on() -> None:
    """Its first windows are no part of those with rows, which are complete without it, also if they are revised."""
    bench = Bench("order", "wait")
    for number in (0, 1, 2):
        bench.number("a", number, 10 + number * 10, 20 + number * 10)
    assert spans(bench.step(a=30).closing) == [(10, 20), (20, 30)]
    assert bench.step(a=40, b=25) == WindowChanges()
    bench.number("b", 0, 20, 28)
    assert spans(bench.step(a=40, b=30).closing) == [(20, 40)]
    bench.marked.touch("a", np.array([12]), np.array([13]))
    (revised,) = bench.step(a=40, b=30).revising
    assert (revised.place, missing(revised), revised.coverage.expected) == (("", 10, 20), [], ("a",))


def test_a_late_node_that_is_left_out_is_named_from_its_first_window_on() -> None:
    """protocol 4.7"""
    bench = Bench("order", "skip")
    bench.number("a", 0, 10, 20)
    bench.number("c", 0, 10, 20)
    bench.step(a=20, c=5, stuck="c")
    bench.number("a", 1, 20, 30)
    found = bench.step(a=30, b=5, c=20, stuck="bc")
    assert [(spans((joint,)), missing(joint)) for joint in found.revising] == [([(10, 20)], [])]
    assert [(spans((joint,)), missing(joint)) for joint in found.closing] == [([(20, 30)], ["b", "c"])]
    bench.number("c", 1, 20, 30)
    found = bench.step(a=30, b=5, c=30, stuck="b")
    assert [(spans((joint,)), missing(joint)) for joint in found.revising] == [([(20, 30)], ["b"])]


def test_a_node_that_returns_after_it_was_forgotten_joins_anew() -> None:
    """protocol 1.5: it may have lost its disk and count from 0 again."""
    bench = Bench("order", "wait")
    for number in (0, 1):
        bench.number("a", number, 10 + number * 10, 20 + number * 10)
    bench.number("b", 0, 10, 20)
    assert spans(bench.step(a=30, b=20).closing) == [(10, 20)]
    bench.marked.leave("b")
    assert spans(bench.step(a=30).closing) == [(20, 30)]
    bench.number("a", 2, 30, 40)
    bench.number("b", 0, 32, 44)
    assert spans(bench.step(a=40, b=44).closing) == [(30, 44)]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_state_of_an_older_version_goes_on_with_its_numbers(rows: int) -> None:
    """It counted from 0 at every node. If that has given no row yet, it never would."""
    bench = Bench("order", "wait", from_us=None if rows else 100)
    for number in range(rows):
        bench.number("a", number, 90, 100)
        assert len(bench.step(a=100).closing) == 1
    bench.number("a", 1 if rows else 7, 100, 110)
    state = bench.marked.snapshot()
    del state["first"], state["joined"]
    bench.marked = PunctuationWindows.restore(state)
    assert spans(bench.step(a=110).closing) == [(100, 110)]


def passed_the_horizon(what: Callable[[Bench], None]) -> WindowChanges:
    """The due step after a change of the window [6, 7) had to wait while the horizon went from 4.5 to 8.5."""
    bench, unit = Bench("central", "hold"), HORIZON_US // 10
    bench.cut(*(n * unit for n in range(1, 20)))
    bench.step(a=14 * unit + unit // 2)
    bench.marked.touch("", np.array([12 * unit]), np.array([12 * unit + 1]))
    assert spans(bench.step(a=14 * unit + unit // 2).revising) == [(12 * unit, 13 * unit)]
    what(bench)
    waits = bench.step(a=18 * unit + unit // 2, due_us=NEVER_US)
    assert (waits.revising, waits.gone, len(waits.closing)) == ((), (), 4)
    found = bench.step(a=18 * unit + unit // 2)
    bench.step(a=19 * unit + unit // 2)
    assert min(start for _, start, _ in bench.marked.shown) == 9 * unit, "then it is forgotten"
    return found


def test_a_revision_that_waits_while_the_horizon_passes_withdraws_nothing() -> None:
    """protocol 4.2"""
    at = 6 * HORIZON_US // 10
    found = passed_the_horizon(lambda bench: bench.marked.touch("", np.array([at + 5]), np.array([at + 6])))
    assert (spans(found.revising), found.closing, found.gone) == ([(at, at + HORIZON_US // 10)], (), ())


def test_a_cut_that_waits_while_the_horizon_passes_loses_no_part() -> None:
    """protocol 7.4"""
    at, end = 6 * HORIZON_US // 10, 7 * HORIZON_US // 10
    found = passed_the_horizon(lambda bench: bench.cut(at + 5))
    assert found.gone == (("", at, end),)
    assert spans((*found.closing, *found.revising)) == [(at, at + 5), (at + 5, end)]


def test_a_node_that_is_silent_for_ever_keeps_no_windows_or_rows_of_others() -> None:
    bench, unit = Bench("local", "hold"), HORIZON_US // 10
    assert not bench.shared
    bench.marked.add_markers("dead", [MARKER_KEY], [0], [unit])
    bench.step(a=unit, dead=unit)
    for n in range(1, 100):
        bench.marked.add_markers("a", [MARKER_KEY], [n * unit], [(n + 1) * unit])
        bench.step(a=(n + 1) * unit, dead=unit)
    assert sum(node == "a" for node, _, _ in bench.marked.shown) <= 11
    kept_us = bench.marked.kept_us("a")
    assert kept_us is not None
    assert kept_us >= 89 * unit
    assert bench.marked.kept_us("dead") == 0, "its own window may still be revised"


def test_a_state_of_an_older_version_has_one_floor_for_all_nodes() -> None:
    state = PunctuationWindows(floors={"": 5, "a": 7}).snapshot()
    assert PunctuationWindows.restore(state).floor_us("a") == 7
    state = {**{name: value for name, value in state.items() if name != "floors"}, "floor": 5}
    assert PunctuationWindows.restore(state).floor_us("a") == 5


def test_a_repeated_marker_of_a_window_with_a_row_adds_nothing() -> None:
    bench = Bench("order", "skip")
    bench.number("a", 0, 0, 10)
    bench.step(a=20, b=0, stuck="b")
    bench.number("b", 0, 1, 9)
    (row,) = bench.step(a=20, b=20).revising
    assert row.picks == (("a", 0, 10), ("b", 1, 9))
    bench.number("b", 0, 1, 9)
    assert bench.step(a=20, b=20) == WindowChanges()


def test_a_window_that_has_its_row_is_not_known_anew_when_its_marker_is_repeated() -> None:
    """protocol 6.2: a member that was left out may send it again."""
    place = ("a", 1, 2)
    marked = PunctuationWindows(shown={place: ((place,), Coverage(("a",), ()))})
    marked.add_markers("a", [MARKER_KEY, MARKER_KEY], [1, 3], [2, 4])
    assert marked.known == {"a": {(3, 4): -1}}


def test_a_window_of_one_node_that_waits_for_its_revision_stays_beyond_the_horizon() -> None:
    """protocol 4.2, 8.3"""
    bench, unit = Bench("local", "hold"), HORIZON_US // 10
    for n in range(30):
        bench.marked.add_markers("a", [MARKER_KEY], [n * unit], [(n + 1) * unit])
    bench.step(a=5 * unit)
    bench.marked.touch("a", np.array([unit]), np.array([unit + 1]))
    assert spans(bench.step(a=5 * unit).revising) == [(unit, 2 * unit)]
    bench.marked.touch("a", np.array([3 * unit]), np.array([3 * unit + 1]))
    assert bench.step(a=25 * unit, due_us=NEVER_US).revising == ()
    assert spans(bench.step(a=25 * unit).revising) == [(3 * unit, 4 * unit)]


def test_windows_whose_rows_were_withdrawn_are_forgotten_beyond_the_horizon() -> None:
    bench, unit = Bench("central", "hold"), HORIZON_US // 10
    bench.cut(*(n * unit for n in range(1, 40)))
    bench.step(a=5 * unit + unit // 2)
    bench.cut(2 * unit + 5)
    assert bench.step(a=5 * unit + unit // 2).gone == (("", 2 * unit, 3 * unit),)
    assert bench.marked.withdrawn == {("", 2 * unit, 3 * unit)}
    bench.step(a=30 * unit)
    assert not bench.marked.withdrawn
