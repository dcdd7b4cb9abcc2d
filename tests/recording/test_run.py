"""Recordings through the tree: equal to the oracle, whatever the tree, the disorder and the policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.recording.parser import Recording, parse
from edge_agent.recording.row_rendering import RenderedRow, RowRenderer
from edge_agent.recording.schedule import Add, portions
from edge_agent.recording.tree import Tree, bottom_up
from edge_agent.wire import frames
from tests.support.effort import seeds
from tests.support.recording.seeded import answered, expected, made, reach, told_rows
from tests.support.tolerance import close


def values(told: list[RenderedRow], query: str) -> dict[tuple[int, int], Any]:
    return {(row["start"], row["end"]): row["value"] for row in told if row["query"] == query}


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(0, 60))
def test_any_recording_gives_the_rows_of_the_oracle(seed: int) -> None:
    """protocol 4.1, 4.2, 4.4, 6.1, 6.2 and 7.3 together, by every late policy and kind of progress."""
    given = made(seed)
    got, want = told_rows(answered(given), given), expected(given, "made")
    assert got.keys() == want.keys()
    for place, numbers in want.items():
        pairs = zip(got[place].values(), numbers.values(), strict=True)
        assert all(close(a, b, reach(given, place[0])) for a, b in pairs), (place, got[place], numbers)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(60, 8))
def test_the_last_revision_of_each_row_is_the_final_one(seed: int) -> None:
    given = {**made(seed), "late_policy": "revise"}
    recording = parse(json.dumps(given), "made")
    rows, teller = list(Tree(recording).run()), RowRenderer(recording)
    last: dict[tuple[Any, ...], RenderedRow] = {}
    for told in teller.revisions(rows):
        place = (told["query"], json.dumps(told["key"]), told["start"])
        assert told["revision"] == (last[place]["revision"] + 1 if place in last else 0)
        last[place] = told
    final = [{name: item for name, item in told.items() if name != "revision"} for told in last.values()]
    assert sorted(map(json.dumps, final)) == sorted(map(json.dumps, teller.final(rows)))


def test_integers_are_exact_as_far_as_they_travel() -> None:
    """protocol 7.1: 61 bits at the nodes, sums of 128, in windows of time, of a session and of positions."""
    one, most = 2**53 + 1, 2**61 - 1
    streams = {"a": [[1, "x", one], [2, "x", most]], "b": [[1, "x", -most], [3, "x", most], [4, "x", "NaN"]]}
    wanted = {"sum": one + most, "min": -most, "max": most, "range": 2 * most, "first": one, "last": most}
    wanted |= {"mode": most, "median": (one + most) // 2, "count": 4}
    windows = [
        {"type": "tumbling", "length": 10},
        {"type": "session", "gap": 5},
        {"type": "count_tumbling", "length": 4, "keyed": False},
    ]
    queries = [
        {"id": f"{n} {fn}", "window": window, "aggregate": fn} for n, window in enumerate(windows) for fn in wanted
    ]
    told = answered({"queries": queries, "streams": streams, "topology": {"m": ["a"], "root": ["m", "b"]}})
    assert {row["query"]: row["value"] for row in told} == {
        f"{n} {fn}": value for n in range(3) for fn, value in wanted.items()
    }
    assert all(type(row["value"]) is int for row in told if "median" not in row["query"])


def test_a_mean_of_floats_that_is_a_whole_number_is_not_truncated_below_it() -> None:
    """7.1: floats that merge in another order give 23.999999999999996."""
    streams: dict[str, list[list[Any]]] = {"a": [[1, "k", 4.8]], "b": [[2, "k", 33.04], [3, "k", 34.16]]}
    asked = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "avg"}
    queries = [{**asked, "param": {"rounding": "truncate"}}]
    assert values(answered({"queries": queries, "streams": streams}), "q") == {(0, 10): 24}
    below = {child: [[us, key, -value] for us, key, value in items] for child, items in streams.items()}
    assert values(answered({"queries": queries, "streams": below}), "q") == {(0, 10): -24}
    near = {"a": [[1, "k", 23.9999999]]}
    assert values(answered({"queries": queries, "streams": near}), "q") == {(0, 10): 23}


def test_a_key_of_many_brackets_is_a_text() -> None:
    streams = {"a": [[1, "[" * 6000, 2.0]]}
    query = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
    assert values(answered({"queries": [query], "streams": streams}), "q") == {(0, 10): 2.0}


def test_late_readings_revise_rows_as_they_come() -> None:
    """protocol 4.2, 8.3."""
    stream: list[list[Any]] = [[1, None, 1], ["wm", 10], [2, None, 2], ["wm", 20], [3, None, 4]]
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}],
        "streams": {"c": stream},
        "watermarks": {"mode": "markers"},
        "late_policy": "revise",
    }
    recording = parse(json.dumps(given), "x")
    revisions = RowRenderer(recording).revisions(Tree(recording).run())
    assert [(row["revision"], row["value"]) for row in revisions] == [(0, 1), (1, 3), (2, 7)]


ADDED: list[list[Any]] = [[1, 0, 1], [19, 0, 2], ["wm", 22], [29, 0, 3], [39, 0, 4], [49, 0, 5], ["wm", 55]]


def added(first: dict[str, Any], second: dict[str, Any], after: int, stream: list[Any]) -> dict[tuple[int, int], Any]:
    """What the second of two queries answers, when it comes after so many items."""
    queries = [
        {"id": "first", "window": first, "aggregate": "sum"},
        {"id": "second", "window": second, "aggregate": "sum", "added_after_items": after},
    ]
    return values(answered({"queries": queries, "streams": {"c": stream}, "watermarks": {"mode": "markers"}}), "second")


def test_an_added_query_is_served_from_the_newest_reading_on() -> None:
    """protocol 6.3: the mark at 22 promised nothing that a window from 20 on could lack."""
    ten, twenty = {"type": "tumbling", "length": 10}, {"type": "tumbling", "length": 20}
    assert added(twenty, ten, 3, ADDED) == {(20, 30): 3, (30, 40): 4, (40, 50): 5}


def test_an_added_query_takes_slices_that_are_still_open() -> None:
    """protocol 6.3: before the first mark nothing has left."""
    ten, twenty = {"type": "tumbling", "length": 10}, {"type": "tumbling", "length": 20}
    stream = [item for item in ADDED if item[0] != "wm"]
    assert added(ten, twenty, 2, stream) == {(0, 20): 3, (20, 40): 7, (40, 60): 5}


def test_a_child_that_never_speaks_holds_nothing_back_at_the_end() -> None:
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "count"}],
        "streams": {"a": [[1, None, 1]], "b": []},
        "topology": {"m": ["b", "never-heard"], "root": ["a", "m"]},
    }
    assert values(answered(given), "q") == {(0, 10): 1}


def test_mergers_come_after_their_inputs() -> None:
    tree = {"a": ("c1",), "b": ("a",), "c": ("b", "c2")}
    assert bottom_up(Recording("x", "r", 1, (), (), None, tree, ("c",), "markers", 0, (), ())) == ["a", "b", "c"]


def test_a_portion_ends_before_each_reading_that_is_late_by_then() -> None:
    given = {
        "queries": [],
        "streams": {"c": [[10, None, 1], [30, None, 1], [5, None, 1], [6, None, 1], [40, None, 1], [31, None, 1]]},
        "watermarks": {"mode": "implicit", "implicit_lag_ms": 5},
    }
    recording = parse(json.dumps(given), "x")
    late: list[int] = []
    newest = -1
    for event in portions(recording, recording.streams[0], "s"):
        assert not isinstance(event, Add)
        times = (event.batch.time_us // 1_000).tolist()
        late += [time for time in times if time < newest - 5]
        newest = max([newest, *times])
    assert late == [5, 6, 31]


def test_markers_leave_with_the_portion_of_their_item_or_of_the_item_that_reaches_them() -> None:
    """protocol 4.1: also those listed after later ones, so that each is on time and none is looked at twice."""
    stream: list[list[Any]] = [["p", 25], [10, None, 1], ["p", 5], ["p", 7], [30, None, 1], [3, None, 1], ["p", 28]]
    given = {"queries": [], "streams": {"c": stream}, "watermarks": {"mode": "implicit"}}
    recording = parse(json.dumps(given), "x")
    events = [event for event in portions(recording, recording.streams[0], "s") if not isinstance(event, Add)]
    at = {marker.time_us // 1_000: n for n, event in enumerate(events) for marker in event.markers}
    first = {time // 1_000: n for n, event in enumerate(events) for time in event.batch.time_us.tolist()}
    assert set(at) == {25, 5, 7, 28}
    assert at[25] == 0
    assert at[5] == at[7] <= first[10]
    assert at[28] <= first[30]


def test_a_recording_is_read_from_its_start_so_no_gap_record_says_otherwise() -> None:
    """protocol 3.1: the gap record `began` is for sources whose past is unknown."""
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}],
        "streams": {"a": [[1, 0, 1], [12, 0, 2]]},
    }
    tree = Tree(parse(json.dumps(given), "made"))
    assert [row.values["sum"] for row in tree.run()] == [1, 2]
    messages = [frames.decode(message.payload) for message in tree.messages]
    assert not any(gap for message in messages if isinstance(message, Frame) for gap in message.gaps)
