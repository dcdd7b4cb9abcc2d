"""Markers at a gateway: from a sensor's state, from an operator, late ones, and over a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.arrays import NO_INTS
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.punctuation import markers as markers_module
from edge_agent.algebra.punctuation.markers import LEAD, Marker, Markers, ordinal_of, role_of, window_key
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.events import Action, Event, LinkUp, Mark, Note, Read, Tick
from edge_agent.machines.gateway import value_changes
from edge_agent.machines.gateway.value_changes import ValueChanges
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.runtime.status_and_commands import marker_of, parse_command
from tests.support.machines.simulated_host import Disk, gateway_host
from tests.support.machines.slicer_runs import restarted, started

SECOND = 1_000_000
QUERY = Query("q", 1, "s", Punctuation(), (Aggregate("sum", "sum"),), lateness_us=0)


def batch(*readings: tuple[int, float]) -> Batch:
    return Batch(
        np.array([time for time, _ in readings], np.int64),
        np.array([value for _, value in readings], np.float64),
        np.zeros(len(readings), np.int64),
        [()],
    )


class Bench:
    """A gateway with the sensors "s" and "state"; a microsecond passes with every event."""

    def __init__(self, *queries: Query) -> None:
        self.queries, self.disk = queries, Disk()
        self.frames: list[Frame] = []
        self.now_us = 10**12
        self.start()

    def start(self) -> None:
        settings = NodeSettings("g", commit_interval_us=1, frontier_step_us=1)
        sensors = [
            Sensor(name, 1, "simulated", timeout_us=10**15, rereadable=True, own_clock=True) for name in ("s", "state")
        ]
        self.now_us += 1
        self.host = gateway_host(self.disk, self.now_us, settings=settings, sensors=sensors, queries=self.queries)
        self.frames += self.host.frames
        self.do(LinkUp())

    def do(self, event: Event) -> list[Action]:
        self.now_us += 1
        before = len(self.host.frames)
        out = self.host.do(event, self.now_us)
        self.frames += self.host.frames[before:]
        return out

    def rows(self) -> list[tuple[int, int, float]]:
        """(start, end, sum) of the rows of readings that have left."""
        return [row for frame in self.frames for row in _rows(frame)]


def _rows(frame: Frame) -> list[tuple[int, int, float]]:
    sections = [section for part in frame.groups for section in (*part.sections, *part.late)]
    return [
        (start, end, total)
        for section in sections
        if "sum" in section.partials.states
        for start, end, total in zip(
            section.partials.start.tolist(),
            section.partials.end.tolist(),
            section.partials.states["sum"].tolist(),
            strict=True,
        )
    ]


def at(**changes: Any) -> Query:
    return replace(QUERY, window=Punctuation(**changes))


def test_changes_of_a_sensors_value_are_markers() -> None:
    bench = Bench(at(markers="state"))
    bench.do(Read("state", batch((0, 3), (10, 3), (20, 4), (30, 4), (40, 3), (90, 3))))
    bench.do(Read("s", batch((5, 1), (20, 2), (39, 4), (40, 8), (80, 16))))
    assert bench.rows() == [(20, 40, 6.0)]


def test_nothing_closes_before_the_state_has_said_how_far_it_is() -> None:
    """protocol 4.1: the frontier is the least of the sources."""
    bench = Bench(at(markers="state"))
    bench.do(Read("state", batch((0, 1), (10, 2), (20, 3))))
    bench.do(Read("s", batch((15, 1), (200, 2))))
    bench.do(Read("state", batch((150, 3))))
    assert bench.rows() == [(10, 20, 1.0)]
    bench.do(Read("state", batch((160, 4), (210, 4))))
    bench.do(Read("s", batch((155, 5), (300, 2))))  # behind what s has said; not behind the group
    assert bench.rows() == [(10, 20, 1.0), (20, 160, 5.0)]


def test_the_id_of_a_change_is_the_whole_value() -> None:
    bench = Bench(at(markers="state", punctuation_id="1234567"))
    bench.do(Read("state", batch((0, 0), (10, 1234567), (20, 1234568), (30, 1234567), (90, 1234567))))
    bench.do(Read("s", batch((12, 1), (25, 2), (31, 4), (80, 8))))
    assert bench.rows() == [(10, 30, 3.0)]


def test_a_change_has_the_decimal_value_of_its_sensor() -> None:
    tenths = batch((0, 1), (10, 3))
    tenths = replace(tenths, value=tenths.value.astype(np.int64))
    assert ValueChanges().of([tenths], -1) == [(10, 0.3)]


def test_adding_a_batch_of_markers_takes_no_time_in_the_square_of_it() -> None:
    """A file with a day of changes comes in one batch. Comparisons are counted, because clocks are noisy."""

    def comparisons(number: int) -> int:
        found = 0

        class Counted(int):
            def __lt__(self, other: int) -> bool:
                nonlocal found
                found += 1
                return int(self) < int(other)

            def __eq__(self, other: object) -> bool:
                nonlocal found
                found += 1
                return int(self) == other

            __hash__ = int.__hash__

        markers = Markers(leading=True)
        markers.add(Marker(Counted(us)) for us in range(number))
        markers.add(Marker(Counted(us)) for us in range(number, 2 * number))
        assert [marker.time_us for marker in markers.waiting] == [*range(2 * number)]
        return found

    assert comparisons(4_000) < 20 * comparisons(400)


def test_only_changes_to_the_value_asked_for_are_markers() -> None:
    bench = Bench(at(markers="state", punctuation_id="1"))
    bench.do(Read("state", batch((0, 0), (10, 1), (20, 0), (30, 1), (90, 1))))
    bench.do(Read("s", batch((12, 1), (25, 2), (31, 4), (80, 8))))
    assert bench.rows() == [(10, 30, 3.0)]


def test_a_value_other_than_0_begins_an_overlapping_window_and_0_ends_it() -> None:
    bench = Bench(at(interpretation="overlap", markers="state"))
    bench.do(Read("state", batch((0, 0), (10, 1), (15, 2), (20, 0), (30, 1), (90, 1))))
    bench.do(Read("s", batch((12, 1), (25, 2), (31, 4), (80, 8))))
    assert bench.rows() == [(10, 20, 1.0)]


def test_an_operators_marker_counts_where_no_sensor_gives_them() -> None:
    bench = Bench(QUERY, replace(at(markers="state"), id="r"))
    bench.do(Mark(Marker(10)))
    bench.do(Mark(Marker(20)))
    bench.do(Read("s", batch((10, 1), (19, 2), (20, 4), (30, 8))))
    bench.do(Read("state", batch((50, 1))))
    assert bench.rows() == [(10, 20, 3.0)]


def test_a_late_marker_parts_nothing_and_is_told() -> None:
    bench = Bench(QUERY)
    bench.do(Mark(Marker(10)))
    bench.do(Read("s", batch((10, 1), (30, 2))))
    told = bench.do(Mark(Marker(20)))
    told += bench.do(Tick())
    assert [note.fields for note in told if isinstance(note, Note) and note.name == "marker.late"] == [{"markers": 1}]
    bench.do(Mark(Marker(40)))
    bench.do(
        Read(
            "s",
            batch(
                (40, 4),
            ),
        )
    )
    assert bench.rows() == [(10, 40, 3.0)]


def test_a_late_reading_leads_until_the_first_window_has_ended() -> None:
    """Nothing of that window has left before, so that no row has to be withdrawn (protocol 4.2)."""
    bench = Bench(at(leading="open"))
    bench.do(Read("s", batch((20, 1), (30, 2))))
    bench.do(Read("s", batch((10, 4))))
    bench.start()
    bench.do(Read("s", batch((15, 8))))
    bench.do(Mark(Marker(40)))
    bench.do(Read("s", batch((50, 16))))
    bench.do(Read("s", batch((5, 32))))
    bench.do(Mark(Marker(60)))
    bench.do(Read("s", batch((70, 64))))
    assert bench.rows() == [(10, 40, 3.0), (10, 40, 12.0), (40, 60, 16.0)]


def marked(slicer: Slicer, frontier_us: int) -> list[tuple[bool, int, int, str]]:
    """(late, start, end, role) of the marker rows that leave at a frontier."""
    return [
        (rows.late, start, end, role_of(rows.keys[key]) or "")
        for rows in slicer.advance(frontier_us)
        if "sum" not in rows.partials.states and rows.partials.states.keys() == {"count"}
        for start, end, key in zip(
            *(column.tolist() for column in (rows.partials.start, rows.partials.end, rows.partials.key)), strict=True
        )
    ]


@pytest.mark.parametrize(("late", "bounds"), [("revise", (6, 4)), ("per_window", (31, 61))])
def test_the_root_is_told_of_late_readings_before_all_that_it_was_told_of(late: str, bounds: tuple[int, int]) -> None:
    """protocol 6.2: over restarts too. Under per_window only a marker after the frontier that they missed counts."""
    query = replace(at(interpretation="central", leading="open"), late=late)
    slicer = started(query, node="g")
    slicer.push(batch((20, 1), (30, 2)))
    assert marked(slicer, 30) == [(False, 20, 21, LEAD)]
    slicer.push(batch((5, 4), (25, 8)))
    slicer = restarted(slicer)
    slicer.push(batch((15, 16)))
    slicer.mark([Marker(40)])
    assert marked(slicer, 60) == [(True, 5, bounds[0], LEAD), (False, 40, 41, "")]
    slicer.push(batch((3, 32), (50, 64), (70, 128)))
    slicer = restarted(slicer)
    assert marked(slicer, 80) == [(True, 3, bounds[1], LEAD)]
    slicer.push(batch((4, 256), (90, 1)))
    assert marked(slicer, 90) == []
    slicer.check()


def test_the_end_of_an_epoch_tells_of_late_readings_too() -> None:
    slicer = started(at(interpretation="central", leading="open"), node="g")
    slicer.advance(30)
    slicer.push(batch((5, 4)))
    assert [(rows.late, rows.partials.start.tolist()) for rows in slicer.flush()] == [(True, [5]), (True, [5])]
    assert slicer.flush() == []
    slicer.check()


def test_late_readings_before_the_first_marker_lead_nothing_if_the_query_does_not_say_so() -> None:
    slicer = started(at(interpretation="central"), node="g")
    slicer.advance(30)
    slicer.push(batch((5, 4)))
    assert marked(slicer, 40) == []


def test_a_spool_of_an_older_version_leads_nothing_before_what_it_passed_to_the_root() -> None:
    old = Markers(leading=True)
    old.restore({"waiting": [], "closed": [NO_INTS, NO_INTS], "made": 0, "open": None, "begun": True})
    old.pass_late(5, 6)
    assert old.late_leads == []


@pytest.mark.parametrize("interpretation", ["local", "bounds", "overlap"])
def test_an_open_window_outlives_a_restart(interpretation: str) -> None:
    """protocol 3.1: what is open, and the readings that wait for markers, are in the spool."""
    bench = Bench(replace(at(interpretation=interpretation), lateness_us=5))
    bench.do(Mark(Marker(10, "start")))
    bench.do(Read("s", batch((10, 1), (30, 2))))
    bench.start()
    bench.do(Mark(Marker(29, "end")))
    bench.do(Read("s", batch((28, 4), (60, 8))))
    assert bench.rows() == [(10, 29, 5.0)]


def test_readings_that_are_late_for_a_closed_window_leave_as_late_rows() -> None:
    """protocol 4.2."""
    slicer = Slicer(QUERY.group_at("g"), None, "g")
    slicer.change((QUERY,))
    slicer.mark([Marker(10), Marker(20)])
    slicer.push(batch((15, 1)))
    assert [release.late for release in slicer.advance(30)] == [False, False]  # the window, and that there is one
    slicer.push(batch((12, 2), (25, 4)))
    (late,) = slicer.advance(31)
    assert (late.late, late.partials.start.tolist(), late.partials.end.tolist()) == (True, [10], [20])
    slicer.mark([Marker(40)])
    open_rows = [release for release in slicer.advance(50) if "sum" in release.partials.states]
    assert [(r.late, r.partials.states["sum"].tolist()) for r in open_rows] == [(True, [4.0])]
    slicer.check()


def test_a_window_that_is_open_at_a_change_gives_no_row_of_what_changed() -> None:
    """protocol 6.3: no window mixes two definitions; what stays is exact."""
    other = replace(QUERY, id="r")
    slicer = Slicer(QUERY.group_at("g"), None, "g")
    slicer.change((QUERY,))
    slicer.mark([Marker(10)])
    slicer.push(batch((15, 1)))
    slicer.advance(16)
    servings = {(s.query, s.revision): s for s in slicer.change((QUERY, other))}
    assert servings["r", 1].start_from_us == 16
    slicer.push(batch((17, 2)))
    slicer.mark([Marker(20)])
    totals = [release.partials for release in slicer.advance(30) if "sum" in release.partials.states]
    assert [(p.start.tolist(), p.end.tolist()) for p in totals] == [([10], [20]), ([10], [20])]
    assert sum(p.states["sum"].sum() for p in totals) == 3
    ended = {(s.query, s.revision): s for s in slicer.change((replace(QUERY, revision=2), other))}
    assert ended["q", 1].end_until_us == ended["q", 1].start_until_us == ended["q", 2].start_from_us


def test_another_scale_leaves_what_is_open_behind_and_counts_it() -> None:
    """The window goes on, numbers of windows too; that readings are missing from it is seen in the counters."""
    slicer = Slicer(QUERY.group_at("g"), None, "g")
    slicer.change((QUERY,))
    slicer.mark([Marker(10), Marker(20)])
    slicer.push(batch((15, 1), (25, 2), (40, 4)))
    slicer.advance(30)
    slicer.flush()
    after = slicer.rescaled(0)
    assert after.counters["outside"] == 2
    after.mark([Marker(50)])
    after.push(Batch(np.array([45]), np.array([7]), np.zeros(1, np.int64), [()]))
    rows = [r.partials for r in after.advance(60) if "sum" in r.partials.states]
    assert [(p.start.tolist(), p.end.tolist(), p.states["sum"].tolist()) for p in rows] == [([20], [50], [7])]


def test_the_first_value_of_a_series_changes_nothing() -> None:
    changes = ValueChanges()
    assert changes.of([batch((5, 1), (3, 1))], None) == []
    again = ValueChanges(dict(changes.last))
    assert again.of([batch((9, 1), (7, 2))], None) == [(7, 2.0), (9, 1.0)]


def test_of_series_without_end_the_last_values_of_those_heard_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device invents a label with each message; one series goes on."""
    monkeypatch.setattr(value_changes, "MOST_SERIES", 3)
    changes, stays = ValueChanges(), (("machine", "a"),)
    for n in range(10):
        labels = [stays, (("machine", f"invented-{n}"),)]
        found = changes.of([Batch(np.array([n, n]), np.array([float(n), 5.0]), np.arange(2), labels)], None)
        assert found == ([(n, float(n))] if n else [])
    assert list(changes.last.values()) == [5.0, 9.0, 5.0]


