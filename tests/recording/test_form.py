"""What a recording may say, and one line for what it may not."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.errors import ConfigError
from edge_agent.recording.parser import parse
from edge_agent.recording.streams import NO_INTEGER, key_label, key_of
from edge_agent.recording.tree import Tree

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


def test_a_name_in_the_order_of_children_that_is_no_child_is_one_line() -> None:
    """A mistyped name would leave its child behind all others: first, last and count windows would differ."""
    recording = parsed(streams={"press-1": [], "press-2": []}, child_order=["pres-2", "press-1"])
    assert [s.child for s in recording.streams] == ["press-1", "press-2"]
    assert recording.unanswered == ("x: child_order: 'pres-2' is no child and is left out; did you mean \"press-2\"?",)
    (line,) = parsed(child_order=["m", "b"], topology={"root": ["m"], "m": ["a", "b"]}).unanswered
    assert line == "x: child_order: 'm' is no child and is left out; name children as in streams"
    assert parsed(child_order=["c", "b"], topology={"root": ["a", "c"]}).unanswered == ()


def test_an_order_of_children_ranks_them_and_silent_leaves_are_children_too() -> None:
    recording = parsed(child_order=["b"], topology={"m": ["b", "c"], "top": ["m"]})
    assert [s.child for s in recording.streams] == ["b", "a", "c"]
    assert recording.root == ("m", "a")  # a child that no node feeds goes to the root


@pytest.mark.usefixtures("without_counts")
def test_unsupported_queries_are_a_line_each_and_the_rest_is_read() -> None:
    count = {"id": "s", "window": {"type": "count_tumbling", "length": 5}, "aggregate": "sum"}
    recording = parsed(queries=[count, QUERY, {**count, "id": 7}])
    assert [asked.recorded_id for asked in recording.asked] == ["q"]
    assert recording.refused == (
        'x: query s: window type "count_tumbling" is not supported yet',
        'x: query 7: window type "count_tumbling" is not supported yet',
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"streams": {}}, "streams: wanted at least one"),
        ({"streams": [1]}, "streams: wanted an object"),
        ({"streams": {"a": [[1, "k"]]}}, r"streams.a\[0\]: wanted \[time, key, value\]"),
        ({"streams": {"a": [[1, "k", 2], "x"]}}, r"streams.a\[1\]: wanted"),
        ({"streams": {"a": [[1, "k", "high"]]}}, r"streams.a\[0\]: wanted a number, got 'high'"),
        ({"streams": {"a": [[1, "\ud800", 1]]}}, r"streams.a\[0\]: the key is not valid Unicode"),
        ({"streams": {"a": [[0.00001, "k", 1]]}}, "wanted a time in whole microseconds"),
        ({"streams": {"a": [["p", 10**30]]}}, "time 10{30} is more than a thousand years from 0; correct it$"),
        ({"streams": {"a": [[1, "k", "x" * 10**6]]}}, r"streams.a\[0\]: wanted a number, got 'x{58}…$"),
        ({"unit": "fortnight"}, "unit: wanted one of us, ms, s"),
        ({"watermarks": {"mode": "guess"}}, "watermarks.mode: wanted one of"),
        ({"watermarks": {"mode": "implicit", "implicit_lag_ms": "1s"}}, "implicit_lag_ms: wanted milliseconds"),
        ({"late_policy": "sometimes"}, "late_policy: wanted one of"),
        (
            {"topology": {"m": ["a"], "n": ["b"]}},
            "topology: wanted one root, got m, n; add a node with these as inputs",
        ),
        (
            {"topology": {"m": ["a", "b"], "n": ["a"], "root": ["m", "n"]}},
            "topology: a is an input of m and of n; leave it in one of them$",
        ),
        (
            {"topology": {"a": ["b"], "root": ["a"]}},
            "topology: a has a stream and inputs; give its readings to an input of its own$",
        ),
        (
            {"topology": {"m": ["n"], "n": ["m"], "root": ["a", "b"]}},
            "topology: m, n are inputs of each other, and no input of the root; make one of them an input of it$",
        ),
        ({"topology": {"m": ["n"], "n": ["m"]}}, "topology: wanted one root, got none: each node is an input"),
        ({"queries": {"id": "q"}}, "queries: wanted a list of objects"),
        ({"queries": [QUERY, "sum"]}, r"queries\[1\]: wanted an object with id, window and aggregate, got 'sum'$"),
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
        ({"window": {"type": ["session"], "gap": 5, "unit": "ms"}}, "window.type = "),
        ({"window": {"type": "session", "gap": -5}}, "window.gap = -5: less than 0"),
        ({"window": {"type": "tumbling", "length": 10**30}}, "longer than a thousand years"),
        (
            {"window": {"type": "sliding", "length": 10, "slide": 11}},
            "slide = 11: longer than length 10ms; did you mean",
        ),
        ({"aggregate": "quantile", "param": {"q": 1.5}}, "q = 1.5: must be at most 1; a number of 0 to 1"),
        ({"aggregate": "plant_x_y"}, 'unknown function "plant_x_y"; one of'),
        ({"scope": "distributed"}, "headwater explain shows it"),
        ({"aggregate": "median", "param": {"evn": "upper"}}, 'q: param: unknown key "evn"; did you mean "even"?'),
        (
            {"aggregate": "median", "param": {"even": "uper"}},
            'q: param.even: "uper" is none of "mean", "upper", "lower"',
        ),
        ({"param": {"fn": "max"}}, 'q: param: unknown key "fn"; the function is sum, as aggregate says'),
        ({"aggregate": "plant"}, 'q: aggregate: unknown function "plant"'),
        (
            {"aggregates": ["avg", {"fn": "median", "evn": "upper"}]},
            'q: aggregates[1]: unknown key "evn"; did you mean "even"?',
        ),
    ],
)
def test_a_wrong_query_is_one_line_with_its_place_and_what_to_do(query: dict[str, Any], says: str) -> None:
    (line,) = parsed(queries=[{**QUERY, **query}]).refused
    assert line.startswith("x: query q: ")
    assert says in line


def test_a_session_of_a_recording_may_have_a_gap_beyond_any_horizon() -> None:
    (asked,) = parsed(queries=[{**QUERY, "window": {"type": "session", "gap": 691_200_000}}]).asked
    assert asked.query.window.gap_us == 691_200_000_000


def test_the_source_that_a_query_names_is_the_text_of_another_program() -> None:
    (asked,) = parsed(queries=[{**QUERY, "source": "a test of Scotty.java"}]).asked
    assert asked.query.source == parsed().asked[0].query.source


@pytest.mark.parametrize("seconds", [0.57, 1.001, 4.35, 16.1, 0.001001, 1_700_000_000.123457])
def test_decimal_times_and_lengths_are_the_microseconds_that_they_mean(seconds: float) -> None:
    given = {"unit": "s", "queries": [{**QUERY, "window": {"type": "tumbling", "length": seconds}}]}
    recording = parsed(**given, streams={"a": [[seconds, "k", 2]]})
    us = int(Decimal(repr(seconds)) * 1_000_000)
    near = 0 if seconds < 1e6 else 1
    assert abs(recording.streams[0].time_us[0] - us) <= near
    assert abs(recording.asked[0].query.window.length_us - us) <= near
    with pytest.raises(ConfigError, match="whole microseconds"):
        parsed(unit="s", streams={"a": [[0.0000005, "k", 2]]})


def test_a_parameter_may_be_a_whole_float() -> None:
    (asked,) = parsed(queries=[{**QUERY, "aggregate": "var", "param": {"ddof": 0.0}}]).asked
    assert dict(asked.query.aggregates[0].params) == {"ddof": 0}


def test_a_leaf_may_be_listed_with_no_inputs() -> None:
    recording = parsed(topology={"root": ["m", "a"], "m": ["b"], "a": [], "b": []})
    assert (recording.tree, recording.root) == ({"m": ("b",)}, ("m", "a"))


def test_ten_thousand_queries_are_bounded_and_one_line_says_so() -> None:
    recording = parsed(queries=[{**QUERY, "id": f"q{i}"} for i in range(10_000)])
    kept = len(recording.asked)
    assert 500 < kept < 10_000
    (line,) = recording.refused
    assert line.startswith(f"x: query q{kept} and all after it ({10_000 - kept} queries): ")


def test_of_a_function_nothing_but_its_parameters_is_read_and_null_is_left_out() -> None:
    """Fields that other programs write beside them are theirs: of the query, its window, or where it was computed."""
    asked = {**QUERY, "note": 1, "window": {**QUERY["window"], "colour": "red"}}  # type: ignore[dict-item]
    for param in ({"even": None}, {"distributed": True}, {}):
        recording = parsed(queries=[{**asked, "aggregate": "median", "param": param}])
        assert not recording.refused
        assert recording.asked[0].query.aggregates[0].params == ()


def test_a_query_with_the_id_of_another_is_told_and_the_first_is_answered() -> None:
    ids = ["a", "a", 1, "1", "a"]
    recording = parsed(queries=[{**QUERY, "id": item} for item in ids])
    assert [one.recorded_id for one in recording.asked] == ["a", 1, "1"]
    why = "has the same id as another query: rename it, so that their rows differ"
    assert recording.refused == tuple(f"x: query a: queries[{at}] {why}" for at in (1, 4))


def test_the_id_of_a_query_that_is_refused_is_free() -> None:
    recording = parsed(queries=[{**QUERY, "aggregate": "plant_x_y"}, QUERY])
    assert len(recording.asked) == len(recording.refused) == 1


def test_items_without_time_or_mark_are_counted_in_one_line_a_stream() -> None:
    moments = [[f"2026-01-01T00:00:0{n}Z", "k", n] for n in range(3)]
    recording = parsed(unit="s", streams={"a": [[1, "k", 1], *moments, ["wm", 5]], "b": [["w", 7]]})
    assert recording.unanswered == (
        (
            "x: streams.a: 3 items left out, neither time nor mark: the first is [1], '2026-01-01T00:00:00Z'; "
            "times are plain numbers in s, like 1767225600; marks are wm and p"
        ),
        (
            "x: streams.b: 1 item left out, neither time nor mark: the first is [0], 'w'; "
            "times are plain numbers in s; marks are wm and p"
        ),
    )
    assert [row.values["sum"] for row in Tree(recording).run()] == [1.0]


def test_readings_more_than_a_thousand_years_from_0_are_counted_in_one_line_a_stream() -> None:
    far = [[10**30, "k", 2], [-(2**56), "k", 4], [1e400, "k", 8]]
    recording = parsed(unit="us", streams={"a": [[1, "k", 1], *far, [2, "k", 16]]})
    why = "3 readings left out, more than a thousand years from 0: the first is [1], 1000000000000000000000000000000"
    assert recording.unanswered == (f"x: streams.a: {why}; correct the times",)
    assert recording.streams[0].item.tolist() == [0, 4]
    assert [row.values["sum"] for row in Tree(recording).run()] == [17.0]


def test_readings_before_time_0_are_told_where_windows_are_of_time() -> None:
    """Sessions begin at a reading, whenever that is; other windows of time begin at 0 or later."""
    streams = {"a": [[5, "k", 1], [-3, "k", 2], [-2, "k", 2]], "b": [[3, "k", 4]]}
    session = {**QUERY, "window": {"type": "session", "gap": 10}}
    assert parsed(queries=[session], streams=streams).unanswered == ()
    assert [row.values["sum"] for row in Tree(parsed(queries=[session], streams=streams)).run()] == [9.0]
    both = parsed(queries=[session, {**QUERY, "id": "t"}], streams=streams)
    assert both.unanswered == (
        (
            "x: streams.a: 2 readings before time 0: the first is [1], -3; "
            "no time window starts before 0, so none contains them: shift the times"
        ),
    )
    assert [row.values["sum"] for row in Tree(both).run() if row.query.endswith("1")] == [5.0]


@pytest.mark.parametrize(
    ("window", "start", "count"),
    [
        ({"type": "tumbling", "length": 10, "offset": 4}, "4", 2),
        ({"type": "sliding", "length": 100, "slide": 10, "offset": 3}, "3", 1),
        ({"type": "calendar", "every": "day", "tz": "Europe/Berlin"}, "82800000", 4),
        ({"type": "calendar", "every": "month", "tz": "Europe/Berlin"}, "2674800000", 4),
    ],
)
def test_readings_before_the_first_window_are_counted_in_one_line_a_query(
    window: dict[str, Any], start: str, count: int
) -> None:
    streams = {"a": [[1, "k", 2], [4, "k", 2]], "b": [[3, "k", 4], [50, "k", 1]]}
    (line,) = parsed(queries=[{**QUERY, "window": window}], streams=streams).unanswered
    many = f"{count} reading{'s' * (count > 1)} in no window"
    why = f"the first window starts at {start}, because none starts before 0"
    assert line == f"x: query q: {many}; {why}: shift the times"


def test_readings_outside_a_fixed_band_are_as_the_query_wants_it() -> None:
    band = {"type": "fixed_band", "start": 2, "length": 5}
    assert parsed(queries=[{**QUERY, "window": band}], streams={"a": [[1, "k", 2], [90, "k", 2]]}).unanswered == ()
