"""`headwater explain` shows the plan that the nodes make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.algebra.costs import FRAME_BYTES
from edge_agent.algebra.planner import plan
from edge_agent.cli.main import main
from edge_agent.config.definitions import parse_query

QUERY = {
    "source": "boiler",
    "by": ["site"],
    "window": {"type": "sliding", "length": "10m", "slide": "1m"},
    "aggregates": ["avg", {"fn": "stddev", "ddof": 0, "as": "sd"}],
    "lateness": "5s",
    "revision": 3,
}
SENSOR = {"driver": "simulated", "resolution": 0.1, "rate": 1}


def written(folder: Path, name: str, value: object) -> str:
    path = folder / name
    path.write_text(json.dumps(value))
    return str(path)


def test_the_plan_shown_is_the_one_the_nodes_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Protocol 6.2: the plan follows from the definitions and nothing else."""
    assert main(["explain", written(tmp_path, "boiler-10m.json", QUERY), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (placed,) = plan((parse_query("boiler-10m", json.dumps(QUERY)),), None)
    assert shown["plans"] == [
        {
            "plan": placed.plan.hash.hex(),
            "travels": "slices",
            "feeds": "all",
            "columns": list(placed.plan.basis),
            "unit": "1m",
            "weighs": {
                "rows_per_s": pytest.approx(1 / 60),
                "bytes_per_row": placed.cost.row_bytes,
                "bytes_per_s": placed.cost.bytes_per_s,
                "bytes_per_reading": 0.0,
                "bytes_per_frame": FRAME_BYTES,
            },
            "formed_at": "root",
            "reason": placed.reason,
        }
    ]
    assert (shown["kept"]["longest"], shown["kept"]["block"]) == ("10m", "9375ms")
    assert [told["about"] for told in shown["decisions"]["boiler-10m"]] == [
        "window sliding",
        "function avg",
        "function stddev",
    ]
    assert all(told["computed"] == "at every tier" and told["why"] for told in shown["decisions"]["boiler-10m"])


def test_queries_of_one_group_are_explained_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**QUERY, "window": {"type": "tumbling", "length": "30s"}, "aggregates": ["max"]}
    files = [written(tmp_path, "a.json", QUERY), written(tmp_path, "b.json", other)]
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert out.count("boiler[site]") == 1
    assert "a: sliding 10m every 1m: avg, sd" in out
    assert "b: tumbling 30s: max" in out
    assert "kept       by the root: slices of 10m" in out


def test_a_sensor_among_the_files_says_how_its_values_travel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [written(tmp_path, "q.json", {**QUERY, "scope": "local"}), written(tmp_path, "boiler.json", SENSOR)]
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert "integers in units of 1e-1: sums are exact" in out
    assert "kept" not in out, "windows of one gateway come to the root whole"
    assert "function avg at the gateway: of the gateway's own windows" in out


def test_of_each_gateways_own_counts_it_is_said_that_the_root_forms_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = {**QUERY, "window": {"type": "count_tumbling", "length": 500}, "aggregates": ["sum"], "scope": "local"}
    assert main(["explain", written(tmp_path, "counted.json", counted)]) == 0
    out = capsys.readouterr().out
    assert "window count_tumbling at the root: local: of each gateway's own readings" in out
    assert "function sum at the root" in out


def test_markers_and_full_sketches_are_named_as_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = {**QUERY, "window": {"type": "punctuation", "interpretation": "bounds"}}
    about = {**QUERY, "aggregates": ["approx_distinct"]}
    assert main(["explain", written(tmp_path, "marked.json", marked), written(tmp_path, "about.json", about)]) == 0
    out = capsys.readouterr().out
    assert "travels    markers: count" in out
    assert "B a row once its sketches are full" in out


def test_a_reason_stands_there_once_however_many_queries_share_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [written(tmp_path, f"q{i}.json", QUERY) for i in range(5)]
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert out.count("function avg at every tier: decomposable") == 1
    assert "weighs     up to" in out


def test_what_only_the_root_can_do_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thesis figures 16 and 17: windows by count, and functions of the order of readings."""
    counted = {**QUERY, "window": {"type": "count_tumbling", "length": 500}, "aggregates": ["sum"]}
    ordered = {**QUERY, "aggregates": ["rate"]}
    files = [written(tmp_path, "counted.json", counted), written(tmp_path, "ordered.json", ordered)]
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert "window count_tumbling at the root: " in out
    assert "travels    readings as they are" in out
    assert "function rate at the root: it depends on the order of readings" in out


def test_what_is_not_carried_is_said_and_the_rest_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = {
        "unit": "ms",
        "streams": [],
        "queries": [
            {"id": "q1", "window": {"type": "tumbling", "length": 500}, "aggregate": "sum"},
            {"id": "q2", "window": {"type": "spiral", "length": 500}, "aggregate": "sum"},
        ],
    }
    assert main(["explain", written(tmp_path, "r.json", recording)]) == 0
    out, err = capsys.readouterr()
    assert "q1: tumbling 500ms: sum" in out
    assert "spiral" in err
    recording["queries"] = recording["queries"][1:]
    assert main(["explain", written(tmp_path, "r.json", recording)]) == 3


@pytest.mark.parametrize("text", ["", "{", '{"window": 3}', '{"queries": [], "streams": [}', "\x00", "x = ["])
def test_a_file_that_cannot_be_read_is_a_line_that_names_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    assert main(["explain", str(path)]) == 2
    assert "broken.json" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "absent.json")]) == 2
