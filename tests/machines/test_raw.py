"""Raw readings on their way: kept until the frontier at a gateway, passed on at once by mergers, ordered at the top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import Serving
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.partials.series import flat
from edge_agent.algebra.query.key import EpochKey, Labels
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import CountSliding, CountTumbling, State
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.region.partial_store import PartialStore
from edge_agent.machines.slicing.key_index import KeyIndex
from edge_agent.machines.slicing.raw_slicer import RawSlicer
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.step import StepRows
from edge_agent.root.completeness import Decider
from edge_agent.root.numpy.rows import Row
from tests.support.machines.scripted_child import GRACE, JOURNAL, S, Sender, root_of
from tests.support.machines.slicer_runs import restarted

LABELS: list[Labels] = [(("k", "a"),), (("k", "b"),)]
SEQUENCE = (Aggregate("sequence", "s"), Aggregate("count", "n"))
PAIRS = Query("pairs", 1, "door", CountTumbling(2), SEQUENCE, by=("k",), lateness_us=0)
Told = list[tuple[int, str, int, int]]  # time, key, arrival, value


def slicer_of(*queries: Query) -> Slicer:
    slicer = Slicer(queries[0].group, 0, "n")
    slicer.change(queries)
    return slicer


def said(releases: list[StepRows]) -> Told:
    """Every reading of releases; a row's range is that of its readings."""
    out: Told = []
    for release in releases:
        rows = release.partials
        found = flat(rows.states["series"])
        assert rows.start.tolist() == found.time_us[found.starts].tolist()
        assert rows.end.tolist() == (found.time_us[found.starts + found.sizes - 1] + 1).tolist()
        assert rows.states["count"].tolist() == found.sizes.tolist()
        keys = [release.keys[code] for code in np.repeat(rows.key, found.sizes).tolist()]
        out += zip(found.time_us.tolist(), keys, found.order.tolist(), found.value.tolist(), strict=True)
    return out


batches = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1), st.integers(-9, 9)), max_size=8)
events = st.lists(batches | st.integers(0, 30) | st.just("restart"), max_size=12)


@given(events, st.sampled_from(["revise", "per_window", "drop"]))
def test_every_reading_leaves_once_when_the_frontier_has_passed_it_also_after_a_restart(
    script: list[Any], policy: str
) -> None:
    """protocol 4.1, 4.2, 6.2: late ones leave at once as late, or are in no such window and counted."""
    query = replace(PAIRS, late=policy)
    slicer, arrivals, lost = slicer_of(query), 0, 0
    waiting: Told = []
    late: Told = []
    for event in [*script, 31]:
        if event == "restart":
            slicer = restarted(slicer)
        elif isinstance(event, list):
            time, series, value = (np.array([row[i] for row in event], np.int64) for i in range(3))
            slicer.push(Batch(time, value, series, LABELS))
            for row in event:
                told = (row[0], f"k={'ab'[row[1]]}", arrivals, row[2])
                arrivals += 1
                if row[0] >= slicer.frontier_us:
                    waiting.append(told)
                elif policy == "revise":
                    late.append(told)
                else:
                    lost += 1
        else:
            releases = slicer.advance(event)
            frontier_us = slicer.frontier_us
            assert sorted(said([r for r in releases if r.late])) == sorted(late)
            gone = [told for told in waiting if told[0] < frontier_us]
            assert sorted(said([r for r in releases if not r.late])) == sorted(gone)
            waiting, late = [told for told in waiting if told[0] >= frontier_us], []
        slicer.check()
    assert not waiting
    assert not slicer.flush()
    assert slicer.counters["dropped_late"] == lost


def test_a_change_gives_each_reading_to_one_revision_by_its_time() -> None:
    """protocol 6.3"""
    slicer = slicer_of(PAIRS)
    slicer.push(Batch(np.array([5, 9]), np.array([1, 2]), np.zeros(2, np.int64), LABELS))
    servings = slicer.change((replace(PAIRS, revision=2, window=CountSliding(3, 1)),))
    assert servings == (Serving("pairs", 1, None, 10), Serving("pairs", 2, 10))
    slicer.push(Batch(np.array([7, 12]), np.array([3, 4]), np.zeros(2, np.int64), LABELS))
    told = {release.plan.queries: said([release]) for release in slicer.advance(20)}
    assert told == {
        (("pairs", 1),): [(5, "k=a", 0, 1), (7, "k=a", 2, 3), (9, "k=a", 1, 2)],
        (("pairs", 2),): [(12, "k=a", 3, 4)],
    }


