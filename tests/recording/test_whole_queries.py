"""Queries and times that are right alone: every query of a recording has its rows, or a line that says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Query
from edge_agent.cli.main import main
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.config.node_file.settings import parse as parse_settings
from edge_agent.errors import ConfigError
from edge_agent.recording import parser
from edge_agent.recording.parser import parse

DAY_MS = 86_400_000
TUMBLING = {"id": "t", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
COUNT = {"id": "c", "window": {"type": "count_tumbling", "length": 2}, "aggregate": "sum"}
STREAMS = {"a": [[1, None, 1], [2, None, 2], [12, None, 4]]}


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, **said: Any) -> tuple[int, list[Any], str]:
    """Replays one recording. Returns (exit code, [query, start, value] of each row, errors)."""
    (folder / "one.json").write_text(json.dumps({"queries": [TUMBLING], "streams": STREAMS, **said}))
    code = main(["replay", *words, str(folder / "one.json")])
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    return code, sorted([row["query"], row["start"], row["value"]] for row in rows), err


def histogram(first: int) -> dict[str, Any]:
    edges = [first + 10 * number for number in range(100)]
    return {**TUMBLING, "id": f"h{first}", "aggregates": [{"fn": "histogram", "edges": edges}]}


def test_a_reading_centuries_ahead_in_microseconds_silences_no_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = {"a": [[20_000_000_000_000_001, None, 1], [5, None, 2], [7, None, 4]]}
    code, rows, err = replayed(tmp_path, capsys, unit="us", streams=streams, queries=[TUMBLING, COUNT])
    assert (code, err) == (0, "")
    assert rows == [["c", 0, 6], ["t", 0, 6], ["t", 20_000_000_000_000_000, 1]]


def test_a_length_of_seventeen_digits_has_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = {**TUMBLING, "window": {"type": "tumbling", "length": 10_000_000_000_000_001}}
    assert replayed(tmp_path, capsys, unit="us", queries=[long]) == (0, [["t", 0, 7]], "")


def test_a_query_that_does_not_fit_beside_others_costs_itself_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregate = {key: value for key, value in histogram(2).items() if key != "aggregate"}
    queries = [histogram(0), histogram(1), aggregate, TUMBLING]
    code, rows, err = replayed(tmp_path, capsys, queries=queries)
    assert code == 0
    assert [row[0] for row in rows if row[0] != "t"] == ["h0", "h0", "h1", "h1"]
    assert [row for row in rows if row[0] == "t"] == [["t", 0, 3], ["t", 10, 4]]
    assert err.count("\n") == 1
    assert "query h2: the functions of the queries with one source and filter (h0, h1, h2) need" in err


def test_many_queries_beside_one_that_does_not_fit_are_not_tried_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 2 000 was tried together with all before it, which took many minutes."""
    tried: list[int] = []

    def counted(queries: tuple[Query, ...], scale: int | None) -> object:
        tried.append(len(queries))
        return plan(queries, scale)

    monkeypatch.setattr(parser, "plan", counted)
    several = [
        {**TUMBLING, "id": f"t{length}", "window": {"type": "tumbling", "length": length}} for length in range(1, 201)
    ]
    fits = [{**histogram(first), "aggregate": None} for first in range(3)]
    queries = [*several[:90], *fits, *several[90:]]
    recording = parse(json.dumps({"queries": queries, "streams": STREAMS}), "one")
    assert [one.recorded_id for one in recording.asked] == [query["id"] for query in queries if query is not fits[2]]
    assert len(recording.refused) == 1
    assert sum(tried) < 20 * len(queries)


