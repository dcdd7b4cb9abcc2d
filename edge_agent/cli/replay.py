"""`headwater replay`: run recordings through the whole tree in one process and print the results."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_agent.cli.main import DONE, MISUSED, UNAVAILABLE, complain
from edge_agent.cli.support.progress import Progress
from edge_agent.config.checking.json_lines import json_line
from edge_agent.config.node_file.settings import bytes_of
from edge_agent.errors import ConfigError, ProtocolError, WireError
from edge_agent.log import setup
from edge_agent.recording.parser import Recording, parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.tree import JOURNAL, Tree
from edge_agent.root.numpy.rows import ReplayedRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP = (
    "Run recordings through the code of gateways, regions and root, in one process with simulated time. Each recording "
    "names the tree of its nodes. Prints one JSON object per final row, and on standard error one line per query that "
    "is wrong or not supported and about readings in no result; everything else is computed."
)
EXAMPLES = """\
  headwater replay recording.json
  headwater replay *.json --strict                 # exit code 3 if anything was left out
  headwater replay recording.json --revisions      # every row as it would appear, with its revision
  headwater replay *.json --root spark             # the same frames through the Spark job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings")
    parser.add_argument("--root", choices=("python", "spark"), default="python", help="the root that computes the rows")
    parser.add_argument("--revisions", action="store_true", help="print every revision of a row, not only the last")
    parser.add_argument("--strict", action="store_true", help="exit code 3 if anything is left out")


def main(args: argparse.Namespace) -> int:
    """Run and print recordings. Returns 2 if one cannot be read or computed; with --strict 3 if a query is refused."""
    spark = args.root == "spark"
    if spark:
        setup("warning")  # the log of the Spark job has the reasons of failures
    recordings, unread = read(args.files)
    refused = [line for recording in recordings for line in (*recording.refused, *recording.unanswered)]
    for line in refused:
        complain(line)
    failed: list[str] = []
    with Progress("replaying", len(recordings)) as bar:
        for row in (of_spark if spark else of_python)(recordings, bar, failed, revisions=args.revisions):
            _print(row)
    sys.stdout.flush()
    if unread or failed:
        return MISUSED
    return UNAVAILABLE if refused and args.strict else DONE


def _print(row: Mapping[str, Any]) -> None:
    """Print a row. What the output cannot contain, such as a file name that is no text, is escaped as JSON does."""
    try:
        print(json_line(row))
    except UnicodeEncodeError:
        print(json.dumps(row))


def read(files: Iterable[Path]) -> tuple[list[Recording], int]:
    """Returns (recordings, number of files that cannot be read).

    Prints a line on standard error for each of these, and for files whose rows have the same name.
    """
    recordings: list[Recording] = []
    unread = 0
    named: dict[str, Path] = {}
    for file in files:
        if (first := named.setdefault(file.stem, file)) != file:
            complain(f"{file}: its rows have the name {file.stem!r}, as those of {first}; rename one of the files")
        try:
            recordings.append(parse(bytes_of(file), file.stem, len(recordings), str(file)))
        except ConfigError as err:
            complain(str(err))
            unread += 1
    return recordings, unread


@contextmanager
def _apart(recording: Recording, failed: list[str]) -> Iterator[None]:
    """Print a line if the recording cannot be computed, and add its name to `failed`; the others are computed."""
    try:
        yield
    except (ProtocolError, WireError) as err:
        complain(f"{recording.name}: cannot be computed: {err}; the other files are computed")
        failed.append(recording.name)


def of_python(
    recordings: Sequence[Recording], bar: Progress, failed: list[str], *, revisions: bool
) -> Iterator[dict[str, Any]]:
    """The rows of the plain-Python root, recording by recording. failed: gets the names of those not computed."""
    for number, recording in enumerate(recordings):
        bar.at(number, recording.name)
        if recording.asked:
            with _apart(recording, failed):
                rows, renderer = Tree(recording).run(), RowRenderer(recording)
                yield from renderer.revisions(rows) if revisions else renderer.final(rows)


def of_spark(
    recordings: Sequence[Recording],
    bar: Progress,
    failed: list[str],
    session: SparkSession | None = None,
    *,
    revisions: bool,
) -> Iterator[dict[str, Any]]:
    """The rows of the Spark job, which runs the frames of all recordings together.

    failed: gets the names of those not computed. session: None: start one.
    """
    from cloud_job import replay

    trees: list[Tree] = []
    for number, recording in enumerate(recordings):
        bar.at(number / 2, recording.name)
        if recording.asked:
            with _apart(recording, failed):
                tree = Tree(recording)
                deque(tree.run(), maxlen=0)
                trees.append(tree)
    if not trees:
        return
    sent = [[(message.node, message.payload) for message in tree.messages] for tree in trees]
    bar.at(len(trees) / 2, "Spark")
    rows: dict[str, list[ReplayedRow]] = {}
    for row in replay.run(sent, max(tree.now_us for tree in trees), JOURNAL, session, revisions=revisions):
        rows.setdefault(row.query.partition("-")[0], []).append(row)
    for tree in trees:
        found, renderer = rows.get(tree.source, []), RowRenderer(tree.recording)
        yield from renderer.revisions(found) if revisions else renderer.final(found)