def test_a_merger_passes_raw_readings_on_with_its_next_step_whatever_its_frontier() -> None:
    """protocol 7.4"""
    child, pool, book = Sender("a", PAIRS), PartialStore(), EpochDictionary()
    for frame in (child.birth(), child.send((10, 11, "k=a", 1.0), (12, 13, "k=b", 2.0))):
        if frame.define is not None:
            book.learn(frame.define)
        for part in frame.groups:
            for section in part.sections:
                pool.add(EpochKey("a", frame.epoch), book, section, late=False)
    pool.absorb({})
    (release,) = pool.release(PAIRS.group, -(2**62))
    assert not release.late
    assert [(time, key) for time, key, *_ in said([release])] == [(10, "k=a"), (12, "k=b")]
    assert pool.release(PAIRS.group, 2**61) == ()


# --- at the root -----------------------------------------------------------------------------------------------------


def answers(rows: list[Row]) -> list[tuple[str, int, int, str | None]]:
    return [(row.key, row.start, row.end, row.details) for row in rows]


def reading(at_s: int, value: float, key: str = "k=a") -> tuple[int, int, str, float]:
    return at_s * S, at_s * S + 1, key, value


def test_a_position_is_given_once_every_node_has_passed_it_and_never_changes() -> None:
    """protocol 7.4, 7.3: what comes below is in no window and counted."""
    a, b = Sender("a", PAIRS), Sender("b", PAIRS)
    root = root_of(a, b)
    root.take("a", a.send(reading(10, 1.0), reading(20, 4.0), frontier_us=30 * S), S)
    assert root.step(S) == []
    root.take("b", b.send(reading(10, 2.0), frontier_us=15 * S), S)
    (row,) = root.step(S)
    assert answers([row]) == [("k=a", 0, 2, '{"s": [1.0, 2.0]}')]
    assert (row.revision, row.complete, row.readings) == (0, True, 2)
    root.take("b", b.send(reading(12, 7.0), reading(17, 3.0), late=True, frontier_us=30 * S), S)
    assert answers(root.step(S)) == [("k=a", 2, 4, '{"s": [3.0, 4.0]}')]
    (beyond,) = root.beyond
    assert (beyond.node, beyond.key, beyond.start, beyond.readings) == ("b", "k=a", 12 * S, 1)
    assert beyond.reason == "later readings already had their positions"


def test_a_missing_node_holds_positions_and_skip_goes_on_without_it() -> None:
    """protocol 7.4, 4.4, 4.7: rows say who was missing."""
    skipping = replace(PAIRS, on_missing="skip")
    for query, made in ((PAIRS, []), (skipping, [("k=a", 0, 2, '{"s": [1.0, 2.0]}')])):
        a, b = Sender("a", query), Sender("b", query)
        root = root_of(a, b)
        root.take("b", b.send(frontier_us=5 * S), S)
        root.take("a", a.send(reading(10, 1.0), reading(20, 2.0), frontier_us=30 * S), S)
        root.step(S)
        for second in range(2, 400, 10):  # b is silent for longer than any grace
            root.take("a", a.send(frontier_us=(30 + second) * S), second * S)
            rows = root.step(second * S)
            if rows:
                break
        assert answers(rows) == made
        assert all(not row.complete for row in rows)
        root.take("b", b.send(frontier_us=500 * S), 500 * S)
        later = root.step(500 * S)
        assert answers([*rows, *later]) == [("k=a", 0, 2, '{"s": [1.0, 2.0]}')]


def test_a_node_that_is_heard_after_positions_were_given_is_missing_from_windows_that_begin_before() -> None:
    """protocol 7.4: its readings of that time are in no window; those that begin later have it."""
    a, b = Sender("a", PAIRS), Sender("b", PAIRS)
    root = root_of(a)
    root.take("a", a.send(reading(10, 1.0), frontier_us=15 * S), S)
    assert root.step(S) == []
    root.take("b", b.birth(), S)
    root.take("b", b.send(reading(12, 2.0), frontier_us=30 * S), S)
    root.take("a", a.send(reading(20, 3.0), reading(21, 4.0), reading(22, 5.0), frontier_us=30 * S), S)
    first, second = root.step(S)
    assert answers([first, second]) == [("k=a", 0, 2, '{"s": [1.0, 3.0]}'), ("k=a", 2, 4, '{"s": [4.0, 5.0]}')]
    assert first.coverage == Coverage(("a", "b"), (("b", "behind"),))
    assert second.coverage == Coverage(("a", "b"), ())


def test_a_root_that_is_started_knows_which_leaves_had_joined() -> None:
    """protocol 7.4, 8.1: none of them is missing for it."""
    a, b = Sender("a", PAIRS), Sender("b", PAIRS)
    root = root_of(a, b)
    root.take("a", a.send(reading(10, 1.0), frontier_us=15 * S), S)
    root.take("b", b.send(reading(11, 2.0), reading(12, 3.0), frontier_us=15 * S), S)
    assert len(root.step(S)) == 1
    started = Decider(JOURNAL, GRACE)
    started.restore(root.decider.snapshot(lambda frame: frame), lambda frame: frame)
    root.decider = started
    root.take("a", a.send(reading(20, 4.0), frontier_us=30 * S), S)
    root.take("b", b.send(frontier_us=30 * S), S)
    (row,) = root.step(S)
    assert row.complete


