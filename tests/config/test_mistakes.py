"""Every kind of mistake in a configuration: refused, with its place and what to do, all of them at once."""

from __future__ import annotations

import pytest

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.node_file.settings import parse
from edge_agent.errors import ConfigError, NotSupported
from tests.support.config.mistakes import FILE, FILES, QUERIES, QUERY, SENSORS, SLIDING


@pytest.mark.parametrize(("text", "why", "hint"), QUERIES, ids=range(len(QUERIES)))
def test_a_wrong_query_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse_definition("query", "x", text), 'query "x"', why, hint)


@pytest.mark.parametrize(("text", "why", "hint"), SENSORS, ids=range(len(SENSORS)))
def test_a_wrong_sensor_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse_definition("sensor", "x", text), 'sensor "x"', why, hint)


@pytest.mark.parametrize(("text", "why", "hint"), FILES, ids=range(len(FILES)))
def test_a_wrong_file_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse(text, "edge.toml"), "edge.toml", why, hint)


def _refused(act: object, begin: str, why: str, hint: str) -> None:
    assert callable(act)
    with pytest.raises(ConfigError) as caught:
        act()
    lines = str(caught.value).splitlines()
    assert not isinstance(caught.value, NotSupported)
    assert any(why in line and hint in line for line in lines), str(caught.value)
    assert all(line.startswith(begin) for line in lines), str(caught.value)
    assert len(lines) == len(caught.value.problems)
    assert all(len(line) < 400 for line in lines)


def test_all_mistakes_come_at_once_each_with_its_line() -> None:
    text = """\
[node]
id = "press-1"
[uplink]
broker = "mqtt://127.0.0.1"
hartbeat = "1s"

[sensor.boiler]
driver = "host"
every = "1 sec"

[query.boiler-1m]
source = "boiler"
windw = { type = "tumbling", length = "1m" }
aggregates = ["avg", "mean"]
"""
    with pytest.raises(ConfigError) as caught:
        parse(text, "edge.toml")
    assert str(caught.value).splitlines() == [
        'edge.toml:5  uplink: unknown key "hartbeat"; did you mean "heartbeat"?',
        'edge.toml:9  sensor "boiler", every = "1 sec": not a number with a unit; did you mean "1s"?',
        'edge.toml:13  query "boiler-1m": unknown key "windw"; did you mean "window"?',
        'edge.toml:14  query "boiler-1m", aggregates[1]: unknown function "mean"; did you mean "avg"?',
    ]
    assert [(p.at, p.got, p.line) for p in caught.value.problems] == [
        ("uplink.hartbeat", "hartbeat", 5),
        ("sensor.boiler.every", "1 sec", 9),
        ("query.boiler-1m.windw", "windw", 13),
        ("query.boiler-1m.aggregates[1]", "mean", 14),
    ]


def test_the_problem_of_the_documents_looks_as_documented() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_definition("query", "x", SLIDING.format("10m", "11m", "0s"))
    (problem,) = caught.value.problems
    assert (problem.at, problem.got, problem.why, problem.hint) == (
        "window.slide",
        "11m",
        "longer than length 10m",
        "10m",
    )


def test_words_of_packages_are_named_beside_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six functions of a package installed it was "one of 58 in docs/configure.md", where 52 stand."""
    text = QUERY.replace('["avg"]', '["zzqqx"]')
    with pytest.raises(ConfigError) as ours:
        parse_definition("query", "q", text)
    monkeypatch.setitem(FUNCTIONS, "acme_cube", FUNCTIONS["avg"])
    with pytest.raises(ConfigError) as both:
        parse_definition("query", "q", text)
    count = f"one of {len(FUNCTIONS) - 1} in docs/configure.md, or "
    assert count + "a word of an installed package" in str(ours.value)
    assert count + "of an installed package: acme_cube" in str(both.value)
    with pytest.raises(ConfigError, match='did you mean "acme_cube"'):
        parse_definition("query", "q", text.replace("zzqqx", "acme_cub"))
    assert parse_definition("query", "q", text.replace("zzqqx", "acme_cube")).value is not None


def test_a_foreign_value_is_shown_short_and_no_secret_at_all() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_definition("query", "x", QUERY + f'late = "{"z" * 5000}"')
    assert len(str(caught.value)) < 400
    assert len(str(caught.value.problems[0].got)) <= 60
    with pytest.raises(ConfigError) as caught:
        parse(FILE.replace("mqtt://127.0.0.1", "mqtt://me:hunter2@a") + 'password = "hunter2"', "edge.toml")
    assert "hunter2" not in str(caught.value)
