"""The plain-Python root, by the frames it is given (docs/protocol.md 4, 6, 7, 8.3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import HORIZON_US, ExcludedLeaf, Frame, Leaf, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation, Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.transition import SWEEP_US
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.root.punctuation_state import PunctuationWindows
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender, root_of

TEN = Query("ten", 1, "boiler", Tumbling(10 * S), SUM, by=("k",))


def told(rows: list[Row]) -> list[tuple[str, int, float | None, int]]:
    """(key, start in s, sum, revision) of each."""
    return [(row.key, row.start // S, row.values["sum"], row.revision) for row in rows]


def test_a_window_closes_when_every_child_has_reached_its_end() -> None:
    """protocol 4.4: the frontier is the minimum over the expected members."""
    a, b = Sender("a", TEN), Sender("b", TEN)
    root = root_of(a, b)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=20 * S), S)
    assert root.step(S) == []
    root.take("b", b.send((0, 10 * S, "k=x", 2.0), (0, 10 * S, "k=y", 5.0), frontier_us=10 * S), S)
    rows = root.step(S)
    assert told(rows) == [("k=x", 0, 3.0, 0), ("k=y", 0, 5.0, 0)]
    assert rows[0].labels == {"k": "x"}
    assert (rows[0].end, rows[0].readings, rows[0].node, rows[0].late) == (10 * S, 2, "", 0)
    assert (rows[0].complete, rows[0].expected, rows[0].received, rows[0].withdrawn) == (True, 2, 2, False)


def test_a_window_without_readings_gives_no_row() -> None:
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((40 * S, 50 * S, "k=x", 1.0), frontier_us=50 * S), S)
    assert told(root.step(S)) == [("k=x", 40, 1.0, 0)]


def test_frames_take_effect_in_their_order_and_once() -> None:
    """protocol 1.1 and 2.2: what comes twice or too early changes nothing."""
    a = Sender("a", TEN)
    root = root_of(a)
    first = a.send((0, 10 * S, "k=x", 1.0))
    second = a.send((0, 10 * S, "k=x", 2.0), frontier_us=10 * S)
    root.take("a", second, S)
    assert root.step(S) == []
    for frame in (first, second, first):
        root.take("a", frame, S)
    assert told(root.step(S)) == [("k=x", 0, 3.0, 0)]
    root.take("a", second, S)
    assert root.step(S) == []


def test_a_definition_stands_until_the_frames_after_it_name_it() -> None:
    """protocol 8.4: a large step states it in one frame, and its leaves and rows in later ones, which may come late."""
    a = Sender("a", TEN)
    root = NumpyRoot(JOURNAL, grace_us=GRACE)
    a.outbox.draw()
    (birth,) = a.outbox.open(Step(queries=(canonical_query(TEN),)))
    root.take("a", birth, 0)
    root.step(0)
    root.step(SWEEP_US)
    decider, state = root.decider, root.state
    root = NumpyRoot(JOURNAL, grace_us=GRACE)  # a start takes up what was known
    root.decider.restore(decider.snapshot(lambda frame: frame), lambda frame: frame)
    root.state = state
    root.step(2 * SWEEP_US)
    listed = GroupStep(TEN.group, leaves=(Leaf("a", 1),), serving=(Serving("ten", 1),))
    for frame in (*a.outbox.put(Step((listed,))), a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S)):
        root.take("a", frame, 2 * SWEEP_US)
    assert told(root.step(2 * SWEEP_US)) == [("k=x", 0, 1.0, 0)]


def test_a_late_partial_revises_the_row_and_is_counted() -> None:
    """protocol 4.2."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), (0, 10 * S, "k=y", 1.0), frontier_us=10 * S), S)
    root.step(S)
    root.take("a", a.send((4 * S, 5 * S, "k=x", 2.0), late=True), S)
    rows = root.step(S)
    assert told(rows) == [("k=x", 0, 3.0, 1)]
    assert (rows[0].readings, rows[0].late) == (2, 1)
    root.take("a", a.send((4 * S, 5 * S, "k=z", 7.0), late=True), S)
    assert told(root.step(S)) == [("k=z", 0, 7.0, 0)]


