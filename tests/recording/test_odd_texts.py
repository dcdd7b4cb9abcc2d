"""What other programs write into recordings: long gaps, units, ids and keys of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.main import main
from edge_agent.errors import ProtocolError, WireError
from edge_agent.recording.parser import parse
from edge_agent.recording.tree import Tree

QUERY = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
STREAMS = {"a": [[1, None, 2], [14, None, 3]]}
DAY_MS = 86_400_000


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], **said: Any) -> tuple[int, list[Any], str]:
    """Replays a recording and a good one after it. Returns (exit code, rows of the first as lists, errors)."""
    for name, more in (("first", said), ("second", {})):
        (folder / f"{name}.json").write_text(json.dumps({"queries": [QUERY], "streams": STREAMS, **more}))
    code = main(["replay", str(folder / "first.json"), str(folder / "second.json")])
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert sum(row["recording"] == "second" for row in rows) == 2  # whatever is wrong with the first
    return code, [[row["start"], row["end"], row["value"]] for row in rows if row["recording"] == "first"], err


@pytest.mark.parametrize("days", [7, 8, 366])
def test_sessions_of_any_gap_have_rows(days: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**QUERY, "window": {"type": "session", "gap": days * DAY_MS}}
    code, rows, err = replayed(tmp_path, capsys, queries=[query])
    assert (code, rows, err) == (0, [[1, 14 + days * DAY_MS, 5]], "")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\r\n"])
def test_a_row_is_one_line_whatever_ends_lines_in_its_key(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers such as str.splitlines end a line there; JSON itself escapes only some of these signs."""
    (tmp_path / "a.json").write_text(json.dumps({"queries": [QUERY], "streams": {"a": [[1, f"x{end}y", 2]]}}))
    assert main(["replay", str(tmp_path / "a.json")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["key"] == f"x{end}y"


@pytest.mark.parametrize("unit", ["s", "sec", "Seconds", "second"])
def test_a_unit_may_be_spelt_out(unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**QUERY, "window": {"type": "tumbling", "length": 1, "unit": unit}}
    assert replayed(tmp_path, capsys, queries=[query]) == (0, [[0, 1000, 5]], "")
    assert replayed(tmp_path, capsys, unit=unit)[:2] == (0, [[0, 10, 2], [10, 20, 3]])


@pytest.mark.parametrize("unit", ["parsec", "events", 7])
def test_a_unit_that_is_none_is_refused(unit: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**QUERY, "window": {"type": "tumbling", "length": 1, "unit": unit}}
    code, rows, err = replayed(tmp_path, capsys, queries=[query])
    assert (code, rows) == (0, [])
    assert "window.unit: wanted one of us, ms, s" in err
    assert len(err.splitlines()) == 1


def test_count_windows_have_units_of_their_own() -> None:
    query = {**QUERY, "window": {"type": "count_tumbling", "length": 1, "unit": "events"}}
    assert len(parse(json.dumps({"queries": [query], "streams": STREAMS}), "x").asked) == 1


@pytest.mark.parametrize(
    "items",
    [
        [["p", 5, {"a": 1}, "start"], ["p", 9, {"a": 1}]],
        [["p", 5, [1]]],
        [["p", 5, "\ud800"]],
        [[1, "\ud800", 2]],
        [[1, "k" * 70_000, 2]],
        [[1, "\U0001f600" * 29_000, 2]],  # few characters, many bytes
    ],
)
def test_an_item_that_cannot_be_used_is_one_line_and_the_other_files_are_computed(
    items: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, err = replayed(tmp_path, capsys, streams={"a": items})
    assert (code, rows) == (2, [])
    assert len(err.splitlines()) == 1
    assert "streams.a[0]" in err


def test_names_that_are_not_unicode_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows, err = replayed(tmp_path, capsys, queries=[{**QUERY, "id": "\ud800"}])
    assert (code, rows) == (0, [])
    assert "the id is not valid Unicode" in err
    window = {"type": "punctuation", "punctuation_id": "\ud800"}
    code, rows, err = replayed(tmp_path, capsys, queries=[{**QUERY, "window": window}])
    assert (code, rows) == (0, [])
    assert "a text is not valid Unicode" in err
    code, rows, err = replayed(tmp_path, capsys, streams={"\ud800": [[1, None, 2]]})
    assert (code, rows) == (2, [])
    assert "a name of a child is not valid Unicode" in err


@pytest.mark.parametrize("ids", [(2, 2), (2.0, 2), (2, 2.0), (2.0, 2.0), ("2", 2.0)])
def test_ids_of_markers_may_be_numbers(
    ids: tuple[object, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = {"type": "punctuation", "interpretation": "local", "punctuation_id": ids[0], "leading": "drop"}
    items = [["p", 0, ids[1]], [1, None, 2], ["p", 10, ids[1]]]
    query = {**QUERY, "window": window}
    code, rows, err = replayed(tmp_path, capsys, queries=[query], streams={"a": items})
    assert (code, rows, err) == (0, [[0, 10, 2]], "")


def test_what_is_absent_or_beyond_counting_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**QUERY, "scope": "global"}
    streams = {"a": [[1, None, 2.5], [2, None, 10**400], [3, None, -(10**400)]], "b": None}
    code, rows, _ = replayed(tmp_path, capsys, queries=[query], streams=streams)
    assert (code, rows) == (0, [[0, 10, 2.5]])


@pytest.mark.parametrize("kind", [WireError, ProtocolError])
def test_a_recording_that_fails_in_the_tree_is_one_line_and_the_other_files_are_computed(
    kind: type[Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Tree.run

    def failing(tree: Tree) -> Any:
        if tree.recording.name == "first":
            raise kind("too many bytes")
        return run(tree)

    monkeypatch.setattr(Tree, "run", failing)
    code, rows, err = replayed(tmp_path, capsys)
    assert (code, rows) == (2, [])
    assert err.splitlines() == ["headwater: first: cannot be computed: too many bytes; the other files are computed"]
