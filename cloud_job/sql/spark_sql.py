"""The same tables, views and rows as cloud_job/sql/delta_rs.py, answered by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cloud_job.sql.delta_rs import DEFINITIONS, QueryAnswer, check, plain, quoted, tables_in, view
from edge_agent.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOUBLE_QUOTES: Final = "spark.sql.ansi.doubleQuotedIdentifiers"


def ask(sql: str, folder: str, spark: SparkSession) -> QueryAnswer:
    """One statement over the tables in a folder. Raises: ConfigError, PortError as the twin."""
    from pyspark.errors import PySparkException

    check(sql)
    found = tables_in(folder)
    before = spark.conf.get(DOUBLE_QUOTES)
    spark.conf.set(DOUBLE_QUOTES, "true")
    try:
        for name, path in found.items():
            spark.sql(f"create schema if not exists {name.split('.')[0]}")
            spark.sql(f"drop table if exists {name}")  # the catalog's entry only; another folder may have stood there
            spark.sql(f"create table {name} using delta location '{path}'")
        newest = {row["query"]: row for row in spark.sql(DEFINITIONS).collect()}
        for query, row in newest.items():
            spark.sql(
                f"create or replace temporary view {quoted(query)} as {view(query, row['by'], row['aggregates'])}"
            )
        return _answer(spark.sql(sql))
    except PySparkException as err:
        raise ConfigError(f"SQL: {str(err).splitlines()[0][:300]}") from err
    finally:
        spark.conf.set(DOUBLE_QUOTES, before or "false")


def _answer(rows: DataFrame) -> QueryAnswer:
    found = rows.collect()
    return QueryAnswer(tuple(rows.columns), tuple(tuple(_local(value) for value in row) for row in found))


def _local(value: object) -> object:
    """Spark gives times without a zone, in the machine's own."""
    from datetime import datetime

    return plain(value.astimezone()) if isinstance(value, datetime) else plain(value)