def test_late_data_and_the_close_in_one_step_give_one_row() -> None:
    """protocol 8.3."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), S)
    root.take("a", a.send((3 * S, 4 * S, "k=x", 2.0), late=True), S)
    rows = root.step(S)
    assert told(rows) == [("k=x", 0, 3.0, 0)]
    assert rows[0].late == 1


def test_a_slice_counts_in_every_window_that_contains_it_and_a_whole_window_only_in_its_equal() -> None:
    """protocol 6.2."""
    slid = replace(TEN, id="slid", window=Sliding(10 * S, 5 * S))
    a = Sender("a", slid)
    root = root_of(a)
    root.take("a", a.send((5 * S, 10 * S, "k=x", 1.0)), S)
    root.take("a", a.send((5 * S, 15 * S, "k=x", 10.0), kind="window", frontier_us=20 * S), S)
    assert told(root.step(S)) == [("k=x", 0, 1.0, 0), ("k=x", 5, 11.0, 0)]


@pytest.mark.parametrize(("scale", "more", "want"), [(-1, 12, 6.2), (None, 1.2, 6.2), (0, 1, 6.0)])
def test_plans_of_unequal_scales_meet_at_the_root(scale: int | None, more: float, want: float) -> None:
    """protocol 7.1: at the finer scale; with floats, as floats."""
    a, b = Sender("a", TEN, scale=0), Sender("b", TEN, scale=scale)
    root = root_of(a, b)
    root.take("a", a.send((0, 10 * S, "k=x", 5), frontier_us=10 * S), S)
    root.take("b", b.send((0, 10 * S, "k=x", more), frontier_us=10 * S), S)
    assert told(root.step(S)) == [("k=x", 0, want, 0)]


def test_large_integers_stand_in_details_in_full() -> None:
    """protocol 7.1: sums of scaled integers are exact."""
    a = Sender("a", TEN, scale=0)
    root = root_of(a)
    root.take("a", a.send(*[(0, 10 * S, "k=x", 2**53 - 1)] * 3, frontier_us=10 * S), S)
    (row,) = root.step(S)
    assert row.details == f'{{"sum": {3 * (2**53 - 1)}}}'


def test_first_and_last_follow_the_bytes_of_node_ids() -> None:
    """protocol 7.3: not the order in which the root heard of them."""
    ends = replace(TEN, aggregates=(Aggregate("first", "first"), Aggregate("last", "last")))
    b, a = Sender("b", ends), Sender("a", ends)
    root = root_of(b, a)
    root.take("b", b.send((0, 10 * S, "k=x", 2.0), frontier_us=10 * S), S)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), S)
    (row,) = root.step(S)
    assert row.values == {"first": 1.0, "last": 2.0}


def test_a_silent_child_is_missing_and_its_return_revises() -> None:
    """protocol 4.4 and 4.7: also where no value changes."""
    a, b = Sender("a", TEN), Sender("b", TEN)
    root = root_of(a, b)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), GRACE + S)
    (row,) = root.step(GRACE + S)
    assert (row.complete, row.received, row.coverage.missing) == (False, 1, (("b", "behind"),))
    root.take("b", b.send(frontier_us=30 * S), GRACE + 2 * S)
    (again,) = root.step(GRACE + 2 * S)
    assert again == replace(row, revision=1, coverage=again.coverage)
    assert again.complete


@pytest.mark.parametrize("lost", [False, True])
def test_what_revises_rows_gives_none_of_windows_that_have_not_closed(lost: bool) -> None:
    """protocol 4.4, 4.7: a child comes back ahead of the others, or a gap record reaches beyond the frontier."""
    a, b = Sender("a", TEN), Sender("b", TEN)
    root = root_of(a, b)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), GRACE + S)
    assert told(root.step(GRACE + S)) == [("k=x", 0, 1.0, 0)]
    if lost:
        root.take("b", b.lose(5 * S, 25 * S), GRACE + 2 * S)
    rows = (10 * S, 20 * S, "k=x", 2.0), (20 * S, 30 * S, "k=x", 4.0)
    root.take("b", b.send(*rows, frontier_us=10 * S if lost else 30 * S), GRACE + 2 * S)
    assert told(root.step(GRACE + 2 * S)) == [("k=x", 0, 1.0, 1)]


def test_leaves_that_a_merger_left_out_are_missing_until_it_says_otherwise() -> None:
    """protocol 4.6 and 4.7."""
    region = Sender("region", TEN, leaves=("a", "b"))
    root = root_of(region)
    out = (ExcludedLeaf("b", 5 * S, 5 * S),)
    root.take("region", region.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S, exceptions=out), S)
    (row,) = root.step(S)
    assert row.coverage.missing == (("b", "behind"),)
    root.take("region", region.send((0, 10 * S, "k=x", 4.0), late=True, exceptions=()), S)
    (again,) = root.step(S)
    assert (again.values["sum"], again.revision, again.complete, again.late) == (5.0, 1, True, 1)


def test_a_gap_record_marks_the_windows_it_touches() -> None:
    """protocol 3.5 and 4.7: closed ones are revised."""
    a = Sender("a", TEN)
    root = root_of(a)
    pieces = [(at * S, (at + 10) * S, "k=x", 1.0) for at in (0, 10, 20)]
    root.take("a", a.send(*pieces, frontier_us=30 * S), S)
    root.step(S)
    root.take("a", a.lose(12 * S, 20 * S), S)
    rows = root.step(S)
    assert told(rows) == [("k=x", 10, 1.0, 1)]
    assert rows[0].coverage.missing == (("a", "lost"),)


def test_an_added_query_begins_where_the_last_member_serves_it() -> None:
    """protocol 6.3: earlier windows give no row."""
    fresh = replace(TEN, id="fresh")
    a, b = Sender("a", TEN, fresh), Sender("b", TEN, fresh)
    root = NumpyRoot(JOURNAL, grace_us=GRACE)
    root.take("a", a.birth(None, [Serving("ten", 1), Serving("fresh", 1, 5 * S)]), 0)
    root.take("b", b.birth(None, [Serving("ten", 1), Serving("fresh", 1, 15 * S)]), 0)
    for sender in (a, b):
        pieces = [(at * S, (at + 10) * S, "k=x", 1.0) for at in (0, 10, 20)]
        root.take(sender.node, sender.send(*pieces, frontier_us=30 * S), S)
    rows = root.step(S)
    assert sorted((row.query, row.start // S) for row in rows) == [("fresh", 20), ("ten", 0), ("ten", 10), ("ten", 20)]


def test_a_removed_query_gives_no_row_of_a_window_that_ends_later() -> None:
    """protocol 6.3."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), (10 * S, 15 * S, "k=x", 2.0)), S)
    root.take("a", a.tell(Serving("ten", 1, None, None, 15 * S)), S)
    root.take("a", a.send(frontier_us=40 * S), S)
    assert told(root.step(S)) == [("k=x", 0, 1.0, 0)]


