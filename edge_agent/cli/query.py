"""`headwater query`: SQL over the tables, without a JVM."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent.cli.support.option_values import wait_s
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import ConfigError, PortError

if TYPE_CHECKING:
    from cloud_job.sql.answer import QueryAnswer

HELP = (
    "Read the tables with SQL: gold.results, ops.nodes, ops.coverage, ops.gaps, ops.late, ops.queries, ops.sensors, "
    "ops.quarantine, ops.batches, bronze.messages, and one view per query with the query's name and a column per label "
    "and aggregate. Without a statement it lists the views. `select *` prints the main columns; --wide prints all."
)
EXAMPLES = """\
  headwater query 'select * from "boiler-10m" order by window_start desc limit 10'
  headwater query --tables /srv/tables --csv 'select key, avg from "boiler-10m"' > averages.csv
  headwater query --json 'select node, frontier from ops.nodes where behind'
  headwater query --wait 300 'select * from "host-1m"'      # while the tree starts
  headwater query --engine spark 'select count(*) from gold.results'
"""
TABLES_VARIABLE: Final = "HEADWATER_TABLES"
AGAIN_S: Final = 2.0  # between two attempts of --wait; about the interval at which the root writes
CONFIGS: Final = ("root.toml", "headwater.toml")  # files that may name the folder of the tables
LIST: Final = "select query, max(revision) as revision from ops.queries where revision >= 0 group by query order by 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", nargs="?", default=LIST, metavar="SQL", help="one statement; without it: the views")
    add_tables(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="comma-separated, with a header")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="one JSON object per row")
    parser.set_defaults(form="table")
    parser.add_argument("--wide", action="store_true", help="print all columns of `select *`, not only the main ones")
    parser.add_argument("--wait", type=wait_s, default=0.0, metavar="S", help="wait up to S seconds for a first row")
    parser.add_argument("--engine", choices=("delta", "spark"), default="delta", help="delta-rs (no JVM), or Spark")


def add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables",
        metavar="FOLDER",
        help=f"folder of the tables; default: ${TABLES_VARIABLE}, or the one in {' or '.join(CONFIGS)} here",
    )


def folder_of(args: argparse.Namespace) -> str:
    """The folder of the tables. Raises: ConfigError if no option, variable or settings file names one, it is '', or the
    tables are in a catalog.
    """
    if args.tables == "":  # as from a variable of a shell that is not set
        raise ConfigError("--tables is empty: name the folder of the tables, or leave the option out")
    from cloud_job.delta.table_folders import without_scheme

    named = args.tables or os.environ.get(TABLES_VARIABLE)
    if named:
        named = without_scheme(named)
        return str(named if is_uri(named) else Path(named).absolute())
    from edge_agent.config.node_file.settings import load

    for name in CONFIGS:
        if os.path.exists(name):  # noqa: PTH110 - Path.exists raises where this user may not look
            settings = load(name)
            if settings.node.role == "root":
                if catalog := settings.root.catalog:
                    raise ConfigError(
                        f"the tables of {name} are in catalog {catalog}, which this command does not read: ask the "
                        f"SQL of the catalog, for {catalog}.gold.results; --tables names a folder or URI"
                    )
                return without_scheme(settings.root.tables)
    here = f"no {' or '.join(CONFIGS)} in this folder names one"
    raise ConfigError(f"no folder of tables: {here}; use --tables FOLDER or set {TABLES_VARIABLE}")


def main(args: argparse.Namespace) -> int:
    """Run the statement and print its rows."""
    from cloud_job.sql import answer, delta_rs

    folder = folder_of(args)
    if args.engine == "delta":
        found = first_row(lambda: delta_rs.ask(args.sql, folder), args.wait)
    else:
        from cloud_job import spark_session
        from cloud_job.sql import spark_sql
        from cloud_job.sql.views import tables_in

        if not args.wait:
            tables_in(folder)  # an empty folder is reported before Spark starts
        with tempfile.TemporaryDirectory(prefix="headwater-query-") as warehouse:  # else folders appear in this one
            spark = spark_session.start("headwater-query", extra={"spark.sql.warehouse.dir": warehouse})
            try:
                found = first_row(lambda: spark_sql.ask(args.sql, folder, spark), args.wait)
            finally:
                spark_session.stop(spark)
    wide = args.wide or not answer.STAR.match(args.sql)
    answer.write(found, args.form, sys.stdout, wide=wide)
    return 0


def first_row(ask: Callable[[], QueryAnswer], wait_s: float) -> QueryAnswer:
    """Call `ask` until its answer has a row, for at most wait_s seconds. Returns the last answer. Raises: the error of
    the last call.
    """
    from cloud_job.sql.views import UnknownNameError

    until = time.monotonic() + wait_s
    while True:
        try:
            found = ask()
        except (PortError, UnknownNameError):  # the root has not created the tables or the view yet
            if time.monotonic() >= until:
                raise
        else:
            if found.rows or time.monotonic() >= until:
                return found
        time.sleep(AGAIN_S)