@pytest.mark.parametrize("after", [-1, 0, 4_094, 4_095, 10**6])
def test_a_windows_number_comes_back_from_its_key(after: int) -> None:
    """Also where a merger passes on what is on time before what is late, and where a few were lost."""
    around = [after + step for step in (-2_000, -1, 0, 1, 2, 2_048) if after + step >= 0]
    assert [ordinal_of(window_key(number), after) for number in around] == around


AT = 'at: needs a moment like "2026-11-21T06:00:00Z", or microseconds since 1970'


def test_a_node_whose_clock_is_off_marks_nothing_without_a_time() -> None:
    """What it would call now is anybody's guess."""
    assert marker_of(parse_command(b'{"cmd": "mark", "at": 5}'), None) == Marker(5)
    assert (
        marker_of(parse_command(b'{"cmd": "mark"}'), None)
        == "the clock of this node is not synchronised: add `at` to the command"
    )


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"cmd": "mark"}', Marker(77)),
        (b'{"cmd": "mark", "at": 5, "marker": 7, "kind": "end"}', Marker(5, "end", "7")),
        (b'{"cmd": "mark", "at": "1970-01-01T01:00:00.000005+01:00"}', Marker(5)),
        (b'{"cmd": "mark", "at": "now"}', AT),
        (b'{"cmd": "mark", "at": "1970-01-01T01:00:00"}', AT),
        (b'{"cmd": "mark", "at": -1}', AT),
        (b'{"cmd": "mark", "at": true}', AT),
        (b'{"cmd": "mark", "time": 5}', "time: unknown key of mark; keys are at, kind, marker, nodes"),
        (b'{"cmd": "mark", "kind": "middle"}', "kind: needs start or end, or leave it out"),
    ],
)
def test_a_command_is_a_marker_or_says_why_it_is_none(payload: bytes, said: object) -> None:
    assert marker_of(parse_command(payload), 77) == said


