"""`headwater explain` shows the plan that the nodes make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Sensor
from edge_agent.algebra.query.wire_costs import FRAME_BYTES
from edge_agent.cli.main import main
from edge_agent.cli.support.size_estimates import often, rate_of
from tests.support.config.parsing import parse_query

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


def told(size: RowSize) -> dict[str, object]:
    return {"expected": pytest.approx(size.expected, rel=1e-5), "most": pytest.approx(size.most, rel=1e-5)}


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
            "bytes": {
                "readings_per_s": 1.0,
                "rate": "assumed; --rate sets another",
                "rows_per_s": pytest.approx(1 / 60),
                "bytes_per_row": told(placed.cost.row(60.0)),
                "bytes_per_s": told(placed.cost.row(60.0).times(1 / 60)),
                "bytes_per_window": {"boiler-10m": told(placed.cost.row(60.0))},
                "window_assumed": {},
                "bytes_per_frame": FRAME_BYTES,
            },
            "formed_at": "root",
            "reason": "slices take 0.283 B/s, whole windows 0.292 B/s: "
            "a slice is sent once, however many windows contain it",
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


def test_markers_are_named_and_sketches_weigh_what_they_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = {**QUERY, "window": {"type": "punctuation", "interpretation": "bounds"}}
    about = {**QUERY, "aggregates": ["approx_distinct"]}
    files = [written(tmp_path, "marked.json", marked), written(tmp_path, "about.json", about)]
    assert main(["explain", *files, "--rate", "1000"]) == 0
    out = capsys.readouterr().out
    assert "travels    markers: count" in out
    assert "of a key with 1,000 readings/s (from --rate), as expected:" in out
    assert "about: 1,909 B a window, at most 4,178 B" in out
    assert "marked: 27 B a window of 1m, at most" in out


def test_a_reason_stands_there_once_however_many_queries_share_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [written(tmp_path, f"q{i}.json", QUERY) for i in range(12)]
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert out.count("function avg at every tier: decomposable") == 1
    assert "q5, q6, q7 and 4 more: 17 B a window, at most" in out


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


def test_the_queries_of_a_recording_are_those_of_its_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit that is spelt out was read as milliseconds, a null was refused, and of two queries with one id the second
    was shown. A query that names the key was refused.
    """
    tumbling = {"type": "tumbling", "length": 10}
    counted = {"type": "count_tumbling", "length": 3}
    queries = [
        {"id": "mean", "window": tumbling, "aggregate": "avg", "where": None, "scope": None},
        {"id": "mean", "window": tumbling, "aggregate": "sum"},
        {"window": tumbling, "aggregate": "max"},
        {"id": 7, "window": counted, "aggregate": "weighted_avg", "param": {"weight": "key"}},
    ]
    recording = {"unit": "seconds", "streams": {"a": [[1, "k", 2]]}, "queries": queries}
    file = written(tmp_path, "r.json", recording)
    assert main(["explain", file, "--json"]) == 0
    out, err = capsys.readouterr()
    shown = {name: texts for line in out.splitlines() for name, texts in json.loads(line)["queries"].items()}
    assert list(shown) == ["mean", "q3", "7"]
    assert "10s" in str(shown["mean"])
    assert "avg" in str(shown["mean"])
    assert err.count("\n") == 1
    assert f"{file}: query mean: queries[1] has the same id as another query" in err
    assert main(["replay", file]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", '{"window": 3}', '{"queries": [], "streams": [}', "\x00", "x = ["])
def test_a_file_that_cannot_be_read_is_a_line_that_names_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    assert main(["explain", str(path)]) == 2
    assert "broken.json" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "absent.json")]) == 2


def test_a_configuration_says_its_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 4, point 7: bytes per window expected, of what is configured."""
    path = tmp_path / "headwater.toml"
    path.write_text(
        """
[node]
id = "press-1"
[uplink]
broker = "mqtt://127.0.0.1:1883"
[sensor.s]
driver = "simulated"
rate = 1000
[query.d]
source = "s"
window = { type = "tumbling", length = "100s" }
aggregates = ["theta_distinct"]
[query.local]
source = "s"
scope = "local"
window = { type = "sliding", length = "1m", slide = "1s" }
aggregates = ["top_k"]
"""
    )
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "of a key with 1,000 readings/s (rate of its sensor), as expected:" in out
    assert "d: 32,786 B a window, at most 32,834 B" in out  # 31 788 B were sent
    assert "local: 252 B a window, at most 4,137 B" in out  # however many readings


def test_rates_are_of_a_key() -> None:
    made = Sensor("s", 1, "simulated", (("rate", 10.0), ("series", 4)))
    assert rate_of(made, ("series",)).per_s == 10.0
    assert rate_of(made, ()).per_s == 40.0
    host = Sensor("h", 1, "host", (("metrics", ("cpu", "memory")), ("every_us", 500_000)))
    assert rate_of(host, ("metric",)).per_s == 2.0
    assert rate_of(host, ()).per_s == 4.0
    assert rate_of(Sensor("m", 1, "mqtt"), ()).per_s == rate_of(None, ()).per_s == 1.0


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (13.0, "13 a second"),
        (1.0, "one every 1s"),
        (1 / 7, "one every 7s"),
        (1 / 2_629_746, "one every 30.4d"),
        (0.0, "one in all"),
    ],
)
def test_how_often_is_said_in_units_people_read(rate: float, text: str) -> None:
    assert often(rate) == text


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "many"])
def test_a_rate_that_is_none_is_refused(rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", written(tmp_path, "q.json", QUERY), "--rate", rate])
    assert "is not a number of readings per second" in capsys.readouterr().err


def test_windows_between_a_gateways_own_markers_are_said_to_be_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default: it was "computed at every tier" and "formed at the gateway" in one text."""
    marked = {**QUERY, "window": {"type": "punctuation"}}
    assert main(["explain", written(tmp_path, "marked.json", marked)]) == 0
    out = capsys.readouterr().out
    assert "window punctuation at the gateway: local" in out
    assert "at every tier" not in out


