"""`headwater query`: SQL over the tables, without a JVM."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from edge_agent.errors import ConfigError

HELP = (
    "Ask the tables with SQL. There are gold.results, ops.nodes, ops.coverage, ops.gaps, ops.late, ops.queries, "
    "ops.sensors, ops.quarantine, ops.batches, bronze.messages, and one view a query, named like it, with a column a "
    "label and an aggregate. Without a statement the views are listed."
)
EXAMPLES = """\
  headwater query 'select * from "boiler-10m" order by window_start desc limit 10'
  headwater query --tables /srv/tables --csv 'select key, avg from "boiler-10m"' > averages.csv
  headwater query --json 'select node, frontier from ops.nodes where behind'
  headwater query --engine spark 'select count(*) from gold.results'
"""
TABLES_VARIABLE: Final = "HEADWATER_TABLES"
CONFIGS: Final = ("root.toml", "headwater.toml")
LIST: Final = "select query, max(revision) as revision from ops.queries where revision >= 0 group by query order by 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of query."""
    parser.add_argument("sql", nargs="?", default=LIST, metavar="SQL", help="one statement; left out: list the views")
    add_tables(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="comma-separated, with a header")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="one JSON object a row")
    parser.set_defaults(form="table")
    parser.add_argument("--engine", choices=("delta", "spark"), default="delta", help="delta-rs (no JVM), or Spark")


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Where the tables are."""
    parser.add_argument(
        "--tables",
        metavar="FOLDER",
        help=f"folder of the tables; left out: ${TABLES_VARIABLE}, or what {' or '.join(CONFIGS)} here says",
    )


def folder_of(args: argparse.Namespace) -> str:
    """The folder of the tables. Raises: ConfigError where nothing names one."""
    named = args.tables or os.environ.get(TABLES_VARIABLE)
    if named:
        return str(named if "://" in named else Path(named).absolute())
    from edge_agent.config.node_file.settings import load

    for name in CONFIGS:
        if Path(name).exists():
            settings = load(name)
            if settings.node.role == "root":
                return settings.root.tables
    raise ConfigError(f"where are the tables? Say --tables FOLDER, or set {TABLES_VARIABLE}")


def main(args: argparse.Namespace) -> int:
    """Ask and print."""
    from cloud_job.sql import delta_rs

    folder = folder_of(args)
    if args.engine == "delta":
        answer = delta_rs.ask(args.sql, folder)
    else:
        from cloud_job import spark_session
        from cloud_job.sql import spark_sql

        delta_rs.tables_in(folder)
        spark = spark_session.start("headwater-query")
        try:
            answer = spark_sql.ask(args.sql, folder, spark)
        finally:
            spark.stop()
    delta_rs.write(answer, args.form, sys.stdout)
    return 0