def test_a_window_belongs_to_the_revision_in_force_at_its_start() -> None:
    """protocol 6.3: the older revision is fed until its last window ends."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0)), S)
    doubled = replace(TEN, revision=2, window=Tumbling(20 * S))
    root.take("a", a.tell(Serving("ten", 1, None, 10 * S), Serving("ten", 2, 10 * S), queries=(doubled,)), S)
    root.take("a", a.send((20 * S, 40 * S, "k=x", 2.0), (10 * S, 20 * S, "k=x", 4.0), frontier_us=40 * S), S)
    rows = root.step(S)
    assert [(row.definition_revision, row.start // S, row.end // S) for row in rows] == [(1, 0, 10), (2, 20, 40)]


def test_beyond_the_horizon_a_late_reading_is_kept_apart() -> None:
    """protocol 4.2: in no result, and not lost either."""
    a = Sender("a", TEN)
    root = root_of(a)
    far_us = HORIZON_US + 20 * S
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), (10 * S, 20 * S, "k=x", 1.0), frontier_us=far_us), far_us)
    root.step(far_us)
    root.take("a", a.send((9 * S, 10 * S, "k=x", 2.0), (far_us - S, far_us, "k=x", 3.0), late=True), far_us)
    assert [row.values["sum"] for row in root.step(far_us)] == [3.0]
    (kept,) = root.beyond
    assert (kept.node, kept.source, kept.key, kept.start, kept.readings) == ("a", "boiler", "k=x", 9 * S, 1)


def test_a_late_reading_of_a_window_that_just_left_the_horizon_is_kept_apart_too() -> None:
    """protocol 4.2: whatever revises no row is beyond, also less than a window's length before the horizon."""
    a = Sender("a", TEN)
    root = root_of(a)
    far_us = HORIZON_US + 25 * S
    root.take("a", a.send((10 * S, 20 * S, "k=x", 1.0), (20 * S, 30 * S, "k=x", 1.0), frontier_us=far_us), far_us)
    root.step(far_us)
    root.take("a", a.send((18 * S, 19 * S, "k=x", 2.0), (21 * S, 22 * S, "k=x", 3.0), late=True), far_us)
    assert [(row.start, row.values["sum"]) for row in root.step(far_us)] == [(20 * S, 4.0)]
    assert [kept.start for kept in root.beyond] == [18 * S]


