"""Windows of each gateway alone: whatever the tree, the rows are those of each child by itself."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.query.key import key_labels
from edge_agent.recording.parser import parse
from edge_agent.recording.row_rendering import RenderedRow
from edge_agent.recording.tree import Tree
from tests.oracle import central_computer
from tests.support.effort import seeds
from tests.support.recording.seeded import Row, Value, answered, expected, judged, key_text, made, reach, told_rows
from tests.support.tolerance import close


def alone(given: dict[str, Any]) -> dict[tuple[str, Row], Value]:
    """What must come out: the oracle over the readings of each child by itself."""
    out: dict[tuple[str, Row], Value] = {}
    for child in given["streams"]:
        streams = {name: items if name == child else [] for name, items in given["streams"].items()}
        keyed = any(item[1] is not None for item in given["streams"][child] if not isinstance(item[0], str))
        rows = {**expected({**given, "streams": streams}, "local"), **sessions({**given, "streams": streams})}
        for place, values in rows.items():
            out[child, place if keyed else (place[0], "null", *place[2:])] = values
    return out


def sessions(given: dict[str, Any]) -> dict[Row, Value]:
    """Those of a stream in which nothing is late."""
    recording = parse(json.dumps(given), "local")
    out: dict[Row, Value] = {}
    for asked in recording.asked:
        if asked.query.window.type == "session":
            readings = [reading for reading, _ in judged(given, recording)]
            for (_, key, start, end), values in central_computer.results([asked.query], readings).items():
                label = key_labels(key).get("key", "null")
                out[str(asked.recorded_id), label, start, end] = values
    return out


def by_child(told: list[RenderedRow], given: dict[str, Any]) -> dict[tuple[str, Row], Value]:
    children = {row["child"] for row in told}
    return {
        (child, place): values
        for child in children
        for place, values in told_rows([row for row in told if row["child"] == child], given).items()
    }


@pytest.mark.seeded
@pytest.mark.parametrize("seed", [*seeds(5_000, 30), 569_523_901_005_011])
def test_local_windows_are_those_of_each_child_by_itself(seed: int) -> None:
    """protocol 4.1, 4.2, 4.4 and 6.2: of any tree, disorder, late policy and kind of progress."""
    given = made(seed)
    random = Random(seed)
    for query in given["queries"]:
        query["scope"] = "local"
        if random.random() < 0.25:
            query["window"] = {"type": "session", "gap": random.choice([1, 7, 50])}
    if any(query["window"]["type"] == "session" for query in given["queries"]):
        given["watermarks"]["mode"] = "end_of_stream"  # what a late reading extends has a test of its own
    got, want = by_child(answered(given), given), alone(given)
    assert got.keys() == want.keys()
    for place, numbers in want.items():
        pairs = zip(got[place].values(), numbers.values(), strict=True)
        assert all(close(a, b, reach(given, place[1][0])) for a, b in pairs), (place, got[place], numbers)


def test_a_local_query_and_a_global_one_stand_side_by_side() -> None:
    window = {"type": "tumbling", "length": 10}
    given = {
        "queries": [
            {"id": "each", "window": window, "aggregate": "sum", "scope": "local"},
            {"id": "all", "window": window, "aggregate": "sum"},
        ],
        "streams": {"a": [[1, None, 1], [2, None, 2]], "b": [[3, None, 4]]},
        "topology": {"m": ["b"], "root": ["a", "m"]},
    }
    told = answered(given)
    assert [(row["query"], row.get("child"), row["value"]) for row in told] == [
        ("each", "a", 3),
        ("each", "b", 4),
        ("all", None, 7),
    ]
    assert {key_text(row["key"]) for row in told} == {"null"}


@pytest.mark.parametrize("interpretation", ["local", "bounds", "order", "overlap"])
def test_local_windows_between_markers_merge_over_no_children(interpretation: str) -> None:
    window = {"type": "punctuation", "interpretation": interpretation}
    markers: list[list[Any]] = [["p", 10], [12, None, 1], ["p", 20], [21, None, 2]]
    given = {
        "queries": [{"id": "each", "window": window, "aggregate": "sum", "scope": "local"}],
        "streams": {"a": [*markers, ["p", 30]], "b": markers},
        "topology": {"m": ["b"], "root": ["a", "m"]},
    }
    told = [(row["child"], row["start"], row["end"], row["value"]) for row in answered(given)]
    assert sorted(told) == [("a", 10, 20, 1), ("a", 20, 30, 2), ("b", 10, 20, 1)]


def test_a_local_window_waits_for_no_other_child() -> None:
    """protocol 4.4: the silent child holds the query over all nodes back, and no other."""
    window = {"type": "tumbling", "length": 10}
    given = {
        "queries": [
            {"id": "each", "window": window, "aggregate": "sum", "scope": "local"},
            {"id": "all", "window": window, "aggregate": "sum"},
        ],
        "streams": {"a": [[1, None, 1], ["wm", 50], [60, None, 8]], "b": [[3, None, 4]]},
        "watermarks": {"mode": "markers"},
    }
    recording = parse(json.dumps(given), "local")
    tree = Tree(recording)
    first = next(iter(tree.run()))
    assert first.node == "r00000-n00000"
    assert (first.start, first.values["sum"], first.expected, first.complete) == (0, 1.0, 1, True)
    frontiers = {
        group.node: family.published_us for group, family in tree.root.decider.parent.children.memberships.items()
    }
    assert frontiers[""] < frontiers["r00000-n00000"]
