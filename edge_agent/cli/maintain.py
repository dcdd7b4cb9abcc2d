"""`headwater maintain`: compact and clean the tables."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Final

from edge_agent.cli.query import add_tables, folder_of
from edge_agent.config.node_file.node_tables import is_uri
from edge_agent.errors import ConfigError

HELP = (
    "Compact and clean the tables once, while no root runs: delete readings beyond the correction horizon of the root "
    "that wrote them, merge small files, delete old versions. A running root does this itself; stop it first."
)
EXAMPLES = """\
  headwater maintain --tables /srv/tables
  headwater maintain --keep-hours 24        # a day of old versions is enough
"""
MOST_DIGITS: Final = 6  # of --keep-hours; a century has fewer hours


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser)
    parser.add_argument(
        "--keep-hours", type=hours, default=7 * 24, metavar="N", help="hours that old versions stay (168)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per table")


def hours(text: str) -> int:
    """Parse --keep-hours. Raises: ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours: 0, 1, 2 ...")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Maintain every table and print how many files each has."""
    from cloud_job import spark_session
    from cloud_job.delta import tables
    from cloud_job.delta.maintain import maintain
    from cloud_job.sql.views import tables_in

    folder = folder_of(args)
    tables_in(folder)
    _refuse_others(folder)
    os.umask(0o077)  # as in the root: tables contain readings, which are for this user only
    spark = spark_session.start("headwater-maintain")
    try:
        found = maintain(spark, tables.place(folder), _print_progress, args.keep_hours, warn=_warn)
    finally:
        spark_session.stop(spark)
    for done in found:
        if args.json:
            print(json.dumps({"table": done.table, "files_before": done.files_before, "files": done.files_after}))
        else:
            print(f"{done.table:18} {done.files_before:6} files -> {done.files_after}")
    return 0


def _refuse_others(folder: str) -> None:
    """The root must be able to read what is written here, which is for one user only. Raises: ConfigError."""
    if is_uri(folder):
        return
    there = Path(folder)
    for each in (there, *(child for child in there.iterdir() if child.is_dir())):
        owner = each.stat().st_uid
        if owner != os.geteuid():
            try:
                name = pwd.getpwuid(owner).pw_name
            except KeyError:  # of another machine or container
                name = f"#{owner}"
            raise ConfigError(
                f"{each} belongs to user {name}, whose root could not read the files of another user; "
                f"run: sudo -u {shlex.quote(name)} headwater maintain --tables {shlex.quote(folder)}"
            )


def _warn(line: str) -> None:
    print(f"headwater: {line}", file=sys.stderr)


def _print_progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