def test_what_was_beyond_the_horizon_stays_beyond_a_longer_one() -> None:
    """protocol 8.4: frames of it may be gone."""
    a = Sender("a", TEN)
    root = root_of(a, horizon_us=20 * S)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), (40 * S, 50 * S, "k=x", 1.0), frontier_us=60 * S), S)
    root.step(S)
    root.state.limits = RootLimits(0, HORIZON_US)
    root.take("a", a.send((5 * S, 6 * S, "k=x", 2.0), (41 * S, 42 * S, "k=x", 3.0), late=True), 2 * S)
    assert told(root.step(2 * S)) == [("k=x", 40, 4.0, 1)]
    assert [kept.start for kept in root.beyond] == [5 * S]


def test_a_row_is_revised_no_more_often_than_revise_every() -> None:
    """protocol 8.3: what was put off comes when the time is up, or when the holder flushes."""
    a = Sender("a", TEN)
    root = root_of(a, revise_every_us=60 * S)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), S)
    root.step(S)
    late = [a.send((0, S, "k=x", 1.0), late=True) for _ in range(4)]
    root.take("a", late[0], 2 * S)
    assert told(root.step(2 * S)) == [("k=x", 0, 2.0, 1)]
    root.take("a", late[1], 3 * S)
    root.take("a", late[2], 4 * S)
    assert root.step(4 * S) == []
    assert told(root.step(62 * S)) == [("k=x", 0, 4.0, 2)]
    root.take("a", late[3], 63 * S)
    assert root.step(63 * S) == []
    assert told(root.step(63 * S, flush=True)) == [("k=x", 0, 5.0, 3)]


def test_a_definition_of_a_newer_version_stops_nothing() -> None:
    a = Sender("a", TEN, replace(TEN, id="newer"))
    root, birth = NumpyRoot(JOURNAL, grace_us=GRACE), a.birth()
    assert birth.define is not None
    texts = tuple(text.replace("tumbling", "folding") if "newer" in text else text for text in birth.define.queries)
    root.take("a", replace(birth, define=replace(birth.define, queries=texts)), 0)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), S)
    assert [row.query for row in root.step(S)] == ["ten"]


