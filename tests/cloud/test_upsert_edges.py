"""Which rows of gold.results a batch replaces, adds or withdraws: one case on each side of each condition."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.tables import RESULTS, Place
from cloud_job.spark.upsert import merge, merge_sessions, withdraw, withdraw_over
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow
from edge_agent.root.decision.work import WindowRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Row = dict[str, Any]
BATCH = 7
PLAIN: Row = {
    "query": "q",
    "definition_revision": 2,
    "node": "",
    "start": 50,
    "end": 60,
    "values": [("sum", 1.0)],
    "readings": 5,
    "revision": 3,
    "withdrawn": False,
    "coverage_id": "c",
    "batch": 6,
}
FIRST: Row = {**PLAIN, "revision": 0, "batch": BATCH, "values": [("sum", 2.0)]}  # as a batch computes it
SAME: tuple[int, float] = (3, 1.0)  # revision and value of a row that stays as it is
# key -> (what differs in the row of the table, what differs in the row of the batch, revision and value after it)
MATCHED: dict[str, tuple[Row, Row, tuple[int, float]]] = {
    "the same readings": ({}, {}, SAME),
    "more readings": ({}, {"readings": 6}, (4, 2.0)),
    "another coverage": ({}, {"coverage_id": "d"}, (4, 2.0)),
    "another end": ({}, {"end": 61}, (4, 2.0)),
    "withdrawn before": ({"withdrawn": True}, {}, (4, 2.0)),
    "of an older revision": ({"definition_revision": 1}, {}, (4, 2.0)),
    "of a newer revision": ({"definition_revision": 3}, {"readings": 6}, SAME),
    "of a newer revision, withdrawn": ({"definition_revision": 3, "withdrawn": True}, {}, SAME),
    "of this batch": ({"batch": BATCH}, {"readings": 6}, (4, 2.0)),
    "of a later batch": ({"batch": BATCH + 1}, {"readings": 6}, SAME),
    "of a later batch, older": ({"batch": BATCH + 1, "definition_revision": 1}, {}, SAME),
    "the first start": ({"start": 40}, {"start": 40, "readings": 6}, (4, 2.0)),
    "the last start": ({"start": 90}, {"start": 90, "readings": 6}, (4, 2.0)),
}


@pytest.fixture
def place(empty_tables: Path, tmp_path: Path) -> Place:
    shutil.copytree(empty_tables, tmp_path / "tables")
    return tables.place(str(tmp_path / "tables"))


def frame(spark: SparkSession, content: Iterable[Row]) -> DataFrame:
    table = pa.Table.from_pylist(list(content), schema=driver_rows.arrow_schema(RESULTS))
    return driver_rows.one_file(spark, RESULTS, table)


def stored(place: Place) -> list[Row]:
    found: list[Row] = DeltaTable(place.path(RESULTS)).to_pyarrow_table().to_pylist()
    return found


def told(row: Row) -> tuple[int, float]:
    return row["revision"], dict(row["values"])["sum"]


def span(query: str, low_us: int, high_us: int, *, by_end: bool = False) -> WindowRange:
    return WindowRange(query, 2, 0, 0, 0, 10, 10, 0, low_us, high_us, (), "c", 1, 1, complete=True, by_end=by_end)


def test_a_window_is_replaced_if_its_readings_or_its_coverage_changed(spark: SparkSession, place: Place) -> None:
    """protocol 6.3, 8.3, 8.5. Values alone do not count, and neither a newer row nor a newer revision's is replaced."""
    other: dict[str, Row] = {
        "of another query": {"query": "p"},
        "of a node": {"node": "gw"},
        "of another start": {"start": 51},
    }
    before = [{**PLAIN, "key": key, **was} for key, (was, _, _) in MATCHED.items()]
    before += [{**PLAIN, "key": key, **was} for key, was in other.items()]
    ends = [{**PLAIN, "key": "two ends", "query": "ends", "end": end} for end in (60, 70)]
    place.append(RESULTS, frame(spark, [*before, *ends]), "rows", 0)
    came = [{**FIRST, "key": key, **now} for key, (_, now, _) in MATCHED.items()]
    came += [{**FIRST, "key": key} for key in (*other, "new")]
    came += [{**FIRST, "key": "two ends", "query": "ends", "end": end, "readings": 9} for end in (60, 80)]
    spans = [span("q", 60, 90), span("q", 40, 80), span("ends", 50, 50, by_end=True)]
    for _ in range(2):  # a repetition changes nothing
        merge(spark, place, frame(spark, came), spans)
        rows = stored(place)
        assert {row["key"]: told(row) for row in rows if row["key"] in MATCHED} == {
            key: after for key, (*_, after) in MATCHED.items()
        }
        assert len(rows) == len(MATCHED) + 2 * len(other) + 1 + 3
        assert sorted((row["end"], *told(row)) for row in rows if row["query"] == "ends") == [
            (60, 4, 2.0),
            (70, 3, 1.0),
            (80, 0, 2.0),
        ]
        (new,) = (row for row in rows if row["key"] == "new")
        assert (new["revision"], new["readings"], new["batch"], new["withdrawn"]) == (0, 5, BATCH, False)
        for key in other:
            assert sorted(told(row) for row in rows if row["key"] == key) == [(0, 2.0), SAME]
    replaced = {row["key"]: row for row in rows}
    assert (replaced["more readings"]["readings"], replaced["more readings"]["batch"]) == (6, BATCH)
    assert not replaced["withdrawn before"]["withdrawn"]
    assert replaced["of a newer revision, withdrawn"]["withdrawn"]
    assert replaced["of an older revision"]["definition_revision"] == 2