def test_a_node_that_skip_went_on_without_is_missing_from_windows_that_begin_before_it_was_back() -> None:
    """protocol 7.4: though it has caught up when the last reading of the window gets its position."""
    query = replace(PAIRS, on_missing="skip")
    a, b = Sender("a", query), Sender("b", query)
    root = root_of(a, b)
    root.take("b", b.send(frontier_us=5 * S), S)
    for second in range(1, 200, 10):  # b is silent for longer than any grace
        root.take("a", a.send(*[reading(10, 1.0)][second > 1 :], frontier_us=(20 + second) * S), second * S)
        assert root.step(second * S) == []
    root.take("b", b.send(reading(12, 2.0), frontier_us=500 * S), 200 * S)
    root.take("a", a.send(*(reading(at, float(at)) for at in (300, 310, 320)), frontier_us=500 * S), 200 * S)
    first, second_row = root.step(200 * S)
    assert first.coverage == Coverage(("a", "b"), (("b", "behind"),))
    assert second_row.complete


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("lost_s", "touches"), [(3, False), (8, True), (15, True), (25, False)])
def test_a_loss_touches_a_state_window_from_the_reading_before_it_to_the_one_that_ends_it(
    lost_s: int, touches: bool, steps: int
) -> None:
    """protocol 7.4, 4.7: a lost reading between these may have begun or ended it."""
    a = Sender("a", replace(PAIRS, id="high", window=State("value > 80", "value < 20")))
    root, rows = root_of(a), list[Row]()
    root.take("a", a.lose(lost_s * S, (lost_s + 1) * S), S)
    for at, value in ((5, 50.0), (10, 90.0), (20, 10.0), (30, 50.0)):
        root.take("a", a.send(reading(at, value), frontier_us=at * S + 2), S)
        rows += root.step(S) if steps > 1 or at == 30 else ()
    (row,) = rows
    assert (row.start, row.end, row.readings) == (10 * S, 20 * S, 1)
    assert row.coverage.missing == ((("a", "lost"),) if touches else ())


def test_state_windows_that_follow_each_other_at_once_come_once_each_in_however_many_steps() -> None:
    """protocol 7.4: a window whose last reading also met its beginning was made again."""
    a = Sender("a", replace(PAIRS, id="high", window=State("value > 80", "value > 90")))
    root, rows = root_of(a), list[Row]()
    for at, value in ((5, 85.0), (10, 95.0), (20, 85.0), (30, 95.0), (40, 50.0)):
        root.take("a", a.send(reading(at, value), frontier_us=at * S + 2), S)
        rows += root.step(S)
    assert [(row.start // S, row.end // S, row.readings) for row in rows] == [(5, 10, 1), (10, 30, 2)]


def test_a_new_revision_counts_on_and_gives_up_what_the_old_one_began() -> None:
    """protocol 7.4, 6.3"""
    a = Sender("a", PAIRS)
    root = root_of(a)
    root.take("a", a.send(*(reading(at, float(at)) for at in (10, 11, 12)), frontier_us=20 * S), S)
    assert answers(root.step(S)) == [("k=a", 0, 2, '{"s": [10.0, 11.0]}')]
    threes = replace(PAIRS, revision=2, window=CountTumbling(3))
    told = (Serving("pairs", 1, None, 30 * S), Serving("pairs", 2, 30 * S))
    root.take("a", a.tell(*told, queries=[threes]), S)
    root.take("a", a.send(*(reading(at, float(at)) for at in (30, 31, 32, 33)), frontier_us=60 * S), S)
    (row,) = root.step(S)
    assert answers([row]) == [("k=a", 3, 6, '{"s": [30.0, 31.0, 32.0]}')]
    assert row.definition_revision == 2


def test_a_plan_that_has_ended_stays_ended_and_the_next_one_begins_after_what_was_sent() -> None:
    """protocol 6.3"""
    interval = RawSlicer(0, 100, (), None)
    interval.cut(50)
    interval.cut(80)
    assert interval.until_us == 50
    interval.gone_until(60)
    interval.gone_until(40)
    assert interval.earliest_switch(interval, np.zeros(0, np.int64), 10) == 61


def test_series_of_another_driver_have_keys_of_their_own() -> None:
    """protocol 2.2: a sensor that was changed may number its series anew."""
    index, one = KeyIndex(("k",)), np.zeros(1, np.int64)
    assert index.of(Batch(one, one, one, LABELS[:1])) == 0
    assert index.of(Batch(one, one, one, LABELS[1:])) == 1
    assert index.table == ["k=a", "k=b"]
