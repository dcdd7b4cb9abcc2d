"""SQL over the tables: delta-rs and Spark answer the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cloud_job.delta import maintain, tables
from cloud_job.sql import delta_rs, spark_sql, views
from cloud_job.sql.answer import of_arrow
from edge_agent.algebra.windows import Sliding
from edge_agent.cli.main import main
from edge_agent.errors import ConfigError, PortError
from tests.support.cloud import child_frames
from tests.support.cloud.child_frames import SECOND, START, Child, record, tick
from tests.support.cloud.jobs import Roots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
STATEMENTS = (
    'select * from "boiler-10m" order by key, window_start',
    'select site, avg, "key_" from "boiler-10m" order by 1, window_start desc limit 2',
    "select query, key, start, \"values\"['sum'] as s, details from gold.results order by 1, 2, 3",
    "select query, max(revision) as r, sum(readings) as n, count(*) as m from gold.results group by query order by 1",
    "select key, labels, \"values\", window_start, complete from gold.results where query = 'wide' order by start",
    "select node, source, frontier, behind from ops.nodes order by 1, 2",
    'select query, revision, source, "by", aggregates from ops.queries order by 1',
    "with t as (select avg(readings) as mean from gold.results) select mean > 1 as many from t",
    "select * from \"boiler-10m\" where key = 'nobody'",
)


def filled(roots: Callable[..., Roots]) -> Roots:
    """A root with two queries, a revised row, a withdrawn one, a null and an integer beyond 2^53."""
    root = roots()
    ten = child_frames.query("boiler-10m", fns=("avg", "var"), by=("site", "key"))
    one = Child("gw-1", (ten,), ("site=a,key=x", "site=b%2C,key=y"))
    wide = child_frames.query("wide", Sliding(2 * SECOND, SECOND), ("sum", "max"), source="t")
    two = Child("gw-2", (wide,), scale=-1)
    times = START + np.array([0, 0, 1, 1]) * SECOND
    root.take(
        tick(START),
        record(one, START, one.birth()),
        record(two, START, two.birth()),
        record(one, START, one.rows(START + 2 * SECOND, times, np.array([1.0, 2.5, 3.0, 4.0]), np.array([0, 0, 0, 1]))),
        record(two, START, two.rows(START + 5 * SECOND, times, np.full(4, 2**53 - 1))),
    )
    late = one.rows(START + 3 * SECOND, times[:1] + 7, np.array([9.0]), np.array([1]), length_us=1, late=True)
    root.take(tick(START + SECOND), record(one, START + SECOND, late))
    second = f"query = 'wide' AND start = {START + SECOND}"
    root.spark.sql(f"UPDATE {root.place.sql(tables.RESULTS)} SET withdrawn = true WHERE {second}")
    return root


def test_both_engines_answer_the_same_rows_before_and_after_maintenance(
    roots: Callable[..., Roots], capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled(roots)
    folder = root.place.root
    answers = [delta_rs.ask(sql, folder) for sql in STATEMENTS]
    assert [spark_sql.ask(sql, folder, root.spark) for sql in STATEMENTS] == answers
    assert not root.spark.catalog.tableExists("gold.results"), "the names are the statement's own"
    assert not root.spark.catalog.databaseExists("gold")
    assert not root.spark.catalog.tableExists("`boiler-10m`")
    root.spark.conf.set("spark.sql.ansi.enabled", "false")  # as in the session of somebody else
    assert spark_sql.ask(STATEMENTS[0], folder, root.spark) == answers[0]
    assert root.spark.conf.get("spark.sql.ansi.enabled") == "false"
    root.spark.conf.set("spark.sql.ansi.enabled", "true")
    everything = answers[0]
    assert everything.columns[:3] == ("key", "window_start", "window_end")
    assert {"site", "key_", "avg", "var", "readings", "complete"} <= set(everything.columns)
    first = dict(zip(everything.columns, everything.rows[0], strict=True))
    assert (first["site"], first["key_"], first["avg"], first["var"]) == ("a", "x", 1.75, 1.125)
    assert first["window_start"] == "2027-01-15T08:00:00.000000Z"
    assert first["coverage_id"]
    alone = dict(zip(everything.columns, everything.rows[1], strict=True))
    assert alone["var"] is None, "one reading has no sample variance"
    total = answers[2].rows[-1]
    assert json.loads(total[4]) == {"sum": 1801439850948198.2}
    assert "1801439850948198.2" in total[4]
    hidden = delta_rs.ask('select count(*) as n from "wide"', folder)
    shown = delta_rs.ask("select count(*) as n from gold.results where query = 'wide'", folder)
    assert (hidden.rows[0][0], shown.rows[0][0]) == (2, 3)

    root.job.close()
    done = maintain.maintain(root.spark, root.place, lambda _line: None)
    assert {each.table for each in done} == {table.name for table in tables.TABLES}
    assert [delta_rs.ask(sql, folder) for sql in STATEMENTS] == answers
    assert [spark_sql.ask(sql, folder, root.spark) for sql in STATEMENTS[:3]] == answers[:3]

    for sql in ("select * from boiler-10m", 'select * from "boiler-1m"', "select * from gold.result"):
        why = []
        for ask in (delta_rs.ask, partial(spark_sql.ask, spark=root.spark)):
            with pytest.raises(ConfigError) as refused:
                ask(sql, folder)
            why.append(str(refused.value))
        assert why[0] == why[1]
    for never in ("timestamp_micros(-4611686018427387904)", "timestamp_micros(4611686018427387904)"):
        assert spark_sql.ask(f"select {never} as t", folder, root.spark).rows[0][0].endswith(" us")

    assert main(["query", "--tables", folder, "--csv", STATEMENTS[0]]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert tuple(rows[0]) == everything.columns
    assert len(rows) == 1 + len(everything.rows)
    assert main(["query", "--tables", folder, "--json", STATEMENTS[4]]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[0]["labels"] == {"site": "a"}
    assert told[0]["values"].keys() == {"sum", "max"}
    assert main(["query", "--tables", folder]) == 0
    assert "boiler-10m" in capsys.readouterr().out
    assert main(["query", "--tables", folder, "select nothing from gold.results"]) == 2
    assert main(["query", "--tables", folder, "select * from nowhere"]) == 2
    assert "there are gold.results" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sql", ["drop table gold.results", "copy (select 1) to 'x'", "insert into t select 1", "", ";"]
)
def test_what_does_not_only_read_is_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="only reads"):
        views.check(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "explain analyze copy (select 1 as a) to 'x.csv'",
        "EXPLAIN ANALYZE VERBOSE\nInsert into t values (1)",
        "explain /* a reading */ analyze copy (select 1) to 'x'",
        "describe analyze copy (select 1) to 'x'",
        "explain create table t as select 1",
        "with a as (select 1) insert into t select * from a",
        "with a (n) as (select (1)), b as (select 2) update t set n = 1",
        "with a as (select 1) from a insert overwrite t select *",
        "with a as (select 'it\\'s (' as n) delete from t",
        "explain with a as (select 1) merge into t using a on true when matched then delete",
        "-- first\ndrop table t",
        "select * from (insert into t values (1))",
        "table ops.nodes",
        'with a as (select 1 as "\\" from (") insert into t select 2',
    ],
)
def test_what_writes_behind_a_word_that_reads_is_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="only reads"):
        views.check(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "explain analyze select update_time from t",
        "explain select 'copy' as a, \"insert\" from t",
        "with copy as (select 1) select * from copy",
        "with a as (select replace(key, 'a', 'b') as n from t) select n, cache from a where n = 'insert into'",
        'with "drop" as (select 1 -- then delete from it\n) (select * from "drop")',
        "describe ops.nodes",
        'describe "update"',
        "/* drop */ select update from t where b = ';'",
        "(select 1) union all (select 2)",
        "values (1), (2)",
    ],
)
def test_what_only_reads_is_run_whatever_its_names_are(sql: str) -> None:
    views.check(sql)


def test_what_a_nested_comment_might_hide_is_refused() -> None:
    with pytest.raises(ConfigError, match="comments within comments"):
        views.check("explain analyze /* /* */ ' */ copy (select 1) to 'x'")


def test_a_folder_without_tables_says_so(tmp_path: object) -> None:
    with pytest.raises(PortError, match="no tables in"):
        delta_rs.ask("select 1", str(tmp_path))


def test_a_view_has_the_columns_of_the_corrected_definition(tmp_path: Path) -> None:
    """A correction is another row of the same revision, of a later batch (protocol 6.5)."""
    folder = str(tmp_path)
    for query, aggregate, batch in (("q", "avg", 1), ("r", "sum", 2), ("s", "sum", 3), ("q", "max", 7)):
        values = {"query": query, "revision": 1, "by": ["site"], "aggregates": [aggregate], "batch": batch}
        write_deltalake(folder, pa.table({name: [value] for name, value in values.items()}), mode="append")
    engine = QueryBuilder().register("queries", DeltaTable(folder))
    rows = engine.execute(views.DEFINITIONS.replace("ops.queries", "queries"))
    newest = dict(views.views(of_arrow(pa.RecordBatchReader.from_stream(rows).read_all())))
    assert "'max'" in newest["q"]


def test_a_table_of_the_session_s_catalog_is_not_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """A query took its name for a table of the folder, and with the name the rows of the other one were gone."""
    for name in ("gold/results", "ops/queries"):
        write_deltalake(str(tmp_path / name), pa.table({"query": ["q"]}))
    spark.sql("create schema if not exists gold")
    spark.sql("create table gold.results using delta as select 'mine' as owner")
    try:
        with pytest.raises(ConfigError, match=r"has a table gold\.results of its own"):
            spark_sql.ask("select 1", str(tmp_path), spark)
        assert [row["owner"] for row in spark.table("gold.results").collect()] == ["mine"]
        assert not spark.catalog.databaseExists("ops"), "only what was there stays"
    finally:
        spark.sql("drop schema gold cascade")
