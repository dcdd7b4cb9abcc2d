from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import ALL
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.algebra.windows.tumbling import Tumbling
from edge_agent.config.aggregates import ALIASES
from edge_agent.config.definitions import (
    Definition,
    canonical_query,
    canonical_sensor,
    parse_definition,
    parse_query,
    parse_recording_query,
    parse_sensor,
    query_of,
    sensor_of,
)
from edge_agent.config.windows import WINDOWS
from edge_agent.errors import ConfigError, NotSupported
from tests.config.strategies import queries, sensors

QUERY = """{"source": "boiler", "where": "value > 0 and site = 'a'", "by": ["site"], "window": {"type": "sliding",
 "length": "10m", "slide": "1m", "offset": "0s"}, "aggregates": ["avg", {"fn": "stddev", "ddof": 0, "as": "sd"}],
 "lateness": "5s", "scope": "global", "revision": 3, "effective_from": "2026-11-21T00:00:00Z"}"""
SENSOR = """{"driver": "mqtt", "topic": "plant/+/temp", "value": "/temperature", "time": "/ts",
 "labels": {"site": "a", "machine": "{topic[1]}"}, "unit": "°C", "resolution": 0.1, "range": [-40, 125],
 "timeout": "60s", "nan": "skip", "delay": "0s"}"""


def query(**changes: Any) -> dict[str, Any]:
    table = {"source": "boiler", "window": {"type": "tumbling", "length": "1m"}, "aggregates": ["avg"], **changes}
    return {name: value for name, value in table.items() if value is not ...}


def test_the_query_of_the_documents_is_this_value() -> None:
    assert parse_query("boiler-10m", QUERY) == Query(
        id="boiler-10m",
        revision=3,
        source="boiler",
        window=Sliding(600_000_000, 60_000_000),
        aggregates=(Aggregate("avg", "avg"), Aggregate("stddev", "sd", (("ddof", 0),))),
        where="value > 0 and site = 'a'",
        by=("site",),
        lateness_us=5_000_000,
        effective_from_us=1_795_219_200_000_000,
    )


def test_the_sensor_of_the_documents_is_this_value() -> None:
    options = (("topic", "plant/+/temp"), ("value", "/temperature"), ("time", "/ts"), ("qos", 1), ("format", "auto"))
    assert parse_sensor("boiler", SENSOR.encode()) == Sensor(
        id="boiler",
        revision=0,
        driver="mqtt",
        options=options,
        labels=(("machine", "{topic[1]}"), ("site", "a")),
        unit="°C",
        scale=-1,
        range=(-40.0, 125.0),
        timeout_us=60_000_000,
    )


@given(queries())
def test_a_query_reads_back_from_its_canonical_text(value: Query) -> None:
    text = canonical_query(value)
    assert query_of(text) == value
    assert canonical_query(query_of(text)) == text
    assert "\n" not in text


@given(sensors())
def test_a_sensor_reads_back_from_its_canonical_text(value: Sensor) -> None:
    text = canonical_sensor(value)
    assert sensor_of(text) == value
    assert canonical_sensor(sensor_of(text)) == text


@given(queries())
def test_toml_and_json_say_the_same(value: Query) -> None:
    table = json.loads(canonical_query(value))
    lines = [f"{name} = {_toml(item)}" for name, item in table.items()]
    assert tomllib.loads("\n".join(lines)) == table
    assert parse_query(value.id, "\n".join(lines)) == value


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def test_a_moment_may_be_written_as_toml_has_it() -> None:
    text = """
        source = "b"
        aggregates = ["avg"]
        effective_from = 2026-11-21T01:00:00+01:00
        window = { type = "tumbling", length = "1m" }
    """
    assert parse_query("x", text).effective_from_us == 1_795_219_200_000_000


def test_queries_that_mean_the_same_share_a_group() -> None:
    one, other = (
        parse_query("x", query(where=text)) for text in ("value>0  AND site='a'", "(value > 0) and site = 'a'")
    )
    assert one.group == other.group


def test_the_short_form_is_one_aggregate() -> None:
    table = query(aggregates=..., aggregate="var", param={"ddof": 0})
    assert parse_query("x", table).aggregates == (Aggregate("var", "var", (("ddof", 0),)),)
    assert parse_query("x", query(aggregates=..., aggregate="sum", param=None)).aggregates == (Aggregate("sum", "sum"),)


