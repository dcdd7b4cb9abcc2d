"""`headwater replay`: recordings through the whole tree, here and now; prints what the results would be."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from edge_agent.cli.explain import complain
from edge_agent.cli.main import DONE, MISUSED, UNAVAILABLE
from edge_agent.cli.progress import Progress
from edge_agent.errors import ConfigError
from edge_agent.recording.form import Recording, parse
from edge_agent.recording.run import Tree
from edge_agent.recording.tell import Teller, Told

HELP = (
    "Run recordings through the code of the gateways, regions and root, over the tree of nodes each names, in one "
    "process with simulated time. Prints one JSON object a final row. What this version does not carry is said in one "
    "line on standard error, and the rest is answered."
)
EXAMPLES = """\
  headwater replay recording.json
  headwater replay *.json --strict                 # exit code 3 if anything was not supported
  headwater replay recording.json --revisions      # every row as it would appear, with its revision
  headwater replay *.json --root spark             # the same frames through the Spark job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of replay."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings")
    parser.add_argument("--root", choices=("python", "spark"), default="python", help="which root makes the rows")
    parser.add_argument("--revisions", action="store_true", help="print every revision of a row, not only the last")
    parser.add_argument("--strict", action="store_true", help="exit code 3 if anything is not supported")


def main(args: argparse.Namespace) -> int:
    """Answer what can be answered; the exit code says what was left out."""
    unread = refused = 0
    recordings: list[Recording] = []
    for file in args.files:
        try:
            recordings.append(parse(file.read_bytes(), file.stem, len(recordings)))
        except OSError as err:
            complain(f"{file}: {(err.strerror or str(err)).lower()}")
            unread += 1
        except ConfigError as err:
            complain(str(err))
            unread += 1
    for recording in recordings:
        for line in recording.refused:
            complain(line)
        refused += len(recording.refused)
    for told in answers(recordings, spark=args.root == "spark", revisions=args.revisions):
        print(json.dumps(told, ensure_ascii=False))
    sys.stdout.flush()
    if unread:
        return MISUSED
    return UNAVAILABLE if refused and args.strict else DONE


def answers(recordings: Iterable[Recording], *, spark: bool, revisions: bool) -> Iterator[Told]:
    """The rows of all recordings, in their order."""
    known = list(recordings)
    with Progress("replaying", len(known)) as bar:
        for number, recording in enumerate(known):
            bar.at(number, recording.name)
            if not recording.asked:
                continue
            rows = Tree(recording).run()
            teller = Teller(recording)
            yield from teller.revisions(rows) if revisions else teller.final(rows)