def test_a_gateway_refuses_such_a_query_with_a_reason_and_serves_the_others() -> None:
    table = "".join(
        f'[query.h{first}]\nsource = "s"\nwindow = {{ type = "tumbling", length = "10s" }}\n'
        f'aggregates = [{{ fn = "histogram", edges = {[first + 10 * number for number in range(100)]} }}]\n'
        for first in range(4)
    )
    head = '[node]\nid = "g"\n[uplink]\nbroker = "mqtt://127.0.0.1:1"\n[sensor.s]\ndriver = "simulated"\n'
    settings = parse_settings(head + table, "g.toml")
    registry = DefinitionRegistry("g", LimitsTable(), settings.definitions)
    refused = registry.refused()
    assert [item for _, item in refused] == ["h2", "h3"]
    for problem in refused.values():
        assert problem.at == "aggregates"
        assert "state columns, at most 256" in problem.why


@pytest.mark.parametrize(
    "query",
    [
        {"window": {"type": "state", "begin": "key = 'a'"}, "aggregate": "sum"},
        {"window": {"type": "count_tumbling", "length": 2}, "aggregate": "weighted_avg", "param": {"weight": "key"}},
    ],
    ids=["begin", "weight"],
)
def test_a_query_that_needs_keys_where_there_are_none_stops_no_other(
    query: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, err = replayed(tmp_path, capsys, queries=[{"id": "q", **query}, TUMBLING])
    assert code == 0
    assert [row for row in rows if row[0] == "t"] == [["t", 0, 3], ["t", 10, 4]]
    assert "did not settle" not in err


def test_a_reading_years_late_revises_the_windows_between_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = {"id": "p", "window": {"type": "punctuation", "scope": "local"}, "aggregate": "sum"}
    items = [["p", 0], [1, None, 1], ["p", 10], [2_000, None, 5], ["p", 3_000], [5, None, 16], [4_000, None, 1]]
    code, rows, err = replayed(
        tmp_path,
        capsys,
        unit="d",
        streams={"a": items},
        queries=[marked],
        watermarks={"mode": "implicit"},
        late_policy="revise",
    )
    assert (code, err) == (0, "")
    assert ["p", 0, 17] in rows


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"queries": [], "streams": {"a": [[1, "k", 1]], "a": [[2, "k", 2]]}}', '"a"'),
        ('{"queries": [{"id": "q", "id": "r"}], "streams": {"a": []}}', '"id"'),
        ('{"queries": [], "streams": {"a": []}, "topology": {"m": ["a"], "m": [], "root": ["m"]}}', '"m"'),
    ],
)
def test_a_name_that_is_given_twice_is_refused(text: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is given twice in one object"):
        parse(text, "x")


@pytest.mark.parametrize("after", [-1, True])
def test_a_query_is_added_after_a_number_of_items(
    after: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, err = replayed(tmp_path, capsys, queries=[TUMBLING, {**COUNT, "added_after_items": after}])
    assert (code, rows) == (0, [["t", 0, 3], ["t", 10, 4]])
    assert "query c: added_after_items: wanted a number of items" in err


@pytest.mark.parametrize("digits", [291, 299, 300, 309])
@pytest.mark.parametrize("unit", ["us", "h", "d", "w"])
def test_integers_of_hundreds_of_digits_end_no_call(
    digits: int, unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = 10 ** (digits - 1)
    items = [["wm", far], ["p", far], [far, None, 1], [1, None, 2]]
    long = {**TUMBLING, "window": {"type": "tumbling", "length": far}}
    band = {**TUMBLING, "id": "b", "window": {"type": "fixed_band", "start": far, "end": far}}
    code, _, err = replayed(tmp_path, capsys, unit=unit, streams={"a": items}, queries=[long, band])
    assert code in (0, 2)
    assert "Traceback" not in err
    assert main(["replay", str(tmp_path / "one.json")]) == code


def test_a_key_that_is_nested_too_deep_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for levels in range(940, 1_000, 4):
        text = json.dumps({"queries": [TUMBLING], "streams": {"a": [[1, "KEY", 1]]}})
        (tmp_path / "deep.json").write_text(text.replace('"KEY"', "[" * levels + "]" * levels))
        code = main(["replay", str(tmp_path / "deep.json")])
        err = capsys.readouterr().err
        assert (code, err) == (0, "") or ("nested too deep; flatten it" in err and err.count("\n") == 1)
