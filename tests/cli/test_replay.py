"""`headwater replay` as a user meets it: rows on standard output, talk on standard error, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.main import main

CASES = Path(__file__).resolve().parents[1] / "cases"
TUMBLING = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
COUNTED = {"id": "s", "window": {"type": "count_tumbling", "length": 10}, "aggregate": "sum"}


def written(folder: Path, name: str, **given: Any) -> str:
    """A recording as a file."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"queries": [TUMBLING], "streams": {"c": [[1, None, 1]]}, **given}))
    return str(path)


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_rows_of_several_recordings_name_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(CASES / f"{name}.json") for name in ("ties", "bounds")]
    assert main(["replay", *files]) == 0
    told = rows(capsys.readouterr().out)
    assert [row["recording"] for row in told] == ["ties"] * 4 + ["bounds"] * 9
    assert told[0] == {
        "recording": "ties",
        "query": "first",
        "key": None,
        "start": 0,
        "end": 10,
        "value": 4,
        "readings": 4,
    }


def test_keys_values_and_ids_are_printed_as_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [[1, 7, 2], [2, "7", 2.5], [3, "ü", 1], [4, None, 1], [5, True, 1]]
    file = written(tmp_path, "x", queries=[{**TUMBLING, "id": 12}], streams={"c": items})
    assert main(["replay", file]) == 0
    told = rows(capsys.readouterr().out)
    assert [row["query"] for row in told] == [12] * 5
    assert {(type(row["key"]), row["key"], row["value"]) for row in told} == {
        (int, 7, 2.0),
        (str, "7", 2.5),
        (str, "ü", 1.0),
        (type(None), None, 1.0),
        (bool, True, 1.0),
    }


def test_integers_stay_integers_and_nulls_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = ["sum", "count", "avg", "var", "geomean", "first", "time_of_max"]
    queries = [{"id": "q", "window": TUMBLING["window"], "aggregates": functions}]
    assert main(["replay", written(tmp_path, "x", queries=queries, streams={"c": [[3, None, -4]]})]) == 0
    out = capsys.readouterr().out
    assert '{"sum": -4, "count": 1, "avg": -4.0, "var": null, "geomean": null, "first": -4, "time_of_max": 3}' in out


def test_bounds_are_in_the_unit_of_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    window = {"type": "tumbling", "length": 1500, "unit": "ms"}
    file = written(tmp_path, "x", unit="s", queries=[{**TUMBLING, "window": window}], streams={"c": [[2, None, 1]]})
    assert main(["replay", file]) == 0
    (row,) = rows(capsys.readouterr().out)
    assert (row["start"], row["end"]) == (1.5, 3)


@pytest.mark.usefixtures("without_counts")
def test_what_is_not_supported_is_a_line_and_the_rest_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "mixed", queries=[COUNTED, TUMBLING])
    assert main(["replay", file]) == 0
    said = capsys.readouterr()
    assert said.err == 'headwater: mixed: query s: window type "count_tumbling" is not supported yet\n'
    assert [row["query"] for row in rows(said.out)] == ["q"]
    assert main(["replay", "--strict", file]) == 3
    assert main(["replay", "--strict", written(tmp_path, "plain")]) == 0


@pytest.mark.usefixtures("without_counts")
def test_a_recording_without_a_supported_query_prints_lines_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", written(tmp_path, "x", queries=[COUNTED])]) == 0
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "given",
    [
        {"queries": [TUMBLING, {**TUMBLING, "aggregate": "median", "param": {"evn": "upper"}, "id": "r"}]},
        {"queries": [TUMBLING, TUMBLING]},
        {"streams": {"c": [[1, None, 1], *[[f"2026-01-0{n}", None, 1] for n in range(1, 9)]]}},
        {"streams": {"c": [[1, None, 1], *[[-n, None, 1] for n in range(1, 9)]]}},
    ],
)
def test_each_mistake_of_a_recording_is_a_line_and_the_rest_is_answered(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "mistaken", **given)
    assert main(["replay", file]) == 0
    said = capsys.readouterr()
    assert [(row["query"], row["value"]) for row in rows(said.out)] == [("q", 1)]
    (line,) = said.err.splitlines()
    assert line.startswith("headwater: mistaken: ")
    assert main(["replay", "--strict", file]) == 3


def test_a_file_that_is_no_recording_is_named_and_the_others_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    absent = str(tmp_path / "absent.json")
    assert main(["replay", str(broken), written(tmp_path, "good"), absent, str(binary), str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert [row["recording"] for row in rows(said.out)] == ["good"]
    lines = said.err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"headwater: {broken}: not JSON")
    assert lines[1] == f"headwater: {absent}: no such file or directory"


def test_files_whose_rows_have_one_name_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first, second = (written(tmp_path / folder, "same") for folder in ("a", "b"))
    assert main(["replay", first, second]) == 0
    said = capsys.readouterr()
    assert {row["recording"] for row in rows(said.out)} == {"same"}
    assert (
        said.err
        == f"headwater: {second}: its rows have the name 'same', as those of {first}; rename one of the files\n"
    )

    line = f"{second}: its rows have the name 'same', as those of {first}; rename one of the files"
    assert said.err == f"headwater: {line}\n"


def test_revisions_are_printed_as_they_would_appear(capsys: pytest.CaptureFixture[str]) -> None:
    """protocol 4.2 and 8.3."""
    assert main(["replay", "--revisions", str(CASES / "late-revise.json")]) == 0
    told = rows(capsys.readouterr().out)
    first = [(row["revision"], row["value"]) for row in told if (row["query"], row["start"]) == ("ten", 0)]
    assert first == [(0, 101), (1, 105)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"a": "\xe9"}', "not UTF-8 text: byte 7; save it as UTF-8"),
        (b"[" * 100_000, "nested too deep; flatten it"),
        (b"9" * 5000, "not JSON: an integer of thousands of digits"),
        (b"[]", "wanted an object, got list"),
        (None, "is a directory; name a file in it"),
    ],
)
def test_a_recording_that_cannot_be_read_is_named_by_its_path(
    content: bytes | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "latin.json"
    file.mkdir() if content is None else file.write_bytes(content)
    assert main(["replay", str(file)]) == 2
    assert capsys.readouterr().err == f"headwater: {file}: {why}\n"
