"""`headwater accept-loss`: a node gives up frames that wait for a parent which will not return."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from edge_agent.cli.support.broker_listener import add_broker, link_of
from edge_agent.cli.support.fleet_listener import FleetListener
from edge_agent.cli.support.message_rendering import listed, published
from edge_agent.cli.support.option_values import seconds
from edge_agent.config.checking.quantities import Instant
from edge_agent.errors import PortError

HELP = (
    "Tell a node that a parent which it has left, or each such parent, will not return. The node gives up the frames "
    "that wait for this parent and declares them lost: windows that may lack them are marked, and ops.gaps has their "
    "time range. `headwater status` shows beforehand how many frames wait. The tree still waits for such a parent "
    "until its own parent lists it in [lower] retired. Exit code 1 if nothing was given up."
)
EXAMPLES = """\
  headwater accept-loss gw-1 --broker mqtt://hall-2
  headwater accept-loss gw-1 region-1 --broker mqtt://hall-2
"""
NAMED: Final = 5  # a message names at most so many nodes, and counts the others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node that holds the frames")
    parser.add_argument(
        "parent", nargs="?", default="", metavar="PARENT", help="the parent that is given up; left out: all"
    )
    add_broker(parser)
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="wait at most S seconds (5)")


def main(args: argparse.Namespace) -> int:
    """Send the command and print the answer. Returns 0 if something was given up, else 1."""
    with FleetListener([link_of(args)]) as fleet:
        fleet.retained(args.seconds)
        node = fleet.nodes.get(args.node)
        if node is None or not node.online:
            others = f"this broker knows {listed(sorted(fleet.nodes), NAMED) or 'no node'}"
            why = others if node is None else "it is offline"
            raise PortError(f"{args.node} receives no commands at {args.broker}: {why}; nothing was given up")
        if fleet.ask([args.node], args.seconds, "accept-loss", **({"parent": args.parent} if args.parent else {})):
            hint = "`headwater status` shows whether frames still wait"
            raise PortError(f"{args.node} did not answer within {args.seconds:g} s; {hint}")
        answer = node.answer
    if answer.get("ok") is not True:
        print(f"{args.node}: {answer.get('why', 'refused')}")
        return 1
    given_up = answer.get("given_up")
    for of in given_up if isinstance(given_up, list) else ():
        print(f"{args.node}: {told(of) if isinstance(of, dict) else of}")
    return 0


def told(of: Mapping[str, Any]) -> str:
    """One line about the frames given up for one parent. of: an entry of the node's answer."""
    parent = of.get("parent")
    frames, readings, from_us, upto_us = (
        published(of.get(name)) for name in ("frames", "readings", "from_us", "upto_us")
    )
    many = "an unknown number of readings" if readings is None else f"{readings} readings"
    when = f" from {Instant().write(from_us)} to {Instant().write(upto_us)}" if from_us and upto_us else ""
    lost = "without readings" if readings == 0 else f"with {many}{when}; declared lost in ops.gaps"
    waits = f"Rows wait for {parent} until its own parent lists it in [lower] retired"
    return f"gave up {frames} frame{'' if frames == 1 else 's'} for {parent} {lost}. {waits}"