def test_a_parameter_that_equals_its_default_is_not_said() -> None:
    assert parse_query("x", query(aggregates=[{"fn": "var", "ddof": 1}])).aggregates == (Aggregate("var", "var"),)


@pytest.mark.parametrize(
    ("resolution", "scale"), [(0.1, -1), (0.5, -1), (0.25, -2), (1, 0), (5, 0), (10, 1), (200, 2), (1e-3, -3), (1e9, 9)]
)
def test_a_resolution_is_the_power_of_ten_that_represents_it(resolution: float, scale: int) -> None:
    assert parse_sensor("x", {"driver": "host", "resolution": resolution}).scale == scale


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_every_function_of_the_registry_can_be_asked_for(fn: str) -> None:
    params = tuple((name, param.choices[0]) for name, param in FUNCTIONS[fn].params if param.default is None)
    asked = {"fn": fn, **dict(params)} if params else fn
    assert parse_query("x", query(aggregates=[asked])).aggregates == (Aggregate(fn, fn, params),)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("quantile", '"q" is missing'),
        ({"fn": "quantile", "q": 1.5}, "at most 1"),
        ({"fn": "quantile", "q": -0.1}, "at least 0"),
        ({"fn": "quantile", "q": "0.5"}, "without quotes"),
        ({"fn": "quantile", "q": 0.5, "method": "midpoint"}, '"linear", "nearest_rank"'),
        ({"fn": "median", "even": "both"}, '"mean", "upper", "lower"'),
        ({"fn": "moment", "order": 6}, "none of 2, 3, 4, 5"),
        ("histogram", '"edges" is missing'),
        ({"fn": "histogram", "edges": []}, "1 to 100 entries, got 0"),
        ({"fn": "histogram", "edges": 5}, "wanted a list, got"),
        ({"fn": "histogram", "edges": [1, 1]}, "is not greater than 1"),
        ({"fn": "histogram", "edges": [1, "2"]}, "without quotes"),
        ({"fn": "count_if", "value": 3, "op": "=="}, '">="'),
        ("p100", "p1 to p99"),
        ("p99.9", "p1 to p99"),
        ({"fn": "weighted_avg", "weight": "floor area"}, "no label name"),
    ],
)
def test_wrong_parameters_are_refused_with_place_and_remedy(asked: object, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        parse_query("x", query(aggregates=[asked]))
    assert "aggregates[0]" in str(caught.value)


def test_what_cannot_travel_is_refused_with_place_and_remedy() -> None:
    weighted = {"fn": "weighted_avg", "weight": "area"}
    counted = query(window={"type": "count_tumbling", "length": 10}, aggregates=["avg", weighted])
    with pytest.raises(ConfigError, match=r'aggregates.1. = "area".* add "area" to by'):
        parse_query("x", counted)
    assert parse_query("x", {**counted, "by": ["area"]}).aggregates[1].fn == "weighted_avg"
    bins = [{"fn": "histogram", "as": f"h{i}", "edges": [100 * i + n for n in range(100)]} for i in range(3)]
    with pytest.raises(ConfigError, match="301 state columns, at most 256"):
        parse_query("x", query(aggregates=bins))


def test_p95_is_the_quantile_of_that_percentage_and_names_its_column() -> None:
    (short,) = parse_query("x", query(aggregates=["p95"])).aggregates
    assert short == Aggregate("quantile", "p95", (("q", 0.95),))
    (named,) = parse_query("x", query(aggregates=[{"fn": "p5", "as": "low", "method": "nearest_rank"}])).aggregates
    assert named == Aggregate("quantile", "low", (("method", "nearest_rank"), ("q", 0.05)))


def test_every_window_type_of_the_registry_can_be_asked_for() -> None:
    assert set(WINDOWS) == set(ALL)


def test_other_tools_words_lead_to_functions_that_are_there() -> None:
    assert set(ALIASES.values()) <= set(FUNCTIONS)
    assert not set(ALIASES) & set(FUNCTIONS)


@pytest.mark.usefixtures("without_counts")
def test_window_types_of_a_later_version_are_not_mistakes() -> None:
    with pytest.raises(NotSupported, match='window type "count_tumbling" is not supported yet'):
        parse_query("x", query(window={"type": "count_tumbling", "gap": "5s", "length": 7}))


def test_the_windows_of_a_query_may_be_each_gateways_own() -> None:
    asked = parse_query("x", query(scope="local"))
    assert asked.scope == "local"
    assert query_of(canonical_query(asked)) == asked
    assert (asked.group_at("gw-1").node, parse_query("x", query()).group_at("gw-1").node) == ("gw-1", "")


def test_windows_of_a_state_that_merge_over_gateways_are_refused_for_each_alone() -> None:
    window = {"type": "punctuation", "interpretation": "overlap", "markers": "mode"}
    with pytest.raises(ConfigError, match="merge over gateways, a scope local does not"):
        parse_query("x", query(window=window, scope="local"))
    given = parse_query("x", query(window={**window, "markers": ""}, scope="local"))
    assert query_of(canonical_query(given)) == given


def test_a_mistake_beside_a_later_word_is_still_a_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_query("x", query(window={"type": "session"}, aggregates=["avrg"]))
    assert not isinstance(caught.value, NotSupported)
    assert len(caught.value.problems) == 2


# --- recordings -----------------------------------------------------------------------------------------------------


def test_plain_numbers_of_a_recording_are_in_its_unit() -> None:
    table = {"id": "q1", "window": {"type": "sliding", "length": 700, "slide": 300, "unit": "ms"}, "aggregate": "avg"}
    read = parse_recording_query(table)
    assert (read.window, read.aggregates) == (Sliding(700_000, 300_000), (Aggregate("avg", "avg"),))
    assert (read.id, read.source, read.lateness_us, read.late, read.by) == ("q1", "recording", 0, "per_window", ())
    assert parse_recording_query({**table, "window": {"type": "tumbling", "length": 3}}, 1).window == Tumbling(3)


def test_the_odd_measures_of_a_recording_travel_too() -> None:
    table = {"id": "q", "window": {"type": "sliding", "length": 7, "slide": 2}, "aggregate": "avg"}
    read = parse_recording_query(table, 1, lateness=30 * 86_400_000_000)
    assert query_of(canonical_query(read)) == read
    with pytest.raises(ConfigError, match="shorter than 1ms"):
        parse_query("q", canonical_query(read))


def test_what_a_recording_says_for_all_its_queries_goes_where_a_query_is_silent() -> None:
    table = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
    read = parse_recording_query(table, 1000, by=["key"], lateness=40, late="drop", source="s")
    assert (read.by, read.lateness_us, read.late, read.source) == (("key",), 40_000, "drop", "s")
    assert (
        parse_recording_query(
            {**table, "window": {"type": "tumbling", "length": 1, "keyed": False}}, 1000, by=["key"]
        ).by
        == ()
    )


def test_a_recording_may_hold_fields_we_do_not_know() -> None:
    table = {
        "id": "Q.1 %",
        "aggregate": "max",
        "slice_group": "g",
        "added_after_items": 3,
        "window": {"type": "tumbling", "length": 10, "slide": None, "unit": "ms", "hue": 1},
    }
    assert parse_recording_query(table).id == "Q.1 %"


COUNT: dict[str, Any] = {"type": "count_tumbling", "length": 7, "unit": "events", "keyed": False}


@pytest.mark.usefixtures("without_counts")
def test_what_a_recording_asks_too_early_is_one_line() -> None:
    with pytest.raises(NotSupported) as caught:
        parse_recording_query({"id": "q", "window": COUNT, "aggregate": "sum"})
    assert str(caught.value).startswith('query "q": ')
    assert "\n" not in str(caught.value)


def test_windows_that_are_not_keyed_count_all_keys_together() -> None:
    read = parse_recording_query({"id": "q", "window": COUNT, "aggregate": "sum"}, by=["key"])
    assert (read.window, read.by) == (CountTumbling(7, keyed=False), ())
    asked = parse_query("x", query(by=["site"], window={"type": "count_tumbling", "length": 7, "keyed": False}))
    assert asked.by == ()
    assert query_of(canonical_query(asked)) == asked
    assert parse_query("x", query(by=["site"], window={"type": "count_tumbling", "length": 7})).by == ("site",)


@pytest.mark.parametrize(
    ("window", "why"),
    [
        ({"type": "count_tumbling", "length": 0}, "at least 1"),
        ({"type": "count_tumbling", "length": "5s"}, "wanted a whole number"),
        ({"type": "count_tumbling", "length": 10**7}, "at most 1000000"),
        ({"type": "count_tumbling", "length": 9, "slide": 3}, 'say type = "count_sliding"'),
        ({"type": "count_sliding", "length": 3, "slide": 9}, "more than length 3"),
        ({"type": "state"}, '"begin" is missing'),
        ({"type": "state", "begin": ""}, "begin"),
        ({"type": "state", "begin": "value >"}, "window.begin"),
        ({"type": "state", "begin": "value > 1", "end": "5"}, "window.end"),
    ],
)
def test_what_is_wrong_with_a_window_of_positions_or_states_is_said(window: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_query("x", query(window=window))
    assert why in str(caught.value)


def test_only_windows_that_wait_for_missing_nodes_can_skip_them() -> None:
    counted = query(on_missing="skip", window={"type": "count_tumbling", "length": 7})
    asked = parse_query("x", counted)
    assert asked.on_missing == "skip"
    assert query_of(canonical_query(asked)) == asked
    for each in ("order", "central"):
        window = {"type": "punctuation", "interpretation": each}
        assert parse_query("x", query(on_missing="skip", window=window)).on_missing == "skip"
    with pytest.raises(ConfigError, match=r"on_missing.*waits no longer than the grace time"):
        parse_query("x", query(on_missing="skip", window={"type": "punctuation", "interpretation": "bounds"}))
    with pytest.raises(ConfigError, match=r"on_missing.*waits no longer than the grace time"):
        parse_query("x", query(on_missing="skip"))


def test_conditions_of_a_window_look_at_labels_of_the_key_only() -> None:
    state = {"type": "state", "begin": "site = 'a' and value > 3"}
    assert parse_query("x", query(window=state, by=["site"])).by == ("site",)
    with pytest.raises(ConfigError, match='add "site" to by'):
        parse_query("x", query(window=state))


@pytest.mark.parametrize(
    "window", [{"type": "tumbling", "length": 0}, {"type": "sliding", "length": 5, "slide": 9}, {}, None]
)
def test_a_recording_can_be_wrong_too(window: object) -> None:
    with pytest.raises(ConfigError):
        parse_recording_query({"id": "q", "window": window, "aggregate": "sum"})


# --- what all definitions share -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "node", "concerned"),
    [
        ((), "press-1", True),
        (("press-*",), "press-1", True),
        (("press-*",), "saw-1", False),
        (("press-?",), "press-12", False),
        (("press-?", "saw-1"), "saw-1", True),
        (("press-*", "!press-3"), "press-3", False),
        (("press-*", "!press-3"), "press-33", True),
        (("!press-3",), "saw-1", True),
        (("*",), "anything", True),
        (("*-*-a*b",), "x-y-acb", True),
        (("a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b",), "a" * 32, False),
    ],
)
def test_nodes_narrow_a_definition(nodes: tuple[str, ...], node: str, concerned: bool) -> None:
    assert Definition("query", "x", 1, None, nodes).concerns(node) is concerned


def test_a_removal_is_a_definition_with_a_revision() -> None:
    read = parse_definition("query", "x", '{"removed": true, "revision": 4}')
    assert (read.removed, read.revision, read.value) == (True, 4, None)
    assert parse_definition("query", "", read.text) == read
    with pytest.raises(ConfigError, match="is a removal"):
        parse_query("x", '{"removed": true, "revision": 4}')


def test_content_is_what_two_definitions_share_whatever_their_number() -> None:
    one, two = (parse_definition("query", "x", query(revision=n, nodes=["a*"])) for n in (1, 2))
    assert one.content == two.content
    assert one.text != two.text
    assert one.numbered(2) == two
    assert parse_definition("query", "x", query(revision=1)).content != one.content


def test_the_id_may_be_said_and_must_then_agree() -> None:
    assert parse_query("x", query(id="x")).id == "x"
    assert parse_definition("query", "", query(id="x")).id == "x"
    with pytest.raises(ConfigError, match='the topic or table says "x"'):
        parse_query("x", query(id="y"))