def test_sessions_computed_again_replace_rows_and_withdraw_those_that_became_part_of_them(
    spark: SparkSession, place: Place
) -> None:
    """protocol 5.4, 8.5"""
    gone = {
        "part of another": ({}, (4, True)),
        "part of another, the same readings": ({}, (4, True)),
        "gone, of a later batch": ({"batch": BATCH + 1}, (3, False)),
        "gone, of this batch": ({"batch": BATCH}, (4, True)),
    }
    before = [{**PLAIN, "key": key, **was} for key, (was, _, _) in MATCHED.items()]
    before += [{**PLAIN, "key": key, **was} for key, (was, _) in gone.items()]
    place.append(RESULTS, frame(spark, before), "rows", 0)
    made = [{**FIRST, "key": key, **now} for key, (_, now, _) in MATCHED.items()]
    joined = [{**PLAIN, "key": key, "batch": BATCH, "withdrawn": True} for key in (*gone, "not there")]
    merge_sessions(spark, place, frame(spark, [*made, {**FIRST, "key": "new"}]), frame(spark, joined), 40)
    rows = {row["key"]: row for row in stored(place)}
    assert {key: told(rows[key]) for key in MATCHED} == {key: after for key, (*_, after) in MATCHED.items()}
    assert {key: (rows[key]["revision"], rows[key]["withdrawn"]) for key in gone} == {
        key: after for key, (_, after) in gone.items()
    }
    assert rows.keys() == {*MATCHED, *gone, "new"}, "what is to go and is not there is not added"
    assert len(stored(place)) == len(rows)
    assert told(rows["new"]) == (0, 2.0)


def test_what_a_later_batch_wrote_is_not_withdrawn(spark: SparkSession, place: Place) -> None:
    """protocol 8.5: a run that was paused. The windows at both ends of those that go are found."""
    batches = {"before": 6, "this": BATCH, "later": BATCH + 1}
    rows = [
        {**PLAIN, "key": key, "batch": batch, "start": start, "end": start + 10}
        for key, batch in batches.items()
        for start in (30, 40, 50, 60)
    ]
    place.append(RESULTS, frame(spark, rows), "rows", 0)
    withdraw(spark, place, [WithdrawnWindow("q", 2, "", start, start + 10) for start in (30, 50)], BATCH)

    def gone() -> set[tuple[str, int]]:
        found = [row for row in stored(place) if row["withdrawn"]]
        assert {(row["revision"], row["batch"]) for row in found} <= {(4, BATCH)}
        return {(row["key"], row["start"]) for row in found}

    first = {(key, start) for key in ("before", "this") for start in (30, 50)}
    assert gone() == first
    withdraw_over(spark, place, [SupersededRows("q", 2, "", 60, 69), SupersededRows("q", 1, "", 40, 0)], BATCH)
    assert gone() == first | {(key, 60) for key in ("before", "this")}
    withdraw_over(spark, place, [SupersededRows("q", 2, "", 0, 70)], BATCH)
    assert gone() == first | {(key, 60) for key in ("before", "this")}, "they end by then"