def test_what_can_no_longer_be_revised_is_forgotten() -> None:
    a = Sender("a", TEN)
    root = root_of(a)
    for at in range(0, 200, 10):
        start_us = at * HORIZON_US // 40
        start_us -= start_us % (10 * S)
        root.take("a", a.lose(start_us - S, start_us), start_us)
        frame = a.send((start_us, start_us + 10 * S, "k=x", 1.0), frontier_us=start_us + 10 * S)
        root.take("a", frame, start_us + 10 * S)
        assert len(root.step(start_us + 10 * S)) == 1
    assert sum(len(index) for index in root.kept.indexes.values()) <= 6
    assert len(root.results.rows["ten", ""]) <= 6
    assert len(root.decider.gaps) <= 6


@given(seed=st.integers(0, 2**32))
def test_order_repetition_and_batches_change_no_final_row(seed: int) -> None:
    """protocol 1.1, 2.2, 6.1: only revisions in between depend on what came when."""
    random = Random(seed)
    slid = replace(TEN, id="slid", window=Sliding(10 * S, 5 * S))
    senders = [Sender(name, TEN, slid, scale=0) for name in ("a", "b")]
    frames: list[tuple[str, Frame]] = []
    want: dict[tuple[str, str, int], float] = {}
    for sender in senders:
        frames.append((sender.node, sender.birth()))
        for at in range(0, 40, 5):
            key, value = random.choice(["k=x", "k=y"]), random.randint(-9, 9)
            start, late = at * S, random.random() < 0.2
            frames.append((sender.node, sender.send((start, start + 5 * S, key, value), late=late)))
            for query, opens in (("ten", [at // 10 * 10]), ("slid", [at - 5, at] if at else [0])):
                for first in opens:
                    want[query, key, first * S] = want.get((query, key, first * S), 0) + value
        frames.append((sender.node, sender.send(frontier_us=60 * S)))
    sent = frames + random.choices(frames, k=5)
    random.shuffle(sent)
    root = NumpyRoot(JOURNAL, grace_us=GRACE, named=("a", "b"))
    final: dict[tuple[str, str, int], Row] = {}
    for node, frame in sent:
        root.take(node, frame, S)
        if random.random() < 0.3:
            for row in root.step(S):
                assert row.revision == (final[row.query, row.key, row.start].revision + 1 if row.revision else 0)
                final[row.query, row.key, row.start] = row
    final |= {(row.query, row.key, row.start): row for row in root.step(S)}
    assert {place: row.values["sum"] for place, row in final.items()} == want
    assert all(row.complete for row in final.values())


def test_windows_between_markers_are_forgotten_with_the_last_gateway_that_serves_the_query() -> None:
    asked = replace(TEN, window=Punctuation(interpretation="local", markers="state"))
    here, there = asked.group_at("a"), asked.group_at("b")
    state = RootState(RootLimits())
    state.markers.windows[asked.key] = PunctuationWindows()
    views = {group: GroupView(0, LeafTimes.of({}), {asked.key: Serving("ten", 1)}, {}) for group in (here, there)}
    state.forget(Decision(0, (), views, {}, (), (), (), ended=(here,)))
    assert asked.key in state.markers.windows
    state.forget(Decision(0, (), {there: views[there]}, {}, (), (), (), ended=(there,)))
    assert not state.markers.windows


def test_a_late_row_that_ends_where_the_last_window_ended_is_in_that_window() -> None:
    """protocol 4.2: a window closes when the frontier has reached its end."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), frontier_us=10 * S), S)
    assert told(root.step(S)) == [("k=x", 0, 1.0, 0)]
    root.take("a", a.send((0, 10 * S, "k=x", 2.0), late=True), S)
    assert told(root.step(S)) == [("k=x", 0, 3.0, 1)]


def test_a_late_reading_is_in_every_closed_window_that_contains_it() -> None:
    """protocol 4.2: also in those that end long after it."""
    slid = replace(TEN, id="slid", window=Sliding(30 * S, 10 * S))
    a = Sender("a", slid)
    root = root_of(a)
    root.take("a", a.send((30 * S, 40 * S, "k=x", 1.0), frontier_us=80 * S), S)
    assert told(root.step(S)) == [("k=x", start, 1.0, 0) for start in (10, 20, 30)]
    root.take("a", a.send((30 * S, 40 * S, "k=x", 2.0), late=True), S)
    assert told(root.step(S)) == [("k=x", start, 3.0, 1) for start in (10, 20, 30)]


@pytest.mark.parametrize(("start_s", "end_s"), [(5, 6), (0, 1), (9, 10)])
def test_a_loss_that_is_declared_later_marks_the_windows_that_have_closed(start_s: int, end_s: int) -> None:
    """protocol 4.7: also a window that ends long after the loss."""
    a = Sender("a", TEN)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S, "k=x", 1.0), (10 * S, 20 * S, "k=x", 1.0), frontier_us=30 * S), S)
    assert [row.complete for row in root.step(S)] == [True, True]
    root.take("a", a.lose(start_s * S, end_s * S), S)
    assert [(row.start, row.complete, row.revision) for row in root.step(S)] == [(0, False, 1)]


def test_a_session_is_complete_once_no_reading_exactly_a_gap_behind_its_last_can_come() -> None:
    """protocol 5.1, 5.3"""
    visits = replace(TEN, id="visits", window=Session(5 * S))
    a = Sender("a", visits)
    root = root_of(a)
    root.take("a", a.send((0, 10 * S + 1, "k=x", 1.0), frontier_us=15 * S), S)
    assert root.step(S) == []
    root.take("a", a.send((15 * S, 15 * S + 1, "k=x", 2.0), frontier_us=20 * S), S)
    assert root.step(S) == []
    root.take("a", a.send(frontier_us=20 * S + 1), S)
    assert [(row.start, row.end, row.values["sum"]) for row in root.step(S)] == [(0, 20 * S, 3.0)]


@pytest.mark.parametrize(("end_us", "touched"), [(15 * S, False), (15 * S + 1, True)])
def test_a_loss_that_is_declared_later_marks_sessions_up_to_a_gap_behind_it(end_us: int, touched: bool) -> None:
    """protocol 4.7: a lost reading there would have belonged to the session."""
    a = Sender("a", replace(TEN, id="visits", window=Session(5 * S)))
    root = root_of(a)
    root.take("a", a.send((20 * S, 21 * S, "k=x", 1.0), frontier_us=40 * S), S)
    assert [row.complete for row in root.step(S)] == [True]
    root.take("a", a.lose(14 * S, end_us), S)
    assert [(row.start, row.complete) for row in root.step(S)] == [(20 * S, False)] * touched


def test_sessions_that_wait_for_their_revision_wait_on_when_others_join_them() -> None:
    """protocol 8.3"""
    a = Sender("a", replace(TEN, id="visits", window=Session(5 * S)))
    root = root_of(a, revise_every_us=60 * S)
    pieces = [(at * S, at * S + 1, "k=x", 1.0) for at in (10, 50, 90)]
    root.take("a", a.send(*pieces, frontier_us=120 * S), S)
    assert len(root.step(S)) == 3
    found = []
    for second, at in ((2, 90), (3, 10), (4, 90)):
        root.take("a", a.lose(at * S, at * S + 1), second * S)
        found.append([(row.start, row.complete) for row in root.step(second * S)])
    assert found == [[(90 * S, False)], [], []]
    assert (10 * S, False) in [(row.start, row.complete) for row in root.step(70 * S)]


def test_rows_of_sessions_stay_as_they_are_when_the_last_gateway_leaves_their_group() -> None:
    """protocol 4.4, 4.6: its last query of the group was removed; nobody is expected any more, and nothing changes."""
    visits = replace(TEN, id="visits", window=Session(5 * S))
    a = Sender("a", visits)
    root = root_of(a)
    root.take("a", a.send((10 * S, 11 * S, "k=x", 1.0), frontier_us=40 * S), S)
    assert [(row.complete, row.expected) for row in root.step(S)] == [(True, 1)]
    root.take("a", a._put(GroupStep(visits.group, None, dropped=("a",))), 2 * S)
    assert root.step(2 * S) == []
    assert not root.decider.parent.children.memberships
