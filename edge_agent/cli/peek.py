"""`headwater peek`: the messages of a broker as text."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from edge_agent.cli.support.broker_listener import add_broker, link_of, listen
from edge_agent.cli.support.message_rendering import MessageRenderer, line, shortened
from edge_agent.cli.support.option_values import count, seconds
from edge_agent.config.checking.json_lines import json_line
from edge_agent.config.topics import PREFIX

HELP = "Print the messages of a broker: frames, heartbeats, receipts, states and definitions as text. Changes nothing."
EXAMPLES = """\
  headwater peek                                  # everything on the broker of this machine
  headwater peek --broker mqtt://10.0.0.5 --node 'press-*' --only frame receipt
  headwater peek --only frame --rows --count 1    # one frame, with each of its rows
  headwater peek --json | jq .kind                # one JSON object a message
"""
KINDS: Final = (
    "frame",
    "heartbeat",
    "receipt",
    "status",
    "state",
    "books",
    "definition",
    "cmd",
    "answer",
    "bad",
    "foreign",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_broker(parser)
    parser.add_argument("--node", metavar="GLOB", default="*", help="only messages from and to nodes of this name")
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, metavar="KIND", help=f"only these kinds: {', '.join(KINDS)}"
    )
    parser.add_argument("--rows", action="store_true", help="print every row of partials as well")
    parser.add_argument("--count", type=count, metavar="N", help="end after N messages")
    parser.add_argument("--seconds", type=seconds, metavar="S", help="end after S seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object per message, whole")


def main(args: argparse.Namespace) -> int:
    """Print until --count, --seconds or Ctrl-C ends it."""
    renderer = MessageRenderer(rows=args.rows)
    left = args.count
    for topic, payload, _, _ in listen(link_of(args), [f"{PREFIX}/#"], args.seconds):
        fields = renderer.render(topic, payload)
        if (args.only and fields["kind"] not in args.only) or not fnmatchcase(fields.get("node", ""), args.node):
            continue
        if args.json:
            print(json_line(fields))
        else:
            text = line(fields) if args.rows else shortened(line(fields))
            print(f"{datetime.now().astimezone():%H:%M:%S}  {text}")
        sys.stdout.flush()
        if left is not None and (left := left - 1) <= 0:
            break
    return 0
