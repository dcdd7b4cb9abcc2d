"""What a recording may say, and one line for what it may not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.errors import ConfigError
from edge_agent.recording.form import parse
from edge_agent.recording.run import Tree
from edge_agent.recording.streams import NO_INTEGER, key_label, key_of

QUERY = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
STREAMS = {"a": [[1, "k", 2]], "b": [[3, "k", 4]]}


def parsed(**said: Any) -> Any:
    return parse(json.dumps({"queries": [QUERY], "streams": STREAMS, **said}), "x")


def test_defaults_are_a_root_over_all_children_in_milliseconds() -> None:
    recording = parsed(unknown="passed over")
    assert (recording.unit_us, recording.mode, recording.tree, recording.root) == (
        1000,
        "end_of_stream",
        {},
        ("a", "b"),
    )
    assert [s.child for s in recording.streams] == ["a", "b"]
    (asked,) = recording.asked
    assert (asked.query.by, asked.query.late, asked.query.window.length_us) == (("key",), "per_window", 10_000)


def test_a_null_field_is_one_that_is_left_out() -> None:
    optional = ("unit", "topology", "child_order", "watermarks", "late_policy", "max_disorder_ms")
    asked = {**QUERY, "scope": None, "param": None, "added_after_items": None, "slice_group": None}
    wanted = repr(parsed())
    assert repr(parsed(queries=[asked], **dict.fromkeys(optional))) == wanted
    assert repr(parsed(watermarks={"mode": None, "allowed_lateness_ms": None}, topology={})) == wanted


def test_whole_numbers_are_scaled_integers_and_anything_else_makes_floats() -> None:
    """protocol 7.1."""
    assert parsed().scale == 0
    for value in (1.5, "1", True, 2**61):
        recording = parsed(streams={"a": [[1, "k", 1], [2, "k", value]]})
        assert recording.scale is None
        assert recording.streams[0].value.dtype == float


@pytest.mark.parametrize(("fn", "scale"), [("sum", 0), ("median", 0), ("var", None)])
def test_integers_stay_integers_unless_the_sum_of_their_squares_has_no_answer(fn: str, scale: int | None) -> None:
    """protocol 7.1: 128 bits; floats answer as far as they can."""
    queries = [{**QUERY, "aggregate": fn}]
    few, many = ([[time, "k", 2**60 + 1] for time in range(count)] for count in (75, 76))
    assert parsed(queries=queries, streams={"a": few}).scale == 0
    assert parsed(queries=queries, streams={"a": many}).scale == scale


@pytest.mark.parametrize("value", ["NaN", "nan", None, math.nan])
def test_what_is_no_number_leaves_whole_numbers_scaled_integers(value: object) -> None:
    """protocol 7.1."""
    recording = parsed(streams={"a": [[1, "k", 1], [2, "k", value]]})
    assert recording.scale == 0
    assert recording.streams[0].value.tolist() == [1, NO_INTEGER]


def test_without_keys_there_is_nothing_to_group_by() -> None:
    assert parsed(streams={"a": [[1, None, 2]]}).asked[0].query.by == ()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda keys: st.lists(keys, max_size=2)))
@example("1")
@example('"1"')
@example("NaN")
@example("")
def test_a_key_keeps_its_type_as_a_label(key: object) -> None:
    label = key_label(key)
    assert (type(key_of(label)), key_of(label)) == (type(key), key)


def test_a_filter_may_name_a_key() -> None:
    """A string is its label; a query may filter by it."""
    recording = parsed(queries=[{**QUERY, "where": "key = 'k'"}], streams={"a": [[1, "k", 1], [2, "l", 2]]})
    assert [row.values["sum"] for row in Tree(recording).run()] == [1.0]


def test_nothing_is_late_at_the_end_of_the_stream() -> None:
    late = parsed(streams={"a": [[90, "k", 1], [20, "k", 1], [100, "k", 1]]}, max_disorder_ms=3)
    assert late.late_by_us == 70_000
    assert parsed(max_disorder_ms=3).late_by_us == 3_000


def test_lag_and_lateness_are_milliseconds_whatever_the_unit() -> None:
    marks = {"mode": "implicit", "implicit_lag_ms": 20, "allowed_lateness_ms": 5}
    assert parsed(unit="us", watermarks=marks).late_by_us == 25_000


def test_an_order_of_children_ranks_them_and_silent_leaves_are_children_too() -> None:
    recording = parsed(child_order=["b"], topology={"m": ["b", "c"], "top": ["m"]})
    assert [s.child for s in recording.streams] == ["b", "a", "c"]
    assert recording.root == ("m", "a")  # a child that no node feeds goes to the root


@pytest.mark.usefixtures("without_counts")
def test_unsupported_queries_are_a_line_each_and_the_rest_is_read() -> None:
    count = {"id": "s", "window": {"type": "count_tumbling", "length": 5}, "aggregate": "sum"}
    recording = parsed(queries=[count, QUERY, {**count, "id": 7}])
    assert [asked.given for asked in recording.asked] == ["q"]
    assert recording.refused == (
        'x: query s: window type "count_tumbling" is not supported yet',
        'x: query 7: window type "count_tumbling" is not supported yet',
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"streams": {}}, "streams: there is none"),
        ({"streams": [1]}, "streams: wanted an object"),
        ({"streams": {"a": [[1, "k"]]}}, r"streams.a\[0\]: wanted \[time, key, value\]"),
        ({"streams": {"a": [[1, "k", 2], "x"]}}, r"streams.a\[1\]: wanted"),
        ({"streams": {"a": [[1, "k", "high"]]}}, r"streams.a\[0\]: wanted a number, got 'high'"),
        ({"streams": {"a": [[1, "\ud800", 1]]}}, r"streams.a\[0\]: the key is no Unicode text"),
        ({"streams": {"a": [[0.00001, "k", 1]]}}, "wanted a time in whole microseconds"),
        ({"streams": {"a": [[10**30, "k", 1]]}}, "is too far"),
        ({"unit": "fortnight"}, "unit: wanted one of us, ms, s"),
        ({"watermarks": {"mode": "guess"}}, "watermarks.mode: wanted one of"),
        ({"watermarks": {"mode": "implicit", "implicit_lag_ms": "1s"}}, "implicit_lag_ms: wanted milliseconds"),
        ({"late_policy": "sometimes"}, "late_policy: wanted one of"),
        ({"topology": {"m": ["a"], "n": ["b"]}}, "topology: wanted one root, got m, n"),
        ({"topology": {"m": ["a", "b"], "n": ["a"], "root": ["m", "n"]}}, "topology: a node has two parents"),
        ({"topology": {"a": ["b"], "root": ["a"]}}, "topology: a has a stream and inputs"),
        ({"topology": {"m": ["n"], "n": ["m"], "root": ["a", "b"]}}, "topology: a circle of nodes"),
        ({"queries": {"id": "q"}}, "queries: wanted a list of objects"),
        ({"child_order": "a"}, "child_order: wanted a list"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^x: .*{why}"):
        parsed(**wrong)


def test_what_is_no_json_object_is_no_recording() -> None:
    for text in ("", "[]", "{", "[" * 100_000):
        with pytest.raises(ConfigError, match=r"^x: "):
            parse(text, "x")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"window": {"type": "session", "gap": 0}}, "window.gap: must be more than 0"),
        ({"window": {"type": "session", "gap": -5}}, "window.gap = -5: less than nothing"),
        ({"window": {"type": "tumbling", "length": 10**30}}, "longer than a thousand years"),
        (
            {"window": {"type": "sliding", "length": 10, "slide": 11}},
            "slide = 11: longer than length 10ms; did you mean",
        ),
        ({"aggregate": "quantile", "param": {"q": 1.5}}, "q = 1.5: must be at most 1; a number of 0 to 1"),
        ({"aggregate": "plant_x_y"}, 'unknown function "plant_x_y"; one of'),
        ({"scope": "distributed"}, "headwater explain says it"),
    ],
)
def test_a_wrong_query_is_one_line_with_its_place_and_what_to_do(query: dict[str, Any], says: str) -> None:
    (line,) = parsed(queries=[{**QUERY, **query}]).refused
    assert line.startswith("x: query q: ")
    assert says in line


def test_ten_thousand_queries_are_bounded_and_one_line_says_so() -> None:
    recording = parsed(queries=[{**QUERY, "id": f"q{i}"} for i in range(10_000)])
    kept = len(recording.asked)
    assert 500 < kept < 10_000
    (line,) = recording.refused
    assert line.startswith(f"x: query q{kept} and what follows it ({10_000 - kept} queries): ")
