"""`headwater replay`: recordings through the whole tree, here and now; prints what the results would be."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.cli.explain import complain
from edge_agent.cli.main import DONE, MISUSED, UNAVAILABLE
from edge_agent.cli.support.progress import Progress
from edge_agent.errors import ConfigError
from edge_agent.log import setup
from edge_agent.recording.parser import Recording, parse
from edge_agent.recording.row_rendering import RowRenderer, Told
from edge_agent.recording.tree import JOURNAL, Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP = (
    "Run recordings through the code of the gateways, regions and root, over the tree of nodes each names, in one "
    "process with simulated time. Prints one JSON object a final row. A query that is wrong or not carried by this "
    "version, and readings that are in no answer, are said in one line on standard error, and the rest is answered."
)
EXAMPLES = """\
  headwater replay recording.json
  headwater replay *.json --strict                 # exit code 3 if anything was left out
  headwater replay recording.json --revisions      # every row as it would appear, with its revision
  headwater replay *.json --root spark             # the same frames through the Spark job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of replay."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings")
    parser.add_argument("--root", choices=("python", "spark"), default="python", help="which root makes the rows")
    parser.add_argument("--revisions", action="store_true", help="print every revision of a row, not only the last")
    parser.add_argument("--strict", action="store_true", help="exit code 3 if anything is left out")


def main(args: argparse.Namespace) -> int:
    """Answer what can be answered; the exit code says what was left out."""
    spark = args.root == "spark"
    if spark:
        setup("warning")  # of the job: its fields say what is wrong, its event alone does not
    recordings, unread = read(args.files)
    refused = [line for recording in recordings for line in (*recording.refused, *recording.unanswered)]
    for line in refused:
        complain(line)
    with Progress("replaying", len(recordings)) as bar:
        for told in (of_spark if spark else of_python)(recordings, bar, revisions=args.revisions):
            print(json.dumps(told, ensure_ascii=False))
    sys.stdout.flush()
    if unread:
        return MISUSED
    return UNAVAILABLE if refused and args.strict else DONE


def read(files: Iterable[Path]) -> tuple[list[Recording], int]:
    """The recordings, and how many files are none: a line on standard error for each of these."""
    recordings: list[Recording] = []
    unread = 0
    for file in files:
        try:
            recordings.append(parse(file.read_bytes(), file.stem, len(recordings)))
        except OSError as err:
            complain(f"{file}: {(err.strerror or str(err)).lower()}")
            unread += 1
        except ConfigError as err:
            complain(str(err))
            unread += 1
    return recordings, unread


def of_python(recordings: Sequence[Recording], bar: Progress, *, revisions: bool) -> Iterator[Told]:
    """The rows of the plain-Python root, recording by recording."""
    for number, recording in enumerate(recordings):
        bar.at(number, recording.name)
        if recording.asked:
            rows, teller = Tree(recording).run(), RowRenderer(recording)
            yield from teller.revisions(rows) if revisions else teller.final(rows)


def of_spark(
    recordings: Sequence[Recording], bar: Progress, session: SparkSession | None = None, *, revisions: bool
) -> Iterator[Told]:
    """The rows of the Spark job: the frames of all recordings go through it together. session: else one is started."""
    from cloud_job import replay

    trees = [Tree(recording) for recording in recordings if recording.asked]
    for number, tree in enumerate(trees):
        bar.at(number / 2, tree.recording.name)
        deque(tree.run(), maxlen=0)
    if not trees:
        return
    sent = [[(message.node, message.payload) for message in tree.messages] for tree in trees]
    bar.at(len(trees) / 2, "Spark")
    rows: dict[str, list[replay.SparkResult]] = {}
    for row in replay.run(sent, max(tree.now_us for tree in trees), JOURNAL, session, revisions=revisions):
        rows.setdefault(row.query.partition("-")[0], []).append(row)
    for tree in trees:
        made, teller = rows.get(tree.source, []), RowRenderer(tree.recording)
        yield from teller.revisions(made) if revisions else teller.final(made)
