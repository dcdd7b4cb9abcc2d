"""`headwater simulate` gives the windows that the readings themselves give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.cli import simulate
from edge_agent.cli.main import main
from edge_agent.cli.simulate import Simulated, text_of
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.ports.sensors.simulated import Simulation
from tests.support.config.parsing import parse_query

BEGIN = "2026-11-21T09:00:00Z"
BEGIN_US = 1_795_251_600_000_000
SENSOR = {
    "driver": "simulated",
    "wave": "walk",
    "rate": 200,
    "series": 3,
    "disorder": "3s",  # more than the lateness: some come late
    "resolution": 0.01,
    "begin": BEGIN,
}
QUERY = {
    "source": "boiler",
    "by": ["series"],
    "window": {"type": "sliding", "length": "10s", "slide": "4s"},
    "aggregates": ["count", "sum", "max"],
    "lateness": "1s",
}


def files(folder: Path, sensor: Mapping[str, object], query: Mapping[str, object]) -> list[str]:
    paths = {"boiler.json": sensor, "boiler-10s.json": query}
    for name, value in paths.items():
        (folder / name).write_text(json.dumps(value))
    return [str(folder / name) for name in paths]


@pytest.mark.parametrize(
    "window", [{"type": "tumbling", "length": "1s"}, {"type": "session", "gap": "20ms", "max": "1s"}]
)
def test_what_nothing_can_revise_any_more_is_forgotten(window: Mapping[str, object]) -> None:
    """`--live` runs for days: rows are kept for its horizon only. A session without end needs all its pieces."""
    query = parse_query("boiler-1s", json.dumps({**QUERY, "window": window}))
    gateway = Simulated([parse_sensor("boiler", json.dumps(SENSOR))], [query], horizon_us=10_000_000)
    shown, kept, begin_us = 0, list[int](), gateway.time.us
    for second in range(1, 301):
        gateway.step(begin_us + second * 1_000_000)
        shown += sum(1 for _ in gateway.ended_windows())
        kept.append(sum(len(index) for index in gateway.root.kept.indexes.values()))
    (starts,) = gateway.root.results.rows.values()
    assert sum(len(named) for named in starts.values()) < shown / 5
    assert max(kept[200:]) < 2 * max(kept[:100])
    gateway.close()


def test_every_window_is_that_of_the_readings_late_ones_included(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY), "--seconds", "60", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert " late" in err
    simulation = Simulation(parse_sensor("boiler", json.dumps(SENSOR)), BEGIN_US)
    last = max(row["end"] for row in rows)
    settled = [row for row in rows if row["end"] <= last - 4_000_000]  # of the others some readings are still to come
    assert len(settled) > 30
    for row in settled:
        made = simulation.between(row["start"], row["end"])
        cents = np.rint(made.value[made.series == int(row["key"].removeprefix("series="))] * 100).astype(int)
        assert row["values"] == {"count": len(cents), "sum": cents.sum() / 100, "max": cents.max() / 100}
        assert row["readings"] == len(cents)


def test_text_is_a_line_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**QUERY, "by": [], "window": {"type": "tumbling", "length": "30s"}, "aggregates": ["count"]}
    assert main(["simulate", *files(tmp_path, SENSOR, query)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "boiler-10s  2026-11-21T09:00:00.000Z +30s  count=18000  (18000 readings)"


def test_labels_of_devices_control_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "query": "q",
        "key": "m=a\x1b[31mRED\nnext",
        "start": 0,
        "end": 1,
        "values": {},
        "readings": 1,
        "complete": True,
    }
    assert "\x1b" not in text_of(row)
    assert len(text_of(row).splitlines()) == 1


def test_an_interruption_before_the_windows_are_there_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[dict[str, Any]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "fast", interrupted)
    monkeypatch.setattr(simulate, "live", interrupted)
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY)]) == 130
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY), "--live"]) == 0


@pytest.mark.parametrize(
    ("window", "first"),
    [
        ({"type": "count_tumbling", "length": 300}, "boiler-10s series=0  0 to 300  count=300  (300 readings)"),
        ({"type": "state", "begin": "value > -1e9", "end": "value < -1e9"}, None),
        ({"type": "session", "gap": "2s"}, None),
        ({"type": "punctuation", "leading": "open"}, None),
    ],
)
def test_windows_of_every_kind_are_formed(
    window: dict[str, object], first: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *files(tmp_path, SENSOR, {**QUERY, "window": window, "aggregates": ["count"]})]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:1] == ([] if first is None else [first])  # readings without a pause or a mark end no window


def test_what_needs_a_network_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sensor: dict[str, object] = {"driver": "mqtt", "topic": "plant/+/temp"}
    assert main(["simulate", *files(tmp_path, sensor, QUERY)]) == 2
    err = capsys.readouterr().err
    assert "driver mqtt needs a network" in err
    assert "nothing to simulate" in err


def test_a_query_whose_markers_need_a_network_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had no windows, without a word."""
    marked = {**QUERY, "window": {"type": "punctuation", "markers": "mode"}, "id": "marked"}
    (tmp_path / "marked.json").write_text(json.dumps(marked))
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY), str(tmp_path / "marked.json"), "--seconds", "15"]) == 0
    assert 'query "marked" is left out, with its sensor "mode"' in capsys.readouterr().err


