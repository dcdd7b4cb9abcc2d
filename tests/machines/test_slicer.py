"""The slicer by example: plans that change, late readings, keys, bad values, what is kept and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.algebra.frame import HORIZON_US, Serving
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.query import Aggregate, Group
from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.errors import ConfigError
from edge_agent.machines.slicing.label_values import LabelValues
from edge_agent.machines.slicing.plan_timeline import MAX_INTERVALS
from edge_agent.machines.slicing.slicer import SETTLE_US, Slicer
from tests.support.machines.slicer_runs import LABELS, Run, batch, query, spans, started


def test_before_any_reading_a_query_is_served_from_the_beginning() -> None:
    """protocol 6.3"""
    slicer = Slicer(query("q", Tumbling(10)).group, None, "n")
    assert slicer.drained
    assert slicer.change((query("q", Tumbling(10)),)) == (Serving("q", 1),)
    assert not slicer.drained


def test_a_query_added_while_running_takes_slices_that_fit_its_windows() -> None:
    """protocol 6.3: the earliest exact time, here everything, since no slice is parted by an edge of the new one."""
    ten = query("ten", Tumbling(10))
    slicer = started(ten)
    slicer.push(batch([1, 19]))
    assert slicer.change((ten, query("twenty", Tumbling(20))))[1] == Serving("twenty", 1)
    assert {len(r.plan.queries) for r in slicer.flush()} == {2}


def test_a_query_added_while_running_starts_after_a_slice_that_its_edges_part() -> None:
    """protocol 6.3"""
    twenty = query("twenty", Tumbling(20))
    slicer = started(twenty)
    slicer.push(batch([1, 19]))
    assert slicer.change((twenty, query("ten", Tumbling(10))))[1] == Serving("ten", 1, 20)
    slicer.push(batch([15, 25]))
    assert spans(slicer.flush()) == [(0, 20, "", 35.0), (20, 30, "", 25.0)]


def test_a_query_that_needs_more_state_starts_after_the_newest_reading() -> None:
    """protocol 6.3"""
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1, 13]))
    more = query("more", Tumbling(10), aggregates=(Aggregate("max", "max"),))
    assert slicer.change((query("q", Tumbling(10)), more))[1] == Serving("more", 1, 14)


def test_a_switch_never_goes_below_the_frontier_nor_below_what_was_flushed() -> None:
    """protocol 6.3, 1.3"""
    asked = query("q", Tumbling(10))
    slicer = started(asked)
    slicer.push(batch([1, 33]))
    slicer.advance(21)
    assert slicer.change((asked, query("r", Tumbling(10))))[1] == Serving("r", 1, 21)
    slicer.flush()
    assert slicer.change((asked, query("r", Tumbling(10)), query("t", Tumbling(10))))[2] == Serving("t", 1, 34)


def test_a_window_belongs_to_the_revision_in_force_at_its_start() -> None:
    """protocol 6.3: the older revision is fed until the last window that started before the switch has ended."""
    slicer = started(query("q", Tumbling(20), 1))
    slicer.push(batch([1]))
    slicer.advance(5)
    servings = slicer.change((query("q", Tumbling(10), 2),))
    assert servings == (Serving("q", 1, None, 5), Serving("q", 2, 5))
    slicer.push(batch([6, 15, 25]))
    fed = {
        (int(p.start[i]), int(p.end[i])): r.plan.queries
        for r in slicer.flush()
        for p in [r.partials]
        for i in range(len(p))
    }
    assert fed == {
        (0, 5): (("q", 1),),
        (5, 10): (("q", 1), ("q", 2)),
        (10, 20): (("q", 1), ("q", 2)),
        (20, 30): (("q", 2),),
    }


def test_a_removed_query_gives_no_row_after_its_removal_and_the_slicer_drains() -> None:
    """protocol 6.3"""
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1, 7]))
    slicer.advance(5)
    assert slicer.change(()) == (Serving("q", 1, None, None, 8),)
    slicer.push(batch([12]))
    assert slicer.counters["outside"] == 1
    assert not slicer.drained
    assert spans(slicer.advance(8)) == [(0, 8, "", 8.0)]
    assert not slicer.drained, "a late reading may still revise its rows"
    slicer.push(batch([3, 9]))
    assert slicer.counters["outside"] == 2
    assert spans(slicer.advance(9)) == [(3, 4, "", 3.0)]
    slicer.horizon_us = HORIZON_US
    slicer.advance(8 + HORIZON_US + SETTLE_US)
    assert slicer.drained


@pytest.mark.parametrize(("window", "gap_us"), [(Tumbling(10), 0), (Session(10), 10)])
def test_a_removed_group_is_kept_for_late_readings_and_for_members_that_are_behind(
    window: Tumbling | Session, gap_us: int
) -> None:
    """protocol 6.3: a horizon after the end of its last window, and an hour more, also after its plan is dropped."""
    slicer = started(replace(query("q", Tumbling(10)), window=window))
    slicer.push(batch([1, 7]))
    slicer.advance(5)
    (ended,) = slicer.change(())
    slicer.horizon_us = HORIZON_US
    slicer.advance(8 + HORIZON_US + gap_us)
    slicer.push(batch([7]))
    assert spans(slicer.advance(8 + HORIZON_US + gap_us)) == [(7, 8, "", 7.0)], "in time for the horizon"
    for past_us in (1, SETTLE_US - 1):
        slicer.advance(8 + HORIZON_US + gap_us + past_us)
        assert (slicer.drained, slicer.servings) == (False, (ended,))
        slicer.check()
    slicer.advance(8 + HORIZON_US + gap_us + SETTLE_US)
    assert slicer.drained


def test_a_query_that_comes_back_to_a_group_kept_without_a_plan_has_a_serving_of_its_own() -> None:
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1, 7]))
    slicer.advance(5)
    slicer.change(())
    slicer.horizon_us = HORIZON_US
    slicer.advance(8 + HORIZON_US + 1)
    (again,) = slicer.change((query("q", Tumbling(10)),))
    assert (again.start_from_us, again.end_until_us) == (8, None), "after the newest reading"
    assert list(slicer.in_force) == ["q"]
    slicer.check()


def test_the_same_queries_again_change_nothing() -> None:
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1]))
    before = slicer.snapshot()
    slicer.change((query("q", Tumbling(10)),))
    assert repr(slicer.snapshot()) == repr(before)


def test_what_cannot_be_served_is_refused_and_the_running_plan_goes_on() -> None:
    asked = query("q", Tumbling(10))
    slicer = started(asked)
    with pytest.raises(ConfigError, match="scope"):
        slicer.change((asked, replace(query("r", Tumbling(10)), scope="region")))
    slicer.push(batch([1]))
    assert spans(slicer.advance(10)) == [(0, 10, "", 1.0)]
    with pytest.raises(ConfigError, match="at character 7"):
        Slicer(Group("s", "value ~ 3", (), 0), None, "n")


def test_late_readings_leave_at_once_with_the_span_of_their_own() -> None:
    """protocol 4.2"""
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([3, 25]))
    slicer.advance(20)
    slicer.push(batch([14, 5, 12, 26]))
    (release,) = slicer.advance(20)
    assert release.late
    assert spans([release]) == [(5, 6, "", 5.0), (12, 15, "", 26.0)]
    assert slicer.counters["late"] == 3


def test_a_frontier_never_falls() -> None:
    """protocol 4.1"""
    slicer = started(query("q", Tumbling(10)))
    slicer.advance(30)
    slicer.advance(10)
    assert slicer.frontier_us == 30


def test_nan_is_skipped_and_counted_and_infinities_are_bad() -> None:
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1, 2, 3, 4, 5], [1.0, float("nan"), float("inf"), -float("inf"), 1e301]))
    slicer.push(batch([6], [float("nan")]))
    assert slicer.counters["nan_skipped"] == 2
    assert slicer.counters["bad"] == 3
    assert slicer.newest_us == 6
    assert spans(slicer.flush()) == [(0, 10, "", 1.0)]


def test_scaled_integers_that_cannot_travel_are_bad() -> None:
    """protocol 7.1"""
    slicer = started(query("q", Tumbling(10)), scale=-1)
    values = np.array([2**61 - 1, 2**61, 1 - 2**61], np.int64)
    slicer.push(Batch(np.arange(3), values, np.zeros(3, np.int64), LABELS))
    assert slicer.counters["bad"] == 1
    assert spans(slicer.flush()) == [(0, 10, "", 0.0)]


def test_values_of_the_wrong_type_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="scale -1"):
        started(query("q", Tumbling(10)), scale=-1).push(batch([1]))


def test_the_filter_sees_values_in_the_sensors_unit_and_labels() -> None:
    asked = query("q", Tumbling(10), where="value > 0.3 and site = 'a'", by=("room",))
    slicer = started(asked, scale=-1)
    slicer.push(Batch(np.arange(4), np.array([3, 4, 5, 9]), np.array([0, 0, 1, 2]), LABELS))
    assert spans(slicer.flush()) == [(0, 10, "room=1", 4.0), (0, 10, "room=2", 5.0)]
    assert slicer.counters["filtered"] == 2
    assert slicer.newest_us == 3  # what is filtered moves time


def test_keys_are_the_labels_in_the_order_asked_for_and_can_be_taken_apart() -> None:
    slicer = started(query("q", Tumbling(10), by=("site", "room")))
    slicer.push(batch([1, 2, 3, 4], series=[2, 1, 3, 1]))
    assert {key: total for _, _, key, total in spans(slicer.flush())} == {
        "site=b%2C%3D%25,room=": 1.0,
        "site=a,room=2": 6.0,
        "site=,room=": 3.0,
    }


def test_one_series_costs_no_array_of_keys_and_a_growing_or_another_table_of_labels_is_noticed() -> None:
    table: list[Labels] = [(("site", "a"),)]
    slicer = started(query("q", Tumbling(10), by=("site",)))
    one = np.broadcast_to(np.int64(0), (2,))
    slicer.push(Batch(np.array([1, 2]), np.ones(2), one, table))
    table.append((("site", "b"),))
    slicer.push(Batch(np.array([3, 4]), np.ones(2), np.array([1, 0]), table))
    slicer.push(Batch(np.array([5]), np.ones(1), np.zeros(1, np.int64), [(("site", "b"),)]))
    assert spans(slicer.flush()) == [(0, 10, "site=a", 3.0), (0, 10, "site=b", 2.0)]


def test_ties_of_time_go_by_arrival_also_over_batches_and_restarts() -> None:
    """protocol 7.3"""
    ends = (Aggregate("first", "first"), Aggregate("last", "last"))
    asked = query("q", Tumbling(10), aggregates=ends)
    run = Run(Slicer(asked.group, None, "n"))
    run.change((asked,))
    run.push([5, 3, 3], [1.0, 2.0, 3.0], [0, 0, 0])
    run.restart()
    run.push([3, 5, 5], [4.0, 5.0, 6.0], [0, 0, 0])
    run.end()
    assert run.root.results(run.servings) == {("q", "", 0, 10): {"first": 2.0, "last": 6.0}}


def test_whole_windows_leave_when_they_end_where_that_is_fewer_rows() -> None:
    """protocol 6.2: kind window"""
    slicer = started(query("q", Sliding(15, 10)))
    slicer.push(batch([1, 12, 21]))
    assert slicer.advance(14) == []
    (release,) = slicer.advance(25)
    assert release.plan.kind == "window"
    assert spans([release]) == [(0, 15, "", 13.0), (10, 25, "", 33.0)]


def test_readings_before_the_first_window_are_outside_and_counted() -> None:
    slicer = started(query("q", Tumbling(10, 5)))
    slicer.push(batch([-3, 4, 5]))
    assert slicer.counters["outside"] == 2
    assert spans(slicer.flush()) == [(5, 15, "", 5.0)]


def test_plans_are_kept_for_late_readings_until_the_horizon_and_not_longer() -> None:
    slicer = started(query("q", Tumbling(10), 1))
    slicer.push(batch([1]))
    slicer.advance(5)
    slicer.change((query("q", Tumbling(10), 2),))
    slicer.push(batch([30]))
    slicer.advance(1_000)
    slicer.push(batch([4]))
    (late,) = slicer.advance(1_000)
    assert late.plan.queries == (("q", 1),)
    slicer.horizon_us = HORIZON_US
    slicer.advance(HORIZON_US + 2_000)
    slicer.check()
    slicer.push(batch([4]))
    (late,) = slicer.advance(HORIZON_US + 2_000)
    assert late.plan.queries == (("q", 2),)  # the root keeps it in ops.late
    assert [s.revision for s in slicer.servings] == [2]


def test_definitions_that_change_all_the_time_do_not_fill_the_memory() -> None:
    slicer = Slicer(query("q", Tumbling(10)).group, None, "n")
    for revision in range(1, 200):
        slicer.change((query("q", Tumbling(10 + revision % 3), revision),))
        slicer.push(batch([revision * 50]))
        slicer.advance(revision * 50)
        slicer.check()
    assert len(slicer._timeline) <= MAX_INTERVALS + 2
    assert len(slicer.servings) <= MAX_INTERVALS + 2


def test_scattered_keys_and_times_need_no_table_of_all_groups() -> None:
    """100 000 known keys, few readings: the work follows the readings."""
    table: list[Labels] = [(("unit", str(i)),) for i in range(100_000)]
    slicer = started(query("q", Tumbling(10), by=("unit",)))
    series = np.array([99_999, 5, 99_999, 7])
    slicer.push(Batch(np.array([1, 2, 3, 25]), np.ones(4), series, table))
    assert spans(slicer.flush()) == [
        (0, 10, "unit=5", 1.0), (0, 10, "unit=99999", 2.0), (20, 30, "unit=7", 1.0),
    ]  # fmt: skip


def test_nothing_in_nothing_out() -> None:
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([]))
    assert slicer.advance(100) == []
    assert slicer.flush() == []
    assert slicer.unit_us == 10


def test_another_scale_goes_on_in_the_windows_under_way() -> None:
    """protocol 6.1, 7.1: the plans differ, their partials add up at the root."""
    asked = query("q", Tumbling(10), by=("site",))
    before = started(asked, scale=-1)
    before.push(Batch(np.array([1, 12]), np.array([15, 25]), np.zeros(2, np.int64), LABELS))
    releases = [*before.advance(11), *before.flush()]
    after = before.rescaled(None)
    assert after.servings == before.servings
    assert after.frontier_us == 11
    after.push(batch([13, 2], [0.5, 0.25]))
    more = after.flush()
    after.check()
    assert spans(releases) == [(0, 10, "site=a", 15.0), (10, 20, "site=a", 25.0)]
    assert spans(more) == [(10, 20, "site=a", 0.5), (2, 3, "site=a", 0.25)]
    assert releases[0].plan.queries == more[0].plan.queries
    assert releases[0].plan.hash != more[0].plan.hash
    assert after.change((asked, query("r", Tumbling(10), by=("site",))))[1] == Serving("r", 1, 14)


def test_a_query_added_while_the_sensor_is_silent_is_served_from_its_newest_reading_on() -> None:
    """protocol 6.3: nothing was sliced in between, so nothing is missing."""
    asked = query("q", Tumbling(10))
    slicer = started(asked)
    slicer.push(batch([1]))
    slicer.advance(500)
    assert slicer.change((asked, query("r", Tumbling(10))))[1] == Serving("r", 1, 2)
    slicer.push(batch([35]))
    (late,) = slicer.advance(500)
    assert late.plan.queries == (("q", 1), ("r", 1))


def test_where_a_promise_falls_a_new_query_begins_after_what_left_as_late_too() -> None:
    """protocol 6.3, 4.1: a reading that was late by a clock that was ahead is in the plans of then only."""
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([5]))
    slicer.advance(1_000)
    slicer.push(batch([18]))
    slicer.flush()
    slicer.promise_anew(7)
    slicer.change((query("q", Tumbling(10)), query("added", Tumbling(2))))
    added = next(serving for serving in slicer.servings if serving.query == "added")
    assert added.start_from_us == 19


def test_changes_beyond_a_promise_that_falls_hold_from_there_on() -> None:
    """protocol 6.3, 4.1: added, revised twice and removed; one with an effective_from keeps it."""
    asked = query("q", Tumbling(10))
    slicer = started(asked, query("gone", Tumbling(10)))
    slicer.push(batch([5]))
    slicer.advance(1_000)
    slicer.change((replace(asked, revision=2, window=Tumbling(20)),))
    slicer.advance(2_000)
    later = replace(query("later", Tumbling(10)), effective_from_us=500)
    slicer.change((replace(asked, revision=3, window=Tumbling(5)), query("added", Tumbling(2)), later))
    slicer.flush()
    assert slicer.promise_anew(17)
    assert set(slicer.servings) == {
        Serving("q", 1, None, 17),
        Serving("q", 3, 17),
        Serving("gone", 1, None, None, 17),
        Serving("added", 1, 17),
        Serving("later", 1, 500),
    }
    slicer.push(batch([16, 18, 19]))
    slicer.check()
    rows = {(r.plan.queries, r.late): spans([r]) for r in slicer.flush()}
    assert rows[(("added", 1), ("q", 1), ("q", 3)), False] == [(18, 20, "", 37.0)]
    assert not slicer.promise_anew(15)


def test_a_promise_that_falls_takes_no_reading_from_the_plan_that_it_was_for() -> None:
    """protocol 6.3: a reading that lies where the clock was is in the plan of then only."""
    asked = query("q", Tumbling(10))
    slicer = started(asked)
    slicer.push(batch([45]))
    slicer.advance(100)
    slicer.change((replace(asked, revision=2, window=Tumbling(2)),))
    slicer.flush()
    assert slicer.promise_anew(17)
    assert slicer.servings == (Serving("q", 1, None, 46), Serving("q", 2, 46))


def started_at(slicer: Slicer, name: str) -> int | None:
    """Where a query begins."""
    return next(serving.start_from_us for serving in slicer.servings if serving.query == name)


def test_a_query_begins_after_readings_that_were_before_the_first_window_of_the_others() -> None:
    """protocol 6.3: they are in no row, and its first window would lack them."""
    asked = query("q", Tumbling(10, 5))
    slicer = started(asked)
    slicer.push(batch([3]))
    slicer.change((asked, query("r", Tumbling(10))))
    assert started_at(slicer, "r") == 4


def test_a_query_begins_after_readings_that_were_for_one_that_is_removed() -> None:
    """protocol 6.3: readings ahead of the frontier are dropped with it, and counted."""
    slicer = started(query("q", Tumbling(10)))
    slicer.push(batch([1, 25]))
    slicer.advance(12)
    slicer.change(())
    assert slicer.counters["outside"] == 1
    slicer.change((query("r", Tumbling(10)),))
    assert started_at(slicer, "r") == 26
    slicer.check()


def test_a_query_that_moves_between_groups_ends_and_begins_where_the_other_group_says() -> None:
    """protocol 6.3: not before the frontier here, and not before that of the other group."""
    asked, stays = query("q", Tumbling(10)), query("stays", Tumbling(10))
    for moved_us, until_us in ((70, 70), (30, 50)):
        slicer = started(asked, stays)
        slicer.push(batch([1]))
        slicer.advance(50)
        slicer.change((stays,), {"q": moved_us})
        assert Serving("q", 1, None, until_us) in slicer.servings
    slicer = started(stays)
    slicer.push(batch([1]))
    slicer.change((stays, asked), {"q": 70})
    assert started_at(slicer, "q") == 70


def test_ties_of_time_go_by_arrival_also_over_a_change_of_scale() -> None:
    """protocol 7.3; what was late before is late."""
    ends = (Aggregate("first", "first"), Aggregate("last", "last"))
    slicer = started(query("q", Tumbling(10), aggregates=ends))
    slicer.push(batch([3, 3, 3]))
    slicer.advance(2)
    slicer.flush()
    after = slicer.rescaled(0)
    assert after.frontier_us == 2
    after.push(Batch(np.array([3]), np.array([7]), np.zeros(1, np.int64), LABELS))
    (rows,) = after.flush()
    orders = [column.tolist() for name, column in rows.partials.states.items() if "order" in name]
    assert orders
    assert all(order == [3] for order in orders), rows.partials.states


def test_plans_that_begin_ahead_of_the_frontier_are_kept_however_many() -> None:
    """protocol 6.3: each reading goes to the queries that are in force at its time."""
    many = [replace(query(f"q-{n}", Tumbling(10)), effective_from_us=10 * n) for n in range(1, MAX_INTERVALS + 9)]
    slicer = started(*many)
    slicer.advance(1)
    slicer.push(batch([15]))
    (rows,) = slicer.flush()
    assert rows.plan.queries == (("q-1", 1),)


def test_a_filter_reads_the_labels_of_the_table_that_came_with_the_readings() -> None:
    slicer = started(query("q", Tumbling(10), where="site = 'a'"))
    one = np.zeros(1, np.int64)
    slicer.push(Batch(np.array([1]), np.ones(1), one, [(("site", "a"),)]))
    slicer.push(Batch(np.array([2]), np.ones(1), one, [(("site", "b"),)]))
    slicer.push(Batch(np.array([3]), np.ones(1), one, [(("site", "a"),)]))
    assert spans(slicer.flush()) == [(0, 10, "", 2.0)]
    assert slicer.counters["filtered"] == 1


def test_weights_are_those_of_a_table_of_labels_that_grows_or_is_replaced() -> None:
    known, table = LabelValues(), list[Labels]([(("area", "2"),)])

    def weights(*series: int) -> list[float]:
        readings = np.array(series, np.int64)
        found: list[float] = known.of(Batch(readings, np.ones(len(readings)), readings, table), ["area"])[
            "area"
        ].tolist()
        return found

    assert weights(0, 0) == [2.0, 2.0]
    table.append((("area", "5"),))
    assert weights(1, 0) == [5.0, 2.0]
    table = [(("area", "7"),), (("area", "8"),)]
    assert weights(1, 0) == [8.0, 7.0]


def test_under_per_window_a_late_reading_counts_in_a_session_that_may_still_be_open() -> None:
    """protocol 4.2, 5.1: a session is complete when the frontier is above its last reading + gap."""
    asked = replace(query("q", Tumbling(10)), window=Session(5), late="per_window")
    slicer = started(asked)
    slicer.push(batch([200]))
    slicer.advance(100)
    slicer.push(batch([94, 95, 96]))
    assert slicer.counters["dropped_late"] == 1
    (late,) = slicer.advance(100)
    assert (late.late, late.partials.states["count"].tolist()) == (True, [2])
