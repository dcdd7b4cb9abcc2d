"""`headwater replay --root spark`: the job gives the rows of the plain-Python root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from edge_agent.cli.replay import of_python, of_spark
from edge_agent.cli.support.progress import Progress
from edge_agent.recording.parser import parse
from tests.support.recording.seeded import made, reach, told_rows
from tests.support.recording.seeded_calendars import made_calendars
from tests.support.recording.seeded_sessions import made_sessions
from tests.support.tolerance import close

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES: Final = sorted((Path(__file__).resolve().parents[1] / "cases").glob("*.json"))
SEEDS: Final = range(2_000, 2_005)


@pytest.mark.spark
def test_the_spark_root_gives_the_rows_of_the_plain_one(spark: SparkSession) -> None:
    """protocol 4.2, 5.3, 5.4, 6.1, 6.2 and 7.1: all cases, and recordings from seeds, in one job."""
    texts = {case.stem: case.read_text() for case in CASES} | {f"made-{n}": json.dumps(made(n)) for n in SEEDS}
    texts |= {f"calendars-{n}": json.dumps(made_calendars(n)) for n in range(12)}
    texts |= {f"sessions-{n}": json.dumps(made_sessions(n)) for n in SEEDS}
    recordings = [parse(text, name, number) for number, (name, text) in enumerate(texts.items())]
    bar = Progress("replaying", len(recordings))
    plain = list(of_python(recordings, bar, [], revisions=False))
    job = list(of_spark(recordings, bar, [], spark, revisions=False))
    for name, text in texts.items():
        given = json.loads(text)
        got, want = (told_rows([row for row in rows if row["recording"] == name], given) for rows in (job, plain))
        assert got.keys() == want.keys(), name
        for place, values in want.items():
            pairs = ((got[place][column], value) for column, value in values.items())
            assert all(close(a, b, reach(given, place[0])) for a, b in pairs), (name, place, got[place], values)


@pytest.mark.spark
def test_revisions_are_told_as_the_table_had_them(spark: SparkSession) -> None:
    """protocol 4.2 and 8.3: a late reading that comes in a batch of its own makes a second revision of its rows."""
    case = next(case for case in CASES if case.stem == "late-revise")
    recordings = [parse(case.read_text(), case.stem, 0)]
    told = list(of_spark(recordings, Progress("replaying", 1), [], spark, revisions=True))
    last = {(row["query"], row["start"]): row for row in told}
    final = list(of_python(recordings, Progress("replaying", 1), [], revisions=False))
    assert {place: row["value"] for place, row in last.items()} == {
        (row["query"], row["start"]): row["value"] for row in final
    }
    first = [row["revision"] for row in told if (row["query"], row["start"]) == ("ten", 0)]
    assert first == [0, 1]
