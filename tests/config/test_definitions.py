"""Queries and sensors as definitions say them: read, canonical, and what all definitions share."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from hypothesis import given

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.config.definitions.aggregate_entries import ALIASES
from edge_agent.config.definitions.definitions import (
    Definition,
    canonical_query,
    canonical_sensor,
    parse_definition,
    parse_sensor,
    query_of,
    sensor_of,
)
from edge_agent.errors import ConfigError
from tests.support.config.definition_strategies import queries, sensors
from tests.support.config.parsing import parse_query
from tests.support.config.query_tables import query

QUERY = """{"source": "boiler", "where": "value > 0 and site = 'a'", "by": ["site"], "window": {"type": "sliding",
 "length": "10m", "slide": "1m", "offset": "0s"}, "aggregates": ["avg", {"fn": "stddev", "ddof": 0, "as": "sd"}],
 "lateness": "5s", "scope": "global", "revision": 3, "effective_from": "2026-11-21T00:00:00Z"}"""

SENSOR = """{"driver": "mqtt", "topic": "plant/+/temp", "value": "/temperature", "time": "/ts",
 "labels": {"site": "a", "machine": "{topic[1]}"}, "unit": "°C", "resolution": 0.1, "range": [-40, 125],
 "timeout": "60s", "nan": "skip", "delay": "0s"}"""


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
        ({"fn": "weighted_avg", "weight": "floor area"}, "is not a label name"),
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


def test_other_tools_words_lead_to_functions_that_are_there() -> None:
    assert set(ALIASES.values()) <= set(FUNCTIONS)
    assert not set(ALIASES) & set(FUNCTIONS)


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
    with pytest.raises(ConfigError, match="got a removal"):
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
    with pytest.raises(ConfigError, match='the topic or table has the id "x"'):
        parse_query("x", query(id="y"))


@pytest.mark.parametrize("many", range(14, 34))
@pytest.mark.parametrize("of", ["not ", "not(", "("])
def test_what_is_taken_is_taken_again_from_its_canonical_text(many: int, of: str) -> None:
    """Nodes parse the canonical text; one that they refused would end each of them at every start."""
    asked = {"source": "s", "window": {"type": "tumbling", "length": "1s"}, "aggregates": ["avg"], "revision": 1}
    where = of * many + "value > 1" + ")" * (many if of.endswith("(") else 0)
    why, found = "", None
    try:
        found = parse_query("q", json.dumps({**asked, "where": where}))
    except ConfigError as err:
        why = str(err)
    assert "nested deeper" in why or (found is not None and parse_query("q", canonical_query(found)) == found)


@pytest.mark.parametrize("more", ['"param": null', '"param": {}', '"late": "revise"'])
def test_a_short_form_without_parameters_may_say_so(more: str) -> None:
    text = '{"source": "b", "window": {"type": "tumbling", "length": "1m"}, "aggregate": "avg", ' + more + "}"
    assert isinstance(parse_definition("query", "x", text).value, Query)
