"""What `headwater query` answers: views of rows that stand, by the newest definition; plain values (no Spark)."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.tables import Place
from cloud_job.sql import delta_rs
from cloud_job.sql.answer import QueryAnswer, of_arrow, write
from cloud_job.sql.views import DEFINITIONS, check, tables_in, view, views
from edge_agent.errors import ConfigError, PortError

START = 1_800_000_000_000_000


def result(query: str, key: str, *, withdrawn: bool = False, **labels: str) -> dict[str, Any]:
    values = [("avg", 1.5)]
    row = {"query": query, "key": key, "labels": [*labels.items()], "values": values, "withdrawn": withdrawn}
    return {**row, "start": START, "end": START + 1, "readings": 1}


def asked(query: str, revision: int, batch: int, *aggregates: str, by: tuple[str, ...] = ("site",)) -> dict[str, Any]:
    return {"query": query, "revision": revision, "by": list(by), "aggregates": list(aggregates), "batch": batch}


def written(base: Path, results: list[dict[str, Any]], queries: list[dict[str, Any]]) -> str:
    for table, rows in ((tables.RESULTS, results), (tables.QUERIES, queries)):
        content = pa.Table.from_pylist(rows, schema=driver_rows.arrow_schema(table))
        write_deltalake(Path(Place(str(base)).path(table)), content)
    return str(base)


def test_a_view_has_the_rows_of_its_query_that_are_not_withdrawn(tmp_path: Path) -> None:
    rows = [
        result("it", "site=a", site="a"),
        result("it", "site=b", site="b", withdrawn=True),
        result("other", "site=c", site="c"),
    ]
    folder = written(tmp_path, rows, [asked("it", 1, 0, "avg")])
    answer = delta_rs.ask("select key, site, avg, readings from it", folder)
    assert answer == QueryAnswer(("key", "site", "avg", "readings"), (("site=a", "a", 1.5, 1),))
    assert delta_rs.ask("select count(*) from gold.results", folder).rows == ((3,),)


def test_the_newest_revision_by_its_newest_row_defines_a_view_and_what_is_no_query_none(tmp_path: Path) -> None:
    """protocol 6.5. revision -1: the note of a publication."""
    queries = [
        asked("q", 2, 1, "third"),
        asked("q", 1, 12, "first"),
        asked("q", 2, 9, "fourth"),
        asked("q", 2, 4, "second"),
        asked("", -1, 9, "none"),
    ]
    for number, order in enumerate((queries, queries[::-1])):
        folder = str(tmp_path / str(number))
        for each in order:
            write_deltalake(folder, pa.table({name: [value] for name, value in each.items()}), mode="append")
        engine = QueryBuilder().register("queries", DeltaTable(folder))
        rows = engine.execute(DEFINITIONS.replace("ops.queries", "queries"))
        found = dict(views(of_arrow(pa.RecordBatchReader.from_stream(rows).read_all())))
        assert [*found] == ["q"]
        assert "'fourth'" in found["q"]


def test_names_with_quotes_end_no_text_and_no_name() -> None:
    made = view("it's", ['si"te'], ["p'50"])
    assert """"labels"['si"te'] as "si""te", "values"['p''50'] as "p'50",""" in made
    assert made.endswith("where query = 'it''s' and not withdrawn")


@pytest.mark.parametrize(
    "sql",
    [
        r"with a as (select '\' as b) insert into x select 'c'",  # Spark: all up to the third quote is one text
        r"with a as (select '\'' as b) insert into x select 1 --'",  # else: all up to the last quote is one
    ],
)
def test_a_statement_that_writes_in_one_reading_of_backslashes_is_refused(sql: str) -> None:
    """SECURITY.md: a query changes nothing."""
    with pytest.raises(ConfigError, match="`insert into` writes"):
        check(sql)


def test_a_table_has_a_commit_and_what_is_no_folder_is_none(tmp_path: Path) -> None:
    names = ("gold/results", "ops/queries", "ops/late")
    for name in names:
        (tmp_path / name / "_delta_log").mkdir(parents=True)
        (tmp_path / name / "_delta_log" / "_last_checkpoint").touch()
    (tmp_path / "ops/gaps").touch()
    for name in names[:2]:
        with pytest.raises(PortError, match="no tables in"):
            tables_in(str(tmp_path))
        (tmp_path / name / "_delta_log" / f"{0:020d}.json").touch()
    assert tables_in(str(tmp_path)) == {name.replace("/", "."): f"{tmp_path}/{name}" for name in names[:2]}
    assert set(tables_in("s3://bucket/t")) == {*names_of(), "gold.results"}


def names_of() -> set[str]:
    return {table.name for table in tables.TABLES}


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_time_of_any_unit_is_the_same_text(unit: str, per_second: int) -> None:
    kind = pa.timestamp(unit, tz="UTC")
    table = pa.table({"at": pa.array([1_800_000_000 * per_second, None], pa.int64()).cast(kind)})
    assert of_arrow(table).rows == (("2027-01-15T08:00:00.000000Z",), (None,))


def test_maps_and_lists_and_bytes_are_plain_values() -> None:
    east = datetime(2027, 1, 15, 9, tzinfo=timezone(timedelta(hours=1)))
    table = pa.table(
        {
            "map": pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "times": pa.array([[east.astimezone(UTC)], None], pa.list_(pa.timestamp("us", tz="UTC"))),
            "local": pa.array([[east], None], pa.list_(pa.timestamp("us", tz="+01:00"))),
            "bytes": pa.array([b"\x01\xff", None]),
        }
    )
    time = "2027-01-15T08:00:00.000000Z"
    assert of_arrow(table).rows == (({"a": 1.5}, [time], [time], "01ff"), (None, None, None, None))


def test_each_column_of_a_join_has_a_name_of_its_own_and_no_number_is_nan() -> None:
    out = io.StringIO()
    rows = ((1.0, [float("nan"), 2.0], {"x": float("inf")}),)
    write(QueryAnswer(("a", "a", "a"), rows), "json", out)
    assert json.loads(out.getvalue()) == {"a": 1.0, "a_": [None, 2.0], "a__": {"x": None}}
