"""SQL over the tables with Spark: the same tables, views and rows as cloud_job/sql/delta_rs.py."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cloud_job.sql.answer import QueryAnswer, of_arrow
from cloud_job.sql.views import DEFINITIONS, check, mistake, quoted, tables_in, views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOUBLE_QUOTES: Final = "spark.sql.ansi.doubleQuotedIdentifiers"


def ask(sql: str, folder: str, spark: SparkSession) -> QueryAnswer:
    """Run one statement over the tables in a folder.

    Raises: ConfigError for wrong SQL; PortError if there are no tables.
    """
    from pyspark.errors import PySparkException

    check(sql)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it also prints errors that are raised
    found = tables_in(folder)
    queries = list[str]()
    before = spark.conf.get(DOUBLE_QUOTES)
    spark.conf.set(DOUBLE_QUOTES, "true")
    try:
        for name, path in found.items():
            spark.sql(f"create schema if not exists {name.split('.')[0]}")
            spark.sql(f"drop table if exists {name}")  # drops only the catalog's entry, which may be of another folder
            spark.sql(f"create table {name} using delta location '{_in_quotes(str(path))}'")
        for query, select in views(of_arrow(spark.sql(DEFINITIONS).toArrow())):
            spark.sql(f"create or replace temporary view {quoted(query)} as {select}")
            queries.append(query)
        return of_arrow(spark.sql(sql).toArrow())
    except (PySparkException, ValueError, OverflowError) as err:
        raise mistake(str(err).strip().partition("\n")[0], sql, found, queries) from err
    finally:
        spark.conf.set(DOUBLE_QUOTES, before or "false")


def _in_quotes(text: str) -> str:
    """A text within quotes of a statement of Spark, which reads backslashes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
