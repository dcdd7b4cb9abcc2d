"""SQL over the tables with Spark: the same tables, views and rows as cloud_job/sql/delta_rs.py.

The tables get names in the session's catalog while a statement runs. That catalog may be of others, as on Databricks,
so no name in it is taken from its table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cloud_job.delta.tables import VOLUMES
from cloud_job.sql.answer import QueryAnswer, of_arrow
from cloud_job.sql.views import DEFINITIONS, check, mistake, quoted, tables_in, views
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = {  # names in double quotes; the second setting needs the first one
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
}


def ask(sql: str, folder: str, spark: SparkSession) -> QueryAnswer:
    """Run one statement over the tables in a folder.

    Raises: ConfigError for wrong SQL, and if the catalog has tables of their names; PortError if there are no tables.
    """
    from pyspark.errors import PySparkException

    check(sql)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it also prints errors that are raised
    found = tables_in(folder)
    queries = list[str]()
    before = {name: spark.conf.get(name) or "false" for name in CONF}
    try:
        for name, value in CONF.items():
            spark.conf.set(name, value)
        with _named(spark, found):
            for query, select in views(of_arrow(spark.sql(DEFINITIONS).toArrow())):
                spark.sql(f"create or replace temporary view {quoted(query)} as {select}")
                queries.append(query)
            return of_arrow(spark.sql(sql).toArrow())
    except (PySparkException, ValueError, OverflowError) as err:
        raise mistake(str(err).strip().partition("\n")[0], sql, found, queries) from err
    finally:
        for query in queries:
            spark.catalog.dropTempView(query)
        for name, value in before.items():
            spark.conf.set(name, value)


@contextmanager
def _named(spark: SparkSession, tables: Mapping[str, str]) -> Iterator[None]:
    """Give tables their names in the catalog, and take the names and new schemas away again. tables: name -> folder.

    Raises: ConfigError if the catalog has a table of such a name: to give its name away would delete it.
    """
    from pyspark.errors import PySparkException

    made, schemas = list[str](), list[str]()
    try:
        for name, path in tables.items():
            schema = name.split(".")[0]
            if not spark.catalog.databaseExists(schema):
                spark.sql(f"create schema if not exists {schema}")
                schemas.append(schema)
            if spark.catalog.tableExists(name):
                raise ConfigError(
                    f"the catalog of this Spark has a table {name} of its own, so that {path} cannot have this name "
                    f"there; read it as delta.`{path}`, or leave out --engine spark"
                )
            uri = path if is_uri(path) or path.startswith(VOLUMES) else f"file:{path}"
            spark.sql(f"create table {name} using delta location '{_in_quotes(uri)}'")
            made.append(name)
        yield
    finally:
        for name in made:
            spark.sql(f"drop table {name}")  # only the name: the table has a location of its own
        for schema in schemas:
            with suppress(PySparkException):  # someone else has put a table into it meanwhile
                spark.sql(f"drop schema if exists {schema} restrict")


def _in_quotes(text: str) -> str:
    """A text within quotes of a statement of Spark, which reads backslashes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
