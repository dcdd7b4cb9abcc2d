"""Count and state windows of recordings: equal to the oracle, whatever the tree, the disorder and the policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_agent.recording.parser import parse
from tests.support.effort import seeds
from tests.support.recording.seeded import UNITS, answered, expected, key_text, reach
from tests.support.recording.seeded_ordered import expected_central, made_central
from tests.support.tolerance import close

Rows = dict[tuple[str, str, int, int], list[Any]]


def rows_of(given: dict[str, Any]) -> Rows:
    """Rows as replay prints them; times in us, positions as they are."""
    out: Rows = {}
    counted = {q["id"] for q in given["queries"] if q["window"]["type"].startswith("count")}
    for row in answered(given):
        unit_us = 1 if row["query"] in counted else UNITS[given["unit"]]
        place = (row["query"], key_text(row["key"]), round(row["start"] * unit_us), round(row["end"] * unit_us))
        assert place not in out
        out[place] = list(row["values"].values()) if "values" in row else [row["value"]]
    return out


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(0, 40))
def test_central_windows_of_any_recording_are_those_of_the_oracle(seed: int) -> None:
    """protocol 7.4, 6.2: through any tree, beside windows of time over the same source."""
    given = made_central(seed)
    asked = {one.query.window.type for one in parse(json.dumps(given), "made").asked}
    timed = {**given, "queries": given["queries"][-1:]}
    got, want = rows_of(given), expected_central(given, "made") | expected(timed, "made")
    most = reach(given)
    assert got.keys() == want.keys(), asked
    for place, numbers in want.items():
        pairs = zip(got[place], numbers.values(), strict=True)
        assert all(close(a, b, most) for a, b in pairs), (place, got[place], numbers)


STREAMS = {"a": [[10, 1, 5], [20, 1, 1], [30, 2, 9]], "b": [[10, 1, 7], [15, 2, 8], [40, 1, 2]]}


def asked_of(window: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    query = {"id": "q", "window": window, "aggregate": "sequence"}
    return answered({"queries": [query | more], "streams": STREAMS})


def test_readings_of_one_time_are_in_the_order_of_children_in_keyed_and_common_windows() -> None:
    """cases: the global order is time, child, arrival; keyed: false counts all keys together."""
    keyed = asked_of({"type": "count_tumbling", "length": 2})
    assert [(row["key"], row["start"], row["end"], row["value"]) for row in keyed] == [
        (1, 0, 2, [5, 7]),
        (2, 0, 2, [8, 9]),
        (1, 2, 4, [1, 2]),
    ]
    common = asked_of({"type": "count_sliding", "length": 3, "slide": 2, "keyed": False})
    assert [(row["key"], row["start"], row["end"], row["value"]) for row in common] == [
        (None, 0, 3, [5, 7, 8]),
        (None, 2, 5, [8, 1, 9]),
    ]


def test_local_count_windows_are_of_one_child() -> None:
    rows = asked_of({"type": "count_tumbling", "length": 2}, scope="local")
    assert [(row["child"], row["key"], row["start"], row["value"]) for row in rows] == [
        ("a", 1, 0, [5, 1]),
        ("b", 1, 0, [7, 2]),
    ]


def test_a_state_window_ends_at_the_reading_that_ends_it_whichever_child_it_is_of() -> None:
    rows = asked_of({"type": "state", "begin": "value > 4", "end": "value < 4"})
    assert [(row["key"], row["start"], row["end"], row["value"]) for row in rows] == [(1, 10, 20, [5, 7])]


def test_late_readings_that_revise_have_their_place_in_windows_that_are_never_revised() -> None:
    """protocol 7.4: positions are final, so event time waits for them."""
    stream = [[10, None, 1], ["wm", 100], [20, None, 2], [5, None, 3], ["wm", 200], [150, None, 4]]
    given = {"watermarks": {"mode": "markers"}, "streams": {"c": stream}}
    counted = {"id": "q", "window": {"type": "count_tumbling", "length": 2}, "aggregate": "sequence"}
    timed = {"id": "t", "window": {"type": "tumbling", "length": 100}, "aggregate": "count"}
    for policy, wanted in (("revise", [[3, 1], [2, 4]]), ("per_window", []), ("drop", [])):
        told = answered({**given, "late_policy": policy, "queries": [counted, timed]})
        assert [row["value"] for row in told if row["query"] == "q"] == wanted


def test_readings_after_a_mark_that_means_the_end_of_time_have_their_place_too() -> None:
    end: list[Any] = ["wm", 2**63 - 1]
    given = {
        "queries": [{"id": "q", "window": {"type": "count_tumbling", "length": 2, "keyed": False}, "aggregate": "sum"}],
        "streams": {"a": [[1, None, 1], end, [2, None, 2], [3, None, 4]], "b": [["wm", -(2**63)], [4, None, 8]]},
        "watermarks": {"mode": "markers"},
        "late_policy": "revise",
    }
    assert [(row["start"], row["value"]) for row in answered(given)] == [(0, 3), (2, 12)]