def sums(slicer: Slicer, frontier_us: int) -> list[tuple[int, int, bool, float]]:
    """(start, end, late, sum) of the rows of readings that leave."""
    return [
        (start, end, rows.late, total)
        for rows in slicer.advance(frontier_us)
        if "sum" in rows.partials.states
        for start, end, total in zip(
            *(column.tolist() for column in (rows.partials.start, rows.partials.end, rows.partials.states["sum"])),
            strict=True,
        )
    ]


def slicing(query: Query) -> Slicer:
    slicer = Slicer(query.group_at("g"), None, "g")
    slicer.change((query,))
    return slicer


def test_a_marker_at_the_frontier_is_on_time() -> None:
    """protocol 4.2, 4.1: a reading with the time of the frontier is."""
    slicer = slicing(QUERY)
    slicer.mark([Marker(10)])
    slicer.advance(20)
    assert slicer.mark([Marker(19), Marker(20)]) == 1
    slicer.push(batch((20, 1)))
    slicer.mark([Marker(30)])
    assert sums(slicer, 40) == [(20, 30, False, 1.0)]


def test_under_per_window_a_late_reading_of_a_closed_window_is_dropped() -> None:
    """protocol 4.2"""
    slicer = slicing(replace(QUERY, late="per_window"))
    slicer.mark([Marker(10), Marker(20)])
    slicer.push(batch((15, 1), (50, 1)))
    assert sums(slicer, 30) == [(10, 20, False, 1.0)]
    slicer.push(batch((12, 2), (25, 4)))
    assert sums(slicer, 31) == []
    assert slicer.counters["dropped_late"] == 1
    slicer.mark([Marker(40)])
    assert sums(slicer, 45) == [(20, 40, True, 4.0)]
    slicer.check()


