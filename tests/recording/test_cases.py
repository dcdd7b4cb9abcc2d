"""The recordings of tests/cases and of the documents give their rows, which are the oracle's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from edge_agent.recording.parser import parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.tree import Tree
from tests.support.recording.seeded import Row, Value, expected, told_rows
from tests.support.tolerance import close

ROOT: Final = Path(__file__).resolve().parents[2]
CASES: Final = sorted((ROOT / "tests/cases").glob("*.json"))


def wanted(given: dict[str, Any]) -> dict[Row, Value]:
    return told_rows(given["expected"], given)


def same(got: object, want: object) -> bool:
    """Integers exactly, floats within tolerance."""
    if isinstance(got, int) and isinstance(want, int):
        return got == want
    assert not isinstance(got, str)
    assert not isinstance(want, str)
    return close(got, want)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_case_gives_its_rows(case: Path) -> None:
    given = json.loads(case.read_text())
    recording = parse(case.read_bytes(), case.stem)
    assert not recording.refused
    got = told_rows(RowRenderer(recording).final(Tree(recording).run()), given)
    want = wanted(given)
    assert got.keys() == want.keys()
    for place, values in want.items():
        assert all(same(got[place][name], value) for name, value in values.items()), (place, got[place], values)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_rows_of_a_case_are_the_oracles(case: Path) -> None:
    given = json.loads(case.read_text())
    marks = {"mode": "end_of_stream", "implicit_lag_ms": 0, "allowed_lateness_ms": 0, **given.get("watermarks", {})}
    answers = expected({"unit": "ms", **given, "watermarks": marks}, case.stem)
    # sessions have an oracle of their own: tests/recording/test_sessions.py
    sessions = {str(q["id"]) for q in given["queries"] if q["window"]["type"] == "session"}
    want = {place: values for place, values in wanted(given).items() if place[0] not in sessions}
    assert answers.keys() == want.keys()
    for place, values in answers.items():
        assert all(close(a, b) for a, b in zip(values.values(), want[place].values(), strict=True)), place


def test_the_recording_in_the_documents_is_one() -> None:
    (text,) = re.findall(r"^```json recording\n(.*?)^```", (ROOT / "docs/recordings.md").read_text(), re.M | re.S)
    recording = parse(text, "example")
    assert not recording.refused
    told = RowRenderer(recording).final(Tree(recording).run())
    assert told[0] == {
        "recording": "example",
        "query": "level",
        "key": "a",
        "start": 0,
        "end": 1000,
        "values": {"avg": 4.5, "max": 7},
        "readings": 2,
    }
    assert [row["value"] for row in told if row["query"] == "total"] == [9, 3, 5, 8]