def test_one_id_in_two_files_is_refused_unless_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second query had no windows, and of two sensors one counted, without a word."""
    given = files(tmp_path, SENSOR, QUERY)
    assert main(["simulate", *given, *given, "--seconds", "15"]) == 0
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**QUERY, "id": "boiler-10s", "aggregates": ["min"]}))
    capsys.readouterr()
    assert main(["simulate", *given, str(other)]) == 2
    assert f'query "boiler-10s" is another one in {given[1]}' in capsys.readouterr().err


def test_live_ends_after_its_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sensor = {**SENSOR, "disorder": "0s", "rate": 50}
    del sensor["begin"]
    query = {**QUERY, "window": {"type": "tumbling", "length": "200ms"}, "lateness": "0s"}
    assert main(["simulate", *files(tmp_path, sensor, query), "--live", "--seconds", "0.8", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows
    assert len({(row["key"], row["start"]) for row in rows}) == len(rows)


class Time:
    """Replaces the module `time`: seconds pass only in `sleep`."""

    def __init__(self) -> None:
        self.now_us = BEGIN_US + 300_000

    def time_ns(self) -> int:
        return self.now_us * 1_000

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


def test_the_window_within_which_listening_began_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protocol 4.1. The word is that of `headwater query`."""
    sensor = {"driver": "host", "metrics": ["memory"], "every": "100ms"}
    query = {**QUERY, "by": [], "window": {"type": "tumbling", "length": "1s"}, "lateness": "0s"}
    command = ["simulate", *files(tmp_path, sensor, query), "--live", "--seconds", "3.5"]
    monkeypatch.setattr("edge_agent.cli.simulate.time", Time())
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["start"] - BEGIN_US for row in rows] == [0, 1_000_000, 2_000_000]
    assert [row["complete"] for row in rows] == [False, True, True]
    monkeypatch.setattr("edge_agent.cli.simulate.time", Time())
    assert main(command) == 0
    marks = [line.rpartition("(")[2] for line in capsys.readouterr().out.splitlines()]
    assert [mark.partition(" ")[2] for mark in marks] == ["readings, not complete)", "readings)", "readings)"]


def test_a_sensor_that_is_read_from_its_beginning_has_complete_windows_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY), "--seconds", "20", "--json"]) == 0
    assert {json.loads(line)["complete"] for line in capsys.readouterr().out.splitlines()} == {True}


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf", "1e300", "x"])
def test_seconds_that_are_none_are_refused(seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["simulate", *files(tmp_path, SENSOR, QUERY), f"--seconds={seconds}"])
    assert left.value.code == 2
    assert "is not a number of seconds above 0" in capsys.readouterr().err


def test_a_query_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *files(tmp_path, SENSOR, QUERY), "--query", "nope"]) == 2
    assert capsys.readouterr().err == "headwater: --query: no query nope; there are boiler-10s\n"


@pytest.mark.parametrize("path", ["none.csv", "folder"])
def test_a_file_of_readings_that_cannot_be_read_is_said_once(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    sensor: dict[str, object] = {"driver": "file", "path": str(tmp_path / path), "time": "time", "value": "value"}
    assert main(["simulate", *files(tmp_path, sensor, QUERY)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = (line for line in said.err.splitlines() if str(tmp_path / path) in line)
    assert line.startswith('headwater: sensor "boiler" cannot be read: ')
    assert "{" not in said.err