def test_a_window_that_ends_where_another_plan_begins_is_listed_once_and_for_the_plan_before() -> None:
    """protocol 6.3: the later one has no window with that end."""
    slicer = slicing(QUERY)
    slicer.mark([Marker(10)])
    slicer.push(batch((15, 1)))
    slicer.advance(16)
    later = replace(QUERY, id="later", effective_from_us=20)
    slicer.change((QUERY, later))
    slicer.mark([Marker(20), Marker(30)])
    slicer.push(batch((25, 2), (50, 4)))
    listed = [
        (rows.plan.queries, start, end)
        for rows in slicer.advance(40)
        if rows.plan.kind == "marker"
        for start, end in zip(rows.partials.start.tolist(), rows.partials.end.tolist(), strict=True)
    ]
    assert [(len(queries), start, end) for queries, start, end in listed] == [(1, 10, 20), (2, 20, 30)]


def test_a_promise_does_not_fall_behind_a_marker_that_has_cut_windows() -> None:
    """protocol 4.1, 6.3: they are sent already."""
    slicer = slicing(QUERY)
    slicer.mark([Marker(10), Marker(20)])
    slicer.advance(40)
    slicer.flush()
    for frontier_us, after_us in ((19, 40), (25, 25)):
        assert not slicer.promise_anew(frontier_us)
        assert slicer.frontier_us == after_us


def test_where_the_markers_of_all_nodes_cut_a_late_reading_reaches_beyond_the_frontier_that_it_missed() -> None:
    """protocol 4.2: under per_window it counts only in a window that is still open; each has a row of its own."""
    slicer = slicing(replace(at(interpretation="central"), late="per_window"))
    slicer.push(batch((25, 1), (50, 1)))
    slicer.advance(30)
    slicer.push(batch((12, 2), (14, 4), (14, 8)))
    late = [rows.partials for rows in slicer.advance(31) if rows.late]
    assert [(rows.start.tolist(), rows.end.tolist()) for rows in late] == [([12, 14], [31, 31])]


def test_closed_windows_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers_module, "MOST_WINDOWS", 10)
    markers = Markers(leading=False)
    for time_us in range(100):
        markers.add([Marker(time_us)])
        markers.advance(time_us, None, -1)
    assert markers.made == 99
    assert markers.start.tolist() == list(range(88, 99)), "ten, and those of the last step"
    assert markers.end.tolist() == list(range(89, 100))