def test_of_late_readings_nothing_is_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {**QUERY, "late": "per_window"}
    assert main(["explain", written(tmp_path, "tardy.json", late), "--json"]) == 0
    on_time, rows = (made["bytes"] for made in json.loads(capsys.readouterr().out)["plans"])
    assert on_time["bytes_per_window"]
    assert rows["bytes_per_row"]["expected"] > 0
    assert (rows["bytes_per_window"], rows["bytes_per_s"], rows["rows_per_s"]) == ({}, None, None)
    assert main(["explain", str(tmp_path / "tardy.json")]) == 0
    assert "travels    whole windows of late readings" in capsys.readouterr().out


def test_a_fixed_band_is_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    band = {**QUERY, "window": {"type": "fixed_band", "start": "2026-01-01T00:00:00Z", "length": "1h"}}
    month = {**QUERY, "window": {"type": "calendar", "every": "month", "tz": "Europe/Berlin"}}
    assert main(["explain", written(tmp_path, "band.json", band)]) == 0
    assert ", one in all\n" in capsys.readouterr().out
    assert main(["explain", written(tmp_path, "month.json", month)]) == 0
    assert ", one every 30.4d: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("window", "rate", "reason"),
    [
        (
            {"type": "tumbling", "length": "10s"},
            "10",
            "equal: slices and whole windows take 1.7 B/s; slices are preferred since other queries can share them",
        ),
        (
            {"type": "sliding", "length": "10s", "slide": "7s"},
            "10",
            "whole windows take 2.43 B/s, slices 4.86 B/s: the edges cut more slices than there are windows",
        ),
        (  # readings are rarer than slices: each is in one slice, but in more than one window
            {"type": "sliding", "length": "10s", "slide": "7s"},
            "0.0001",
            (
                "whole windows take 210 B a day, slices 147 B a day; whole windows are preferred since they take 2.43"
                " B/s instead of 4.86 B/s at one reading every 3.5s"
            ),
        ),
        (  # with many readings a slice and a window have the same size
            {"type": "sliding", "length": "10m", "slide": "1m"},
            "10",
            (
                "equal: slices and whole windows take 0.292 B/s; slices are preferred since they take 0.283 B/s"
                " instead of 0.292 B/s at 1.67 readings/s"
            ),
        ),
        (
            {"type": "fixed_band", "start": "2026-01-01T00:00:00Z", "length": "1h"},
            "10",
            "slices, each sent once however many windows contain it; what comes once has no rate to compare",
        ),
    ],
)
def test_a_reason_has_the_bytes_of_both_kinds_at_the_rate_that_is_shown(
    window: dict[str, object], rate: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had those at a reading a second, whatever the sensor's rate, also where they were equal."""
    file = written(tmp_path, "q.json", {**QUERY, "window": window, "aggregates": ["avg", "max"]})
    assert main(["explain", file, "--rate", rate]) == 0
    assert f"  because    {reason}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ('{"streams": {}, "queries": ' + "[" * 100_000, 2, "{file}: nested too deep; flatten it"),
        ('{"streams": {}, "queries": [' + "9" * 5000, 2, "{file}: not JSON: an integer of thousands of digits"),
        ('{"queries": [5]}', 2, "{file}: queries[0]: wanted an object with id, window and aggregate, got 5"),
        ('{"queries": 5}', 2, "{file}: queries: wanted a list of objects"),
        ('{"unit": "parsec", "queries": []}', 2, "{file}: unit: wanted one of us, ms, s, m, h, d, w, got 'parsec'"),
        (
            '{"streams": {}, "queries": [], "queries": []}',
            2,
            '{file}: "queries" is given twice in one object; rename or remove one of them',
        ),
        ('{"queries": []}', 3, "nothing to explain: no query to plan in {file}"),
        (
            '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1"\n',
            3,
            "nothing to explain: no query to plan in {file}",
        ),
    ],
)
def test_without_a_query_it_says_why(
    text: str, code: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["explain", str(file)]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == f"headwater: {why.format(file=file)}"


def test_the_id_in_the_text_is_that_of_the_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in `headwater check`, whatever the name of the file is."""
    file = written(tmp_path, "Other name.json", {**QUERY, "id": "boiler-10m"})
    assert main(["check", file]) == 0
    assert "a query named boiler-10m" in capsys.readouterr().out
    assert main(["explain", file, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["queries"]) == ["boiler-10m"]
