"""Windows between markers: whatever the tree, the disorder and the interpretation, the rows are the oracle's."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest

from edge_agent.algebra.query.key import key_labels
from edge_agent.recording.parser import parse
from tests.oracle.central_computer import Reading
from tests.oracle.marker_windows import Child, Mark, results
from tests.support.effort import seeds
from tests.support.recording.seeded import answered, key_text
from tests.support.recording.seeded_markers import Rows, by_place, made
from tests.support.tolerance import close


def wanted(given: dict[str, Any]) -> Rows:
    """What must come out, with keys as JSON and times in the recording's unit."""
    recording = parse(json.dumps(given), "markers")
    marks = given.get("watermarks", {})
    children = {}
    for rank, (child, items) in enumerate(given["streams"].items()):
        reached = -math.inf
        readings, markers, late = [], [], {}
        for arrival, item in enumerate(items):
            if item[0] == "wm":
                reached = max(reached, (item[1] - marks["allowed_lateness_ms"]) * 1_000)
            elif item[0] == "p":
                kind = item[-1] if item[-1] in ("start", "end") else ""
                ident = str(item[2]) if len(item) > 2 and item[2] not in ("start", "end") else ""
                markers.append(Mark(item[1] * 1_000, kind, ident))
            else:
                label = item[1] if isinstance(item[1], str) else key_text(item[1])
                reading = Reading(item[0] * 1_000, Fraction(item[2]), f"{rank:05d}", arrival, Labels(key=label))
                readings.append(reading)
                if reading.time_us < reached:
                    late[reading] = reached
        children[child] = Child(readings, markers, late)
    out: Rows = {}
    for asked in recording.asked:
        for (_, child, key, start, end), values in results(asked.query, children).items():
            place = (str(asked.recorded_id), child, key_labels(key).get("key", "null"), start // 1_000, end // 1_000)
            out[place] = next(iter(values.values()))
    return out


class Labels(dict[str, str]):
    """Labels that a set of readings can hold."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(0, 60))
def test_any_recording_with_markers_gives_the_rows_of_the_oracle(seed: int) -> None:
    """protocol 4.1, 4.2, 4.4, 5.1, 5.3, 6.1 and 6.2: every interpretation, over random trees."""
    given = made(seed)
    got, want = by_place(answered(given)), wanted(given)
    assert got.keys() == want.keys()
    for place, value in want.items():
        assert close(got[place], value), (place, got[place], value)


def test_a_window_without_a_reading_of_a_key_joins_its_neighbours_all_the_same() -> None:
    """What is one window of several nodes follows from markers alone, for every key alike."""
    streams = {
        "a": [["p", 0, "start"], [1, "x", 1], ["p", 10, "end"]],
        "b": [["p", 8, "start"], [9, "y", 2], ["p", 20, "end"]],
        "c": [["p", 20, "start"], [25, "x", 4], ["p", 30, "end"]],
    }
    window = {"type": "punctuation", "interpretation": "overlap"}
    told = answered({"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams})
    assert by_place(told) == {("q", "", "x", 0, 30): 5, ("q", "", "y", 0, 30): 2}


def test_the_ith_windows_are_one_only_as_far_as_every_child_has_one() -> None:
    streams = {
        "a": [["p", 0], [1, None, 1], ["p", 10], [11, None, 2], ["p", 20], [21, None, 4], ["p", 30]],
        "b": [["p", 5], [6, None, 8], ["p", 50], ["p", 60], [61, None, 16]],
    }
    window = {"type": "punctuation", "interpretation": "order"}
    told = answered({"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams})
    assert by_place(told) == {("q", "", "null", 0, 50): 9, ("q", "", "null", 10, 60): 2}


@pytest.mark.parametrize("interpretation", ["bounds", "order"])
def test_a_query_that_is_added_beside_another_begins_with_the_first_window_that_it_has_whole(
    interpretation: str,
) -> None:
    """protocol 6.3: the gateway goes on numbering its windows; those of the new query begin anew."""
    items = [item for us in range(10, 170, 20) for item in (["p", us], [us + 1, "k", 1])]
    asked = {"id": "old", "window": {"type": "punctuation", "interpretation": interpretation}, "aggregate": "sum"}
    new = {**asked, "id": "new", "aggregate": "count", "added_after_items": 9}
    got = by_place(answered({"queries": [asked, new], "streams": {"a": items}}))
    wanted = {("old", us): 1 for us in range(10, 150, 20)} | {("new", us): 1 for us in range(90, 150, 20)}
    assert got == {(query, "", "k", us, us + 20): value for (query, us), value in wanted.items()}


def test_markers_of_all_children_cut_one_stream() -> None:
    """protocol 7.4: as one central computer would have it; equal markers are one boundary."""
    streams = {
        "a": [["p", 0], [1, "x", 1], [12, "x", 2], ["p", 20], [25, "x", 4], ["p", 40]],
        "b": [[5, "x", 8], ["p", 10], [11, "y", 16], [19, "x", 32], ["p", 20], [30, "x", 64]],
    }
    window = {"type": "punctuation", "interpretation": "central"}
    told = answered({"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams})
    wanted = {("x", 0, 10): 9, ("x", 10, 20): 34, ("y", 10, 20): 16, ("x", 20, 40): 68}
    assert by_place(told) == {("q", "", *place): value for place, value in wanted.items()}


def one_child(late: str, window: dict[str, Any], *items: list[Any]) -> Rows:
    asked = {"id": "q", "window": {"type": "punctuation", **window}, "aggregate": "sum"}
    marks = {"watermarks": {"mode": "markers"}, "late_policy": late}
    return by_place(answered({"queries": [asked], "streams": {"a": items}, **marks}))


@pytest.mark.parametrize("late", ["per_window", "revise", "drop"])
@pytest.mark.parametrize("interpretation", ["bounds", "order", "central"])
def test_a_marker_parts_whenever_it_comes(late: str, interpretation: str) -> None:
    """Markers are no readings: no policy for late ones is for them."""
    items = [["p", 0], [5, "x", 1], [15, "x", 2], [25, "x", 4], ["wm", 20], ["p", 10], ["p", 20], ["wm", 40], ["p", 30]]
    got = one_child(late, {"interpretation": interpretation}, *items)
    assert got == {("q", "", "x", 0, 10): 1, ("q", "", "x", 10, 20): 2, ("q", "", "x", 20, 30): 4}


def test_a_marker_at_the_event_time_ends_a_window_that_late_readings_miss() -> None:
    items = [["p", 9], [10, "x", 1], ["wm", 16], [12, "x", 2], ["p", 16]]
    got = one_child("per_window", {"interpretation": "bounds"}, *items)
    assert got == {("q", "", "x", 9, 16): 1}


@pytest.mark.parametrize(
    ("late", "wanted"),
    [
        ("per_window", {(5, 40): 1 + 2 + 4, (40, 60): 8}),
        ("revise", {(3, 40): 1 + 2 + 4 + 16, (40, 60): 8}),
        ("drop", {(10, 40): 1, (40, 60): 8}),
    ],
)
def test_the_first_reading_that_counts_leads_even_if_it_is_late(late: str, wanted: dict[tuple[int, int], int]) -> None:
    items = [[10, "x", 1], ["wm", 20], [5, "x", 2], [12, "x", 4], ["p", 40], [45, "x", 8], ["wm", 41], [3, "x", 16]]
    got = one_child(late, {"interpretation": "bounds", "leading": "open"}, *items, ["p", 60])
    assert got == {("q", "", "x", *bounds): value for bounds, value in wanted.items()}


@pytest.mark.parametrize("late", ["per_window", "revise"])
def test_a_late_reading_leads_where_none_came_on_time(late: str) -> None:
    got = one_child(late, {"interpretation": "bounds", "leading": "open"}, ["wm", 20], [18, "x", 9], ["p", 48])
    assert got == {("q", "", "x", 18, 48): 9}


@pytest.mark.parametrize("tree", [{}, {"topology": {"m": ["a"], "n": ["b"], "root": ["m", "n"]}}])
@pytest.mark.parametrize(
    ("late", "wanted"),
    [
        ("per_window", {(5, 40): 1 + 2 + 4 + 8, (40, 60): 16}),
        ("revise", {(3, 40): 1 + 2 + 4 + 8 + 32, (40, 60): 16}),
        ("drop", {(8, 40): 1 + 8, (40, 60): 16}),
    ],
)
def test_the_first_reading_that_counts_leads_the_windows_of_all_even_if_it_is_late(
    late: str, wanted: dict[tuple[int, int], int], tree: dict[str, Any]
) -> None:
    """protocol 6.2, 7.4: as one central computer would have it; the reading at 3 comes when the window has ended."""
    streams = {
        "a": [[10, "x", 1], ["wm", 20], [5, "x", 2], [12, "x", 4], ["p", 40], [45, "x", 16], ["wm", 41], [3, "x", 32]],
        "b": [[8, "x", 8], ["p", 60], ["wm", 70]],
    }
    window = {"type": "punctuation", "interpretation": "central", "leading": "open"}
    marks = {"watermarks": {"mode": "markers"}, "late_policy": late}
    told = answered(
        {"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams, **marks, **tree}
    )
    assert by_place(told) == {("q", "", "x", *bounds): value for bounds, value in wanted.items()}


@pytest.mark.parametrize("late", ["per_window", "revise", "drop"])
def test_a_late_reading_after_a_marker_of_any_gateway_leads_nothing(late: str) -> None:
    """Its gateway does not know of that marker."""
    streams = {"a": [["wm", 20], [12, "x", 2], ["wm", 70]], "b": [["p", 10], ["p", 15], ["p", 60], ["wm", 70]]}
    window = {"type": "punctuation", "interpretation": "central", "leading": "open"}
    marks = {"watermarks": {"mode": "markers"}, "late_policy": late}
    told = answered({"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams, **marks})
    assert by_place(told) == ({("q", "", "x", 10, 15): 2} if late == "revise" else {})


@pytest.mark.parametrize("late", ["per_window", "revise", "drop"])
def test_a_late_reading_is_in_the_window_of_all_markers_that_its_policy_says(late: str) -> None:
    """protocol 4.2: per_window, only where that was open; of two at one time each has its own frontier."""
    streams = {
        "a": [
            ["p", 0],
            [5, "x", 1],
            ["wm", 12],
            [7, "x", 2],
            [11, "x", 4],
            ["wm", 30],
            [8, "x", 8],
            ["p", 40],
            ["wm", 50],
        ],
        "b": [[6, "x", 16], ["p", 20], ["wm", 60], [15, "x", 32]],
    }
    window = {"type": "punctuation", "interpretation": "central"}
    queries = [{"id": "q", "window": window, "aggregate": "sum"}]
    told = answered({"queries": queries, "streams": streams, "watermarks": {"mode": "markers"}, "late_policy": late})
    wanted = {"per_window": 1 + 16 + 2 + 4, "revise": 1 + 16 + 2 + 4 + 8 + 32, "drop": 1 + 16}
    assert by_place(told) == {("q", "", "x", 0, 20): wanted[late]}


def test_readings_between_all_markers_are_weighed_by_a_label_of_their_key() -> None:
    """Only the key travels with a raw reading."""
    streams = {"a": [["p", 0], [1, 3, 10], [2, 1, 20]], "b": [[2, 3, 40], ["p", 9]]}
    asked = {"fn": "weighted_avg", "weight": "key", "as": "value"}
    window = {"type": "punctuation", "interpretation": "central"}
    told = answered({"queries": [{"id": "q", "window": window, "aggregates": [asked]}], "streams": streams})
    assert {row["key"]: row["value"] for row in told} == {3: 25, 1: 20}
    (line,) = parse(
        json.dumps(
            {
                "queries": [{"id": "q", "window": window, "aggregates": [{**asked, "weight": "area"}]}],
                "streams": streams,
            }
        ),
        "x",
    ).refused
    assert "not this label" in line


def test_an_end_closes_the_window_that_a_start_of_another_child_began() -> None:
    """A second start in an open window and an end outside one change nothing."""
    streams = {
        "a": [["p", 0, "start"], [1, "x", 1], ["p", 5, "start"], [6, "x", 2], ["p", 40, "end"], [41, "x", 4]],
        "b": [[2, "x", 8], ["p", 10, "end"], [15, "x", 16], ["p", 20, "end"], ["p", 30, "start"], [39, "x", 32]],
    }
    window = {"type": "punctuation", "interpretation": "central"}
    told = answered({"queries": [{"id": "q", "window": window, "aggregate": "sum"}], "streams": streams})
    assert by_place(told) == {("q", "", "x", 0, 10): 11, ("q", "", "x", 30, 40): 32}


def test_revise_counts_a_reading_behind_more_windows_than_a_gateway_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 4.2: a gateway forgets all but the last MOST_WINDOWS closed windows; a recording may have more."""
    for module in ("edge_agent.algebra.punctuation.markers", "edge_agent.recording.parser"):
        monkeypatch.setattr(f"{module}.MOST_WINDOWS", 3, raising=False)
    stream: list[list[Any]] = []
    for turn in range(9):
        stream += [["p", 10 * turn], [10 * turn + 5, "x", 1]]
    stream += [[6, "x", 100]]
    query = {"id": "q", "window": {"type": "punctuation", "interpretation": "bounds"}, "aggregate": "sum"}
    given = {"queries": [query], "streams": {"a": stream}, "watermarks": {"mode": "implicit"}, "late_policy": "revise"}
    sums = [row["value"] for row in answered(given)]
    assert sums == [101, 1, 1, 1, 1, 1, 1, 1]


def test_a_mistyped_name_in_the_order_of_children_is_no_child_that_windows_wait_for() -> None:
    """docs/punctuation.md: with `order` there are only as many windows as every child has."""
    query = {"id": "q", "window": {"type": "punctuation", "interpretation": "order"}, "aggregate": "sum"}
    streams = {child: [["p", 0], [5, "x", 1], ["p", 10]] for child in ("press-1", "press-2")}
    given = {"queries": [query], "streams": streams, "child_order": ["pres-2", "press-1"]}
    assert [row["value"] for row in answered(given)] == [2]
